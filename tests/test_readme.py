"""What the README says is true: its commands run, its links lead somewhere, its code is the code."""

from __future__ import annotations

import glob
import inspect
import re
import shlex
import sys
import textwrap
from itertools import chain
from pathlib import Path

import pages
import pytest

from hetsim.cli.advise import main as advise_main
from hetsim.cli.compare import main as compare_main
from hetsim.cli.main import main
from hetsim.cli.stragglers import main as stragglers_main
from hetsim.cli.table import main as table_main
from hetsim.coordination.parameter_server import ParameterServer

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
Block = list[list[str]]


def blocks(text: str) -> list[Block]:
    """The commands of each block of a page: torchrun's and make's have tests of their own."""
    found = [
        [shlex.split(line.split("   #")[0]) for line in block.splitlines() if line.startswith("hetsim") and "--help" not in line]
        for block in re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)
    ]
    return [block for block in found if block]


BLOCKS = blocks(README)
ALL = [*chain(*BLOCKS)]
WITHOUT_FURTHER_ADVICE = [typed for typed in ALL if typed[0] != "hetsim-advise" or typed == ALL[0]]
BLOCKS_OF_OTHER_PAGES = [block for name in ("config.md", "install.md") for block in blocks(pages.text(name))]


@pytest.mark.slow
@pytest.mark.parametrize(
    "commands",
    [WITHOUT_FURTHER_ADVICE, *(pytest.param(block, marks=pytest.mark.long) for block in (ALL, *BLOCKS_OF_OTHER_PAGES))],
    ids=lambda commands: shlex.join(commands[0][:3]),
)
def test_every_command_runs(commands: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order in which they stand: those of the README in one empty folder, and each block of another page in its own.

    `make test` runs one of the three advices.
    """
    monkeypatch.chdir(tmp_path)
    for typed in commands:
        monkeypatch.setattr(sys, "argv", [*chain(*(sorted(glob.glob(word)) or [word] for word in typed))])
        status: object = 0
        try:
            {
                "hetsim": main,
                "hetsim-compare": compare_main,
                "hetsim-advise": advise_main,
                "hetsim-stragglers": stragglers_main,
                "hetsim-table": table_main,
            }[typed[0]]()
        except SystemExit as ended:
            status = ended.code or 0
        assert status == 0, typed


def test_the_readme_shows_the_commands_of_its_three_jobs() -> None:
    named = {typed[0] for commands in BLOCKS for typed in commands}

    assert named == {"hetsim", "hetsim-advise", "hetsim-compare", "hetsim-table", "hetsim-stragglers"}


def test_the_readme_is_read_in_five_minutes() -> None:
    """At most 160 lines and 1,300 words."""
    assert len(README.splitlines()) <= 160
    assert len(README.split()) <= 1300


def test_every_make_target_exists() -> None:
    """A target that the README or the CHANGELOG names is in the Makefile."""
    makefile = (ROOT / "Makefile").read_text()
    named = {target for text in (README, (ROOT / "CHANGELOG.md").read_text()) for target in re.findall(r"make (\w[\w-]*)", text)}

    assert named >= {"demo", "test", "docs"}
    for target in named:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


@pytest.mark.parametrize(
    "page",
    sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "studies").rglob("*.md")]),
    ids=lambda page: page.relative_to(ROOT).as_posix(),
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


PLACES = ("hetsim", ".", "hetsim/policies", "hetsim/coordination", "hetsim/distributed/rank", "hetsim/distributed/communication")


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/internals/design.md", "docs/internals/testing.md"])
def test_every_file_that_a_page_for_developers_names_exists(page: str) -> None:
    """From the package or from the top of the repository; NAME stands for a name of one's own."""
    named = re.findall(r"`((?:[\w.-]+/)+[\w-]+\.\w+)`", (ROOT / page).read_text(encoding="utf-8"))
    missing = {
        path for path in named if not re.search("NAME|NN|runs/", path) and not any((ROOT / at / path).exists() for at in (*PLACES, "tests"))
    }

    assert len(named) > 20
    assert missing == set()


CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_every_name_in_where_to_add_what_is_in_a_file_of_its_row() -> None:
    """A class, a function or a table that was renamed or moved no longer stands in the files that its row names."""
    rows = [row for row in CONTRIBUTING.splitlines() if row.startswith("| ") and "/" in row]
    missing = {}
    for row in rows:
        places = [place / path for path in re.findall(r"`((?:[\w-]+/)*[\w-]+\.\w+)`", row) for place in (ROOT / "hetsim", ROOT)]
        text = "".join(path.read_text(encoding="utf-8") for path in places if path.is_file())
        names = {name for name in re.findall(r"`(\w+)(?:\([\w, ]*\))?`", row) if "NAME" not in name}
        if lacking := {name for name in names if not re.search(rf"\b{name}\b", text)}:
            missing[row[:40]] = lacking

    assert len(rows) > 20
    assert missing == {}


def test_the_map_of_the_code_has_every_room() -> None:
    """Each folder of the package stands in the tree of CONTRIBUTING.md, and each file of a Team, whose names say little by themselves."""
    tree = re.search(r"```\nhetsim/\n(.*?)```", CONTRIBUTING, flags=re.DOTALL)
    assert tree is not None
    files = {path.name for path in (ROOT / "hetsim" / "loop").glob("*.py")} - {"__init__.py"}
    assert files - set(re.findall(r"\w+\.py", tree[1].split("  loop/")[1].split("How it is started")[0])) == set()
    rooms = {path.parent.name for path in (ROOT / "hetsim").rglob("__init__.py") if path.parent != ROOT / "hetsim"}

    assert rooms - set(re.findall(r"(\w+)/", tree[1])) == set()
