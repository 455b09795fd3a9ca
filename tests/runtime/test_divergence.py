"""Which runs have diverged, and that one that is stopped for it is stopped at the same version by all ranks, in both worlds."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from threads import run_in_threads
from worlds import cluster, experiment, node, simulate

from hetsim.coordination.bookkeeping.contributions import SynchronousContributions
from hetsim.coordination.plan import Plan
from hetsim.effects import Batch, Contribution
from hetsim.results.writing.describe import describe, one_line
from hetsim.results.writing.remarks import has_diverged
from hetsim.runtime.experiment import Experiment
from hetsim.runtime.recording.divergence import Divergence
from hetsim.sim import Simulator
from hetsim.workloads.task import Evaluation

EPOCH = 40


def first_diverged(losses: list[float], samples: int = 10) -> int | None:
    """The first version at which a run with these losses, of so many samples each, has diverged; epochs are of 40 samples."""
    judge = Divergence(EPOCH)
    versions = range(1, len(losses) + 1)
    verdicts = [
        judge.observe(version, version * samples, [Contribution(0, Batch(0, samples), 0, 1.0, loss)])
        for version, loss in zip(versions, losses, strict=True)
    ]
    assert verdicts == sorted(verdicts), "a verdict is final"
    return judge.version


@pytest.mark.parametrize(
    ("losses", "version"),
    [
        ([2.0, 3.0, 3.0, 3.0, 3.0], 5),
        ([2.0, 3.0, 3.0, 3.0, 2.0, 3.0, 3.0, 3.0], None),  # one value that is not above it begins another epoch
        ([2.0, 1.0, 2.5, 2.5, 2.5, 2.5], 6),
        ([2.0] * 20, None),
        ([2.0, math.nan], 2),
        ([math.inf], 1),
        ([2.0, math.inf, 1.0], 2),
        ([0.0] * 20, None),
    ],
)
def test_a_run_has_diverged_where_its_loss_is_not_finite_or_was_above_the_first_for_an_epoch(losses: list[float], version: int | None):
    """At ten samples a version, four versions are an epoch."""
    assert first_diverged(losses) == version


def test_the_first_value_is_that_of_the_first_global_batch():
    """Of local steps, the first at weights that no step has changed: later ones may be far below it."""
    judge, plan = Divergence(EPOCH), Plan(2, 40)
    groups = [SynchronousContributions(0) for _ in range(2)]
    for place, losses in enumerate([(9.0, 1.0), (2.0, 8.0)]):
        for loss in losses:
            groups[place] = groups[place].appended(plan.split(0, (20, 20)), 1.0, loss)

    assert [judge.observe(version, 80 * version, group) for version, group in enumerate(groups, 1)] == [False, False]
    assert judge.observe(3, 240, [Contribution(0, Batch(0, 80), 0, 1.0, 9.5)])


def test_a_run_that_resumes_is_judged_from_there_on():
    """By the first loss after it; what was applied before is no epoch above it."""
    judge, plan = Divergence(EPOCH, num_samples=400), Plan(2, 20)
    group = SynchronousContributions(0)
    for loss in (2.0, 4.0):
        group = group.appended(plan.split(0, (10, 10)), 1.0, loss)

    assert [judge.observe(version, 380 + 20 * version, group) for version in (1, 2, 3)] == [False, False, True]


METHODS = {
    "all-reduce": ("method=ssgd",),
    "all-reduce, unequal shares": ("method=hetgrad",),
    "all-reduce, one step late": ("method=pipe_sgd",),
    "local steps": ("method=local_sgd", "coordination.period=2"),
    "server with a barrier": ("method=ssgd", "coordination=parameter_server"),
    "server": ("method=asgd",),
    "server, one step late": ("method=od_sgd",),
}
SMALL = cluster(node(1e-4, count=2, seconds_per_update=1e-4), node(5e-5, seconds_per_update=3e-4), seconds_per_update=1e-4)
RATES = {"learning_rate": 30.0, "local_learning_rate": 30.0, "momentum": 0.0}


def diverging(name: str, *, rates: dict[str, float] = RATES, **keys: Any) -> Experiment:
    """A quadratic at rates that are far too large, for twelve epochs."""
    what = {"workload": {"num_parameters": 8, "num_samples": 100}, "batch_size": 30, "cluster": SMALL, **rates}
    return experiment(*METHODS[name], "workload=quadratic", budget={"epochs": 12}, **what, **keys)


@pytest.mark.parametrize("name", METHODS)
def test_a_run_that_diverges_is_stopped_at_that_commit(name: str):
    """And is the run that it would have been up to there, but for its other ranks, which wait for the leader's word."""
    going, stopped = (simulate(diverging(name, stop_when_diverged=stop)) for stop in (False, True))

    found = going.simulation.history.divergence.version
    assert found is not None
    assert (found, found) == (stopped.simulation.history.divergence.version, stopped.states[-1].version)
    assert found < going.states[-1].version
    assert [state.num_samples for state in stopped.states] == [state.num_samples for state in going.states[:found]]
    assert all(process.status != "waiting" for process in stopped.simulation.processes)


@pytest.mark.parametrize("name", [name for name in METHODS if name != "server"])
def test_all_ranks_stop_at_the_same_version_in_processes_as_in_the_simulation(name: str):
    """What each rank sees of the losses differs; the leader's verdict is everyone's."""
    made = diverging(name, stop_when_diverged=True)
    simulated = simulate(made)

    runs: list[Any] = run_in_threads(made)

    assert [type(run).__name__ for run in runs] == ["RankRun"] * made.num_ranks
    leader = runs[made.leader]
    assert leader.history.divergence.version == leader.last.version == simulated.states[-1].version
    if not made.coordination.needs_server:
        assert {run.last.version for run in runs} == {leader.last.version}


def test_asynchronous_processes_stop_where_the_server_sees_it():
    """Who comes when is up to the machine; all workers are sent home."""
    made = diverging("server", stop_when_diverged=True)

    runs: list[Any] = run_in_threads(made)

    leader = runs[made.leader]
    assert [type(run).__name__ for run in runs] == ["RankRun"] * made.num_ranks
    assert leader.history.divergence.version == leader.last.version


@pytest.mark.parametrize("name", METHODS)
def test_a_run_that_does_not_diverge_is_stopped_by_nothing(name: str):
    """At rates at which it learns."""
    rates = {"learning_rate": 0.05, "local_learning_rate": 0.05, "momentum": 0.0}

    one, other = (simulate(diverging(name, rates=rates, stop_when_diverged=stop)) for stop in (False, True))

    assert one.simulation.history.divergence.reason is None
    assert [state.num_samples for state in one.states] == [state.num_samples for state in other.states]


@pytest.mark.parametrize("name", METHODS)
def test_a_timing_only_run_never_diverges_and_takes_as_long_as_a_real_one(name: str):
    """It has no losses, and its ranks wait for the same words."""
    rates = {"learning_rate": 0.05, "local_learning_rate": 0.05, "momentum": 0.0}
    real, phantom = (
        simulate(experiment(*METHODS[name], f"workload={workload}", cluster=SMALL, budget={"epochs": 3}, batch_size=30, **keys))
        for workload, keys in (
            (kind, {"workload": {"num_parameters": 8, "num_samples": 100}, "stop_when_diverged": True, **rates})
            for kind in ("quadratic", "phantom")
        )
    )

    assert phantom.simulation.history.divergence.reason is None
    assert phantom.seconds == real.seconds


@pytest.mark.parametrize("stop", [False, True])
def test_it_is_said_in_the_summary_in_the_printed_line_and_as_a_warning(stop: bool, tmp_path: Path):
    """With the version, and whether the run was stopped there."""
    Simulator().run(diverging("all-reduce", stop_when_diverged=stop), tmp_path, "")

    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["diverged"] is True
    (warning,) = [each for each in summary["warnings"] if each.startswith("the training diverged: its loss ")]
    assert ("above the initial loss, " in warning and ", where the run was stopped; " in warning) == stop
    assert ("was not finite at version" in warning) != stop
    assert warning.endswith("try a lower learning_rate")
    assert describe(summary).splitlines()[-1].endswith("diverged")
    assert one_line(summary).endswith(", diverged")


def judged(*evaluated: float, reported: list[float] | None = None, stop: bool = False) -> bool:
    """The verdict on a run whose versions 0, 1, … have these evaluated losses, by default reported with the gradients as well."""
    made = simulate(diverging("all-reduce", rates={"learning_rate": 0.05, "momentum": 0.0})).simulation.record.outcome()
    judge = Divergence(EPOCH)
    for version, loss in enumerate(evaluated if reported is None else reported):
        judge.observe(version + 1, 10 * (version + 1), [Contribution(0, Batch(0, 10), version, 1.0, loss)])
    points = [replace(made.points[0], version=version, evaluation=Evaluation(loss, None)) for version, loss in enumerate(evaluated)]
    return has_diverged(replace(made, points=points, divergence=judge, experiment=replace(made.experiment, stop_when_diverged=stop)))


@pytest.mark.parametrize(
    ("evaluated", "reported", "verdict"),
    [
        ((2.30, 1.0, 0.28), [0.2, 2.0, 2.0, 2.0, 2.0, 2.0], False),  # the first batch happened to be low
        ((2.30, 3.0, 0.28), None, False),
        ((2.30, 0.5, 4.44), [2.3, 0.5, 4.4], True),  # less than an epoch above its initial value
        ((2.30, math.nan, 0.28), None, True),
        ((2.30, math.inf), None, True),
        ((2.30,), None, False),
        ((2.30, 0.28), [2.3, math.nan, 0.3], False),  # a gradient that was left out
    ],
)
def test_the_verdict_on_a_run_is_that_of_its_evaluated_losses(evaluated: tuple[float, ...], reported: list[float] | None, verdict: bool):
    """Not finite, or at the end above the initial one: the same in both worlds, as both evaluate versions."""
    assert judged(*evaluated, reported=reported) == verdict


def test_without_evaluated_losses_the_reported_ones_decide_and_so_they_do_for_a_run_that_they_stopped():
    """A workload of one's own need not have a loss of the whole training set."""
    assert judged(reported=[2.0, 3.0, 3.0, 3.0, 3.0])
    assert not judged(reported=[2.0, 3.0])
    assert judged(2.0, 1.9, reported=[2.0, 3.0, 3.0, 3.0, 3.0], stop=True)


def test_a_run_is_stopped_by_the_loss_of_the_initial_weights_and_not_by_that_of_its_first_batch():
    """The first batch may happen to have a low loss."""
    judge = Divergence(EPOCH, initial_loss=lambda: 2.5)

    assert not any(judge.observe(n, 10 * n, [Contribution(0, Batch(0, 10), 0, 1.0, loss)]) for n, loss in enumerate([0.5, *[2.4] * 9], 1))
    assert any(judge.observe(n, 10 * n, [Contribution(0, Batch(0, 10), 0, 1.0, 2.6)]) for n in range(11, 21))


def test_a_run_of_before_has_no_verdict(tmp_path: Path):
    """Its summary lacks the entry, and is described without it."""
    summary = Simulator().run(diverging("all-reduce"), tmp_path, "")
    del summary["diverged"]

    assert "diverged" not in describe(summary) + one_line(summary)
