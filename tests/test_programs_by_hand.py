"""Methods without any world: each question is answered by hand, with `next` and `send`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from hetsim.coordination.all_reduce import SynchronousAllReduce
from hetsim.coordination.parameter_server import ParameterServer
from hetsim.coordination.plan import Plan
from hetsim.coordination.state import State
from hetsim.effects import (
    AllReduce,
    Batch,
    Commit,
    Computed,
    Contribution,
    Effect,
    Gather,
    Gradient,
    Message,
    Node,
    PeerLost,
    Program,
    Receive,
    Send,
    Update,
)
from hetsim.errors import ProgramError
from hetsim.policies.admission import Barrier, Decision, EveryGradient
from hetsim.policies.allocation.base import Even
from hetsim.policies.allocation.periodic import SpeedProportional
from hetsim.policies.compensation import NoCompensation
from hetsim.policies.compression import NoCompression
from hetsim.policies.weighting import NoDiscount, PerSample, PerWorker
from hetsim.runtime.world import as_program_error
from hetsim.vector import scaled

PLAIN: dict[str, Any] = {
    "allocation": Even(),
    "weighting": PerWorker(),
    "discount": NoDiscount(),
    "compensation": NoCompensation(),
    "compression": NoCompression(),
}
SERVER = 2


def ssgd(**policies: Any) -> SynchronousAllReduce:
    """Synchronous SGD with these policies."""
    return SynchronousAllReduce(**{**PLAIN, "admission": Barrier(), **policies})


def asgd(**policies: Any) -> ParameterServer:
    """Asynchronous SGD with these policies."""
    return ParameterServer(**{**PLAIN, "admission": EveryGradient(), **policies})


def said(effect: Effect[Any]) -> Any:
    """A question in a form that can be compared; of a commit, the version, what goes with it, and who made it; of a sum, the term."""
    if isinstance(effect, Send):
        return ("send", effect.to, effect.payload, effect.header)
    if isinstance(effect, Commit):
        state = effect.state
        return (
            "commit",
            effect.version,
            state.weights,
            state.next_sample,
            state.num_samples,
            [(c.rank, c.samples, c.staleness) for c in effect.applied],
        )
    return AllReduce(scaled(effect.value, effect.factor)) if isinstance(effect, AllReduce) else effect


def finished(program: Program[None], answer: Any) -> bool:
    """Whether it ends at this answer."""
    try:
        program.send(answer)
    except StopIteration:
        return True
    return False


def test_a_synchronous_worker_computes_adds_up_steps_and_commits():
    """Rank 1 of two, five positions in batches of four: a whole round, and a last one that it only adds a zero to."""
    plan = Plan(num_workers=2, batch_size=4, num_positions=5)
    program = ssgd().program(Node(1, 2), plan, ssgd().initial(plan, 10.0))

    asked = [said(next(program))]
    for answer in (Computed(6.0, 0.5, 2, 1.0), 5.0, 9.0):
        asked.append(said(program.send(answer)))

    assert asked == [
        Gradient(at=10.0, batch=Batch(2, 2), version=0),
        AllReduce(6.0 * 0.5),
        Update(at=10.0, gradient=5.0),
        ("commit", 1, 9.0, 4, 4, [(0, 2, 0), (1, 2, 0)]),
    ]


def test_the_first_rank_takes_the_last_short_range_alone():
    """Of a last batch of one sample nobody else has a part, so the first one's mean counts whole; then the run is over."""
    plan = Plan(num_workers=2, batch_size=4, num_positions=5)
    state = State(version=1, weights=9.0, next_sample=4, num_samples=4, allocation=(2, 2))
    program = ssgd().program(Node(0, 2), plan, state)

    asked = [said(next(program))]
    for answer in (Computed(6.0, 0.5, 1, 1.0), 6.0, 8.0):
        asked.append(said(program.send(answer)))

    assert asked == [
        Gradient(at=9.0, batch=Batch(4, 1), version=1),
        AllReduce(6.0),
        Update(at=9.0, gradient=6.0),
        ("commit", 2, 8.0, 5, 5, [(0, 1, 0)]),
    ]
    assert finished(program, True)


def test_a_run_that_may_not_go_on_stops_at_its_commit():
    """The answer to a commit is the budget's verdict."""
    plan = Plan(num_workers=1, batch_size=4)
    program = ssgd().program(Node(0, 1), plan, ssgd().initial(plan, 1.0))
    next(program)
    for answer in (Computed(1.0, 0.0, 4, 1.0), 1.0, 0.5):
        program.send(answer)

    assert finished(program, False)


def test_weights_go_into_the_sum_and_measurements_into_the_next_split():
    """Rank 1 of two weighs its mean by its samples; the gathered seconds make the slower one's next range smaller."""
    method = ssgd(weighting=PerSample(), allocation=SpeedProportional())
    plan = Plan(num_workers=2, batch_size=8)
    program = method.program(Node(1, 2), plan, method.initial(plan, 10.0))

    asked = exchange(program, Computed(6.0, 0.5, 4, 1.0), 5.0, (3.0, 1.0))
    commit = program.send(9.0)
    assert isinstance(commit, Commit)
    asked.append(program.send(True))
    asked.append(said(program.send(Computed(6.0, 0.5, 6, 1.0))))

    assert asked == [
        Gradient(at=10.0, batch=Batch(4, 4), version=0),
        AllReduce(3.0),
        Gather(1.0),
        Update(at=10.0, gradient=5.0),
        Gradient(at=9.0, batch=Batch(10, 6), version=1),
        AllReduce(6.0 * 6 / 8),
    ]
    assert [(c.rank, c.seconds) for c in commit.applied] == [(0, 3.0), (1, 1.0)]


def test_a_worker_asks_computes_where_the_server_is_and_sends_back_what_it_cost():
    """It speaks first, and an empty range sends it home."""
    program = asgd().program(Node(0, SERVER), Plan(SERVER, 4), State(weights=None))

    asked = [said(next(program)), said(program.send(None))]
    asked.append(said(program.send(Message(SERVER, {"version": 7, "batch": Batch(8, 2)}, 10.0))))
    asked.append(said(program.send(Computed(6.0, 0.5, 2, 1.25))))
    asked.append(said(program.send(None)))

    assert asked == [
        ("send", SERVER, None, {}),
        Receive(SERVER),
        Gradient(at=10.0, batch=Batch(8, 2), version=7),
        ("send", SERVER, 6.0, {"version": 7, "seconds": 1.25, "loss": 0.5}),
        Receive(SERVER),
    ]
    assert finished(program, Message(SERVER, {"version": 8, "batch": Batch(10, 0)}))


def ready(rank: int) -> Message:
    """A worker's first word."""
    return Message(rank, {})


def gradient(rank: int, payload: float, *, version: int, seconds: float = 1.0) -> Message:
    """A worker's gradient."""
    return Message(rank, {"version": version, "seconds": seconds, "loss": 0.5}, payload)


def exchange(program: Program[None], *answers: Any) -> list[Any]:
    """What a program asks, from the beginning, at these answers."""
    asked = [said(next(program))]
    asked += [said(program.send(answer)) for answer in answers]
    return asked


def test_an_asynchronous_server_applies_each_gradient_and_hands_out_the_next_range():
    """Two workers, five positions in ranges of two: two ranges and a last one of one sample, each applied; then both are sent home,

    as the first of them might have been needed for what the other held.
    """
    plan = Plan(num_workers=2, batch_size=4, num_positions=5)
    program = asgd().program(Node(SERVER, 2), plan, asgd().initial(plan, 10.0))

    asked = exchange(
        program,
        *(ready(1), None),
        *(ready(0), None),
        *(gradient(0, 1.0, version=0), 9.0, True, None),
        *(gradient(1, 2.0, version=0), 7.0, True),
        *(gradient(0, 3.0, version=1), 4.0, True, None),
    )

    assert asked == [
        Receive(),
        ("send", 1, 10.0, {"version": 0, "batch": Batch(0, 2)}),
        Receive(),
        ("send", 0, 10.0, {"version": 0, "batch": Batch(2, 2)}),
        Receive(),
        Update(at=10.0, gradient=1.0),
        ("commit", 1, 9.0, 4, 2, [(0, 2, 0)]),
        ("send", 0, 9.0, {"version": 1, "batch": Batch(4, 1)}),
        Receive(),
        Update(at=9.0, gradient=2.0),
        ("commit", 2, 7.0, 5, 4, [(1, 2, 1)]),
        Receive(),
        Update(at=7.0, gradient=3.0),
        ("commit", 3, 4.0, 5, 5, [(0, 1, 1)]),
        ("send", 0, None, {"version": 3, "batch": Batch(5, 0)}),
        ("send", 1, None, {"version": 3, "batch": Batch(5, 0)}),
    ]
    assert finished(program, None)


def test_a_server_at_its_budget_sends_everyone_home_and_applies_no_more():
    """What is in flight at the last commit is received and left alone."""
    plan = Plan(num_workers=2, batch_size=4)
    program = asgd().program(Node(SERVER, 2), plan, asgd().initial(plan, 10.0))

    asked = exchange(
        program,
        *(ready(0), None, ready(1), None),
        *(gradient(0, 1.0, version=0), 9.0, False, None),
        gradient(1, 2.0, version=0),
    )

    assert asked[5:] == [
        Update(at=10.0, gradient=1.0),
        ("commit", 1, 9.0, 4, 2, [(0, 2, 0)]),
        ("send", 0, None, {"version": 1, "batch": Batch(4, 0)}),
        Receive(),
        ("send", 1, None, {"version": 1, "batch": Batch(4, 0)}),
    ]
    assert finished(program, None)


def test_a_server_behind_a_barrier_adds_up_in_rank_order_and_frees_everyone():
    """The twin of the all-reduce: one update of both gradients, each weighted by its samples."""
    method = asgd(admission=Barrier(), weighting=PerSample())
    plan = Plan(num_workers=2, batch_size=5)
    program = method.program(Node(SERVER, 2), plan, method.initial(plan, 10.0))

    asked = exchange(
        program,
        *(ready(0), None, ready(1), None),
        gradient(1, 10.0, version=0),
        *(gradient(0, 5.0, version=0), 3.0, True, None),
    )

    assert asked[5:] == [
        Receive(),
        Update(at=10.0, gradient=5.0 * 3 / 5 + 10.0 * 2 / 5),
        ("commit", 1, 3.0, 5, 5, [(0, 3, 0), (1, 2, 0)]),
        ("send", 0, 3.0, {"version": 1, "batch": Batch(5, 3)}),
        ("send", 1, 3.0, {"version": 1, "batch": Batch(8, 2)}),
    ]


@dataclass(frozen=True)
class Hoarding(EveryGradient):
    """Frees everyone at once, but keeps the first worker's gradients until the end."""

    def initial(self, num_workers: int) -> tuple[Contribution, ...]:
        return ()

    def arrived(self, state: tuple[Contribution, ...], contribution: Contribution) -> tuple[tuple[Contribution, ...], Decision]:
        if contribution.rank == 0:
            return (*state, contribution), Decision(release=(0,))
        return state, Decision(apply=(contribution,), release=(contribution.rank,))

    def worker_left(self, state: tuple[Contribution, ...], rank: int) -> tuple[tuple[Contribution, ...], Decision]:
        return (), Decision(apply=state)


def test_what_admission_still_holds_is_applied_at_the_end_of_an_epoch_budget():
    """When a worker leaves, before the run is over: the incomplete group makes a version too."""
    method = asgd(admission=Hoarding())
    plan = Plan(num_workers=2, batch_size=4, num_positions=4)
    program = method.program(Node(SERVER, 2), plan, method.initial(plan, 10.0))

    asked = exchange(
        program,
        *(ready(0), None, ready(1), None),
        *(gradient(0, 2.0, version=0), 8.0, True),
        *(gradient(1, 3.0, version=0), 5.0, True, None),
    )

    assert asked[5:] == [
        Update(at=10.0, gradient=2.0),
        ("commit", 1, 8.0, 4, 2, [(0, 2, 0)]),
        Receive(),
        Update(at=8.0, gradient=3.0),
        ("commit", 2, 5.0, 4, 4, [(1, 2, 1)]),
        ("send", 0, None, {"version": 2, "batch": Batch(4, 0)}),
        ("send", 1, None, {"version": 2, "batch": Batch(4, 0)}),
    ]
    assert finished(program, None)


def test_what_admission_still_holds_is_not_applied_after_other_budgets():
    """The last version is the one whose commit was answered with an end."""
    method = asgd(admission=Hoarding())
    plan = Plan(num_workers=2, batch_size=4)
    program = method.program(Node(SERVER, 2), plan, method.initial(plan, 10.0))

    asked = exchange(
        program,
        *(ready(0), None, ready(1), None),
        *(gradient(0, 2.0, version=0), None),
        *(gradient(1, 3.0, version=0), 7.0, False, None),
        gradient(0, 2.0, version=0),
    )

    assert asked[5:] == [
        ("send", 0, 10.0, {"version": 0, "batch": Batch(4, 2)}),
        Receive(),
        Update(at=10.0, gradient=3.0),
        ("commit", 1, 7.0, 6, 2, [(1, 2, 0)]),
        ("send", 1, None, {"version": 1, "batch": Batch(6, 0)}),
        Receive(),
        ("send", 0, None, {"version": 1, "batch": Batch(6, 0)}),
    ]
    assert finished(program, None)


def test_a_new_start_hands_out_first_what_was_not_brought_back():
    """The ranges outstanding at the commit, then the sequence goes on."""
    plan = Plan(num_workers=2, batch_size=4)
    state = State(version=3, weights=4.0, next_sample=8, num_samples=6, allocation=(2, 2), outstanding=(Batch(4, 2),))
    program = asgd().program(Node(SERVER, 2), plan, state)

    asked = exchange(program, ready(1), None, ready(0))

    assert asked == [
        Receive(),
        ("send", 1, 4.0, {"version": 3, "batch": Batch(4, 2)}),
        Receive(),
        ("send", 0, 4.0, {"version": 3, "batch": Batch(8, 2)}),
    ]


def test_what_is_outstanding_stands_in_the_committed_state():
    """At a commit the other worker's range, and what an earlier run left, are still to come."""
    plan = Plan(num_workers=2, batch_size=4)
    left = (Batch(0, 2), Batch(2, 2), Batch(4, 2))
    program = asgd().program(Node(SERVER, 2), plan, State(weights=4.0, next_sample=6, allocation=(2, 2), outstanding=left))
    next(program)
    for answer in (ready(1), None, ready(0), None, gradient(0, 1.0, version=0)):
        program.send(answer)

    commit = program.send(3.0)

    assert isinstance(commit, Commit)
    assert tuple(commit.state.outstanding) == (Batch(4, 2), Batch(0, 2))
    assert commit.state.num_samples_in_flight == 4


@pytest.mark.parametrize("rank", [0, SERVER])
def test_a_lost_peer_surfaces_at_the_programs_own_receive(rank: int):
    """An error of the world is thrown into the program: its traceback passes through the line that waits."""
    program = asgd().program(Node(rank, SERVER), Plan(SERVER, 4), State(weights=None))
    effect = next(program)
    while not isinstance(effect, Receive):
        effect = program.send(None)

    with pytest.raises(PeerLost, match="rank 1 is gone") as caught:
        program.throw(PeerLost("rank 1 is gone"))

    lines = [str(entry.statement).strip() for entry in caught.traceback]
    assert any(line.startswith("message = yield from Receive(") for line in lines)


def test_fault_tolerance_is_an_ordinary_try():
    """A program that catches the loss of a peer goes on from there."""

    def stubborn() -> Program[str]:
        try:
            yield from Receive(3)
        except PeerLost:
            return "alone"
        return "together"

    program = stubborn()
    next(program)

    with pytest.raises(StopIteration) as ended:
        program.throw(PeerLost("rank 3 is gone"))
    assert ended.value.value == "alone"


@pytest.mark.parametrize("axis", [{"admission": EveryGradient()}])
def test_an_all_reduce_refuses_policies_that_need_a_server(axis: dict[str, Any]):
    """One sentence that names the axis and what to do."""
    with pytest.raises(
        ValueError, match=r"^admission is EveryGradient, but an all-reduce waits for all workers .*add coordination=parameter_server"
    ):
        ssgd(**axis)


def test_a_header_is_read_as_attributes():
    """A message has what its sender put into the header, under its name, and nothing else."""
    message = Message(0, {"version": 3})

    assert (message.version, message.header, message.payload) == (3, {"version": 3}, None)
    with pytest.raises(AttributeError, match="seconds"):
        _ = message.seconds


def test_a_value_that_was_not_sent_is_one_sentence_of_the_world():
    """It names who reads what of whose message, and what that message has."""
    message = Message(2, {"version": 3, "loss": 0.5})
    with pytest.raises(AttributeError) as missing:
        _ = message.seconds

    error = as_program_error(missing.value, rank=1)

    assert isinstance(error, ProgramError)
    assert str(error) == "rank 1 reads 'seconds' of a message from rank 2, whose header holds version, loss: add seconds=… to that Send"


def test_an_attribute_that_anything_else_lacks_is_the_error_that_it_was():
    """Only a message's header is explained."""
    with pytest.raises(AttributeError) as missing:
        _ = Batch(0, 2).seconds  # type: ignore[attr-defined]

    assert as_program_error(missing.value, rank=1) is None
