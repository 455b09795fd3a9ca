"""What everyone takes and did, told rank by rank only where one looks: splits, groups and measurements are as if written out."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import cluster, experiment, node, simulate

from hetsim.coordination.all_reduce import UnreportedTimings, add_timings, contributions
from hetsim.coordination.bookkeeping.contributions import SynchronousContributions
from hetsim.coordination.plan import Layout, Plan, Split
from hetsim.effects import Batch, Computed, Contribution
from hetsim.runtime.recording.metrics import Applied

SHARES = st.lists(st.integers(1, 9), min_size=1, max_size=6).map(tuple)


def written_out(start: int, shares: Sequence[int], end: int | None) -> list[Batch]:
    """The ranges, one behind the other, none beyond the end."""
    batches = []
    for share in shares:
        batches.append(Batch(start, share if end is None else max(0, min(share, end - start))))
        start = batches[-1].stop
    return batches


@given(SHARES, st.integers(0, 50), st.none() | st.integers(0, 100))
def test_a_split_is_the_ranges_one_behind_the_other(shares: tuple[int, ...], start: int, end: int | None):
    """Also the last, shorter one, in which some have nothing; and the one behind it, in which nobody has."""
    batches = written_out(start, shares, end)

    split = Plan(len(shares), sum(shares), end).split(start, shares)

    assert list(split) == [split[rank] for rank in range(len(shares))] == batches
    assert (split[-1], split[:2], len(split)) == (batches[-1], tuple(batches[:2]), len(shares))
    assert (split.start, split.stop, split.num_samples) == (start, batches[-1].stop, sum(b.samples for b in batches))
    assert list(split.ranks) == [rank for rank, batch in enumerate(batches) if batch]
    assert split.samples == tuple(batch.samples for batch in batches)


def test_equal_splits_are_equal_whatever_their_plans():
    """A state holds them: a run that is started again has equal ones."""
    one, other = (Plan(2, 5, 8).split(4, shares) for shares in ((2, 3), (2, 3)))

    assert one == other != Plan(2, 5).split(4, (2, 3))


def test_shares_that_stay_are_looked_at_once(monkeypatch: pytest.MonkeyPatch):
    """The same tuple, and an equal one of another rank's; a list, which may change, is looked at again."""
    plan, laid_out = Plan(2, 6), counted(monkeypatch, Layout, "of")
    shares, changing = (4, 2), [4, 2]

    assert [plan.split(start, its)[1] for start in (0, 6) for its in (shares, tuple(changing), changing)] == [
        *[Batch(4, 2)] * 3,
        *[Batch(10, 2)] * 3,
    ]
    changing[:] = 3, 3
    assert plan.split(0, changing)[1] == Batch(3, 3)
    assert len(laid_out) == 2


@pytest.mark.usefixtures("older_objects_are_frozen")
def test_a_plan_forgets_splits_that_are_no_longer_in_force():
    """However often an allocation decides, in however many tuples."""
    plan = Plan(2, 100)

    for share in range(1, 100):
        for _ in range(3):
            assert plan.split(0, (share, 100 - share))[1] == Batch(share, 100 - share)

    gc.collect()
    assert 0 < sum(type(one) is Layout for one in gc.get_objects()) < 16


@given(SHARES, st.lists(st.integers(0, 60), min_size=1, max_size=3), st.data())
def test_a_group_is_its_contributions(shares: tuple[int, ...], starts: list[int], data: st.DataObject):
    """In rounds and in rank order, without those who have nothing; counted as they would be one by one."""
    plan = Plan(len(shares), sum(shares), 50)
    group, expected = SynchronousContributions(7, staleness=2), []
    for start in starts:
        seconds = data.draw(st.floats(0, 9))
        group = group.appended(plan.split(start, shares), seconds, seconds / 2)
        batches = enumerate(written_out(start, shares, 50))
        expected += [Contribution(rank, batch, 7, seconds, seconds / 2, 2) for rank, batch in batches if batch]

    assert list(group) == [group[index] for index in range(len(group))] == expected
    assert (group[:2], group[-1:]) == (tuple(expected[:2]), tuple(expected[-1:]))
    with pytest.raises(IndexError):
        group[len(expected)]
    if expected:
        assert group.mean_loss == pytest.approx(sum(c.loss for c in expected) / len(expected))
    one, other = Applied(len(shares)), Applied(len(shares))
    for _ in range(2):
        one.commit(1.0, group)
        other.commit(1.0, expected)
    assert (one.count, one.staleness, one.num_updates) == (other.count, other.staleness, other.num_updates)
    assert {late: count for late, count in one.by_staleness.items() if count} == other.by_staleness
    assert one.staleness_max == other.staleness_max or not expected


def test_what_was_measured_for_a_step_is_told_with_it():
    """Seconds of those who were measured over as many samples; one's own for the others."""
    group = contributions(Plan(3, 6).split(0, (1, 2, 3)), 4, Computed(None, 0.5, 1, 9.0))

    measured = add_timings(group, [Contribution(0, Batch(0, 1), 4, 1.5, 0.0), Contribution(2, Batch(0, 2), 4, 2.5, 0.0)])

    assert [(c.rank, c.seconds, c.loss) for c in measured] == [(0, 1.5, 0.5), (1, 9.0, 0.5), (2, 9.0, 0.5)]
    assert measured[1:] == (measured[1], measured[2])
    assert add_timings(group, ()) == group


@given(st.lists(st.tuples(st.sampled_from([(1, 2), (2, 1)]), st.integers(0, 7), st.floats(0, 9)), min_size=1, max_size=8))
def test_what_was_spent_is_added_up_rank_by_rank(steps: list[tuple[tuple[int, ...], int, float]]):
    """Whatever the order of splits, shorter last ones among them; a measurement is a mean gradient of each."""
    plan = Plan(2, 3, 8)
    spent, samples = UnreportedTimings(), [0, 0]
    for shares, start, seconds in steps:
        spent = spent.appended(plan.split(start, shares), seconds)
        samples = [b + batch.samples for b, batch in zip(samples, written_out(start, shares, 8), strict=True)]

    timings = spent.timings(5, (10.0, 20.0))

    count = len(steps)
    assert spent.seconds == pytest.approx(sum(seconds for _, _, seconds in steps))
    assert timings == tuple(
        Contribution(rank, Batch(0, round(b / count)), 5, (rank + 1) * 10.0 / count, 0.0) for rank, b in enumerate(samples) if b
    )


def test_a_row_of_a_commit_tells_how_late_its_group_was():
    """Behind two updates of warm-up and the first one of the delay, by one version."""
    keys: dict[str, Any] = {"coordination": {"warm_up": 2}, "batch_size": 8, "budget": {"epochs": 0.41}}
    made = experiment("method=pipe_sgd", "workload=phantom", workload={"num_samples": 100}, cluster=cluster(node(1e-3, count=2)), **keys)

    commits = simulate(made, trace="commits").rows()

    assert [(row.samples, row.staleness) for row in commits] == [(8, 0), (8, 0), (8, 0), (8, 1), (8, 1), (1, 1)]


# Nothing is done for each of N ranks by each of N ranks


def counted(monkeypatch: pytest.MonkeyPatch, kind: type, name: str) -> list[Any]:
    """The calls of a method from now on."""
    calls: list[Any] = []
    method = getattr(kind, name)

    def noted(*arguments: Any) -> Any:
        calls.append(arguments)
        return method(*arguments)

    monkeypatch.setattr(kind, name, noted)
    return calls


@dataclass(frozen=True)
class Guarded:
    """In the place of a policy that has no business in a timing-only run."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was asked for")


@pytest.mark.parametrize("choices", ["method=ssgd", "method=pipe_sgd", "method=local_sgd", "method=dbs allocation=dbs_per_epoch"])
def test_an_iteration_takes_a_rank_no_time_in_the_number_of_ranks(choices: str, monkeypatch: pytest.MonkeyPatch):
    """On a phantom: as many ranges as gradients, no contributions, weights or layouts as long as the split stays."""
    keys: dict[str, Any] = {"cluster": cluster(node(1e-3, count=8)), "batch_size": 32, "budget": {"updates": 25}}
    made = experiment(*choices.split(), "workload=phantom", workload={"num_samples": 10**6, "num_parameters": 4}, **keys)
    made = replace(made, coordination=replace(made.coordination, weighting=Guarded()))
    ranges, parts = counted(monkeypatch, Split, "__getitem__"), counted(monkeypatch, SynchronousContributions, "_part")
    layouts = counted(monkeypatch, Layout, "of")

    computed = simulate(made).computed

    assert len(ranges) <= 3 * len(computed)
    assert (len(parts), len(layouts)) == (0, 1)
