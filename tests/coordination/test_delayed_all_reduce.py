"""One-step delay in a ring: what is under way beside what, asked by hand."""

from __future__ import annotations

from typing import Any

import pytest
from delays import BOTH, Number, computed, in_a_ring, on_a_server
from test_programs_by_hand import PLAIN, exchange, finished

from hetsim.coordination.delayed_all_reduce import DelayedAllReduce
from hetsim.coordination.delayed_server import DelayedParameterServer
from hetsim.coordination.plan import Plan
from hetsim.effects import AllReduce, Batch, Computed, Gather, Gradient, LocalUpdate, Node, Start, Update, Wait
from hetsim.policies.admission import Barrier
from hetsim.policies.allocation.periodic import SpeedProportional
from hetsim.policies.compensation import DelayCompensation


def test_an_all_reduce_is_begun_before_the_update_of_the_one_before_and_drained_at_the_end():
    """Rank 0 of two, two global batches: reduce while stepping from W(t) and computing; the last reduction makes the last version."""
    method, plan = in_a_ring(), Plan(2, 4, num_positions=8, samples_per_epoch=4)
    program = method.program(Node(0, 2), plan, method.initial(plan, 10.0))

    asked = exchange(
        program,
        *(computed(2.0), "first", Number(9.5)),
        *(computed(4.0), 3.0, "second", 9.0, True, Number(8.5)),
        *(5.0, 8.0),
    )

    assert asked == [
        Gradient(at=10.0, batch=Batch(0, 2), version=0),
        Start(AllReduce(2.0 / 2)),
        LocalUpdate(at=10.0, gradient=2.0, version=0, epoch=0),
        Gradient(at=9.5, batch=Batch(4, 2), version=0),
        Wait("first"),
        Start(AllReduce(4.0 / 2)),
        Update(at=10.0, gradient=3.0),
        ("commit", 1, 9.0, 8, 4, [(0, 2, 0), (1, 2, 0)]),
        LocalUpdate(at=9.0, gradient=4.0, version=1, epoch=1),
        Wait("second"),
        Update(at=9.0, gradient=5.0),
        ("commit", 2, 8.0, 8, 8, [(0, 2, 1), (1, 2, 1)]),
    ]
    assert finished(program, True)


def test_an_all_reduce_warms_up_synchronously():
    """One round as in SSGD, whose version the delay begins from."""
    method, plan = in_a_ring(warm_up=1), Plan(2, 4, samples_per_epoch=4)
    program = method.program(Node(0, 2), plan, method.initial(plan, 10.0))

    asked = exchange(program, computed(2.0), 3.0, 9.0, True, computed(4.0), "first")

    assert asked == [
        Gradient(at=10.0, batch=Batch(0, 2), version=0),
        AllReduce(2.0 / 2),
        Update(at=10.0, gradient=3.0),
        ("commit", 1, 9.0, 4, 4, [(0, 2, 0), (1, 2, 0)]),
        Gradient(at=9.0, batch=Batch(4, 2), version=1),
        Start(AllReduce(4.0 / 2)),
        LocalUpdate(at=9.0, gradient=4.0, version=1, epoch=1),
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

    assert asked[2] == LocalUpdate(at=10.0, gradient=2.0, version=0, epoch=0)
    assert asked[5] == Start(AllReduce(4.0 / 2))
    assert asked[-1] == LocalUpdate(at=9.0, gradient=4.0 + 16.0 * (9.0 - 10.0), version=1, epoch=0)


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
        Gradient(at=10.0, batch=Batch(4, 4), version=0),
        Start(Gather(1.0)),
        Start(AllReduce(2.0 / 2)),
        LocalUpdate(at=10.0, gradient=2.0, version=0, epoch=0),
        Gradient(at=9.5, batch=Batch(12, 4), version=0),
        Wait("first"),
        Wait("seconds 1"),
        Start(Gather(1.5)),
        Start(AllReduce(4.0 / 2)),
        Update(at=10.0, gradient=3.0),
        ("commit", 1, 9.0, 16, 8, [(0, 4, 0), (1, 4, 0)]),
        LocalUpdate(at=9.0, gradient=4.0, version=1, epoch=0),
        Gradient(at=8.5, batch=Batch(18, 6), version=1),
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


@BOTH
def test_what_it_corrects_against_is_one_of_two(where: str):
    """previous or used."""
    with pytest.raises(ValueError, match=r"coordination\.against"):
        (on_a_server if where == "server" else in_a_ring)(against="newest")
