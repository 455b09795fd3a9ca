"""Measurements without a server: gradients alone and at the same time, local steps, optimizer steps, and all-reduces."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from hetsim.calibration.program import (
    MIN_ROUNDS,
    PARTS_OF_MODEL,
    ChangingSplit,
    Measurement,
    group_sizes,
    idle_phase,
    known_sizes,
    sizes_of,
    true_from_call,
)
from hetsim.calibration.readings import IN_STEP, Reading
from hetsim.coordination.all_reduce import SynchronousAllReduce
from hetsim.coordination.delayed_all_reduce import DelayedAllReduce
from hetsim.coordination.plan import Plan
from hetsim.coordination.state import State
from hetsim.effects import Gather, Node, Program
from hetsim.policies.admission import Barrier


@dataclass(frozen=True, kw_only=True)
class AmongWorkers(Measurement):
    """Measurements without a server. Those with all workers at the same time run the programs of local, synchronous and delayed SGD."""

    needs_server: ClassVar[bool] = False

    def phases(self, node: Node, plan: Plan, state: State, readings: list[Reading]) -> Iterator[Program[None]]:
        weights = state.weights
        yield from self.gradients(node, plan, weights, readings, group_sizes(node.num_workers)[:-1])
        yield self.for_seconds(1, 1, partial(self.run_local_sgd, node, plan, state), readings)
        yield self.updates(node, weights, readings)
        ssgd = SynchronousAllReduce(admission=Barrier())
        yield self.for_seconds(MIN_ROUNDS, 10, partial(self.run_in_training, node, plan, state, ssgd, IN_STEP), readings)
        changing = SynchronousAllReduce(admission=Barrier(), allocation=ChangingSplit())
        sizes = known_sizes(plan, node.rank)
        yield self.for_seconds(1, 10, partial(self.run_changing_split, node, plan, state, changing, sizes), readings)
        delayed = DelayedAllReduce(admission=Barrier(), warm_up=0)
        yield self.for_seconds(MIN_ROUNDS, 10, partial(self.run_overlapped, node, plan, state, delayed), readings)
        yield self.rest()
        for part in PARTS_OF_MODEL:
            yield self.all_reduces(weights[: max(1, len(weights) // part)], readings)

    def for_seconds(
        self, first: int, least: int, run: Callable[[list[Reading], Callable[[], bool]], Program[None]], readings: list[Reading]
    ) -> Program[None]:
        """Run a method without a server: `first` rounds, and then, with readings, as many as the slowest rank can do in the phase."""
        began = time.perf_counter()
        yield from run([], true_from_call(first))
        longest = max((yield from Gather(time.perf_counter() - began))) / first
        yield from run(readings, true_from_call(max(least, int(self.seconds / longest))))


@dataclass(frozen=True, kw_only=True)
class UncappedWorkers(Measurement):
    """Measurements without hetsim's caps: gradients of one size, alone and at the same time, and all-reduces.

    Capped gradients seldom run at the same time, and caps cover a part of an all-reduce.
    """

    needs_server: ClassVar[bool] = False

    def phases(self, node: Node, plan: Plan, state: State, readings: list[Reading]) -> Iterator[Program[None]]:
        weights = state.weights
        sizes = sizes_of(plan, node.rank, (1.0,))
        for rank in range(node.num_workers):
            yield self.steps(node, weights, sizes, readings, "alone") if rank == node.rank else idle_phase()
        for busy in group_sizes(node.num_workers):
            yield self.steps(node, weights, sizes, readings, f"beside {busy}") if node.rank < busy else idle_phase()
        for part in PARTS_OF_MODEL:
            yield self.all_reduces(weights[: max(1, len(weights) // part)], readings)
