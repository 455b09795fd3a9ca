"""Start and Wait: what is under way at once takes the longest of its times, not their sum."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
from worlds import cluster, experiment, node, simulate

from hetsim.coordination.base import Coordination
from hetsim.coordination.plan import Plan
from hetsim.coordination.state import State
from hetsim.effects import AllReduce, Batch, Commit, Gather, Gradient, Node, Now, Program, Receive, Send, Start, Update, Wait
from hetsim.errors import ProgramError, RunFailed

Asking = Callable[[Node, Any], Generator[Any, Any, Any]]
BATCH = Batch(0, 3)


@dataclass(frozen=True, kw_only=True)
class Script(Coordination):
    """What each rank asks, written in the test; when it had done so is noted, by rank."""

    needs_server: ClassVar[bool] = False
    asks: Asking
    ended: dict[int, Any]

    def program(self, node: Node, plan: Plan, state: State) -> Program[None]:
        answer = yield from self.asks(node, state.weights)
        now = yield from Now()
        self.ended[node.rank] = (now, answer)
        yield from Commit(1, replace(state, version=1))


def play(asks: Asking, *, nodes: int = 1) -> dict[int, Any]:
    """(seconds, answer) of each rank: a gradient takes 3 s, an update 2 s, a ring of two 1.5 s, a gather 0.75 s, a message 1 s."""
    base = experiment(
        "method=ssgd",
        "workload=phantom",
        workload={"num_parameters": 8, "num_samples": 100},  # 32 bytes
        cluster=cluster(node(1.0, count=nodes, seconds_per_update=2.0), network={"latency_seconds": 0.5, "bytes_per_second": 64.0}),
        batch_size=4,
        budget={"updates": 1},
    )
    coordination = base.coordination
    policies = {
        axis: getattr(coordination, axis) for axis in ("allocation", "weighting", "discount", "compensation", "admission", "compression")
    }
    ended: dict[int, Any] = {}
    simulate(replace(base, coordination=Script(asks=asks, ended=ended, **policies)))
    return ended


def test_one_after_the_other_takes_the_sum():
    """Without Start there is no overlap."""

    def asks(_node: Node, x: Any) -> Generator[Any, Any, Any]:
        yield from Gradient(at=x, batch=BATCH, version=0)
        yield from Update(at=x, gradient=x)

    assert play(asks) == {0: (5.0, None)}


def test_what_was_started_runs_beside_what_follows():
    """A gradient of 3 s beside an update of 2 s: 3 s, and its answer is the gradient's."""

    def asks(_node: Node, x: Any) -> Generator[Any, Any, Any]:
        pending = yield from Start(Gradient(at=x, batch=BATCH, version=0))
        yield from Update(at=x, gradient=x)
        computed = yield from Wait(pending)
        return computed.samples, computed.seconds

    assert play(asks) == {0: (3.0, (3, 3.0))}


def test_waiting_for_what_is_done_costs_nothing():
    """An update of 2 s beside a gradient of 3 s: it is waited for when it is over."""

    def asks(_node: Node, x: Any) -> Generator[Any, Any, Any]:
        pending = yield from Start(Update(at=x, gradient=x))
        yield from Gradient(at=x, batch=BATCH, version=0)
        return (yield from Wait(pending)) is x

    assert play(asks) == {0: (3.0, True)}


def test_what_takes_no_time_is_answered_when_it_is_waited_for():
    """Started before a gradient of 3 s, answered for the moment of its start."""

    def asks(_node: Node, x: Any) -> Generator[Any, Any, Any]:
        pending = yield from Start(Now())
        yield from Gradient(at=x, batch=BATCH, version=0)
        return (yield from Wait(pending))

    assert play(asks) == {0: (3.0, 0.0)}


def test_starting_takes_no_time():
    """The program goes on at once."""

    def asks(_node: Node, x: Any) -> Generator[Any, Any, Any]:
        yield from Start(Gradient(at=x, batch=BATCH, version=0))
        return (yield from Now())

    assert play(asks) == {0: (0.0, 0.0)}


@pytest.mark.parametrize(("late", "end"), [(0, 3.0), (1, 4.5)])
def test_a_reduction_beside_a_gradient_waits_for_the_last_to_enter(late: int, end: float):
    """A ring of 1.5 s that rank 1 enters at once is hidden by the gradient; entered after it, it is not."""

    def asks(node: Node, x: Any) -> Generator[Any, Any, Any]:
        if node.rank == 1 and late:
            yield from Gradient(at=x, batch=BATCH, version=0)
        pending = yield from Start(AllReduce(x))
        if node.rank == 0 or not late:
            yield from Gradient(at=x, batch=BATCH, version=0)
        yield from Wait(pending)

    assert play(asks, nodes=2) == {0: (end, None), 1: (end, None)}


def test_collectives_of_one_kind_are_matched_in_the_order_of_entry():
    """Two gathers under way at once: the first of the one rank meets the first of the other."""

    def asks(node: Node, _x: Any) -> Generator[Any, Any, Any]:
        first = yield from Start(Gather(10.0 + node.rank))
        second = yield from Start(Gather(20.0 + node.rank))
        return [(yield from Wait(second)), (yield from Wait(first))]

    assert play(asks, nodes=2) == {rank: (0.625, [(20.0, 21.0), (10.0, 11.0)]) for rank in (0, 1)}


def test_a_message_can_be_waited_for_beside_a_gradient():
    """Sent at 0 s and 1 s under way, it is there before the gradient of 3 s is."""

    def asks(node: Node, x: Any) -> Generator[Any, Any, Any]:
        yield from Send(1 - node.rank, x, version=node.rank)
        pending = yield from Start(Receive(1 - node.rank))
        yield from Gradient(at=x, batch=BATCH, version=0)
        message = yield from Wait(pending)
        return message.source, message.version

    assert play(asks, nodes=2) == {0: (3.0, (1, 1)), 1: (3.0, (0, 0))}


def test_a_program_that_waits_for_nothing_under_way_is_told_so():
    """A rank that waits for ever is an error that names it and what it asked."""

    def asks(_node: Node, _x: Any) -> Generator[Any, Any, Any]:
        yield from Receive()

    with pytest.raises(RunFailed, match=r"can make no progress: rank 0 waits for a message from anyone"):
        play(asks)


def test_a_question_that_is_no_effect_is_told_so():
    """A program that yields what a world cannot answer has forgotten a `yield from`."""

    def asks(_node: Node, _x: Any) -> Generator[Any, Any, Any]:
        yield 3

    with pytest.raises(ProgramError, match=r"^rank 0 yields 3, which is not an effect: is a 'yield from' forgotten"):
        play(asks)


def test_a_header_value_that_was_not_sent_is_told_so():
    """Who reads what of whose message, and what that has: the sender's Send lacks it."""

    def asks(node: Node, x: Any) -> Generator[Any, Any, Any]:
        yield from Send(1 - node.rank, x, version=3)
        message = yield from Receive()
        return message.seconds

    with pytest.raises(ProgramError, match=r"^rank 1 reads 'seconds' of a message from rank 0, whose header holds version: add seconds="):
        play(asks, nodes=2)
