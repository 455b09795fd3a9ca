"""An advice that is ended early says the best so far, and one that has a folder resumes."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest
from here import Here, text
from test_sets_of_nodes import question
from worlds import exit_status

import hetsim
from hetsim.advice.advice import AdviceFindings, advice
from hetsim.advice.progress import Progress
from hetsim.advice.question import asked
from hetsim.advice.simulations import FILE, StoredAnswers
from hetsim.cli.advise import main

pytestmark = pytest.mark.slow

WORDS = [*question("boxes", "method=ssgd,hetgrad,asgd"), "timing"]
TRAINED = ["cluster=mixed4", "method=ssgd,dbs_sgd", "budget.epochs=2", "target_accuracy=0.8", "learning_rate=0.2"]


def ended(words: list[str], stop_after: int, memo: dict[str, Any] | None = None) -> AdviceFindings:
    """After so many answers."""
    return advice(asked(words, None), Here(stop_after=stop_after, memo=memo), lambda _: None)


def test_what_was_timed_until_then_is_ranked() -> None:
    """The sizes, the baseline and the methods are there, and no set of nodes yet."""
    its = ended(WORDS, 4)

    assert its.stopped == "after a while"
    assert {row.candidate.method.name for row in its.rows} <= {"ssgd", "hetgrad", "asgd"}
    assert its.rows
    assert text(its).splitlines()[1] == "stopped after a while: this is the best so far"
    assert "stopped" not in its.refused.values()


@pytest.mark.slow
def test_too_little_time_is_one_sentence() -> None:
    """Its processes are killed by then, but not for lack of memory."""
    with pytest.raises(ValueError, match=r"^stopped after 0\.0001 minutes, before plain DDP was simulated: give it more time$"):
        hetsim.advise("cluster=uniform4", "timing", processes=1, minutes=0.0001)


def test_without_the_baseline_there_is_no_advice() -> None:
    with pytest.raises(ValueError, match=r"^stopped after a while, before plain DDP was simulated: give it more time$"):
        ended(WORDS, 1)


@pytest.mark.long
def test_training_that_is_ended_has_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before plain DDP was trained, by time alone; in its rounds and on fresh seeds, of those that were trained."""
    monkeypatch.setattr("hetsim.advice.training.FRESH_SEEDS", 2)
    monkeypatch.setattr("hetsim.advice.training.SEEDS", 1)
    memo: dict[str, Any] = {}
    here = Here(memo=memo)
    whole = advice(asked(TRAINED, None), here, lambda _: None)
    assert whole.stopped is None

    for stop_after in (12, here.num_answers // 3, here.num_answers * 2 // 3, here.num_answers - 3):
        its = ended(TRAINED, stop_after, memo)
        assert its.stopped == "after a while"
        assert its.baseline.seconds.num_runs
        assert "this is the best so far" in text(its)


def test_an_advice_resumes_from_its_folder(tmp_path: Path) -> None:
    """Nothing is simulated twice, whether it had ended or not; a line that was not written whole is left out."""
    asks = asked(WORDS, None)

    def once(stop_after: int | None = None) -> tuple[AdviceFindings, Here]:
        here = Here(stop_after=stop_after, answers=StoredAnswers(tmp_path, repr(asks.experiment)))
        return advice(asks, here, lambda _: None), here

    _, first = once(6)
    with (tmp_path / FILE).open("a") as file:
        file.write('{"question": "abc", "ans')
    found, second = once()
    again, third = once()
    whole = Here()
    assert text(advice(asks, whole, lambda _: None)) == text(found) == text(again)

    assert (first.num_answers, third.num_answers) == (6, 0)
    assert second.num_answers == whole.num_answers - 6


def test_python_has_the_same(tmp_path: Path) -> None:
    found = hetsim.advise(*WORDS, processes=1, folder=tmp_path / "kept", minutes=60)

    assert found.data["stopped"] is None
    assert found.data["advice"] == repr(found).splitlines()[0]
    assert (tmp_path / "kept" / FILE).is_file()
    with pytest.raises(ValueError, match="minutes must be a finite number above zero"):
        hetsim.advise(*WORDS, minutes=-1)


def test_sigterm_ends_it_with_the_best_so_far(tmp_path: Path) -> None:
    """One sentence, no traceback, status 0; the answers are kept."""
    command = [sys.executable, "-m", "hetsim.cli.advise", "cluster=mixed8", "timing", "--folder", str(tmp_path), "--processes", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while not (tmp_path / FILE).exists() or len((tmp_path / FILE).read_text().splitlines()) < 5:
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        said, errors = process.communicate(timeout=60)

    assert process.returncode == 0, errors
    assert said.splitlines()[1] == "stopped by SIGTERM: this is the best so far"
    assert "Traceback" not in errors
    assert all(line.startswith("hetsim-advise: ") for line in errors.splitlines())


def test_a_limit_of_time_is_checked(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for options, sentence in (
        (("--minutes", "0"), r"minutes must be a finite number above zero, not 0.0"),
        (("--folder", f"{tmp_path}/${{x}}"), r"folder is .*"),
    ):
        assert exit_status(monkeypatch, "hetsim-advise", main, *WORDS, *options) == 1
        assert re.fullmatch(f"hetsim-advise: error: {sentence}\n", capfd.readouterr().err)


def test_a_terminal_shows_the_time_left() -> None:
    """A line that is told stands above the bar; elsewhere there is no bar."""
    reader, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (40, 100))
    with os.fdopen(terminal, "w") as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stderr", file)
        patch.delenv("TQDM_DISABLE", raising=False)
        progress = Progress()
        progress.begin("timing", 4)
        progress.advance(1)
        progress.line_printer(lambda line: print(line, file=file, flush=True))("a line")
        progress.advance(5)
        progress.close()
        Progress(shown=False).begin("training", 4)
    shown = ""
    with contextlib.suppress(OSError):  # the end of what was written
        while True:
            shown += os.read(reader, 10_000).decode()
    os.close(reader)

    assert "timing:   0 % |" in shown
    assert re.search(r"\r +\ra line", shown)
    assert "training" not in shown
