"""One-step delay: who pushes, pulls and steps when, how long it takes, and what is learned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import torch
from test_programs_by_hand import PLAIN, SERVER, exchange, finished, gradient, ready, said
from worlds import UNEVEN, Run, cluster, experiment, node, simulate, tiles

from hetsim.coordination.delayed_all_reduce import DelayedAllReduce
from hetsim.coordination.delayed_server import DelayedParameterServer
from hetsim.coordination.plan import Plan
from hetsim.coordination.state import State
from hetsim.effects import AllReduce, Batch, Commit, Computed, Gather, Gradient, LocalUpdate, Message, Node, Receive, Start, Update, Wait
from hetsim.policies.admission import Barrier
from hetsim.policies.allocation.periodic import SpeedProportional
from hetsim.policies.compensation import Compensation, DelayCompensation, NoCompensation
from hetsim.policies.compression import NoCompression
from hetsim.runtime.experiment import Experiment
from hetsim.workloads.quadratic_task import QuadraticTask

DELAYED = {"server": "one_step_delay", "all_reduce": "one_step_delay_all_reduce"}
BOTH = pytest.mark.parametrize("where", DELAYED)


def on_a_server(**policies: Any) -> DelayedParameterServer:
    """OD-SGD around a server."""
    return DelayedParameterServer(**{**PLAIN, "admission": Barrier(), "warm_up": 0, **policies})


def in_a_ring(**policies: Any) -> DelayedAllReduce:
    """OD-SGD without a server."""
    return DelayedAllReduce(**{**PLAIN, "admission": Barrier(), "warm_up": 0, **policies})


class Number(float):
    """A vector of one number that can be asked for its zero."""

    shape = ()

    def new_zeros(self, shape: tuple[()]) -> float:
        """Nothing."""
        return 0.0


def reply(version: int, weights: float | None, start: int, *, rounds: int, samples: int = 2) -> Message:
    """What the server answers a pull."""
    return Message(SERVER, {"version": version, "batch": Batch(start, samples), "rounds": rounds}, weights)


def computed(value: float) -> Computed:
    """A gradient over two samples, in one second."""
    return Computed(value, 0.5, 2, 1.0)


def push(value: float, version: int) -> tuple[Any, ...]:
    """That gradient on its way to the server."""
    return ("send", SERVER, value, {"version": version, "seconds": 1.0, "loss": 0.5})


def work(worker: DelayedParameterServer, *answers: Any, plan: Plan | None = None) -> list[Any]:
    """What rank 0 of two asks behind its first word."""
    program = worker.program(Node(0, SERVER), plan or Plan(SERVER, 4), State(weights=10.0))
    return exchange(program, None, *answers)[2:]


def test_a_worker_warms_up_then_pushes_posts_the_pull_steps_locally_and_computes():
    """Two ranges with one reply begin the delay; from then on w(t+1) = W(t) + u(g(t)), W(t) the pull that is waited for before the push."""
    program = on_a_server().program(Node(0, SERVER), Plan(SERVER, 4), State(weights=10.0))

    asked = exchange(
        program,
        *(None, reply(0, 10.0, 0, rounds=1), computed(1.0), None),
        *(reply(1, 9.0, 4, rounds=2), computed(2.0), None, "pull 1", 8.5),
        *(computed(3.0), reply(2, 8.0, 12, rounds=1), None, "pull 2", 7.5),
        computed(4.0),
    )

    assert asked == [
        ("send", SERVER, None, {}),
        Receive(SERVER),
        Gradient(at=10.0, batch=Batch(0, 2)),
        push(1.0, version=0),
        Receive(SERVER),
        Gradient(at=9.0, batch=Batch(4, 2)),
        push(2.0, version=1),
        Start(Receive(SERVER)),
        LocalUpdate(at=9.0, gradient=2.0),
        Gradient(at=8.5, batch=Batch(8, 2)),
        Wait("pull 1"),
        push(3.0, version=1),
        Start(Receive(SERVER)),
        LocalUpdate(at=8.0, gradient=3.0),
        Gradient(at=7.5, batch=Batch(12, 2)),
        Wait("pull 2"),
    ]
    assert finished(program, reply(3, None, 16, rounds=0, samples=0))


def test_a_worker_that_pulls_after_every_second_push_steps_on_from_its_own_weights():
    """Between pulls the base is where it stands; the weights that a pull brought are the base of just one step."""
    asked = work(
        on_a_server(pull_every=2),
        *(reply(0, 10.0, 0, rounds=3), computed(1.0), None, 9.0),
        *(computed(2.0), None, "pull 1", 8.0),
        *(computed(3.0), reply(2, 6.0, 12, rounds=2), None, 5.0),
        *(computed(4.0), None, "pull 2", 4.0),
        computed(5.0),
    )

    assert asked == [
        Gradient(at=10.0, batch=Batch(0, 2)),
        push(1.0, version=0),
        LocalUpdate(at=10.0, gradient=1.0),
        Gradient(at=9.0, batch=Batch(4, 2)),
        push(2.0, version=0),
        Start(Receive(SERVER)),
        LocalUpdate(at=9.0, gradient=2.0),
        Gradient(at=8.0, batch=Batch(8, 2)),
        Wait("pull 1"),
        push(3.0, version=0),
        LocalUpdate(at=6.0, gradient=3.0),
        Gradient(at=5.0, batch=Batch(12, 2)),
        push(4.0, version=2),
        Start(Receive(SERVER)),
        LocalUpdate(at=5.0, gradient=4.0),
        Gradient(at=4.0, batch=Batch(16, 2)),
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
        Gradient(at=7.0, batch=Batch(8, 2)),
        Wait("pull 2"),
        push(3.0, version=1),
        Start(Receive(SERVER)),
        LocalUpdate(at=6.0, gradient=3.0),
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
        LocalUpdate(at=9.0, gradient=2.0),
        LocalUpdate(at=8.0, gradient=corrected),
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
    """Behind the warm-up, which is plain synchronous SGD; what the compression remembers goes on from push to push."""
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


def test_an_all_reduce_is_begun_before_the_update_of_the_one_before_and_drained_at_the_end():
    """Rank 0 of two, two global batches: reduce while stepping from W(t) and computing; the last reduction makes the last version."""
    method, plan = in_a_ring(), Plan(2, 4, num_positions=8)
    program = method.program(Node(0, 2), plan, method.initial(plan, 10.0))

    asked = exchange(
        program,
        *(computed(2.0), "first", Number(9.5)),
        *(computed(4.0), 3.0, "second", 9.0, True, Number(8.5)),
        *(5.0, 8.0),
    )

    assert asked == [
        Gradient(at=10.0, batch=Batch(0, 2)),
        Start(AllReduce(2.0 / 2)),
        LocalUpdate(at=10.0, gradient=2.0),
        Gradient(at=9.5, batch=Batch(4, 2)),
        Wait("first"),
        Start(AllReduce(4.0 / 2)),
        Update(at=10.0, gradient=3.0),
        ("commit", 1, 9.0, 8, 4, [(0, 2, 0), (1, 2, 0)]),
        LocalUpdate(at=9.0, gradient=4.0),
        Wait("second"),
        Update(at=9.0, gradient=5.0),
        ("commit", 2, 8.0, 8, 8, [(0, 2, 1), (1, 2, 1)]),
    ]
    assert finished(program, True)


def test_an_all_reduce_warms_up_synchronously():
    """One round as in SSGD, whose version the delay begins from."""
    method, plan = in_a_ring(warm_up=1), Plan(2, 4)
    program = method.program(Node(0, 2), plan, method.initial(plan, 10.0))

    asked = exchange(program, computed(2.0), 3.0, 9.0, True, computed(4.0), "first")

    assert asked == [
        Gradient(at=10.0, batch=Batch(0, 2)),
        AllReduce(2.0 / 2),
        Update(at=10.0, gradient=3.0),
        ("commit", 1, 9.0, 4, 4, [(0, 2, 0), (1, 2, 0)]),
        Gradient(at=9.0, batch=Batch(4, 2)),
        Start(AllReduce(4.0 / 2)),
        LocalUpdate(at=9.0, gradient=4.0),
    ]


def test_a_reduction_under_way_is_waited_for_when_the_commit_says_stop():
    """So that nobody is left waiting in it; it makes no version."""
    method, plan = in_a_ring(), Plan(2, 4)
    program = method.program(Node(0, 2), plan, method.initial(plan, 10.0))

    asked = exchange(program, computed(2.0), "first", 9.5, computed(4.0), 3.0, "second", 9.0, False)

    assert asked[-3:] == [
        Update(at=10.0, gradient=3.0),
        ("commit", 1, 9.0, 8, 4, [(0, 2, 0), (1, 2, 0)]),
        Wait("second"),
    ]
    assert finished(program, 5.0)


def test_a_compensation_in_a_ring_corrects_for_the_last_global_step():
    """From W(0) to W(1), with what the reduction gets left as it is."""
    method, plan = in_a_ring(compensation=DelayCompensation(strength=1.0)), Plan(2, 4)
    program = method.program(Node(0, 2), plan, method.initial(plan, 10.0))

    asked = exchange(program, computed(2.0), "first", 9.5, computed(4.0), 3.0, "second", 9.0, True)

    assert asked[2] == LocalUpdate(at=10.0, gradient=2.0)
    assert asked[5] == Start(AllReduce(4.0 / 2))
    assert asked[-1] == LocalUpdate(at=9.0, gradient=4.0 + 16.0 * (9.0 - 10.0))


def test_measurements_are_gathered_beside_the_reduction_and_change_the_range_after_the_next():
    """Rank 1 of two: the split of iteration 3 is by the seconds of iteration 1, which came with its reduction."""
    method, plan = in_a_ring(allocation=SpeedProportional()), Plan(2, 8)
    program = method.program(Node(1, 2), plan, method.initial(plan, 10.0))

    asked = exchange(
        program,
        *(Computed(2.0, 0.5, 4, 1.0), "seconds 1", "first", 9.5),
        *(Computed(4.0, 0.5, 4, 1.5), 3.0, (3.0, 1.0), "seconds 2", "second", 9.0, True, 8.5),
    )

    assert asked == [
        Gradient(at=10.0, batch=Batch(4, 4)),
        Start(Gather(1.0)),
        Start(AllReduce(2.0 / 2)),
        LocalUpdate(at=10.0, gradient=2.0),
        Gradient(at=9.5, batch=Batch(12, 4)),
        Wait("first"),
        Wait("seconds 1"),
        Start(Gather(1.5)),
        Start(AllReduce(4.0 / 2)),
        Update(at=10.0, gradient=3.0),
        ("commit", 1, 9.0, 16, 8, [(0, 4, 0), (1, 4, 0)]),
        LocalUpdate(at=9.0, gradient=4.0),
        Gradient(at=8.5, batch=Batch(18, 6)),
    ]


def test_measurements_in_a_ring_are_summed_until_the_allocation_asks():
    """With a re-allocation every second version, the gathered seconds are of both gradients, and then it begins afresh."""
    method, plan = in_a_ring(allocation=SpeedProportional(reallocate_every=2)), Plan(1, 4)
    program = method.program(Node(0, 1), plan, method.initial(plan, 10.0))

    asked = exchange(
        program,
        *(Computed(2.0, 0.5, 4, 1.0), "first", 9.5),
        *(Computed(4.0, 0.5, 4, 1.5), 3.0, "seconds", "second", 9.0, True, 8.5),
        *(Computed(6.0, 0.5, 4, 4.0), 5.0, (2.5,), "third", 8.0, True, 7.5),
        *(Computed(6.0, 0.5, 4, 8.0), 5.0),
    )

    assert [one for one in asked if one == Start(Gather(2.5)) or one == Wait("seconds")] == [Start(Gather(2.5)), Wait("seconds")]
    assert asked[-1] == Start(Gather(4.0 + 8.0))


@pytest.mark.parametrize("kind", [DelayedParameterServer, DelayedAllReduce])
@pytest.mark.parametrize("warm_up", [-1, 1.5, True])
def test_a_warm_up_is_a_whole_number_of_updates(kind: type, warm_up: Any):
    """One sentence with the key and the value."""
    with pytest.raises(ValueError, match=rf"coordination\.warm_up .*{warm_up}"):
        kind(**PLAIN, admission=Barrier(), warm_up=warm_up)


def test_a_pull_after_every_zeroth_push_is_none():
    """pull_every is at least 1."""
    with pytest.raises(ValueError, match=r"coordination\.pull_every .*0"):
        on_a_server(pull_every=0)


@BOTH
def test_what_it_corrects_against_is_one_of_two(where: str):
    """previous or used."""
    with pytest.raises(ValueError, match=r"coordination\.against"):
        (on_a_server if where == "server" else in_a_ring)(against="newest")


# Known numbers


LINK = {"latency_seconds": 0.125, "bytes_per_second": 64.0}
SIZES = {"num_parameters": 8, "num_samples": 60_000}  # 32 bytes
MESSAGE = 0.125 + 32 / 64
RING = 2 * (0.125 + 32 / (2 * 64))  # of two


def delayed(where: str, *choices: str, warm_up: int = 3, coordination: dict[str, Any] | None = None, **keys: Any) -> Experiment:
    """OD-SGD on a server or in a ring, with rates of its own."""
    rates = {"learning_rate": 0.1, "momentum": 0.9, "local_learning_rate": 0.05}
    more = {"warm_up": warm_up, **(coordination or {})}
    return experiment("method=od_sgd", f"coordination={DELAYED[where]}", *choices, **{**rates, **keys}, coordination=more)


def timed(where: str, *, gradient: float, updates: int, local: float = 0.25, server: float = 0.125, **coordination: Any) -> Run:
    """Two workers, the second twice as fast, whose slower one needs so many seconds for a gradient and for a step."""
    workers = cluster(
        *(node(seconds, seconds_per_update=local) for seconds in (gradient, gradient / 2)), network=LINK, seconds_per_update=server
    )
    keys: dict[str, Any] = {"workload": SIZES, "batch_size": 2, "cluster": workers, "budget": {"updates": updates}}
    return simulate(delayed(where, "workload=phantom", coordination=coordination, **keys), trace="full")


def ssgd(where: str, *, gradient: float, updates: int, step: float) -> Run:
    """The same two workers without a delay; `step` is what whoever steps globally needs for it."""
    coordination = "parameter_server" if where == "server" else "all_reduce"
    workers = cluster(
        *(node(seconds, seconds_per_update=step) for seconds in (gradient, gradient / 2)), network=LINK, seconds_per_update=step
    )
    keys: dict[str, Any] = {"workload": SIZES, "batch_size": 2, "cluster": workers, "budget": {"updates": updates}}
    return simulate(experiment("method=ssgd", f"coordination={coordination}", "workload=phantom", **keys))


def periods(run: Run, *, after: int) -> list[float]:
    """Seconds between commits, from this version on."""
    return [later - earlier for earlier, later in pairwise(run.seconds[after - 1 :])]


def staleness(run: Run) -> list[list[int]]:
    """Of everyone's gradient in each version."""
    return [[c.staleness for c in group] for group in run.applied]


@BOTH
@pytest.mark.parametrize("warm_up", [0, 3])
def test_every_gradient_behind_the_first_delayed_one_is_one_version_late(where: str, warm_up: int):
    """Never more, and in warm-up none."""
    run = timed(where, gradient=1.0, updates=12, warm_up=warm_up)

    assert staleness(run) == [[0, 0]] * (warm_up + 1) + [[1, 1]] * (11 - warm_up)


@pytest.mark.parametrize("gradient", [0.25, 1.0, 1.125, 1.25, 4.0])
def test_a_period_on_a_server_is_the_longer_of_compute_and_communication(gradient: float):
    """max(gradient + local update, push + server update + pull), once it has begun; SSGD's is gradient + communication."""
    run, synchronous = timed("server", gradient=gradient, updates=12), ssgd("server", gradient=gradient, updates=4, step=0.125)

    communication = MESSAGE + 0.125 + MESSAGE
    assert periods(run, after=4) == [max(gradient + 0.25, communication)] * 8
    assert periods(run, after=1)[:3] == periods(synchronous, after=1) == [gradient + communication] * 3


@pytest.mark.parametrize("gradient", [0.125, 0.25, 0.375, 4.0])
def test_a_period_in_a_ring_is_the_longer_of_compute_and_reduction(gradient: float):
    """max(gradient + global update + local update, all-reduce); SSGD's is gradient + all-reduce + update."""
    run, synchronous = timed("all_reduce", gradient=gradient, updates=12), ssgd("all_reduce", gradient=gradient, updates=4, step=0.25)

    assert RING == 0.25 + 0.25 + 0.25
    assert periods(run, after=4) == [max(gradient + 0.25 + 0.25, RING)] * 8
    assert periods(run, after=1)[:2] == periods(synchronous, after=1)[:2] == [gradient + RING + 0.25] * 2


@BOTH
def test_the_global_update_is_no_part_of_the_workers_time_on_a_server(where: str):
    """There it is on the way; in a ring each worker does it too."""
    run = timed(where, gradient=4.0, updates=12, local=0.5, server=0.25)

    assert periods(run, after=4) == [4.0 + (0.5 if where == "server" else 2 * 0.5)] * 8


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_pulling_every_kth_push_makes_gradients_one_to_k_versions_late(k: int):
    """0 … k on the first weights of the delay, then 1 … k again and again: it is bounded by k, for everyone."""
    run = timed("server", gradient=1.0, updates=4 + 4 * k, pull_every=k)

    assert staleness(run) == [[tau, tau] for tau in [0, 0, 0, *range(k + 1), *(4 * list(range(1, k + 1)))]][: 4 + 4 * k]


@pytest.mark.parametrize("gradient", [0.25, 4.0])
@pytest.mark.parametrize("k", [2, 3, 5])
def test_workers_do_not_wait_between_pulls(k: int, gradient: float):
    """Of k periods one is max(gradient + local update, communication), the others are gradient + local update."""
    run = timed("server", gradient=gradient, updates=4 + 4 * k, pull_every=k)

    slow = [row for row in run.rows("gradient") if row.rank == 0][3 : 3 + 3 * k + 1]
    waited = [later.start - earlier.end - 0.25 for earlier, later in pairwise(slow)]
    at_a_pull = max(0.0, 2 * MESSAGE + 0.125 - gradient - 0.25)
    assert waited == [at_a_pull if initial_within > 1 and initial_within % k == 1 else 0.0 for initial_within in range(1, 3 * k + 1)]


@pytest.mark.parametrize(("where", "ahead"), [("server", 1), ("server", 3), ("all_reduce", 1)])
def test_shares_follow_speeds_as_soon_as_ranges_are_dealt_again(where: str, ahead: int):
    """Speeds 1 : 1 : 2 : 4 and B = 256: even in the first global batch and those dealt with it, by speed behind them."""
    workers = cluster(*(node(seconds) for seconds in (4e-3, 4e-3, 2e-3, 1e-3)))
    coordination = {"pull_every": ahead} if where == "server" else {}
    keys: dict[str, Any] = {"workload": SIZES, "batch_size": 256, "cluster": workers, "budget": {"updates": ahead + 4}}

    run = simulate(delayed(where, "workload=phantom", "allocation=dbs", warm_up=0, coordination=coordination, **keys))

    even, by_speed = [64, 64, 64, 64], [32, 32, 64, 128]
    assert [[c.samples for c in group] for group in run.applied] == [even] * (1 + ahead) + [by_speed] * 3


@BOTH
def test_a_reallocation_by_epochs_is_in_force_two_versions_behind_the_end_of_one(where: str):
    """An epoch of two global batches: the third was dealt before the second made its version, the fourth is by speed."""
    workers = cluster(*(node(seconds) for seconds in (4e-3, 4e-3, 2e-3, 1e-3)))
    keys: dict[str, Any] = {"workload": {"num_parameters": 8, "num_samples": 512}, "batch_size": 256, "cluster": workers}
    every_epoch = {"reallocate_every": "epoch"}

    run = simulate(delayed(where, "workload=phantom", "allocation=dbs", allocation=every_epoch, warm_up=0, budget={"updates": 6}, **keys))

    assert [[c.samples for c in group] for group in run.applied] == [[64, 64, 64, 64]] * 3 + [[32, 32, 64, 128]] * 3


# Laws


ALLOCATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "even": ("even", {}),
    "fixed": ("fixed", {"parts": [1, 3, 2]}),
    "dbs": ("dbs", {}),
    "dbs every 3": ("dbs", {"reallocate_every": 3}),
    "dbs every epoch": ("dbs", {"reallocate_every": "epoch"}),
}
BUDGETS: dict[str, dict[str, Any]] = {"epochs": {"epochs": 3.5}, "updates": {"updates": 9}, "seconds": {"seconds": 0.09}}
ONE = {**UNEVEN, "nodes": UNEVEN["nodes"][:1]}
ROWS = pytest.mark.parametrize(("where", "k"), [("server", 1), ("server", 3), ("all_reduce", 1)])
EVERY_ALLOCATION = pytest.mark.parametrize("allocation", ALLOCATIONS)
CELLS = [
    ("phantom", "epochs", 3),
    ("phantom", "updates", 3),
    ("phantom", "seconds", 3),
    ("phantom", "updates", 1),
    ("quadratic", "epochs", 1),
]


def uneven(where: str, k: int, allocation: str, workers: int, *, on: str = "quadratic", **keys: Any) -> Experiment:
    """On noisy unequal nodes, 90 samples an epoch in batches of 31."""
    name, options = ALLOCATIONS[allocation]
    if "parts" in options:
        options = {"parts": options["parts"][:workers]}
    keys = {"workload": {"num_parameters": 8, "num_samples": 90}, "batch_size": 31, "cluster": UNEVEN if workers == 3 else ONE, **keys}
    coordination = {"pull_every": k} if where == "server" else {}
    return delayed(where, f"workload={on}", f"allocation={name}", allocation=options, coordination=coordination, **keys)


def applied(run: Run) -> list[Batch]:
    """The ranges that went into versions."""
    return [c.batch for group in run.applied for c in group]


@pytest.mark.parametrize(("on", "budget", "workers"), CELLS)
@EVERY_ALLOCATION
@ROWS
def test_every_position_is_applied_once_and_nobody_is_left_waiting(where: str, k: int, allocation: str, workers: int, budget: str, on: str):
    """Positions in order, none computed twice, the budget met exactly, and every rank at its end."""
    run = simulate(uneven(where, k, allocation, workers, on=on, budget=BUDGETS[budget]))

    last = run.states[-1]
    assert all(player.done for player in run.simulation.processes)
    assert tiles(applied(run), last.num_samples)
    positions = [position for batch in run.computed for position in range(batch.start, batch.stop)]
    assert len(set(positions)) == len(positions)
    assert set(range(last.num_samples)) <= set(positions)
    assert [state.version for state in run.states] == list(range(1, len(run.states) + 1))
    if budget == "epochs":
        assert last.num_samples == last.next_sample == len(positions) == 315
    if budget == "updates":
        assert last.version == 9
    if budget == "seconds":
        assert run.seconds[-2] < 0.09 <= run.seconds[-1]


@pytest.mark.parametrize("workers", [1, 3])
@EVERY_ALLOCATION
@ROWS
def test_a_new_start_applies_what_is_left_once(where: str, k: int, allocation: str, workers: int):
    """From every committed state: what was under way is dealt again, and versions go on."""
    described = uneven(where, k, allocation, workers, budget={"epochs": 3.5})
    whole = simulate(described)
    assert len(whole.states) == 11

    for stop, state in enumerate(whole.states):
        rest = simulate(described, state=state)

        before = [c.batch for group in whole.applied[: stop + 1] for c in group]
        assert tiles(before + applied(rest), 315)
        assert [after.version for after in rest.states] == list(range(stop + 2, 12))
        assert all(player.done for player in rest.simulation.processes)


@ROWS
def test_a_new_start_within_warm_up_goes_on_as_if_it_had_never_stopped(where: str, k: int):
    """Bit by bit: there is no delay yet that a stop could lose."""
    described = uneven(where, k, "dbs", 3, warm_up=4, budget={"epochs": 3.5})
    whole = simulate(described)

    rest = simulate(described, state=whole.states[1])

    assert torch.equal(rest.weights, whole.weights)
    assert rest.applied[-1][0].batch == whole.applied[-1][0].batch


@BOTH
def test_a_warm_up_longer_than_the_run_is_synchronous_sgd(where: str):
    """Bit by bit the same parameters, at the same seconds."""
    keys: dict[str, Any] = {"cluster": UNEVEN, "budget": {"epochs": 2.5}, "learning_rate": 0.1, "momentum": 0.9}
    twin = "parameter_server" if where == "server" else "all_reduce"

    run = simulate(delayed(where, "workload=quadratic", warm_up=10**6, **keys))
    synchronous = simulate(experiment("method=ssgd", f"coordination={twin}", "workload=quadratic", **keys))

    assert torch.equal(run.weights, synchronous.weights)
    assert run.seconds == synchronous.seconds


@pytest.mark.parametrize("compensation", ["none", "dc"])
@pytest.mark.parametrize("allocation", ["even", "fixed"])
def test_the_server_and_the_ring_learn_the_same(allocation: str, compensation: str):
    """Bit by bit: the same sums in the same order, where shares do not move with times that a server knows earlier."""
    one, other = (
        simulate(
            delayed(
                where,
                "workload=quadratic",
                f"compensation={compensation}",
                f"allocation={allocation}",
                allocation=ALLOCATIONS[allocation][1],
                workload={"num_parameters": 8, "num_samples": 90},
                cluster=UNEVEN,
                batch_size=31,
                budget={"epochs": 3.5},
            )
        )
        for where in DELAYED
    )

    assert torch.equal(one.weights, other.weights)
    assert applied(one) == applied(other)


# What is learned, against the algorithm written out


Local = Callable[[torch.Tensor, torch.Tensor, list[torch.Tensor], int], torch.Tensor]
"""The corrected gradient of a worker: (g, way from where it was to the base, the workers' mean squares, rank)."""


def plain(g: torch.Tensor, *_: Any) -> torch.Tensor:
    """−η_loc g."""
    return g


def constant(g: torch.Tensor, way: torch.Tensor, *_: Any) -> torch.Tensor:
    """−η_loc (g + λ g⊙g⊙way), λ = 3."""
    return g + 3.0 * g * g * way


def adaptive(g: torch.Tensor, way: torch.Tensor, ms: list[torch.Tensor], rank: int, m: float = 0.0) -> torch.Tensor:
    """−η_loc (g + λ/√(MS + 1e-7) g⊙g⊙way), MS = m·MS + (1−m) g⊙g, λ = 2."""
    ms[rank] = m * ms[rank] + (1 - m) * g * g
    return g + 2.0 / torch.sqrt(ms[rank] + 1e-7) * g * g * way


def remembering(g: torch.Tensor, way: torch.Tensor, ms: list[torch.Tensor], rank: int) -> torch.Tensor:
    """The same with m = 0.5."""
    return adaptive(g, way, ms, rank, 0.5)


STEPS: dict[str, tuple[Local, str, dict[str, Any]]] = {
    "plain": (plain, "none", {}),
    "constant": (constant, "dc", {"strength": 3.0}),
    "adaptive": (adaptive, "dc_adaptive", {"strength": 2.0, "decay": 0.0}),
    "remembering": (remembering, "dc_adaptive", {"strength": 2.0, "decay": 0.5}),
}
SHARES = (7, 7, 7)


def od_sgd(
    task: QuadraticTask, *, updates: int, warm_up: int, local: Local, rate: float, against: str = "previous",
    shares: tuple[int, ...] = SHARES, weights: tuple[float, ...] = (1.0, 1.0, 1.0), k: int = 1,
) -> list[torch.Tensor]:  # fmt: skip
    """W(1) … W(T) of OD-SGD, a worker after the other: global rate 0.1, momentum 0.9; local rate `rate`, a pull after every kth push."""
    n, total = len(shares), sum(shares)
    server = torch.zeros_like(task.optimum)
    velocity = torch.zeros_like(server)
    versions: list[torch.Tensor] = []
    device = [server] * n  # w_i(t)
    newest = previous = server
    ms = [torch.zeros_like(server)] * n
    for t in range(updates):
        start, gradients = t * total, []
        for i in range(n):
            indices = task.sequence.indices(Batch(start, shares[i]))
            start += shares[i]
            gradients.append(task.curvature * (device[i] - task.centres[indices].mean(0)))
        velocity = 0.9 * velocity + sum(w * g for w, g in zip(weights, gradients, strict=True)) / n
        s = t - warm_up
        if s < 0:
            server = server - 0.1 * velocity
            device, newest, previous = [server] * n, server, server
        else:
            pulled = s > 0 and s % k == 0
            if pulled:
                newest, previous = server, newest  # W(t), which all pushes before this one made
            for i in range(n):
                base = newest if pulled else device[i]
                used = device[i] if against == "used" or not pulled else previous  # between pulls nothing has passed
                g = local(gradients[i], base - used, ms, i)
                device[i] = base - rate * g
            server = server - 0.1 * velocity
        versions.append(server)
    return versions


def learned(where: str, *choices: str, coordination: dict[str, Any], **keys: Any) -> Run:
    """Three equal workers on the float64 quadratic."""
    steady = cluster(node(1e-3, count=3, seconds_per_update=1e-3), network=LINK)
    keys = {"workload": {"num_parameters": 8, "num_samples": 50, "noise": 1.0}, "batch_size": 21, "cluster": steady, **keys}
    return simulate(delayed(where, "workload=quadratic", *choices, dtype="float64", coordination=coordination, **keys))


def apart(run: Run, versions: list[torch.Tensor]) -> float:
    """The largest difference of any parameter in any version."""
    assert len(run.states) == len(versions)
    return max((state.weights - version).abs().max().item() for state, version in zip(run.states, versions, strict=True))


@BOTH
@pytest.mark.parametrize("against", ["previous", "used"])
@pytest.mark.parametrize("step", STEPS)
def test_it_is_od_sgd_written_out(where: str, against: str, step: str):
    """Every version to 1e-12 after three of warm-up; the other choice of what to correct against is another algorithm."""
    local, compensation, options = STEPS[step]

    run = learned(where, f"compensation={compensation}", compensation=options, coordination={"against": against}, budget={"updates": 40})

    task = run.simulation.task
    one, other = (
        od_sgd(task, updates=40, warm_up=3, local=local, rate=0.05, against=choice)
        for choice in (against, "used" if against == "previous" else "previous")
    )
    assert apart(run, one) < 1e-12
    assert (apart(run, other) > 1e-4) == (step != "plain")


@BOTH
def test_without_local_steps_it_is_pipe_sgd(where: str):
    """w(t+1) = W(t), W(t+1) = W(t) − η ḡ(t): the gradient is one version late, and nothing bridges it."""
    run = learned(where, "local_optimizer=none", coordination={}, budget={"updates": 40})

    task = run.simulation.task
    w = [torch.zeros_like(task.optimum)]
    velocity = torch.zeros_like(w[0])
    for t in range(40):
        at = w[t] if t <= 3 else w[t - 1]
        velocity = 0.9 * velocity + task.curvature * (at - task.centres[task.sequence.indices(Batch(21 * t, 21))].mean(0))
        w.append(w[t] - 0.1 * velocity)
    assert apart(run, w[1:]) < 1e-12
    assert apart(run, od_sgd(task, updates=40, warm_up=3, local=plain, rate=0.0)) < 1e-12
    assert apart(run, od_sgd(task, updates=40, warm_up=3, local=plain, rate=0.05)) > 1e-4


@BOTH
@pytest.mark.parametrize("weighting", ["per_worker", "per_sample"])
def test_unequal_shares_are_weighted_globally_and_not_locally(where: str, weighting: str):
    """A worker's own step is along its own mean gradient, whatever its part in the global one."""
    run = learned(
        where, "allocation=fixed", f"weighting={weighting}", allocation={"parts": [1, 4, 2]}, coordination={}, budget={"updates": 40}
    )

    weights = {"per_worker": (1.0, 1.0, 1.0), "per_sample": (3 / 7, 12 / 7, 6 / 7)}
    versions = {
        name: od_sgd(run.simulation.task, updates=40, warm_up=3, local=plain, rate=0.05, shares=(3, 12, 6), weights=w)
        for name, w in weights.items()
    }
    assert apart(run, versions.pop(weighting)) < 1e-12
    assert all(apart(run, other) > 1e-4 for other in versions.values())


@pytest.mark.parametrize("against", ["previous", "used"])
@pytest.mark.parametrize("step", ["plain", "constant"])
@pytest.mark.parametrize("k", [2, 3])
def test_it_is_ssd_sgd_written_out(k: int, step: str, against: str):
    """With pull_every k: local steps from one's own weights between pulls, corrected for the last pull's way, or not at all."""
    local, compensation, options = STEPS[step]

    run = learned(
        "server", f"compensation={compensation}", compensation=options,
        coordination={"pull_every": k, "against": against}, budget={"updates": 40},
    )  # fmt: skip

    task = run.simulation.task
    assert apart(run, od_sgd(task, updates=40, warm_up=3, local=local, rate=0.05, against=against, k=k)) < 1e-12
    assert apart(run, od_sgd(task, updates=40, warm_up=3, local=local, rate=0.05, against=against)) > 1e-4


def test_a_compensation_needs_local_steps():
    """Without a local optimizer it would do nothing."""
    with pytest.raises(ValueError, match="local_optimizer is none"):
        delayed("server", "local_optimizer=none", "compensation=dc")


@BOTH
@pytest.mark.parametrize("compensation", ["gap_aware", "dana"])
def test_a_compensation_by_the_server_is_refused(where: str, compensation: str):
    """A worker cannot correct its own step by it."""
    with pytest.raises(ValueError, match="a worker cannot correct its own step by it"):
        delayed(where, f"compensation={compensation}")


def test_the_kinds_of_compensation_are_all_here():
    """Those that correct locally are the rows of the table above."""
    local = {kind.__name__ for kind in Compensation.__subclasses__() if kind.corrects_locally}

    assert local == {NoCompensation.__name__, DelayCompensation.__name__, "AdaptiveDelayCompensation"}
