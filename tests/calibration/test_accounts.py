"""The parts of a method's program: each second belongs to one effect, or to the program itself."""

from __future__ import annotations

import time
from typing import Any

import pytest

from hetsim.calibration.accounts import PROGRAM, RoundCosts, account_rounds
from hetsim.calibration.program import true_from_call
from hetsim.coordination.state import State
from hetsim.effects import AllReduce, Batch, Commit, Gradient, Program, Receive, Send
from hetsim.vector import Phantom

VECTOR = Phantom(8)


class Clocks:
    """Clocks that only move when told to: seconds, CPU-seconds of the thread, and of the process."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.wall = self.thread = self.process = 0.0
        patch.setattr(time, "perf_counter", lambda: self.wall)
        patch.setattr(time, "thread_time", lambda: self.thread)

    def move(self, wall: float, thread: float, process: float) -> None:
        """So much passes on each."""
        self.wall, self.thread, self.process = self.wall + wall, self.thread + thread, self.process + process


def played(clocks: Clocks, program: Program[Any], until: int) -> tuple[list[tuple[RoundCosts, int]], State | None]:
    """The rounds of an accounted program in a world whose effects take 4, 2 and 3 seconds on the clocks, and what it returns."""
    rounds: list[tuple[RoundCosts, int]] = []
    running = account_rounds(program, process=lambda: clocks.process, until=true_from_call(until), over=lambda *each: rounds.append(each))
    answer: Any = None
    while True:
        try:
            running.send(answer)
        except StopIteration as ended:
            return rounds, ended.value
        clocks.move(4.0, 2.0, 3.0)
        answer = True


def test_each_second_of_a_worker_belongs_to_one_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round ends with a gradient: it has what followed the gradient before, and all of the program's own work."""
    clocks = Clocks(monkeypatch)

    def worker() -> Program[None]:
        going = True
        while going:
            clocks.move(1.0, 0.5, 0.5)
            yield from Gradient(VECTOR, Batch(0, 7), 0)
            yield from AllReduce(VECTOR)
            clocks.move(2.0, 1.0, 1.0)
            going = yield from Commit(1, State(version=1, weights=VECTOR), ())

    rounds, state = played(clocks, worker(), until=3)

    assert state is not None
    assert state.version == 1
    assert [samples for _, samples in rounds] == [7, 7, 7]
    for costs, _ in rounds[1:]:
        assert {name: tuple(cost[:3]) for name, cost in costs.items()} == {
            PROGRAM: (3.0, 1.5, 1.5),
            **dict.fromkeys(("Gradient", "AllReduce", "Commit"), (4.0, 2.0, 3.0)),
        }


def test_a_round_of_a_server_ends_with_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = Clocks(monkeypatch)

    def server() -> Program[None]:
        going = True
        while going:
            yield from Receive()
            clocks.move(1.0, 1.0, 1.0)
            going = yield from Commit(1, State(version=1, weights=VECTOR), ())
            yield from Send(0, VECTOR)

    rounds, _ = played(clocks, server(), until=2)

    assert [sorted(costs) for costs, _ in rounds] == [["Commit", "Receive", PROGRAM], ["Commit", "Receive", "Send", PROGRAM]]
    assert [costs[PROGRAM].wall for costs, _ in rounds] == [1.0, 1.0]


def test_what_the_clocks_cost_belongs_to_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reading takes a quarter of a second of each clock, and every sum is the same as without."""
    clocks = Clocks(monkeypatch)

    def dear() -> float:
        clocks.move(0.25, 0.25, 0.25)
        return clocks.wall

    monkeypatch.setattr(time, "perf_counter", dear)

    def worker() -> Program[None]:
        clocks.move(1.0, 0.5, 0.5)
        yield from Gradient(VECTOR, Batch(0, 7), 0)
        yield from Commit(1, State(version=1, weights=VECTOR), ())
        clocks.move(1.0, 0.5, 0.5)
        yield from Gradient(VECTOR, Batch(0, 7), 0)

    rounds, _ = played(clocks, worker(), until=9)

    assert {name: tuple(cost[:3]) for name, cost in rounds[1][0].items()} == {
        PROGRAM: (1.0, 0.5, 0.5), **dict.fromkeys(("Gradient", "Commit"), (4.0, 2.0, 3.0))
    }  # fmt: skip
