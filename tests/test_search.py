"""`hetsim-search`: Optuna asks, runs answer; what is pruned could not have been the best."""

from __future__ import annotations

import csv
import json
import math
import os
import signal
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from worlds import exit_status

import hetsim
from hetsim.cli.search import main
from hetsim.errors import RunFailed
from hetsim.pool.engines import opened_pool
from hetsim.pool.process import Process
from hetsim.searches.objective import direction_of, on_the_way
from hetsim.searches.search import JOURNAL, Search, SearchQuestion, opened
from hetsim.searches.trial import ANSWERING, Place, Pruned, Watch, run, run_in
from hetsim.sweeps.space import chosen_words, parsed

pytestmark = pytest.mark.slow

TINY = ("workload=phantom", "budget.epochs=null", "budget.updates=4", "trace=none", "pictures=false")
LR = "learning_rate=interval(0.1,0.9)"


def test_the_words_span_a_space() -> None:
    """Intervals with and without a logarithm, whole numbers, ranges, lists; the seeds of every trial; all other words as they are."""
    words = (
        "a=tag(log,interval(0.02,0.5))",
        "b=int(interval(32,256))",
        "c=range(4,12,2)",
        "method=ssgd,dbs_sgd",
        "d=0.1,0.2",
        "seed=0,1",
        "e=[1,2]",
    )

    space = parsed(words)

    assert space.fixed == ("e=[1,2]",)
    assert space.seeds == ("0", "1")
    assert (space.searched["a"].low, space.searched["a"].high, space.searched["a"].log) == (0.02, 0.5, True)
    assert (space.searched["b"].low, space.searched["b"].high, type(space.searched["b"]).__name__) == (32, 256, "IntDistribution")
    assert (space.searched["c"].low, space.searched["c"].high, space.searched["c"].step) == (4, 10, 2)
    assert space.searched["method"].choices == ("ssgd", "dbs_sgd")
    assert space.words({"a": 0.123456, "b": 64, "d": "0.1"}, "7") == ("e=[1,2]", "a=0.1235", "b=64", "d=0.1", "seed=7")
    assert chosen_words({"method": "ssgd"}) == ("method=ssgd",)
    for wrong, told in {
        "a=1": "there is nothing to search",
        "a=interval(2,1)": "spans nothing that can be searched",
        "a=tag(log,interval(0,1))": "spans nothing that can be searched",
        "a=glob(*)": "a search takes",
    }.items():
        with pytest.raises(ValueError, match=told):
            parsed((wrong,))


def test_each_objective_has_its_direction() -> None:
    """A number of the user's own needs one."""
    assert direction_of("seconds_to_0.9", None) == "minimize"
    assert direction_of("final.test_accuracy", None) == "maximize"
    assert direction_of("final.mae", "minimize") == "minimize"
    for objective, asked in (("final.mae", None), ("seconds", "down"), ("second", None), ("seconds_to_9", None)):
        with pytest.raises(ValueError, match=r"--objective|--direction"):
            direction_of(objective, asked)
    assert [on_the_way(name, 2.0, 0.75) for name in ("seconds_to_0.9", "final.test_accuracy", "final.train_loss", "seconds")] == [
        *(0.25, 0.75, 2.0),
        None,
    ]


def answered(folder: Path, question: SearchQuestion, curve: Any) -> tuple[Search, list[tuple[str, ...]]]:
    """A search whose runs are a function: of the words, their curve of (seconds, accuracy) and their value."""
    told: list[tuple[str, ...]] = []

    def run(words: Sequence[str], watching: Callable[[], Watch]) -> float | None:
        watch = watching()
        told.append(tuple(words))
        points, value = curve(words)
        for seconds, accuracy in points:
            if not watch(seconds, None, accuracy):
                raise Pruned
            told.append(("point", str(seconds)))
        return None if value is None else float(value)

    with opened(question, folder) as search:
        search.tell = lambda _: None
        search.run_here(run)
    return search, told


def test_a_trial_is_the_mean_over_its_seeds(tmp_path: Path) -> None:
    """And a trial of which one seed has no number has none."""
    question = SearchQuestion((LR, "seed=1,2,6"), "seconds", trials=3)

    def curve(words: Sequence[str]) -> Any:
        return [], float(words[-1].removeprefix("seed="))

    search, told = answered(tmp_path / "a", question, curve)
    assert [one.value for one in search.trials] == [3.0] * 3
    assert [words[-1] for words in told] == ["seed=1", "seed=2", "seed=6"] * 3
    search, told = answered(tmp_path / "b", question, lambda words: ([], None if words[-1] == "seed=2" else 1.0))
    assert (search.best, [one.state.name for one in search.trials], len(told)) == (None, ["PRUNED"] * 3, 6)


def test_a_run_whose_clock_has_passed_the_best_time_is_ended(tmp_path: Path) -> None:
    """Not before, and not once it has reached the accuracy: then its time is known."""
    times = iter((2.0, 5.0, 1.9))

    def curve(_: Sequence[str]) -> Any:
        time = next(times)
        return [(second / 2, 0.9 if second / 2 >= time else 0.5) for second in range(12)], time

    search, told = answered(tmp_path, SearchQuestion((LR,), "seconds_to_0.8", trials=3), curve)

    runs = [len(list(points)) for points in _split(told)]
    assert runs == [12, 5, 12]  # the second run had points at 0, 0.5, 1, 1.5 and 2 seconds, and was ended by the one at 2.5
    assert [one.state.name for one in search.trials] == ["COMPLETE", "PRUNED", "COMPLETE"]
    assert search.best.value == 1.9


def _split(told: list[tuple[str, ...]]) -> list[list[tuple[str, ...]]]:
    """The points of each run."""
    runs: list[list[tuple[str, ...]]] = []
    for words in told:
        if words[0] == "point":
            runs[-1].append(words)
        else:
            runs.append([])
    return runs


def test_the_median_of_the_finished_prunes_the_worse(tmp_path: Path) -> None:
    """By the learning curve, from the sixth trial; never without pruning."""
    for prune in (True, False):
        accuracies = iter((0.5, 0.6, 0.7, 0.8, 0.9, 0.1, 0.95))

        def curve(_: Sequence[str], accuracies: Any = accuracies) -> Any:
            accuracy = next(accuracies)
            return [(float(second), accuracy) for second in range(3)], accuracy

        search, _ = answered(tmp_path / str(prune), SearchQuestion((LR,), "final.test_accuracy", trials=7, prune=prune), curve)
        assert [one.number for one in search.trials if one.state.name == "PRUNED"] == ([5] if prune else [])
        assert search.best.value == 0.95


def test_a_search_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """With the trials that it has, and without trying the same again; another question is refused, and so is a broken journal or a link."""
    question = SearchQuestion((LR,), "seconds", trials=3)
    answered(tmp_path, question, lambda _: ([], 1.0))
    search, told = answered(tmp_path, SearchQuestion((LR,), "seconds", trials=5), lambda _: ([], 1.0))
    assert (len(search.trials), len(told)) == (5, 2)
    assert len({one.params["learning_rate"] for one in search.trials}) == 5
    assert len((tmp_path / "trials.csv").read_text().splitlines()) == 6
    for other, what in ((SearchQuestion((LR, "batch_size=64"), "seconds"), "words"), (SearchQuestion((LR,), "idle_share"), "objective")):
        with pytest.raises(ValueError, match=rf"holds another search \({what}: "), opened(other, tmp_path):
            pass
    for folder in ("broken", "linked"):
        (tmp_path / folder).mkdir()
    (tmp_path / "broken" / JOURNAL).write_text("{}\n[]\nx\n")
    with pytest.raises(ValueError, match="is not a search that can be resumed"), opened(question, tmp_path / "broken"):
        pass
    (tmp_path / "linked" / JOURNAL).symlink_to(tmp_path / JOURNAL)
    with pytest.raises(ValueError, match="is a link"), opened(question, tmp_path / "linked"):
        pass


def test_the_command_finds_the_better_value_and_outlives_failed_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its runs are those of `hetsim`, and its folder is one that `hetsim-table` reads."""
    words = (*TINY, "batch_size=3,64,128", "--objective", "samples_per_second", "--trials", "8", "--folder", str(tmp_path / "s"))

    assert exit_status(monkeypatch, "hetsim-search", main, *words, "--sampler", "random") == 0

    told = capsys.readouterr().out
    assert "\nbest samples_per_second: " in told
    assert "\n  batch_size=128\n  run it: hetsim workload=phantom budget.epochs=null" in told
    assert "failed: batch_size=3 is less than one sample for each of 4 workers: raise it with batch_size=3" in told
    rows = list(csv.DictReader((tmp_path / "s" / "trials.csv").read_text().splitlines()))
    assert {row["state"] for row in rows} == {"complete", "fail"}
    best = max(float(row["samples_per_second"]) for row in rows if row["state"] == "complete")
    assert best == hetsim.run(*TINY, "batch_size=128", folder=tmp_path / "one").summary["samples_per_second"]
    assert len(hetsim.table(tmp_path / "s").ranking.rows) == 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("method=ssdg", LR, "--objective", "seconds"), "method=ssdg is not a choice"),
        ((LR, "--objective", "second"), "--objective second is not a number of a run"),
        (("method=ssgd", "--objective", "seconds"), "there is nothing to search"),
        ((LR, "--objective", "seconds", "--trials", "0"), "--trials must be from 1"),
        ((LR, "--objective", "seconds", "--processes", "4096"), "--processes must be from 1"),
        ((LR, "--objective", "seconds", "--sampler", "grid"), "--sampler must be tpe or random, not grid"),
        (("'", LR, "--objective", "seconds"), "cannot be read as key=value"),
    ],
)
def test_a_search_that_cannot_be_is_one_sentence(
    words: tuple[str, ...], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And leaves nothing."""
    assert exit_status(monkeypatch, "hetsim-search", main, *words, "--folder", str(tmp_path / "s")) == 1

    line = capsys.readouterr().err
    assert line.startswith("hetsim-search: error: ")
    assert told in line
    assert line.count("\n") == 1
    assert not (tmp_path / "s").exists()


def test_two_processes_find_what_one_finds(tmp_path: Path) -> None:
    """Each trial's number is that of its run, wherever it ran; from Python."""
    if (os.cpu_count() or 1) < 2:
        pytest.skip("one core")
    found = hetsim.search(*TINY, "batch_size=range(64,80)", objective="samples_per_second", trials=6, processes=2, folder=tmp_path / "s")

    trials = found.trials.to_pylist()
    assert len(trials) == 6
    assert found.value == max(row["samples_per_second"] for row in trials)
    assert hetsim.run(*found.words, folder=tmp_path / "one").summary["samples_per_second"] == pytest.approx(found.value, rel=1e-15)
    assert repr(found).startswith("best samples_per_second: ")


def test_pruning_by_the_learning_curve_of_a_real_run(tmp_path: Path) -> None:
    """What is pruned leaves no files; here and in a process, in virtual time."""
    words = ("workload=quadratic", "budget.epochs=2", "trace=none", "pictures=false", "seed=0")
    seen: list[float] = []

    def watch(seconds: float, *_: float | None) -> bool:
        seen.append(seconds)
        return len(seen) % 3 > 0

    place = Place(str(tmp_path / "runs"), None, "final.train_loss")
    with opened_pool("local", ANSWERING, 1, of="the search") as pool:
        in_process = partial(run_in, pool, place)
        with pool.borrowed() as process:
            assert isinstance(process, Process)
        for runner in (in_process, lambda words, watching: run(words, place, watching)):
            with pytest.raises(Pruned):
                runner((*words, "evaluate_every_epochs=0.25"), lambda: watch)
            assert not (tmp_path / "runs").exists() or not any((tmp_path / "runs").iterdir())
        assert seen[:3] == seen[3:]
        value = in_process(words, lambda: lambda *_: True)
        assert value == run(words, place, lambda: lambda *_: True)
        (folder,) = (tmp_path / "runs").iterdir()
        assert value == json.loads((folder / "summary.json").read_text())["final"]["train_loss"]
        with pytest.raises(ValueError, match="batch_size=1 is less than one sample"):
            in_process((*words, "batch_size=1"), lambda: watch)
        os.kill(process._process.pid, signal.SIGKILL)
        process._process.wait()
        assert in_process(words, lambda: lambda *_: True) == value  # in a new process

        def kill(*_: float | None) -> bool:
            os.kill(process._process.pid, signal.SIGKILL)
            return True

        with pytest.raises(RunFailed, match="a process of the search was killed"):
            in_process((*words, "evaluate_every_epochs=0.25"), lambda: kill)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_search_of_which_no_trial_can_run_says_so(processes: int, tmp_path: Path) -> None:
    """By one sentence, and it leaves nothing."""
    nodes = "cluster.nodes=[{count: 2, seconds_per_sample: 1e-4, overhead_seconds: 0}]"
    fails = "+cluster.faults={detection_seconds: 0.1, schedule: [{nodes: [0, 1], crash: 0.001}]}"

    with pytest.raises(RunFailed, match=r"no trial has a number for seconds: 2 trials, 0 pruned, 2 failed"):
        hetsim.search(
            *TINY, "method=asgd", nodes, fails, "batch_size=range(64,80)", objective="seconds", trials=2, processes=processes,
            folder=tmp_path / "s",
        )  # fmt: skip

    assert not (tmp_path / "s").exists()


def test_a_search_outlives_a_first_trial_that_is_refused(tmp_path: Path) -> None:
    """Three that are refused at the beginning end it; the error is that of the third."""
    refused = iter((True, True, False, False, True))

    def curve(_: Sequence[str]) -> Any:
        if next(refused):
            raise ValueError("no")
        return [], 1.0

    search, _ = answered(tmp_path / "a", SearchQuestion((LR,), "seconds", trials=5), curve)
    assert [one.state.name for one in search.trials] == ["FAIL", "FAIL", "COMPLETE", "COMPLETE", "FAIL"]
    refused = iter((True,) * 5)
    with pytest.raises(ValueError, match=r"^no$"):
        answered(tmp_path / "b", SearchQuestion((LR,), "seconds", trials=5), curve)
    assert next(refused)  # the fourth was not tried
    assert not (tmp_path / "b").exists()


def test_no_trial_is_asked_for_after_an_interrupt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes are ended, and their trials with them; the others are left for the next time."""
    if (os.cpu_count() or 1) < 2:
        pytest.skip("one core")

    def interrupted(*_: Any) -> float:
        raise KeyboardInterrupt

    monkeypatch.setattr("hetsim.searches.trial.run_in", interrupted)
    with opened(SearchQuestion((LR,), "seconds", trials=50, processes=2), tmp_path) as search:
        with pytest.raises(KeyboardInterrupt):
            search.run()
        assert len(search.study.get_trials()) <= 2


def test_a_trial_that_is_not_finite_is_pruned(tmp_path: Path) -> None:
    """Neither a loss on the way nor a number at the end may be."""
    search, _ = answered(tmp_path / "a", SearchQuestion((LR,), "final.test_accuracy", trials=2), lambda _: ([(0.0, math.nan)], 1.0))
    assert {one.state.name for one in search.trials} == {"PRUNED"}
    search, _ = answered(tmp_path / "b", SearchQuestion((LR,), "seconds", trials=2), lambda _: ([], math.inf))
    assert {one.state.name for one in search.trials} == {"PRUNED"}
