"""Several processes compute a simulation's gradients: the same bits as one, whatever happens to them."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from methods import METHODS
from worlds import UNEVEN, Run, cluster, computed, experiment, node

from hetsim.effects import Batch
from hetsim.files.identity import identity_of
from hetsim.pool import cores
from hetsim.runtime.experiment import Experiment
from hetsim.sim import parallel_gradients
from hetsim.sim.backend import Simulator
from hetsim.sim.gradient_batching import GradientBatcher
from hetsim.sim.parallel_gradients import ParallelGradients

SHORT = ("asgd", "ddp")
"""The methods that are in every `make test`; the others take as long together as all other tests of a room."""
FAULTS = {"faults": {"detection_seconds": 1e-3, "schedule": [{"nodes": [1], "crash": 0.05, "repair": 0.1}]}}
SHARED = {**cluster(*[node(1e-4, host="a")] * 2), "hosts": {"a": {"cores": 1}}}


def simulated(made: Experiment, processes: int | str, change: Any = None) -> Run:
    """A run whose gradients so many processes compute; `change` changes its task."""
    return computed(made, change, processes=processes)


def equal(one: Run, other: Run) -> bool:
    """Whether all rows and all bits of the weights are equal."""
    return one.rows() == other.rows() and torch.equal(one.weights.view(torch.uint8), other.weights.view(torch.uint8))


def children() -> set[int]:
    """The processes that this one has started."""
    return {int(pid) for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()}


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    before = children()
    yield
    assert children() <= before


@pytest.fixture(autouse=True)
def answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """No run ends before its other processes have answered for the first time, or ended, however busy the machine is."""
    ask = ParallelGradients._try

    def asking(self: ParallelGradients, tried: Any) -> None:
        ask(self, tried)
        for helper in self._on_trial:
            helper.process._poll.poll(60_000)

    monkeypatch.setattr(ParallelGradients, "_try", asking)


@contextmanager
def used(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The processes that were really taken into use, by their ids."""
    taken: list[int] = []
    compare = ParallelGradients._compare

    def comparing(self: ParallelGradients, tried: Any) -> None:
        compare(self, tried)
        taken.extend(helper.process.pid for helper in self._helpers)

    monkeypatch.setattr(ParallelGradients, "_compare", comparing)
    yield taken


@pytest.mark.parametrize("method", [name if name in SHORT else pytest.param(name, marks=pytest.mark.long) for name in METHODS])
def test_two_processes_compute_the_same_bits_as_one(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = experiment(f"method={method}", "workload=digits", "cluster=mixed8", budget={"epochs": 2})

    with used(monkeypatch) as taken:
        assert equal(simulated(made, 1), simulated(made, 2))

    assert len(taken) == (not made.coordination.gives_up_gradients)


@pytest.mark.long
@pytest.mark.parametrize("processes", [3, 9])
@pytest.mark.parametrize(
    "choices",
    [
        ("workload=quadratic", "dtype=float64"),
        ("workload=digits", "workload.model=lenet", "workload.resize=28", "workload.augmentation.pad=2"),
        ("workload=digits", "data=owned", "partition=even"),
        ("workload=digits", "nonfinite=skip", "learning_rate=1e30"),
    ],
    ids=" ".join,
)
def test_any_number_of_processes_computes_the_same_bits(choices: tuple[str, ...], processes: int) -> None:
    """Other data, other models, and gradients that are not finite."""
    made = experiment("method=asgd", *choices, "cluster=mixed8", budget={"epochs": 2})

    assert equal(simulated(made, 1), simulated(made, processes))


def test_gradients_of_lost_nodes_are_left_out() -> None:
    """A node crashes while another process computes its gradient."""
    made = experiment("method=asgd", "workload=digits", cluster={**UNEVEN, **FAULTS}, budget={"updates": 60})

    one, two = simulated(made, 1), simulated(made, 2)

    assert one.rows("down")
    assert equal(one, two)


def killing(at: int, main: int) -> Any:
    """A change of a task: the other process ends at its gradient of this number."""

    def change(task: Any) -> None:
        gradient, count = task.gradient, [0]

        def computed(weights: Any, batch: Batch) -> Any:
            count[0] += 1
            if os.getpid() != main and count[0] == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return gradient(weights, batch)

        task.gradient = computed

    return change


@pytest.mark.parametrize("at", [1, 7])
def test_a_killed_process_costs_nothing_but_time(at: int) -> None:
    """Before it is in use, and later: one sentence, and the other process computes what it was asked for."""
    made = experiment("method=asgd", "workload=quadratic", cluster=UNEVEN, budget={"updates": 300})
    one = simulated(made, 1)

    with pytest.warns(UserWarning, match=r"cannot compute them|was killed, perhaps for lack of memory: 1 of 2 compute them now"):
        assert equal(one, simulated(made, 2, killing(at, os.getpid())))


def failing(batches: set[int], main: int, *, everywhere: bool) -> Any:
    """A change of a task: gradients of these batches fail, in the other process or everywhere."""

    def change(task: Any) -> None:
        gradient, count = task.gradient, [0]

        def computed(weights: Any, batch: Batch) -> Any:
            count[0] += 1
            if batch.start in batches and (everywhere or os.getpid() != main):
                raise ValueError(f"the batch at {batch.start} is wrong")
            return gradient(weights, batch)

        task.gradient = computed

    return change


def test_what_fails_in_another_process_alone_is_computed_here() -> None:
    made = experiment("method=asgd", "workload=quadratic", cluster=UNEVEN, budget={"updates": 300})
    some = {batch.start for batch in computed_of(made)[100::3]}

    assert equal(simulated(made, 1), simulated(made, 2, failing(some, os.getpid(), everywhere=False)))


def test_an_error_is_the_one_of_a_single_process() -> None:
    """Of the gradient that is due first, also if the other process fails at one that is due later."""
    made = experiment("method=asgd", "workload=quadratic", cluster=UNEVEN, budget={"updates": 300})
    batches = {batch.start for batch in computed_of(made)[200:]}
    said = []
    for processes in (1, 2):
        with pytest.raises(ValueError, match="the batch at") as error:
            simulated(made, processes, failing(batches, os.getpid(), everywhere=True))
        said.append(str(error.value))

    assert said[0] == said[1]


def computed_of(made: Experiment) -> list[Batch]:
    """The batches of a run, in the order in which one process computes them."""
    computed: list[Batch] = []

    def change(task: Any) -> None:
        gradient = task.gradient

        def recording(weights: Any, batch: Batch) -> Any:
            computed.append(batch)
            return gradient(weights, batch)

        task.gradient = recording

    simulated(made, 1, change)
    return computed


def test_a_workload_with_a_state_of_its_own_stays_in_one_process() -> None:
    """Its gradients depend on how many it has computed: that is found out, and said."""

    def stateful(task: Any) -> None:
        gradient, count = task.gradient, [0]

        def counting(weights: Any, batch: Batch) -> Any:
            count[0] += 1
            vector, loss = gradient(weights, batch)
            return vector * count[0], loss

        task.gradient = counting

    made = experiment("method=asgd", "workload=quadratic", cluster=UNEVEN, budget={"updates": 60})

    with pytest.warns(UserWarning, match="a state of their own"):
        assert equal(simulated(made, 1, stateful), simulated(made, 2, stateful))


@pytest.mark.parametrize("pays", [True, False])
def test_auto_takes_several_processes_if_they_pay(pays: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins with one, measures both, and stays with the faster; no number depends on that."""
    monkeypatch.setattr(cores, "free_cores", lambda: 2)
    monkeypatch.setattr("hetsim.sim.gradient_processes.free_cores", lambda: 2)
    for name in ("BEGIN_SECONDS", "WINDOW_SECONDS"):
        monkeypatch.setattr(parallel_gradients, name, 0.0)
    monkeypatch.setattr(parallel_gradients, "PAYS", 1e9 if pays else 0.0)
    made = experiment("method=asgd", "workload=digits", "cluster=mixed8", budget={"epochs": 3})
    ended: list[int] = []
    dismiss = ParallelGradients._dismiss
    monkeypatch.setattr(ParallelGradients, "_dismiss", lambda self, helper: (ended.append(1), dismiss(self, helper)))

    with used(monkeypatch) as taken:
        assert equal(simulated(made, 1), simulated(made, "auto"))

    assert len(taken) == 1
    assert bool(ended) == (not pays)


def test_auto_stays_with_one_process_in_a_short_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take as long to fork."""
    monkeypatch.setattr("hetsim.sim.gradient_processes.free_cores", lambda: 2)
    monkeypatch.setattr(parallel_gradients, "BEGIN_SECONDS", 1e9)
    monkeypatch.setattr(parallel_gradients, "WINDOW_SECONDS", 0.0)

    with used(monkeypatch) as taken:
        simulated(experiment("method=asgd", "workload=digits", "cluster=mixed8", budget={"epochs": 3}), "auto")

    assert taken == []


@dataclass
class Case:
    """Words and keys, and why one process computes all gradients."""

    words: tuple[str, ...]
    why: str
    keys: dict[str, Any] = field(default_factory=dict)


@pytest.mark.parametrize(
    "case",
    [
        Case(("workload=phantom",), "computes no gradients"),
        Case(("workload=digits", "threads=2"), "several cores for each gradient"),
        Case(("workload=digits", "method=ringmaster_stops"), "may give up gradients"),
        Case(("workload=digits",), "a single worker", {"cluster": cluster(node(1e-4))}),
        Case(("workload=digits",), "cores are shared", {"cluster": SHARED}),
    ],
    ids=lambda case: case.why,
)
def test_several_processes_are_refused_where_they_would_do_nothing(case: Case) -> None:
    """And `auto` is one process there."""
    made = experiment(*dict.fromkeys(["method=asgd", *case.words][any("method" in word for word in case.words) :]), **case.keys)

    Simulator().check(made)
    with pytest.raises(ValueError, match=case.why):
        Simulator(processes=2).check(made)


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "many", None, True])
def test_a_wrong_number_of_processes_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"backend\.processes must be"):
        Simulator(processes=wrong).check(experiment("method=asgd", "workload=digits"))


def test_auto_is_one_process_in_a_parallel_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "_shared", False)
    cores.share_cores()
    made = experiment("method=asgd", "workload=quadratic", cluster=UNEVEN, budget={"updates": 3})

    assert type(simulated(made, "auto").simulation._batcher) is GradientBatcher


def test_a_runs_identity_does_not_depend_on_the_processes() -> None:
    """Nor is it another one than before there was the key."""
    backend = {"_target_": "hetsim.sim.Simulator"}

    assert len({identity_of({"seed": 0, "backend": {**backend, **its}}) for its in ({}, {"processes": "auto"}, {"processes": 7})}) == 1


def test_where_processes_cannot_be_forked_one_computes_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one sentence."""

    def refused() -> int:
        raise BlockingIOError(11, "no more processes")

    monkeypatch.setattr(os, "fork", refused)
    made = experiment("method=asgd", "workload=quadratic", cluster=UNEVEN, budget={"updates": 3})

    with pytest.warns(UserWarning, match="they cannot be started"):
        simulated(made, 2)


def test_a_run_warns_of_nothing() -> None:
    made = experiment("method=asgd", "workload=quadratic", cluster=UNEVEN, budget={"updates": 60})

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        simulated(made, 2)
