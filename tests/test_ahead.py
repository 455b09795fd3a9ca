"""Gradients computed a few at a time: the same as one by one, and no more than was asked for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from worlds import UNEVEN, experiment, simulate

from hetsim import effects as fx
from hetsim.runtime.rank import RankState
from hetsim.runtime.world import Handlers
from hetsim.sim import gradient_batching
from hetsim.sim.clock import VirtualClock
from hetsim.sim.gradient_batching import GradientBatcher
from hetsim.sim.rank_process import LOST, RankProcess

FAULTS = {"faults": {"detection_seconds": 1e-3, "schedule": [{"nodes": [1], "crash": 0.05, "repair": 0.1}]}}


class Spy:
    """A task whose gradient is its place in the order of the computations."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.computed: list[int] = []

    def initial(self) -> torch.Tensor:
        return torch.zeros(self.size)

    def gradient(self, at: Any, batch: fx.Batch) -> tuple[int, float]:
        self.computed.append(batch.start)
        return 10 * batch.start, float(batch.start)


def asked(task: Any, ends: list[float]) -> tuple[GradientBatcher, list[RankProcess], list[int]]:
    """A gradient of each of some ranks, which end at these moments, by their numbers; the batch of rank i starts at i."""
    gradients, clock = GradientBatcher(task, lambda _, at, batch: task.gradient(at, batch)), VirtualClock()
    processes = [RankProcess(clock, RankState(rank=rank), (_ for _ in ()), Handlers()) for rank in range(len(ends))]
    effects = [fx.Gradient(at=None, batch=fx.Batch(rank, 1), version=0) for rank in range(len(ends))]
    numbers = [gradients.expect(*its) for its in zip(ends, processes, effects, strict=True)]
    return gradients, processes, numbers


def test_those_due_next_are_computed_with_the_first(monkeypatch: pytest.MonkeyPatch):
    """Three at a time, in the order of their ends, and of their beginnings where they end together."""
    monkeypatch.setattr(gradient_batching, "MAX_BATCHED_GRADIENTS", 3)
    task = Spy(1)
    gradients, _, numbers = asked(task, [4.0, 2.0, 3.0, 1.0, 2.0])

    assert gradients.gradient(numbers[3]) == (30, 3.0)
    assert task.computed == [3, 1, 4]
    assert [gradients.gradient(numbers[rank]) for rank in (1, 4)] == [(10, 1.0), (40, 4.0)]
    assert task.computed == [3, 1, 4]
    assert gradients.gradient(numbers[2]) == (20, 2.0)
    assert task.computed == [3, 1, 4, 2, 0]


def test_what_a_lost_node_was_computing_is_not_computed_and_not_kept(monkeypatch: pytest.MonkeyPatch):
    """Lost before: never computed, and not counted. Lost when it was computed: forgotten with the next few."""
    monkeypatch.setattr(gradient_batching, "MAX_BATCHED_GRADIENTS", 2)
    task = Spy(1)
    gradients, processes, numbers = asked(task, [1.0, 2.0, 3.0, 4.0])
    processes[1].status = LOST

    gradients.gradient(numbers[0])
    processes[2].status = LOST
    gradients.gradient(numbers[3])

    assert task.computed == [0, 2, 3]
    assert gradients.num_kept == 0


def test_one_effect_may_be_under_way_twice():
    """Two ranks, or one that starts it again, may ask with the same object."""
    task = Spy(1)
    gradients, (process,), _ = asked(task, [1.0])
    effect = fx.Gradient(at=None, batch=fx.Batch(5, 1), version=0)

    numbers = [gradients.expect(end, process, effect) for end in (2.0, 3.0)]

    assert [gradients.gradient(number) for number in numbers] == [(50, 5.0)] * 2


@pytest.mark.parametrize(("megabytes", "together"), [(0.1, 8), (0.5, 4), (1.5, 1), (50, 1)])
def test_large_gradients_are_computed_one_at_a_time(megabytes: float, together: int):
    """As many as take two megabytes, eight at the most, and always one."""
    task = Spy(int(megabytes * 2**20 / 4))
    gradients, _, numbers = asked(task, [float(rank) for rank in range(20)])

    gradients.gradient(numbers[0])

    assert task.computed == list(range(together))


@pytest.mark.slow
@pytest.mark.parametrize("faults", [{}, FAULTS], ids=["all there", "with faults"])
@pytest.mark.parametrize("method", ["asgd", "ssgd", "dbs_sgd", "pipe_sgd"])
@pytest.mark.sampled(4)
def test_how_many_are_computed_together_changes_nothing(method: str, faults: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    """The same weights, bit by bit, at the same moments."""
    runs = []
    for together in (1, 8):
        monkeypatch.setattr(gradient_batching, "MAX_BATCHED_GRADIENTS", together)
        made = experiment(f"method={method}", "workload=digits", cluster={**UNEVEN, **faults}, budget={"updates": 60})
        runs.append(simulate(made, trace="full"))

    one, many = runs
    assert one.rows() == many.rows()
    assert torch.equal(one.weights, many.weights)
    assert bool(one.rows("down")) == bool(faults)
