"""The folder of a search may be a stranger's: its trials become words of runs only as far as the typed search has them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState, create_trial
from worlds import exit_status

import hetsim
from hetsim.advice.simulations import StoredAnswers
from hetsim.cli.search import main

WORDS = ("workload=phantom", "batch_size=int(interval(32,256))", "method=ssgd,asgd", "budget.epochs=1", "pictures=false", "trace=none")
SPACE: dict[str, BaseDistribution] = {"batch_size": IntDistribution(32, 256), "method": CategoricalDistribution(("ssgd", "asgd"))}
ASKED = {"words": list(WORDS), "objective": "samples_per_second", "direction": "maximize"}
SEARCH = (*WORDS, "--objective", "samples_per_second", "--trials", 3, "--folder", "search")
PATH, PACKAGE = "hydra.searchpath", "[pkg://theirs]"
"""A word that would import a package."""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def trial(key: str = "batch_size", value: Any = 64, kind: BaseDistribution | None = None, state: TrialState = TrialState.COMPLETE) -> Any:
    """A trial with this value of a key, which by default only this value may have."""
    distributions = {**SPACE, key: kind or SPACE.get(key, CategoricalDistribution((value,)))}
    params = {"batch_size": 64, "method": "ssgd", key: value}
    return create_trial(state=state, value=12.75 if state is TrialState.COMPLETE else None, params=params, distributions=distributions)


def write_search(*trials: Any, asked: dict[str, Any] = ASKED, waits: dict[str, Any] | None = None, old: str = "", new: str = "") -> None:
    """A stranger's search with these trials, and with one that waits. `new` replaces a text that Optuna has written."""
    Path("search").mkdir()
    storage = optuna.storages.JournalStorage(JournalFileBackend("search/search.log"))
    study = optuna.create_study(storage=storage, study_name="hetsim", direction="maximize")
    for key, value in asked.items():
        study.set_user_attr(key, value)
    study.add_trials(trials)
    if waits is not None:
        study.enqueue_trial(waits)
    text = Path("search/search.log").read_text()
    assert old in text
    Path("search/search.log").write_text(text.replace(old, new) if old else text)


SEVERAL = f"ssgd {PATH}={PACKAGE}"
JOURNALS = {
    "a trial that waits": partial(write_search, waits={"batch_size": 64, PATH: PACKAGE}),
    "a trial that waits, of the keys searched": partial(write_search, waits={"batch_size": 64, "method": "ssgd"}),
    "a trial that waits, of a search without words": partial(write_search, asked={}, waits={PATH: PACKAGE}),
    **{
        f"a trial with another key, {state.name}": partial(write_search, trial(PATH, PACKAGE, state=state))
        for state in (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL, TrialState.RUNNING)
    },
    "another choice": partial(write_search, trial("method", SEVERAL, CategoricalDistribution((SEVERAL,)))),
    "a wider interval": partial(write_search, trial("batch_size", 640, IntDistribution(32, 2560))),
    "another kind of number": partial(write_search, trial("batch_size", 64.5, FloatDistribution(32, 256))),
    "a value outside of its interval": partial(write_search, trial(), old='"batch_size":64.0', new='"batch_size":1e9'),
    "a text for a number": partial(write_search, trial(), old="12.75", new='"much"'),
    "a number that no float can hold": partial(write_search, trial(), old="12.75", new="1" + "0" * 400),
    "another search": partial(write_search, trial(), asked={**ASKED, "words": "\x1b]0;x\a"}),
    "a search with more to say": partial(write_search, trial(), asked={**ASKED, "more": 1}),
}


@pytest.mark.parametrize("journal", JOURNALS)
def test_a_journal_adds_no_word_to_a_run(journal: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Optuna hands out whatever waits in its journal, with all of its keys."""
    JOURNALS[journal]()
    before = sorted(path.name for path in Path("search").iterdir())

    status = exit_status(monkeypatch, "hetsim-search", main, *SEARCH)

    printed = capsys.readouterr()
    assert status == 1
    assert printed.out == ""
    assert "search/search.log" in printed.err or "search holds another search (" in printed.err
    assert printed.err.removesuffix("\n").isprintable()
    assert "give another --folder" in printed.err
    assert sorted(path.name for path in Path("search").iterdir()) == before


def test_a_search_of_ones_own_is_continued() -> None:
    """Also with a trial that was being run when it was killed, and with the lock that Optuna would wait for."""
    write_search(trial(), trial(state=TrialState.RUNNING), trial(state=TrialState.PRUNED))
    Path("search/search.log.lock").symlink_to("gone")

    search = hetsim.search(*WORDS, objective="samples_per_second", folder="search", trials=4)

    assert search.trials["state"].to_pylist() == ["complete", "fail", "pruned", "complete"]
    assert [word.partition("=")[0] for word in search.words] == [*(word.partition("=")[0] for word in WORDS if "," not in word), *SPACE]
    assert not Path("search/search.log.lock").is_symlink()


def test_a_file_with_another_name_is_not_written_to() -> None:
    """A hard link may lead to a file of the user's outside of the folder: neither a search nor an advice appends to it."""
    write_search()
    Path("mine").hardlink_to("search/search.log")
    Path("answers.jsonl").write_text('{"question": "", "answer": {}}\n', encoding="utf-8")
    Path("my answers").hardlink_to("answers.jsonl")
    files = {"search/search.log": "mine", "answers.jsonl": "my answers"}
    before = {link: Path(link).read_bytes() for link in files.values()}

    hetsim.search(*WORDS, objective="samples_per_second", folder="search", trials=1)
    StoredAnswers(Path(), "").keep({"q": 1}, {"a": 2})

    for path, link in files.items():
        assert Path(link).read_bytes() == before[link]
        assert Path(path).read_bytes().startswith(before[link])
        assert Path(path).stat().st_size > len(before[link])
