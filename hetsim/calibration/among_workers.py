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
    after,
    at_the_same_time,
    known_sizes,
    nothing,
    sizes_of,
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
        yield from self.gradients(node, plan, weights, readings, at_the_same_time(node.num_workers)[:-1])
        yield self.for_seconds(1, 1, partial(self.in_a_row, node, plan, state), readings)
        yield self.updates(node, weights, readings)
        ssgd = SynchronousAllReduce(admission=Barrier())
        yield self.for_seconds(MIN_ROUNDS, 10, partial(self.in_training, node, plan, state, ssgd, IN_STEP), readings)
        changing = SynchronousAllReduce(admission=Barrier(), allocation=ChangingSplit())
        known = known_sizes(plan, node.rank)
        yield self.for_seconds(1, 10, partial(self.with_changing_split, node, plan, state, changing, known), readings)
        delayed = DelayedAllReduce(admission=Barrier(), warm_up=0)
        yield self.for_seconds(MIN_ROUNDS, 10, partial(self.overlapped, node, plan, state, delayed), readings)
        yield self.rest()
        for part in PARTS_OF_MODEL:
            yield self.all_reduces(weights[: max(1, len(weights) // part)], readings)

    def for_seconds(
        self, first: int, least: int, run: Callable[[list[Reading], Callable[[], bool]], Program[None]], readings: list[Reading]
    ) -> Program[None]:
        """Run a method without a server: `first` rounds, and then, with readings, as many as the slowest rank can do in the phase."""
        began = time.perf_counter()
        yield from run([], after(first))
        longest = max((yield from Gather(time.perf_counter() - began))) / first
        yield from run(readings, after(max(least, int(self.seconds / longest))))


@dataclass(frozen=True, kw_only=True)
class Uncapped(Measurement):
    """Measurements without hetsim's caps: gradients of one size, alone and at the same time, and all-reduces.

    Capped gradients seldom run at the same time, and caps cover a part of an all-reduce.
    """

    needs_server: ClassVar[bool] = False

    def phases(self, node: Node, plan: Plan, state: State, readings: list[Reading]) -> Iterator[Program[None]]:
        weights = state.weights
        sizes = sizes_of(plan, node.rank, (1.0,))
        for rank in range(node.num_workers):
            yield self.steps(node, weights, sizes, readings, "alone") if rank == node.rank else nothing()
        for busy in at_the_same_time(node.num_workers):
            yield self.steps(node, weights, sizes, readings, f"beside {busy}") if node.rank < busy else nothing()
        for part in PARTS_OF_MODEL:
            yield self.all_reduces(weights[: max(1, len(weights) // part)], readings)
