"""What is applied, what is dropped and who goes on: every rule's law by hand, and what all rules share over random arrivals."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetsim.effects import Batch, Contribution
from hetsim.policies.admission import (
    Admission,
    Backup,
    Barrier,
    BoundedStaleness,
    Buffer,
    ClockState,
    Decision,
    EveryGradient,
    Malenia,
    Rennala,
    Ringleader,
    Ringmaster,
    SoftSync,
)
from hetsim.policies.weighting import DelayAdaptive, InverseStaleness, PerWorkerMean, Rescaled


def contribution(rank: int, samples: int = 1, *, staleness: int = 0, start: int = 0) -> Contribution:
    """A gradient by one worker, so many versions old."""
    return Contribution(rank, Batch(start, samples), version=0, seconds=1.0, loss=0.0, staleness=staleness, gradient=0.0)


def arrivals(admission: Admission, state: Any, *ranks: int) -> tuple[Any, list[Decision]]:
    """What is decided as gradients of these ranks arrive one after the other."""
    decisions = []
    for rank in ranks:
        state, decision = admission.arrived(state, contribution(rank))
        decisions.append(decision)
    return state, decisions


# Bounded staleness


@pytest.mark.parametrize(
    ("bound", "freed"),
    [
        (0, [(), (0, 1), (), (0, 1)]),
        (1, [(0,), (1,), (0,), (1,)]),
        (None, [(0,), (1,), (0,), (1,)]),
    ],
)
def test_two_workers_in_turn_wait_for_each_other_only_at_bound_zero(bound: int | None, freed: list[tuple[int, ...]]):
    """c − min c ≤ bound: after the first arrival the clocks are 1 and 0, which bound 0 forbids and bound 1 allows."""
    ssp = BoundedStaleness(bound=bound)

    _, decisions = arrivals(ssp, ssp.initial(2), 0, 1, 0, 1)

    assert [decision.release for decision in decisions] == freed


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_a_worker_alone_gets_exactly_bound_steps_ahead_before_it_waits(bound: int):
    """The first `bound` arrivals free it; the next, at clock bound + 1, does not, until the slowest has done a step."""
    ssp = BoundedStaleness(bound=bound)

    state, decisions = arrivals(ssp, ssp.initial(2), *[0] * (bound + 1))
    _, (at_last,) = arrivals(ssp, state, 1)

    assert [decision.release for decision in decisions] == [(0,)] * bound + [()]
    assert at_last.release == (0, 1)


def test_no_bound_is_asynchronous_sgd():
    """However far ahead, a worker goes on at once."""
    ssp, every = BoundedStaleness(bound=None), EveryGradient()
    ranks = [0] * 50 + [1, 0, 2]

    assert arrivals(ssp, ssp.initial(3), *ranks)[1] == arrivals(every, every.initial(3), *ranks)[1]


@pytest.mark.parametrize("bound", [0, 1, 3, None])
def test_a_bounded_worker_that_waits_was_applied_all_the_same(bound: int | None):
    """It is the worker that waits, never its gradient."""
    ssp = BoundedStaleness(bound=bound)

    _, decisions = arrivals(ssp, ssp.initial(2), *[0] * 5)

    assert decisions[-1].apply == (contribution(0),)
    assert all(len(decision.apply) == 1 and not decision.drop for decision in decisions)


def test_the_slowest_that_leaves_frees_the_others():
    """min c is over those who are still there: clocks 1, 1, 0 at bound 0."""
    ssp = BoundedStaleness(bound=0)
    state, decisions = arrivals(ssp, ssp.initial(3), 1, 0)

    _, freed = ssp.worker_left(state, 2)

    assert [decision.release for decision in decisions] == [(), ()]
    assert freed == Decision(release=(0, 1))


def test_one_that_leaves_does_not_free_who_is_too_far_ahead_of_the_next():
    """Clocks 2, 1, 1, 0 at bound 0: when the last one leaves, one step after the next slowest is still too far for the first."""
    ssp = BoundedStaleness(bound=0)
    state = ClockState({0: 2, 1: 1, 2: 1, 3: 0}, waiting=frozenset({0, 1, 2}))

    _, freed = ssp.worker_left(state, 3)

    assert freed == Decision(release=(1, 2))


def test_one_that_leaves_while_it_waits_is_forgotten():
    """It is neither freed nor waited for."""
    ssp = BoundedStaleness(bound=0)
    state, _ = arrivals(ssp, ssp.initial(3), 0)

    state, left = ssp.worker_left(state, 0)
    _, decisions = arrivals(ssp, state, 1, 2)

    assert left == Decision()
    assert [decision.release for decision in decisions] == [(), (1, 2)]


def test_when_all_have_left_a_bound_frees_nobody():
    """There is no slowest of none."""
    ssp = BoundedStaleness(bound=0)

    assert ssp.worker_left(ssp.worker_left(ssp.initial(2), 0)[0], 1)[1] == Decision()


def test_bounded_clocks_begin_anew_when_a_run_is_resumed():
    """All take part again, nobody is ahead, also with another number of workers."""
    ssp = BoundedStaleness(bound=1)
    state, _ = arrivals(ssp, ssp.initial(2), 0, 0)
    state, _ = ssp.worker_left(state, 1)

    assert ssp.resumed(state, 3) == ssp.initial(3)


# Softsync


def test_softsync_applies_every_so_many_gradients_and_frees_each_worker_at_once():
    """N = 4, n = 2: c = 2, in the order they came."""
    soft = SoftSync(n=2)

    state, decisions = arrivals(soft, soft.initial(4), 3, 1, 0, 2)

    assert decisions == [
        Decision(release=(3,)),
        Decision(apply=(contribution(3), contribution(1)), release=(1,)),
        Decision(release=(0,)),
        Decision(apply=(contribution(0), contribution(2)), release=(2,)),
    ]
    assert state == soft.initial(4)


def test_the_same_worker_may_be_twice_in_a_group_of_softsync():
    """Whoever they are from."""
    soft = SoftSync(n=1)

    _, decisions = arrivals(soft, soft.initial(3), 2, 2, 0)

    assert [decision.release for decision in decisions] == [(2,), (2,), (0,)]
    assert [c.rank for decision in decisions for c in decision.apply] == [2, 2, 0]


@pytest.mark.parametrize(("num_workers", "n", "size"), [(4, 1, 4), (4, 2, 2), (4, 3, 1), (4, 4, 1), (5, 2, 2), (9, 2, 4), (9, 4, 2)])
def test_a_group_of_softsync_is_the_whole_part_of_workers_over_n(num_workers: int, n: int, size: int):
    """c = ⌊N/n⌋, in what it says and in what it does."""
    soft = SoftSync(n=n)

    _, decisions = arrivals(soft, soft.initial(num_workers), *[0] * size)

    assert soft.group_size(num_workers) == size
    assert [len(decision.apply) for decision in decisions] == [0] * (size - 1) + [size]


def test_softsync_with_n_workers_of_n_is_asynchronous_sgd():
    """c = 1."""
    soft, every = SoftSync(n=3), EveryGradient()

    assert arrivals(soft, soft.initial(3), 0, 2, 2, 1)[1] == arrivals(every, every.initial(3), 0, 2, 2, 1)[1]


def test_what_softsync_still_holds_is_applied_when_the_last_worker_leaves():
    """Nothing is lost at the end, and nothing is hurried before it: the others may still complete the group."""
    soft = SoftSync(n=1)
    state, _ = arrivals(soft, soft.initial(3), 1, 0)

    decisions = []
    for rank in (1, 2, 0):
        state, decision = soft.worker_left(state, rank)
        decisions.append(decision)

    assert decisions == [Decision(), Decision(), Decision(apply=(contribution(1), contribution(0)))]
    assert state.waiting == ()


def test_a_group_of_softsync_is_completed_by_those_who_remain():
    """c stays what it was when workers leave."""
    soft = SoftSync(n=1)
    state, _ = arrivals(soft, soft.initial(2), 0)
    state, _ = soft.worker_left(state, 0)

    _, (decision,) = arrivals(soft, state, 1)

    assert decision == Decision(apply=(contribution(0), contribution(1)), release=(1,))


def test_softsync_of_more_groups_than_workers_is_refused():
    """⌊N/n⌋ would be nothing."""
    assert SoftSync(n=4).group_size(4) == 1
    with pytest.raises(ValueError, match=r"^admission\.n=5 is more than the cluster's 4 workers"):
        SoftSync(n=5).initial(4)


# Backup workers


def test_a_version_is_the_first_gradients_and_the_late_ones_are_dropped():
    """N = 3 with one spare: two make a version and wait for each other; the third is one version old, dropped, and goes on."""
    backup = Backup(spares=1)

    state, decisions = arrivals(backup, backup.initial(3), 2, 1)
    state, late = backup.arrived(state, contribution(0, staleness=1))

    assert decisions == [Decision(), Decision(apply=(contribution(1), contribution(2)), release=(1, 2))]
    assert late == Decision(drop=(contribution(0, staleness=1),), release=(0,))
    assert state == backup.initial(3)


def test_a_late_gradient_does_not_count_for_the_version_it_comes_in():
    """It arrives between two of the next version, which still takes two."""
    backup = Backup(spares=1)
    state, _ = arrivals(backup, backup.initial(3), 2, 1, 2)

    state, late = backup.arrived(state, contribution(0, staleness=3))
    _, (decision,) = arrivals(backup, state, 0)

    assert late == Decision(drop=(contribution(0, staleness=3),), release=(0,))
    assert [c.rank for c in decision.apply] == [0, 2]


@given(st.integers(1, 6), st.lists(st.integers(0, 5), max_size=40), st.integers(0, 12))
def test_backup_without_spares_is_a_barrier(num_workers: int, choices: list[int], num_ranges: int):
    """The same decisions, exchange by exchange."""
    spare, barrier = (played(admission, num_workers, choices, num_ranges) for admission in (Backup(spares=0), Barrier()))

    assert spare.decisions == barrier.decisions
    assert Backup(spares=0).group_size(num_workers) == Barrier().group_size(num_workers)


def test_a_member_that_leaves_makes_the_versions_of_a_backup_smaller_only_below_its_size():
    """N = 3, one spare: two still make a version when one is gone; when two are gone the last one makes its own."""
    backup = Backup(spares=1)
    state, early = backup.worker_left(backup.initial(3), 2)
    state, decisions = arrivals(backup, state, 0)

    _, completed = backup.worker_left(state, 1)

    assert (early, decisions) == (Decision(), [Decision()])
    assert completed == Decision(apply=(contribution(0),), release=(0,))


def test_backup_with_nobody_but_spares_is_refused():
    """At least one gradient makes a version."""
    assert Backup(spares=2).group_size(3) == 1
    with pytest.raises(ValueError, match=r"^admission\.spares=3 leaves none of the cluster's 3 workers"):
        Backup(spares=3).initial(3)


def test_a_backups_group_is_the_global_batch_of_its_version():
    """Its samples are what an equal part is taken of, not B, which the dropped ones belonged to."""
    assert Backup(spares=1).fair_share([contribution(0, 3), contribution(2, 2)], 256, 3) == 2.5


# Ringmaster


@pytest.mark.parametrize(("max_delay", "applied"), [(1, [True, False, False, False]), (3, [True, True, True, False])])
def test_ringmaster_applies_what_is_less_than_its_delay_and_drops_the_rest(max_delay: int, applied: list[bool]):
    """τ < R; the worker goes on either way."""
    ring = Ringmaster(max_delay=max_delay)
    old = [contribution(1, staleness=staleness) for staleness in range(4)]

    decisions = [ring.arrived(ring.initial(2), c)[1] for c in old]

    assert decisions == [
        Decision(apply=(c,), release=(1,)) if yes else Decision(drop=(c,), release=(1,)) for c, yes in zip(old, applied, strict=True)
    ]
    assert ring.worker_left(None, 1) == (None, Decision())


# What all of them say of themselves


@pytest.mark.parametrize(
    ("admission", "group_size", "late", "fair_share"),
    [
        (EveryGradient(), 1, True, 64.0),
        (Barrier(), 4, False, 5.0),
        (BoundedStaleness(bound=0), 1, True, 64.0),
        (SoftSync(n=2), 2, True, 64.0),
        (Backup(spares=1), 3, False, 5.0),
        (Ringmaster(max_delay=1), 1, True, 64.0),
    ],
)
def test_each_rule_says_how_large_its_groups_are_and_whether_they_may_be_late(
    admission: Admission, group_size: int, late: bool, fair_share: float
):
    """Of four workers, B = 256, a group of 3 and 7 samples: an equal part is its mean where it is a global batch of its own, else B/N."""
    group = [contribution(0, 3), contribution(1, 7)]

    assert admission.group_size(4) == group_size
    assert admission.lets_gradients_be_late is late
    assert admission.fair_share(group, 256, 4) == fair_share


@pytest.mark.parametrize("admission", [Barrier(), SoftSync(n=1), Backup(spares=1), Buffer(size=2), Rennala(batch=2), Malenia()])
def test_those_who_had_left_take_part_again_when_a_run_is_resumed(admission: Admission):
    """Resumed with all workers, a state that some have left is the initial one."""
    state, _ = admission.worker_left(admission.initial(3), 1)

    assert state != admission.initial(3)
    assert admission.resumed(state, 3) == admission.initial(3)


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda value: BoundedStaleness(bound=value), "bound"),
        (lambda value: SoftSync(n=value), "n"),
        (lambda value: Backup(spares=value), "spares"),
        (lambda value: Ringmaster(max_delay=value), "max_delay"),
        (lambda value: Buffer(size=value), "size"),
        (lambda value: Rennala(batch=value), "batch"),
    ],
)
@pytest.mark.parametrize("value", [-1, 1.5, "2", True])
def test_a_number_of_admission_is_a_whole_number(make: Any, key: str, value: Any):
    """One sentence that names the key and the value."""
    with pytest.raises(ValueError, match=rf"^admission\.{key} must be .*{value}"):
        make(value)


@pytest.mark.parametrize(("make", "key"), [(lambda: SoftSync(n=0), "n"), (lambda: Ringmaster(max_delay=0), "max_delay")])
def test_zero_is_refused_where_it_would_stop_everything(make: Any, key: str):
    """No group has no gradients, and no gradient is less than zero versions old; bound 0 and no spares are fine."""
    assert (BoundedStaleness(bound=0).bound, Backup(spares=0).spares) == (0, 0)
    with pytest.raises(ValueError, match=rf"^admission\.{key} must be at least 1, not 0"):
        make()


def test_inverse_staleness_is_one_over_tau():
    """α0/τ, and the whole of a gradient that is not late."""
    assert [InverseStaleness().factor(staleness) for staleness in (0, 1, 2, 4, 8)] == [1.0, 1.0, 0.5, 0.25, 0.125]


@pytest.mark.parametrize("seconds", [(4, 4, 2, 1), (7, 3, 2, 1), (1, 1, 1, 1)])
def test_rescaled_factors_add_up_to_the_same_for_every_worker(seconds: tuple[int, ...]):
    """Between two of its updates a worker's (τ + 1)/N is the number of versions over N: k/N at its last one, whatever its speed."""
    n = len(seconds)
    total, pulled = [0.0] * n, [0] * n
    arrivals = sorted((t, rank) for rank, each in enumerate(seconds) for t in range(each, 200, each))
    for version, (_, rank) in enumerate(arrivals):
        total[rank] += Rescaled().factor_among(version - pulled[rank], n)
        pulled[rank] = version + 1
        assert total[rank] == pytest.approx((version + 1) / n, rel=1e-12)


def test_delay_adaptive_shortens_steps_only_beyond_n_versions():
    """N / max(N, τ)."""
    assert [DelayAdaptive().factor_among(staleness, 4) for staleness in (0, 3, 4, 5, 8)] == [1.0, 1.0, 1.0, 0.8, 0.5]


def test_rennala_applies_the_first_b_gradients_at_the_present_weights():
    """Whoever made them, one worker twice; a late one is dropped; everybody goes on at once."""
    rennala = Rennala(batch=3)
    state, decisions = arrivals(rennala, rennala.initial(4), 0, 2, 2)
    late = contribution(1, staleness=1)
    _, dropped = rennala.arrived(state, late)

    assert [[c.rank for c in decision.apply] for decision in decisions] == [[], [], [0, 2, 2]]
    assert [decision.release for decision in decisions] == [(0,), (2,), (2,)]
    assert dropped == Decision(drop=(late,), release=(1,))


def test_malenia_collects_until_it_has_one_of_every_worker():
    """A worker that leaves is not waited for; a late gradient is dropped; everybody goes on at once."""
    malenia = Malenia()
    state, decisions = arrivals(malenia, malenia.initial(3), 0, 2, 2, 1)
    late = contribution(0, staleness=1)

    assert [[c.rank for c in decision.apply] for decision in decisions] == [[], [], [], [0, 2, 2, 1]]
    assert [decision.release for decision in decisions] == [(0,), (2,), (2,), (1,)]
    assert malenia.arrived(state, late)[1] == Decision(drop=(late,), release=(0,))
    state, _ = arrivals(malenia, state, 0, 1)
    assert [c.rank for c in malenia.worker_left(state, 2)[1].apply] == [0, 1]


def test_a_malenia_step_is_along_the_mean_of_the_workers_means():
    """(1/c) Σ w_j g_j = (1/n) Σ μ_i: three gradients of one worker, one each of two others."""
    group = [contribution(rank) for rank in (0, 2, 2, 1, 2)]
    g = [1.0, 5.0, 7.0, 3.0, 12.0]

    weights = PerWorkerMean().weights(group, 1.0)

    assert sum(w * each for w, each in zip(weights, g, strict=True)) / 5 == pytest.approx((1 + 3 + (5 + 7 + 12) / 3) / 3)


# Laws over random arrivals


@dataclass
class Play:
    """What went on among a server, its workers and a number of ranges."""

    decisions: list[Decision] = field(default_factory=list)
    sent: list[Batch] = field(default_factory=list)
    ahead: list[tuple[int, int]] = field(default_factory=list)
    """At each arrival: how many steps ahead of the slowest the furthest who computes is, and the furthest who waits."""
    left: set[int] = field(default_factory=set)
    version: int = 0

    @property
    def applied(self) -> list[Contribution]:
        """In the order in which they were."""
        return [c for decision in self.decisions for c in decision.apply]

    @property
    def dropped(self) -> list[Contribution]:
        """In the order in which they were."""
        return [c for decision in self.decisions for c in decision.drop]


def played(admission: Admission, num_workers: int, choices: list[int], num_ranges: int) -> Play:
    """Hand out ranges of one sample to whoever is free, as a server does; they arrive in an order by choice, until all have left."""
    play, computing, done = Play(), {}, dict.fromkeys(range(num_workers), 0)
    state = admission.initial(num_workers)
    decisions = [Decision(release=tuple(range(num_workers)))]
    choices = [*choices]
    while True:
        while decisions:
            decision = decisions.pop(0)
            play.decisions.append(decision)
            play.version += bool(decision.apply)
            for rank in decision.release:
                assert rank not in computing
                assert rank not in play.left
                if len(play.sent) < num_ranges:
                    computing[rank] = (Batch(len(play.sent), 1), play.version)
                    play.sent.append(computing[rank][0])
                else:
                    play.left.add(rank)
                    del done[rank]
                    state, more = admission.worker_left(state, rank)
                    decisions.append(more)
        if not computing:
            return play
        rank = sorted(computing)[(choices.pop() if choices else 0) % len(computing)]
        batch, version = computing.pop(rank)
        done[rank] += 1
        arrival = contribution(rank, start=batch.start, staleness=play.version - version)
        state, decision = admission.arrived(state, arrival)
        decisions.append(decision)
        now_computing = [done[other] for other in done if other in computing or other in decision.release]
        now_waiting = [done[other] for other in done if other not in computing and other not in decision.release]
        slowest = min(done.values())
        play.ahead.append((max(now_computing, default=slowest) - slowest, max(now_waiting, default=slowest) - slowest))


@st.composite
def plays(draw: st.DrawFn) -> tuple[Admission, int, list[int], int]:
    """A rule that suits a number of workers, an order of arrivals, and how many ranges there are."""
    num_workers = draw(st.integers(1, 6))
    admission = draw(
        st.one_of(
            st.just(EveryGradient()),
            st.just(Barrier()),
            st.builds(BoundedStaleness, bound=st.none() | st.integers(0, 3)),
            st.builds(SoftSync, n=st.integers(1, num_workers)),
            st.builds(Backup, spares=st.integers(0, num_workers - 1)),
            st.builds(Ringmaster, max_delay=st.integers(1, 4)),
            st.builds(Buffer, size=st.integers(1, 9)),
            st.builds(Rennala, batch=st.integers(1, 9)),
            st.just(Malenia()),
            st.just(Ringleader()),
        )
    )
    return admission, num_workers, draw(st.lists(st.integers(0, 5), max_size=60)), draw(st.integers(0, 40))


@given(plays())
def test_every_gradient_is_applied_or_dropped_exactly_once(play: tuple[Admission, int, list[int], int]):
    """Whatever the order of arrivals, and also when workers leave at the end; every range was taken."""
    result = played(*play)

    assert sorted(c.batch.start for c in (*result.applied, *result.dropped)) == list(range(play[3]))


@given(plays())
def test_nobody_waits_for_ever(play: tuple[Admission, int, list[int], int]):
    """Once nobody computes, everyone was freed and told to stop."""
    admission, num_workers, choices, num_ranges = play

    assert played(admission, num_workers, choices, num_ranges).left == set(range(num_workers))


@given(plays())
def test_while_there_is_work_somebody_does_it(play: tuple[Admission, int, list[int], int]):
    """Every arrival that leaves all the others waiting frees at least one of them: no range is left over."""
    assert len(played(*play).sent) == play[3]


@given(plays())
def test_only_rules_that_say_so_drop_gradients_or_apply_late_ones(play: tuple[Admission, int, list[int], int]):
    """Backup workers, Rennala, Malenia and Ringmaster drop, by their staleness alone; of these, only Ringmaster applies what is late."""
    admission, result = play[0], played(*play)

    assert isinstance(admission, Backup | Ringmaster | Rennala | Malenia) or not result.dropped
    assert admission.lets_gradients_be_late or not any(c.staleness for c in result.applied)
    if isinstance(admission, Backup | Rennala | Malenia):
        assert all(c.staleness for c in result.dropped)
    if isinstance(admission, Ringmaster):
        assert all(c.staleness < admission.max_delay for c in result.applied)
        assert all(c.staleness >= admission.max_delay for c in result.dropped)


@given(
    st.sampled_from([EveryGradient(), Barrier(), SoftSync(n=1), SoftSync(n=2), Backup(spares=1), Buffer(size=3), Rennala(batch=2)]),
    st.lists(st.integers(0, 5), max_size=40),
)
def test_every_version_before_workers_leave_is_of_one_group(admission: Admission, choices: list[int]):
    """`group_size` gradients each; what is left at the end may be less."""
    groups = [len(decision.apply) for decision in played(admission, 4, choices, 40).decisions if decision.apply]

    assert set(groups[:-4]) == {admission.group_size(4)}
    assert max(groups) == admission.group_size(4)


@given(st.integers(0, 3), st.integers(2, 6), st.lists(st.integers(0, 5), max_size=60))
def test_bounded_clocks_are_never_further_apart_than_the_bound_and_a_step(bound: int, num_workers: int, choices: list[int]):
    """Who computes is at most `bound` steps ahead of the slowest, and who waits exactly one more: bound + 1 when a step is done."""
    result = played(BoundedStaleness(bound=bound), num_workers, choices, 40)

    assert all(computes <= bound for computes, _ in result.ahead)
    assert all(waits in (0, bound + 1) for _, waits in result.ahead)


def test_the_bound_is_reached():
    """The law above is about something: a worker that is always first gets `bound` steps ahead, and then waits one step further."""
    result = played(BoundedStaleness(bound=2), 2, [], 12)

    assert max(computes for computes, _ in result.ahead) == 2
    assert max(waits for _, waits in result.ahead) == 3
