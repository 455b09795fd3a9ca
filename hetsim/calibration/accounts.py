"""Run a method's own program, and account for the seconds of each effect and of the program between them."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, NamedTuple

from hetsim.coordination.state import State
from hetsim.effects import Commit, Gradient, Program

PROGRAM = "program"
"""The name of the account of the program itself: its policies, and what it does with vectors."""


class Cost(NamedTuple):
    """Seconds, CPU-seconds of the thread that computes, and CPU-seconds of the process; and how many times."""

    wall: float = 0.0
    thread: float = 0.0
    process: float = 0.0
    num: int = 0

    def plus(self, other: Cost) -> Cost:
        """The sum."""
        return Cost(self.wall + other.wall, self.thread + other.thread, self.process + other.process, self.num + other.num)

    def less(self, other: Cost) -> Cost:
        """The difference."""
        return Cost(self.wall - other.wall, self.thread - other.thread, self.process - other.process, self.num - other.num)


NUM_READS = 100
"""How often the clocks are read to find out what that costs."""
RoundCosts = Mapping[str, Cost]
"""The costs of one round by the name of the effect, and of the `PROGRAM`."""


def account_rounds(
    program: Program[Any],
    *,
    process: Callable[[], float],
    until: Callable[[], bool],
    over: Callable[[RoundCosts, int], None],
) -> Program[State | None]:
    """Run the program until `until()` is true at a commit; it ends as at the end of a budget. Returns the last committed state.

    Args:
        process: the CPU-seconds of the process until now.
        until: called at each commit.
        over: called with the costs of each round, and the samples of its gradient. A worker's round ends with a gradient, and a server's
            with a commit.
    """
    costs: dict[str, Cost] = defaultdict(Cost)
    state: State | None = None
    answer: Any = None
    samples = 0

    def now() -> Cost:
        return Cost(time.perf_counter(), time.thread_time(), process())

    def add(name: str, since: Cost) -> Cost:
        after = now()
        took = after.less(since).less(clocks)
        costs[name] = costs[name].plus(Cost(max(0.0, took.wall), max(0.0, took.thread), max(0.0, took.process), 1))
        return after

    first = last = now()
    for _ in range(NUM_READS):
        last = now()
    took = last.less(first)
    clocks = Cost(took.wall / NUM_READS, took.thread / NUM_READS, took.process / NUM_READS)  # what reading the clocks itself costs
    with closing(program):
        since = now()
        while True:
            try:
                effect = program.send(answer)
            except StopIteration:
                return state
            since = add(PROGRAM, since)
            answer = yield effect
            since = add(type(effect).__name__, since)
            if isinstance(effect, Commit):
                state, answer = effect.state, answer and not until()
            if isinstance(effect, Gradient):
                samples = effect.batch.samples
            if isinstance(effect, Gradient if samples else Commit):
                over(dict(costs), samples)
                costs.clear()
                since = now()
