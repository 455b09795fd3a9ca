"""The folder of a search may be a stranger's: what its journal says of trials becomes words of runs only where the search asks for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState, create_trial
from worlds import exit_status

import hetsim
from hetsim.advice.simulations import StoredAnswers
from hetsim.cli.search import main

WORDS = ("workload=phantom", "batch_size=int(interval(32,256))", "method=ssgd,asgd", "budget.epochs=1", "pictures=false", "trace=none")
SPACE = {"batch_size": IntDistribution(32, 256), "method": CategoricalDistribution(("ssgd", "asgd"))}
ASKED = {"words": list(WORDS), "objective": "samples_per_second", "direction": "maximize"}


def trial(value: Any = 1.0, *, state: TrialState = TrialState.COMPLETE, more: dict[str, Any] | None = None, **params: Any) -> Any:
    """A trial of the search above, with these values in the place of its own, and these keys beside them."""
    distributions = {**SPACE, **{key: CategoricalDistribution((value,)) for key, value in (more or {}).items()}}
    made = {"batch_size": 64, "method": "ssgd", **(more or {}), **params}
    return create_trial(
        state=state, value=value if state is TrialState.COMPLETE else None, params=made, distributions=distributions
    )  # fmt: skip


def held(folder: Path, asked: dict[str, Any] = ASKED, *trials: Any) -> Any:
    """A stranger's search in this folder."""
    folder.mkdir()
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(folder / "search.log")))
    study = optuna.create_study(storage=storage, study_name="hetsim", direction="maximize")
    for key, value in asked.items():
        study.set_user_attr(key, value)
    for one in trials:
        study.add_trial(one)
    return study


def edited(old: str, new: str) -> Callable[[Path], object]:
    """A journal with a trial that Optuna would not have written."""

    def make(folder: Path) -> None:
        held(folder, ASKED, trial(12.75))
        journal = folder / "search.log"
        text = journal.read_text()
        assert old in text
        journal.write_text(text.replace(old, new))

    return make


SEARCHPATH = {"hydra.searchpath": "[pkg://theirs]"}
JOURNALS: dict[str, Callable[[Path], object]] = {
    "a trial that waits": lambda folder: held(folder).enqueue_trial({"batch_size": 64, **SEARCHPATH}),
    "a trial that waits, of the keys searched": lambda folder: held(folder).enqueue_trial({"batch_size": 64, "method": "ssgd"}),
    "a trial that waits, of a search without words": lambda folder: held(folder, {}).enqueue_trial(SEARCHPATH),
    "a best trial with another key": lambda folder: held(folder, ASKED, trial(1e9, more=SEARCHPATH)),
    "a pruned trial with another key": lambda folder: held(folder, ASKED, trial(state=TrialState.PRUNED, more=SEARCHPATH)),
    "a failed trial with another key": lambda folder: held(folder, ASKED, trial(state=TrialState.FAIL, more=SEARCHPATH)),
    "a running trial with another key": lambda folder: held(folder, ASKED, trial(state=TrialState.RUNNING, more=SEARCHPATH)),
    "another choice": lambda folder: held(folder, ASKED, create_trial(
        value=1.0, params={"batch_size": 64, "method": "ssgd hydra.job.x=y"},
        distributions={**SPACE, "method": CategoricalDistribution(("ssgd hydra.job.x=y",))},
    )),
    "a wider interval": lambda folder: held(folder, ASKED, create_trial(
        value=1.0, params={"batch_size": 640, "method": "ssgd"}, distributions={**SPACE, "batch_size": IntDistribution(32, 2560)},
    )),
    "another kind of number": lambda folder: held(folder, ASKED, create_trial(
        value=1.0, params={"batch_size": 64.5, "method": "ssgd"}, distributions={**SPACE, "batch_size": FloatDistribution(32, 256)},
    )),
    "a key too few": lambda folder: held(folder, ASKED, create_trial(
        value=1.0, params={"method": "ssgd"}, distributions={"method": SPACE["method"]},
    )),
    "a value outside of its interval": edited('"batch_size":64.0', '"batch_size":1e9'),
    "a value that is none": edited('"batch_size":64.0', '"batch_size":NaN'),
    "a text for a number": edited("12.75", '"much"'),
    "a list for a number": edited("12.75", "[1, 2]"),
    "a number that no float can hold": edited("12.75", "1" + "0" * 400),
    "an infinite number": edited("12.75", "Infinity"),
    "notes of another sampler": lambda folder: held(folder, ASKED, create_trial(
        value=1.0, params={"batch_size": 64, "method": "ssgd"}, distributions=SPACE, system_attrs={"constraints": ["x"]},
    )),
}  # fmt: skip


@pytest.mark.parametrize("journal", JOURNALS)
def test_a_journal_adds_no_word_to_a_run(
    journal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Optuna hands out whatever waits in its journal, with all of its keys."""
    folder = tmp_path / "search"
    JOURNALS[journal](folder)
    before = sorted(path.name for path in folder.iterdir())

    status = exit_status(monkeypatch, "hetsim-search", main, *WORDS, "--objective", "samples_per_second", "--trials", 3, "--folder", folder)

    told = capsys.readouterr()
    assert status == 1
    assert told.out == ""
    assert f"{folder}/search.log" in told.err or f"{folder} holds another search (words: " in told.err
    assert told.err.count("\n") == 1
    assert "give another --folder" in told.err
    assert sorted(path.name for path in folder.iterdir()) == before


def test_a_link_to_nothing_in_the_place_of_optunas_lock_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Optuna waits for it for ever; a search that was killed leaves one, too."""
    folder = tmp_path / "search"
    held(folder)
    (folder / "search.log.lock").symlink_to("gone")

    assert (
        exit_status(monkeypatch, "hetsim-search", main, *WORDS, "--objective", "samples_per_second", "--trials", 1, "--folder", folder) == 0
    )
    assert not (folder / "search.log.lock").is_symlink()


def test_a_journal_with_another_name_is_not_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hard link may lead to a file of the user's outside of the folder."""
    folder = tmp_path / "search"
    held(folder)
    (tmp_path / "mine").hardlink_to(folder / "search.log")
    before = (tmp_path / "mine").read_bytes()
    words = (*WORDS, "--objective", "samples_per_second", "--trials", 1, "--folder", folder)

    assert exit_status(monkeypatch, "hetsim-search", main, *words) == 0
    assert (tmp_path / "mine").read_bytes() == before
    assert (folder / "search.log").read_bytes().startswith(before)
    assert (folder / "search.log").stat().st_size > len(before)


def test_an_advice_does_not_append_to_a_file_with_another_name(tmp_path: Path) -> None:
    """As of a search."""
    (tmp_path / "advice").mkdir()
    (tmp_path / "mine").write_text("mine\n")
    (tmp_path / "advice" / "answers.jsonl").hardlink_to(tmp_path / "mine")

    StoredAnswers(tmp_path / "advice", "").keep({"q": 1}, {"a": 2})

    assert (tmp_path / "mine").read_text() == "mine\n"
    assert (tmp_path / "advice" / "answers.jsonl").read_text().startswith("mine\n{")


@pytest.mark.parametrize("asked", [{}, {**ASKED, "more": 1}, {**ASKED, "words": "\x1b]0;x\a"}])
def test_a_search_that_holds_trials_says_what_it_was_asked(
    asked: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else it would fit whatever is typed."""
    held(tmp_path / "search", asked, trial())

    status = exit_status(monkeypatch, "hetsim-search", main, *WORDS, "--objective", "samples_per_second", "--folder", tmp_path / "search")

    error = capsys.readouterr().err
    assert status == 1
    assert "search holds another search (" in error
    assert error.strip().isprintable()


def test_a_search_of_ones_own_goes_on(tmp_path: Path) -> None:
    """Also with a trial that was being run when it was killed."""
    held(tmp_path / "search", ASKED, trial(1.0), trial(state=TrialState.RUNNING), trial(state=TrialState.PRUNED))

    found = hetsim.search(*WORDS, objective="samples_per_second", folder=tmp_path / "search", trials=4)

    assert found.trials["state"].to_pylist() == ["complete", "fail", "pruned", "complete"]
    assert [word.partition("=")[0] for word in found.words] == ["workload", "budget.epochs", "pictures", "trace", "batch_size", "method"]
