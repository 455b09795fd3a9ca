"""docs/start/example-decision.md: its commands run, and its table is what they print."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pages
import pytest
from worlds import exit_status

from hetsim.cli.main import main
from hetsim.cli.table import main as table_main

pytestmark = pytest.mark.slow

PAGE = pages.text("example-decision.md")
QUICK = {"learning_rate=0.05,0.1,0.2,0.4": "learning_rate=0.1,0.2", "seed=range(0,5)": "seed=0", "budget.epochs=12": "budget.epochs=1"}
"""What the test changes in the question of learning, whose training takes minutes."""


@pytest.mark.long
def test_the_page_answers_its_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The cluster file, the sweep and the table are those of the page, to the last digit; its training is shortened."""
    monkeypatch.chdir(tmp_path)
    described, noisy = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
    Path("ours/cluster").mkdir(parents=True)
    Path("ours/cluster/ours.yaml").write_text(described)
    Path("ours/cluster/noisy.yaml").write_text(noisy)
    speed, with_noise, learning, hidden = (
        [shlex.split(line) for line in block.splitlines()] for block in re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL)
    )

    for (_, *words), table in (speed, with_noise, ([QUICK.get(word, word) for word in learning[0]], learning[1]), hidden):
        assert exit_status(monkeypatch, "hetsim", main, *words) == 0
        capsys.readouterr()
        if table == learning[1]:
            table = [*table[: table.index("--target-accuracy")]]
        assert exit_status(monkeypatch, *table[:1], table_main, *table[1:]) == 0
        told = capsys.readouterr().out
        if table in (speed[1], with_noise[1], hidden[1]):
            assert told in PAGE
            assert Path(table[1], "table.png").stat().st_size > 10_000
        else:
            assert "| gain over `method=ddp,allocation=even` |" in told
            assert {line.split("`")[1] for line in told.splitlines()[2:]} == {"ddp", "asgd", "dbs_sgd"}
