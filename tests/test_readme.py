"""What the README says is true: its commands run, its links lead somewhere, its code is the code."""

from __future__ import annotations

import inspect
import re
import shlex
import sys
import textwrap
from pathlib import Path

import pytest

from hetsim.cli import job, methods
from hetsim.cli.compare import main as compare_main
from hetsim.cli.main import main
from hetsim.cli.table import main as table_main
from hetsim.coordination.parameter_server import ParameterServer

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [
    line.split("   #")[0].strip()
    for block in re.findall(r"```sh\n(.*?)```", README, flags=re.DOTALL)
    for line in block.splitlines()
    if line.strip()
]


def test_every_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order in which they stand, in an empty folder; torchrun's and make's have tests of their own."""
    commands = [shlex.split(command) for command in COMMANDS if command.startswith("hetsim")]
    monkeypatch.chdir(tmp_path)
    for typed in commands:
        monkeypatch.setattr(sys, "argv", typed)
        monkeypatch.setattr(job, "failures", [])
        status: object = 0
        try:
            {"hetsim": main, "hetsim-compare": compare_main, "hetsim-methods": methods.main, "hetsim-table": table_main}[typed[0]]()
        except SystemExit as ended:
            status = ended.code or 0
        assert status == 0, typed

    assert len(commands) >= 8
    assert (tmp_path / "table.json").is_file()
    assert (tmp_path / "runs" / "pictures" / "timeline.png").is_file()


def test_every_make_target_exists() -> None:
    """A target that the README or the CHANGELOG names is in the Makefile."""
    makefile = (ROOT / "Makefile").read_text()
    named = {target for text in (README, (ROOT / "CHANGELOG.md").read_text()) for target in re.findall(r"make (\w+)", text)}

    assert named >= {"demo", "test", "bench"}
    for target in named:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


@pytest.mark.parametrize(
    "page", sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")]), ids=lambda page: page.name
)
def test_every_link_leads_somewhere(page: Path) -> None:
    """Relative links name files that exist."""
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))

    for link in links:
        assert link.startswith("https://") or (page.parent / link).exists(), link


def test_the_worker_in_the_readme_is_the_worker() -> None:
    """Word for word."""
    shown = re.search(r"```python\n(def worker.*?)```", README, flags=re.DOTALL)
    assert shown is not None

    assert shown[1] == textwrap.dedent(inspect.getsource(ParameterServer.worker))
