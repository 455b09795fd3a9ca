"""One-step delay on a server: who pushes, pulls and steps when, asked by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from delays import computed, on_a_server
from test_programs_by_hand import SERVER, exchange, finished, gradient, ready, said

from hetsim.coordination.delayed_server import DelayedParameterServer
from hetsim.coordination.plan import Plan
from hetsim.coordination.state import State
from hetsim.effects import Batch, Commit, Gradient, LocalUpdate, Message, Node, Receive, Start, Update, Wait
from hetsim.policies.compensation import DelayCompensation
from hetsim.policies.compression import NoCompression


def reply(version: int, weights: float | None, start: int, *, rounds: int, samples: int = 2, epoch: int = 0) -> Message:
    """What the server answers a pull."""
    return Message(SERVER, {"version": version, "batch": Batch(start, samples), "rounds": rounds, "epoch": epoch}, weights)


def push(value: float, version: int) -> tuple[Any, ...]:
    """That gradient on its way to the server."""
    return ("send", SERVER, value, {"version": version, "seconds": 1.0, "loss": 0.5})


def work(worker: DelayedParameterServer, *answers: Any, plan: Plan | None = None) -> list[Any]:
    """What rank 0 of two asks after its first word."""
    program = worker.program(Node(0, SERVER), plan or Plan(SERVER, 4), State(weights=10.0))
    return exchange(program, None, *answers)[2:]


def test_a_worker_warms_up_then_pushes_posts_the_pull_steps_locally_and_computes():
    """Two ranges with one reply begin the delay; from then on w(t+1) = W(t) + u(g(t)), W(t) the pull that is waited for before the push."""
    program = on_a_server().program(Node(0, SERVER), Plan(SERVER, 4), State(weights=10.0))

    asked = exchange(
        program,
        *(None, reply(0, 10.0, 0, rounds=1), computed(1.0), None),
        *(reply(1, 9.0, 4, rounds=2, epoch=3), computed(2.0), None, "pull 1", 8.5),
        *(computed(3.0), reply(2, 8.0, 12, rounds=1, epoch=5), None, "pull 2", 7.5),
        computed(4.0),
    )

    assert asked == [
        ("send", SERVER, None, {}),
        Receive(SERVER),
        Gradient(at=10.0, batch=Batch(0, 2), version=0),
        push(1.0, version=0),
        Receive(SERVER),
        Gradient(at=9.0, batch=Batch(4, 2), version=1),
        push(2.0, version=1),
        Start(Receive(SERVER)),
        LocalUpdate(at=9.0, gradient=2.0, version=1, epoch=3),
        Gradient(at=8.5, batch=Batch(8, 2), version=1),
        Wait("pull 1"),
        push(3.0, version=1),
        Start(Receive(SERVER)),
        LocalUpdate(at=8.0, gradient=3.0, version=2, epoch=5),
        Gradient(at=7.5, batch=Batch(12, 2), version=2),
        Wait("pull 2"),
    ]
    assert finished(program, reply(3, None, 16, rounds=0, samples=0))


def test_a_worker_that_pulls_after_every_second_push_steps_on_from_its_own_weights():
    """Between pulls the base is where it stands; the weights that a pull brought are the base of just one step."""
    asked = work(
        on_a_server(pull_every=2),
        *(reply(0, 10.0, 0, rounds=3), computed(1.0), None, 9.0),
        *(computed(2.0), None, "pull 1", 8.0),
        *(computed(3.0), reply(2, 6.0, 12, rounds=2, epoch=1), None, 5.0),
        *(computed(4.0), None, "pull 2", 4.0),
        computed(5.0),
    )

    assert asked == [
        Gradient(at=10.0, batch=Batch(0, 2), version=0),
        push(1.0, version=0),
        LocalUpdate(at=10.0, gradient=1.0, version=0, epoch=0),
        Gradient(at=9.0, batch=Batch(4, 2), version=0),
        push(2.0, version=0),
        Start(Receive(SERVER)),
        LocalUpdate(at=9.0, gradient=2.0, version=0, epoch=0),
        Gradient(at=8.0, batch=Batch(8, 2), version=0),
        Wait("pull 1"),
        push(3.0, version=0),
        LocalUpdate(at=6.0, gradient=3.0, version=2, epoch=1),
        Gradient(at=5.0, batch=Batch(12, 2), version=2),
        push(4.0, version=2),
        Start(Receive(SERVER)),
        LocalUpdate(at=5.0, gradient=4.0, version=2, epoch=1),
        Gradient(at=4.0, batch=Batch(16, 2), version=2),
        Wait("pull 2"),
    ]


def test_a_stop_during_warm_up_ends_a_worker():
    """A reply without weights and without a range."""
    program = on_a_server().program(Node(0, SERVER), Plan(SERVER, 4), State(weights=10.0))
    exchange(program, None, reply(0, 10.0, 0, rounds=1), computed(1.0), None)

    assert finished(program, reply(1, None, 4, rounds=0, samples=0))


def test_a_worker_whose_ranges_run_out_still_has_the_pull_that_it_asked_for():
    """Of ten positions in batches of four, the first worker has three ranges; a pull that is posted is received before it ends."""
    program = on_a_server().program(Node(0, SERVER), Plan(SERVER, 4, num_positions=10), State(weights=10.0))

    asked = exchange(
        program,
        *(None, reply(0, 10.0, 0, rounds=2), computed(1.0), None, "pull 1", 9.0),
        *(computed(2.0), reply(1, 8.0, 8, rounds=1), None, "pull 2", 7.0),
        *(computed(3.0), reply(2, 6.0, 10, rounds=1, samples=0), None, "pull 3", 5.0),
    )

    assert asked[-6:] == [
        Gradient(at=7.0, batch=Batch(8, 2), version=1),
        Wait("pull 2"),
        push(3.0, version=1),
        Start(Receive(SERVER)),
        LocalUpdate(at=6.0, gradient=3.0, version=2, epoch=0),
        Wait("pull 3"),
    ]
    assert finished(program, reply(3, 5.0, 10, rounds=1, samples=0))


def test_a_worker_without_any_range_goes_home_at_once():
    """There is nothing to wait for."""
    program = on_a_server().program(Node(1, SERVER), Plan(SERVER, 4, num_positions=2), State(weights=10.0))
    exchange(program, None)

    assert finished(program, reply(0, 10.0, 2, rounds=2, samples=0))


@pytest.mark.parametrize(("against", "corrected"), [("previous", 3.0 + 9.0 * (8.0 - 9.0)), ("used", 3.0 + 9.0 * (8.0 - 8.5))])
def test_a_compensation_corrects_the_local_step_only(against: str, corrected: float):
    """g + g²(W(t) − W(t−1)), or g + g²(W(t) − w(t)); the push is the gradient itself, and the first step has nothing to correct."""
    asked = work(
        on_a_server(compensation=DelayCompensation(strength=1.0), against=against),
        *(reply(0, 9.0, 0, rounds=2), computed(2.0), None, "pull 1", 8.5),
        *(computed(3.0), reply(1, 8.0, 8, rounds=1), None, "pull 2", 7.5),
    )

    assert [one for one in asked if isinstance(one, LocalUpdate)] == [
        LocalUpdate(at=9.0, gradient=2.0, version=0, epoch=0),
        LocalUpdate(at=8.0, gradient=corrected, version=1, epoch=0),
    ]
    assert [one for one in asked if isinstance(one, tuple)] == [push(2.0, version=0), push(3.0, version=0)]


@dataclass(frozen=True)
class Halving(NoCompression):
    """Sends half of a gradient, and how many were sent before."""

    def initial(self, weights: Any) -> int:
        return 0

    def pack(self, state: int, gradient: Any, num_parameters: int | None) -> tuple[int, Any]:
        return state + 1, (gradient / 2, state)

    def unpack(self, payload: Any, like: Any, num_parameters: int | None) -> Any:
        return payload[0] * like


def test_a_push_is_compressed_and_a_local_step_is_not():
    """After the warm-up, which is plain synchronous SGD; what the compression remembers goes on from push to push."""
    asked = work(
        on_a_server(compression=Halving()),
        *(reply(0, 10.0, 0, rounds=1), computed(1.0), None),
        *(reply(1, 9.0, 4, rounds=2), computed(2.0), None, "pull 1", 8.5),
        *(computed(3.0), reply(2, 8.0, 12, rounds=1), None, "pull 2"),
    )

    assert [one[2] for one in asked if isinstance(one, tuple)] == [1.0, (1.0, 0), (1.5, 1)]
    assert [one.gradient for one in asked if isinstance(one, LocalUpdate)] == [2.0, 3.0]


def test_the_server_unpacks_what_was_pushed():
    """Into a vector like the weights."""
    method, plan = on_a_server(compression=Halving()), Plan(1, 4)
    program = method.program(Node(1, 1), plan, method.initial(plan, 10.0))

    asked = exchange(program, ready(0), None, gradient(0, (0.5, 0), version=0))

    assert asked[-1] == Update(at=10.0, gradient=0.5 * 10.0)


def test_the_server_collects_in_rank_order_steps_once_commits_and_sends_ranges_ahead():
    """One round of warm-up, then two global batches with the first weights of the delay, and one more with each later version."""
    method, plan = on_a_server(warm_up=1), Plan(SERVER, 4)
    program = method.program(Node(SERVER, SERVER), plan, method.initial(plan, 10.0))

    asked = exchange(
        program,
        *(ready(0), ready(1), None, None),
        *(gradient(0, 1.0, version=0), gradient(1, 3.0, version=0), 9.0, True, None, None),
        *(gradient(0, 2.0, version=1), gradient(1, 4.0, version=1), 8.0, True, None, None),
        *(gradient(0, 3.0, version=1), gradient(1, 5.0, version=1), 7.0, False, None),
    )

    assert asked == [
        Receive(0),
        Receive(1),
        ("send", 0, 10.0, {"version": 0, "batch": Batch(0, 2), "rounds": 1, "epoch": 0}),
        ("send", 1, 10.0, {"version": 0, "batch": Batch(2, 2), "rounds": 1, "epoch": 0}),
        Receive(0),
        Receive(1),
        Update(at=10.0, gradient=(1.0 + 3.0) / 2),
        ("commit", 1, 9.0, 4, 4, [(0, 2, 0), (1, 2, 0)]),
        ("send", 0, 9.0, {"version": 1, "batch": Batch(4, 2), "rounds": 2, "epoch": 0}),
        ("send", 1, 9.0, {"version": 1, "batch": Batch(6, 2), "rounds": 2, "epoch": 0}),
        Receive(0),
        Receive(1),
        Update(at=9.0, gradient=(2.0 + 4.0) / 2),
        ("commit", 2, 8.0, 12, 8, [(0, 2, 0), (1, 2, 0)]),
        ("send", 0, 8.0, {"version": 2, "batch": Batch(12, 2), "rounds": 1, "epoch": 0}),
        ("send", 1, 8.0, {"version": 2, "batch": Batch(14, 2), "rounds": 1, "epoch": 0}),
        Receive(0),
        Receive(1),
        Update(at=8.0, gradient=(3.0 + 5.0) / 2),
        ("commit", 3, 7.0, 16, 12, [(0, 2, 1), (1, 2, 1)]),
        ("send", 0, None, {"version": 3, "batch": Batch(16, 0), "rounds": 0, "epoch": 0}),
        ("send", 1, None, {"version": 3, "batch": Batch(16, 0), "rounds": 0, "epoch": 0}),
    ]
    assert finished(program, None)


def test_the_server_answers_every_kth_push_only():
    """With pull_every 2: three global batches at first, two with every second version, and what is dealt stands in the commit."""
    method, plan = on_a_server(pull_every=2), Plan(1, 4)
    program = method.program(Node(1, 1), plan, method.initial(plan, 10.0))

    asked = exchange(program, ready(0), None, gradient(0, 1.0, version=0), 9.0)
    commit = program.send(True)
    asked += [commit, said(program.send(gradient(0, 2.0, version=0))), said(program.send(8.0)), said(program.send(True))]

    assert asked[1:] == [
        ("send", 0, 10.0, {"version": 0, "batch": Batch(0, 4), "rounds": 3, "epoch": 0}),
        Receive(0),
        Update(at=10.0, gradient=1.0),
        ("commit", 1, 9.0, 12, 4, [(0, 4, 0)]),
        Receive(0),
        Update(at=9.0, gradient=2.0),
        ("commit", 2, 8.0, 12, 8, [(0, 4, 1)]),
        ("send", 0, 8.0, {"version": 2, "batch": Batch(12, 4), "rounds": 2, "epoch": 0}),
    ]


def test_the_server_answers_only_those_who_pushed_and_ends_when_nothing_is_left():
    """Five positions in batches of four: the second worker hears that there is no range for it, and after that no more."""
    method, plan = on_a_server(), Plan(SERVER, 4, num_positions=5)
    program = method.program(Node(SERVER, SERVER), plan, method.initial(plan, 10.0))

    asked = exchange(
        program,
        *(ready(0), ready(1), None, None),
        *(gradient(0, 1.0, version=0), gradient(1, 3.0, version=0), 9.0, True, None, None),
        *(gradient(0, 2.0, version=0), 8.0, True),
    )

    assert asked[7:] == [
        ("commit", 1, 9.0, 5, 4, [(0, 2, 0), (1, 2, 0)]),
        ("send", 0, 9.0, {"version": 1, "batch": Batch(5, 0), "rounds": 1, "epoch": 0}),
        ("send", 1, 9.0, {"version": 1, "batch": Batch(5, 0), "rounds": 1, "epoch": 0}),
        Receive(0),
        Update(at=9.0, gradient=2.0),
        ("commit", 2, 8.0, 5, 5, [(0, 1, 1)]),
        ("send", 0, 8.0, {"version": 2, "batch": Batch(5, 0), "rounds": 1, "epoch": 0}),
    ]
    assert finished(program, None)


def test_what_was_dealt_and_not_collected_stands_in_the_committed_state():
    """And a new start deals it again, from its beginning."""
    method, plan = on_a_server(), Plan(SERVER, 4)
    program = method.program(Node(SERVER, SERVER), plan, method.initial(plan, 10.0))
    next(program)
    for answer in (ready(0), ready(1), None, None, gradient(0, 1.0, version=0), gradient(1, 3.0, version=0)):
        program.send(answer)

    commit = program.send(9.0)

    assert isinstance(commit, Commit)
    assert commit.state.outstanding == (Batch(4, 2), Batch(6, 2))
    again = method.program(Node(SERVER, SERVER), plan, commit.state)
    assert exchange(again, ready(0), ready(1))[2] == ("send", 0, 9.0, {"version": 1, "batch": Batch(4, 2), "rounds": 2, "epoch": 0})


def test_a_pull_after_every_zeroth_push_is_none():
    """pull_every is at least 1."""
    with pytest.raises(ValueError, match=r"coordination\.pull_every .*0"):
        on_a_server(pull_every=0)
