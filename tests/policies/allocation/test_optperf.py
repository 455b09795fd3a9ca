"""OptPerf: the split found is the fastest there is, the fit is exact where there is no noise, and the probing ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise, product
from typing import Any

import pytest
from examples import examples
from hypothesis import assume, example, given
from hypothesis import strategies as st

from hetsim.effects import Batch, Contribution
from hetsim.policies.allocation.optperf import AffineTime, OptPerf, OptPerfState, TimingSums, fastest_split, overlapped_times, seconds


def slowest(nodes: Sequence[Sequence[AffineTime]], shares: Sequence[int]) -> float:
    """When the last node ends."""
    return max(seconds(lines, b) for lines, b in zip(nodes, shares, strict=True))


def every_split(num_nodes: int, total: int, most: Sequence[int]) -> list[tuple[int, ...]]:
    """All shares of at least one and at most what each may have that sum to the total."""
    firsts = product(*(range(1, min(bound, total) + 1) for bound in most[:-1]))
    return [(*first, total - sum(first)) for first in firsts if 1 <= total - sum(first) <= most[num_nodes - 1]]


def goes_where_it_ends_first(nodes: Sequence[Sequence[AffineTime]], shares: Sequence[int], most: Sequence[int]) -> bool:
    """Whether no sample but the first of a node ends later than one more would end somewhere else."""
    taken = max((seconds(lines, b) for lines, b in zip(nodes, shares, strict=True) if b > 1), default=0.0)
    following = (seconds(lines, b + 1) for lines, b, bound in zip(nodes, shares, most, strict=True) if b < bound)
    return min(following, default=math.inf) >= taken


def affine(nodes: Sequence[tuple[float, float]]) -> list[list[AffineTime]]:
    """Nodes of one line each."""
    return [[AffineTime(*line)] for line in nodes]


LINES = st.builds(AffineTime, st.integers(0, 30).map(float), st.integers(1, 9).map(float))
TWO_LINES = st.builds(
    overlapped_times,
    forward=LINES,
    backward=LINES,
    first_bucket=st.sampled_from([0.0, 0.25, 0.5, 1.0]),
    reduction_seconds=st.integers(0, 60).map(float),
    last_bucket_seconds=st.integers(0, 8).map(float),
)


# The fastest split


@pytest.mark.slow
@pytest.mark.parametrize("node", [LINES.map(lambda line: [line]), TWO_LINES, st.lists(LINES, min_size=1, max_size=3)])
@given(st.data())
def test_no_split_is_faster(node: st.SearchStrategy[list[AffineTime]], data: st.DataObject):
    """Of all splits of a small batch, with or without bounds, over nodes of one, two or three lines."""
    nodes = data.draw(st.lists(node, min_size=1, max_size=4))
    total = data.draw(st.integers(len(nodes), 14))
    most = data.draw(st.none() | st.lists(st.integers(1, 14), min_size=len(nodes), max_size=len(nodes)))
    splits = every_split(len(nodes), total, most or [total] * len(nodes))
    assume(splits)

    shares = fastest_split(nodes, total, most)

    assert shares in splits
    assert slowest(nodes, shares) == min(slowest(nodes, split) for split in splits)
    assert goes_where_it_ends_first(nodes, shares, most or [total] * len(nodes))


@pytest.mark.parametrize(
    ("nodes", "total", "most", "shares"),
    [
        ([(0.0, 1.0), (0.0, 3.0)], 12, None, (9, 3)),
        ([(0.0, 1.0), (6.0, 1.0)], 12, None, (9, 3)),  # 9 s each
        ([(0.0, 1.0), (100.0, 1.0)], 12, None, (11, 1)),  # one at least, however late
        ([(0.0, 1.0), (0.0, 1.0)], 12, [4, 12], (4, 8)),
        ([(0.0, 1.0), (0.0, 1.0), (0.0, 4.0)], 12, [2, 99, 99], (2, 8, 2)),  # a bound may be more than there is
        ([(2.0, 3.0)], 7, None, (7,)),
    ],
)
def test_the_fastest_split_by_hand(nodes: list[tuple[float, float]], total: int, most: list[int] | None, shares: tuple[int, ...]):
    """Everyone ends at the same time, as far as bounds and whole samples allow."""
    assert slowest(affine(nodes), fastest_split(affine(nodes), total, most)) == slowest(affine(nodes), shares)
    assert sum(fastest_split(affine(nodes), total, most)) == total


def test_what_the_bounds_cannot_hold_is_refused():
    """Too many samples for the bounds, or no sample for one; just enough is enough."""
    nodes = affine([(0.0, 1.0), (0.0, 1.0)])

    assert fastest_split(nodes, 12, [6, 6]) == (6, 6)
    with pytest.raises(ValueError, match=r"^the nodes' max_samples hold 12 samples in all, but batch_size=13: raise them, or lower it$"):
        fastest_split(nodes, 13, [6, 6])
    with pytest.raises(ValueError, match=r"^a node's max_samples must be at least 1, not 0$"):
        fastest_split(nodes, 5, [5, 0])


def test_what_has_no_fastest_split_is_refused():
    """Fewer samples than nodes, and samples that take no time."""
    with pytest.raises(ValueError, match=r"^batch_size=1 is less than one sample for each of 2 workers: raise it"):
        fastest_split(affine([(0.0, 1.0), (0.0, 1.0)]), 1)
    with pytest.raises(ValueError, match=r"^a node that takes no time for a sample has no fastest share"):
        fastest_split(affine([(5.0, 0.0), (0.0, 1.0)]), 12)


@examples(40)
@given(st.lists(st.tuples(st.floats(0.0, 10.0), st.floats(1e-6, 1e-2)), min_size=2, max_size=20), st.booleans())
def test_a_huge_batch_is_split_to_within_a_sample(parameters: list[tuple[float, float]], bounded: bool):
    """B = 10⁹ at once: no node with more than one sample could end its last one earlier as another's next one."""
    total, nodes = 10**9, affine(parameters)
    most = [total // 2] * len(nodes) if bounded else [total] * len(nodes)

    shares = fastest_split(nodes, total, most if bounded else None)

    assert sum(shares) == total
    assert all(1 <= share <= bound for share, bound in zip(shares, most, strict=True))
    assert goes_where_it_ends_first(nodes, shares, most)


# Overlap


def test_the_larger_line_says_whether_computation_or_communication_binds():
    """Forward 1 + 2b, backward 3 + 4b, half of it before the first bucket, 20 s to reduce, 5 s for the last bucket.

    Half the backward pass is shorter than the reduction up to b = 9, where (1 − 1/2)(3 + 36) = 19.5 s; at b = 10 it is 21.5 s.
    """
    lines = overlapped_times(
        forward=AffineTime(1.0, 2.0), backward=AffineTime(3.0, 4.0), first_bucket=0.5, reduction_seconds=20.0, last_bucket_seconds=5.0
    )

    assert lines == [AffineTime(9.0, 6.0), AffineTime(27.5, 4.0)]
    assert [seconds(lines, b) for b in (9, 10)] == [27.5 + 36.0, 9.0 + 60.0]


@given(LINES, LINES, st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.integers(0, 60), st.integers(0, 8), st.integers(1, 20))
def test_a_step_is_the_longer_of_computing_and_of_reducing_after_the_first_bucket(
    forward: AffineTime, backward: AffineTime, first_bucket: float, reduction: int, last: int, b: int
):
    """Bound by computation iff (1 − f) P ≥ R: then a + P, else a + f P + R, and the last bucket after either."""
    a, p = forward.overhead + b * forward.per_sample, backward.overhead + b * backward.per_sample

    time = seconds(
        overlapped_times(
            forward=forward, backward=backward, first_bucket=first_bucket, reduction_seconds=reduction, last_bucket_seconds=last
        ),
        b,
    )

    by_computation = (1 - first_bucket) * p >= reduction
    assert time == (a + p + last if by_computation else a + first_bucket * p + reduction + last)


def test_bound_nodes_of_a_kind_agree_at_the_optimum():
    """Those bound by computation share its end, those bound by communication the beginning of the reduction, to within a sample's time."""
    nodes = [  # forward, backward: two with little of the first, two with much
        (AffineTime(0.5, 1e-7), AffineTime(0.0, 6e-6)),
        (AffineTime(2.0, 2e-7), AffineTime(1.0, 4e-6)),
        (AffineTime(0.5, 3e-6), AffineTime(0.0, 1e-6)),
        (AffineTime(9.0, 5e-6), AffineTime(3.0, 2e-6)),
    ]
    first_bucket, reduction, one_sample = 0.25, 900.0, 7e-6

    shares = fastest_split(
        [
            overlapped_times(
                forward=forward, backward=backward, first_bucket=first_bucket, reduction_seconds=reduction, last_bucket_seconds=4.0
            )
            for forward, backward in nodes
        ],
        10**9,
    )

    a, p = ([seconds([node[part]], b) for node, b in zip(nodes, shares, strict=True)] for part in (0, 1))
    assert [(1 - first_bucket) * p_i >= reduction for p_i in p] == [True, True, False, False]
    ends = [a_i + p_i for a_i, p_i in zip(a[:2], p[:2], strict=True)]
    begins = [a_i + first_bucket * p_i for a_i, p_i in zip(a[2:], p[2:], strict=True)]
    assert abs(ends[0] - ends[1]) <= one_sample
    assert abs(begins[0] - begins[1]) <= one_sample
    assert abs(max(ends) - (max(begins) + reduction)) <= one_sample


# The fit


def measured(*steps: tuple[int, float]) -> TimingSums:
    """What is known after steps of so many samples in so many seconds."""
    sizes = TimingSums()
    for b, t in steps:
        sizes = sizes.appended(b, t)
    return sizes


@given(st.integers(0, 50), st.integers(1, 20), st.lists(st.integers(1, 64), min_size=2, max_size=8))
def test_a_fit_without_noise_is_exact(overhead: int, per_sample: int, samples: list[int]):
    """Two sizes or more on a line give that line, whatever the sizes."""
    assume(len(set(samples)) > 1)

    fitted = measured(*((b, float(overhead + per_sample * b)) for b in samples)).line()

    assert fitted.per_sample == per_sample
    assert fitted.overhead == overhead


def test_one_size_is_a_line_through_the_origin():
    """Nothing is known of the overhead: the mean time of a sample."""
    sizes = measured((4, 3.0), (4, 5.0))

    assert not sizes.distinct
    assert sizes.line() == AffineTime(0.0, 1.0)
    assert measured((4, 3.0), (5, 5.0)).distinct


@pytest.mark.parametrize("steps", [((2, 1.0), (4, 4.0)), ((2, 4.0), (4, 2.0)), ((2, 4.0), (4, 4.0))])
def test_a_fit_never_has_a_negative_part(steps: tuple[tuple[int, float], ...]):
    """Where least squares would give an overhead below zero, or samples that take none or less, it is through the origin."""
    assert measured(*steps).line() == AffineTime(0.0, sum(t for _, t in steps) / 6)


# The probing


def followed(
    optperf: OptPerf, nodes: Sequence[Sequence[AffineTime]], total: int, num_updates: int, most: Sequence[int] | None = None
) -> list[OptPerfState]:
    """The state at first and after each update, at which each node took what its lines say."""
    states = [optperf.initial(len(nodes), total, most)]
    for _ in range(num_updates):
        shares = states[-1].shares
        timings = [
            Contribution(rank, Batch(0, b), version=0, seconds=seconds(lines, b), loss=0.0)
            for rank, (lines, b) in enumerate(zip(nodes, shares, strict=True))
        ]
        states.append(optperf.observe(states[-1], timings))
    return states


def test_optperf_probes_an_even_split_then_one_by_speed_and_then_it_is_settled():
    """`probes` updates each. 6 + b and b seconds: 8 each take 14 and 8 s, by speed it is 6 and 10, and 6 + 5 = 11 is the solution."""
    states = followed(OptPerf(probes=3), affine([(6.0, 1.0), (0.0, 1.0)]), 16, 8)

    assert [state.shares for state in states] == [(8, 8)] * 3 + [(6, 10)] * 3 + [(5, 11)] * 3
    assert [state.settled for state in states] == [False] * 6 + [True] * 3
    assert [OptPerf().asks(state, 0) for state in states] == [True] * 6 + [False] * 3
    assert [OptPerf(recheck_steps=2).asks(state, 0) for state in states] == [True] * 6 + [False, True, True]


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), min_size=1, max_size=5),
    st.integers(1, 30),
    st.integers(1, 3),
)
@example([(0, 3), (3, 2)], 3, 1)
@example([(7, 2), (7, 2)], 5, 2)
def test_optperf_settles_for_good_if_it_is_never_checked(parameters: list[tuple[int, int]], each: int, probes: int):
    """Also where a node has the same size in both probing splits: it goes on until the solution shows it no other."""
    nodes = affine([(float(overhead), float(per_sample)) for overhead, per_sample in parameters])

    optperf = OptPerf(probes=probes, recheck_steps=None)
    states = followed(optperf, nodes, each * len(nodes), probes * 12)

    settled = [state.settled for state in states]
    assert settled[: 2 * probes] == [False] * 2 * probes
    assert settled == sorted(settled)
    assert settled[-1]
    assert all(after is before for before, after in pairwise(states) if before.settled)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), min_size=2, max_size=4), st.integers(1, 20))
def test_where_every_node_was_seen_at_two_sizes_the_split_is_the_fastest(parameters: list[tuple[int, int]], each: int):
    """Without noise the fit is exact, so no split of the batch ends earlier."""
    nodes = affine([(float(overhead), float(per_sample)) for overhead, per_sample in parameters])
    total = each * len(nodes)

    final = followed(OptPerf(probes=1), nodes, total, 12)[-1]

    assume(all(size.distinct for size in final.sizes))
    assert slowest(nodes, final.shares) == slowest(nodes, fastest_split(nodes, total))


def test_a_node_of_the_same_size_in_both_probes_is_measured_until_the_solution_is_its_own():
    """80 + b seconds, forty samples in both: taken for 3b, which the solution gives less, and at that size the fit is exact.

    40 + b, 80 + b and 6b: 40 each take 80, 120 and 240 s, so 3 : 2 : 1. At the end they take 111, 111 and 108 s.
    """
    nodes = affine([(40.0, 1.0), (80.0, 1.0), (0.0, 6.0)])

    states = followed(OptPerf(probes=1), nodes, 120, 4)

    shares = [state.shares for state in states]
    assert shares[:2] == [(40, 40, 40), (60, 40, 20)]
    assert slowest([[AffineTime(40.0, 1.0)], [AffineTime(0.0, 3.0)], [AffineTime(0.0, 6.0)]], shares[2]) == 108.0  # 18 · 6, as 36 · 3
    assert shares[3:] == [(71, 31, 18)] * 2
    assert [state.settled for state in states] == [False, False, False, True, True]


def test_a_node_that_the_solution_leaves_at_its_one_size_settles_with_it():
    """2b, 8 + b and 6b: four of twelve for the second in both probing splits, and in the solution: there is nothing else to measure."""
    states = followed(OptPerf(probes=1), affine([(0.0, 2.0), (8.0, 1.0), (0.0, 6.0)]), 12, 3)

    assert [state.shares for state in states] == [(4, 4, 4), (6, 4, 2), (6, 4, 2), (6, 4, 2)]
    assert [state.settled for state in states] == [False, False, True, True]
    assert not states[-1].sizes[1].distinct


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 9))
def test_without_overheads_optperf_is_the_split_by_speed(speeds: list[int], scale: int):
    """Where b_i = B v_i / Σ v_j is whole, that split, from the second probe on."""
    nodes, total = affine([(0.0, 1 / v) for v in speeds]), scale * sum(speeds)

    states = followed(OptPerf(probes=1), nodes, total, 4)

    assert [state.shares for state in states[1:]] == [tuple(scale * v for v in speeds)] * 4
    assert slowest(nodes, fastest_split(nodes, total)) == pytest.approx(scale, rel=1e-15)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), min_size=2, max_size=4), st.integers(1, 20))
@example([(6, 1), (0, 1)], 8)
def test_with_overheads_optperf_beats_a_split_by_speed(parameters: list[tuple[int, int]], each: int):
    """Speeds b/t of one size are not those of another: never slower than the split by speed, and 11 s against 12 by hand."""
    nodes = affine([(float(overhead), float(per_sample)) for overhead, per_sample in parameters])

    states = followed(OptPerf(probes=1), nodes, each * len(nodes), 12)

    assume(all(size.distinct for size in states[-1].sizes))
    assert slowest(nodes, states[-1].shares) <= slowest(nodes, states[1].shares)
    if parameters == [(6, 1), (0, 1)] and each == 8:
        assert (slowest(nodes, states[1].shares), slowest(nodes, states[-1].shares)) == (12.0, 11.0)


@pytest.mark.parametrize("probes", [1, 4])
def test_optperf_counts_only_measurements(probes: int):
    """While somebody was never measured it goes on probing; an empty or instant gradient is none."""
    optperf = OptPerf(probes=probes)
    first, nothing, instant = (
        Contribution(rank, Batch(0, b), version=0, seconds=t, loss=0.0) for rank, b, t in ((0, 4, 1.0), (1, 0, 1.0), (1, 4, 0.0))
    )
    state = optperf.initial(2, 8)

    for _ in range(probes + 3):
        state = optperf.observe(state, [first, nothing, instant])

    assert (state.shares, state.num_splits, state.sizes[1]) == ((4, 4), 1, TimingSums())
    assert optperf.asks(state, 0)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), min_size=2, max_size=4), st.integers(2, 20), st.data())
def test_memory_bounds_every_split_the_probing_ones_included(parameters: list[tuple[int, int]], each: int, data: st.DataObject):
    """b_i ≤ max_samples_i from the first step, and the batch is whole."""
    nodes, total = affine([(float(overhead), float(per_sample)) for overhead, per_sample in parameters]), each * len(parameters)
    most = data.draw(st.lists(st.integers(each - 1, total), min_size=len(nodes), max_size=len(nodes)))
    assume(sum(most) >= total)

    states = followed(OptPerf(probes=1), nodes, total, 8, most)

    assert all(sum(state.shares) == total for state in states)
    assert all(1 <= b <= bound for state in states for b, bound in zip(state.shares, most, strict=True))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"probes": 0}, r"^allocation\.probes must be at least 1, not 0$"),
        ({"recheck_steps": 0}, r"^allocation\.recheck_steps must be at least 1, not 0$"),
        ({"dead_band": -0.1}, r"^allocation\.dead_band must be a finite number of at least zero, not -0\.1$"),
    ],
)
def test_optperf_refuses_what_makes_no_sense(options: dict[str, Any], sentence: str):
    """One sentence that names the key and the value, at the latest when it meets its cluster."""
    with pytest.raises(ValueError, match=sentence):
        OptPerf(**options).initial(2, 8)
