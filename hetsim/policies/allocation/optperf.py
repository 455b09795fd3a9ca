"""OptPerf: the split with the shortest step, if a node's time is affine in its samples, or the larger of two affine times."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heapreplace
from typing import NamedTuple

from hetsim import checks
from hetsim.effects import Contribution
from hetsim.policies.allocation.base import Allocation, check_repetitions, proportional


class AffineTime(NamedTuple):
    """overhead + b · per_sample, in seconds."""

    overhead: float
    per_sample: float


def seconds(lines: Sequence[AffineTime], samples: int) -> float:
    """A node's time is the largest of its lines."""
    return max(overhead + samples * per_sample for overhead, per_sample in lines)


def fastest_split(nodes: Sequence[Sequence[AffineTime]], total: int, max_samples: Sequence[int] | None = None) -> tuple[int, ...]:
    """The integers b_i with Σ b_i = total and 1 ≤ b_i ≤ max_samples_i that minimise max_i seconds(node_i, b_i).

    Each sample goes to the node that finishes it first. So the split takes the `total` earliest of all pairs (node, b). Bisection finds
    the continuous solution, which gives all but about N pairs. A heap gives the remaining pairs. Raises ValueError if there is no such
    split, or if a node takes no time for a sample.
    """
    if total < len(nodes):
        raise ValueError(f"batch_size={total} is less than one sample for each of {len(nodes)} workers: raise it")
    if not all(any(line.per_sample > 0 for line in lines) for lines in nodes):
        raise ValueError("a node that takes no time for a sample has no fastest share: give each a per_sample above zero")
    bounds = [total] * len(nodes) if max_samples is None else [min(bound, total) for bound in max_samples]
    if min(bounds) < 1:
        raise ValueError(f"a node's max_samples must be at least 1, not {min(bounds)}")
    if sum(bounds) < total:
        raise ValueError(f"the nodes' max_samples hold {sum(bounds)} samples in all, but batch_size={total}: raise them, or lower it")

    def fits(deadline: float, lines: Sequence[AffineTime], bound: int) -> int:
        """How many samples a node finishes by the deadline. It is at least 1. Otherwise, it is exact or 1 too low."""
        if seconds(lines, 1) > deadline:
            return 1
        room = min((deadline - overhead) / per_sample for overhead, per_sample in lines if per_sample > 0)
        within = bound if room >= bound else max(1, math.floor(room))
        return within if seconds(lines, within) <= deadline else within - 1

    kinds = [(tuple(lines), bound) for lines, bound in zip(nodes, bounds, strict=True)]
    counts = Counter(kinds)  # equal nodes have equal shares, so each kind is asked once
    low, high = 0.0, max(seconds(*kind) for kind in counts)
    middle = (low + high) / 2
    while low < middle < high:
        enough = sum(count * fits(middle, *kind) for kind, count in counts.items()) > total
        low, high = (low, middle) if enough else (middle, high)
        middle = (low + high) / 2
    share = {kind: fits(low, *kind) for kind in counts}
    shares = [share[kind] for kind in kinds]

    def end(rank: int) -> tuple[float, int]:
        """The time at which this node would finish one more sample."""
        return (seconds(nodes[rank], shares[rank] + 1) if shares[rank] < bounds[rank] else math.inf), rank

    ends = [end(rank) for rank in range(len(nodes))]
    heapify(ends)
    for _ in range(total - sum(shares)):
        rank = ends[0][1]
        shares[rank] += 1
        heapreplace(ends, end(rank))
    return tuple(shares)


def overlapped_times(
    *, forward: AffineTime, backward: AffineTime, first_bucket: float, reduction_seconds: float, last_bucket_seconds: float
) -> list[AffineTime]:
    """A node's time under Cannikin's model of overlap (arXiv 2402.05302), as the larger of two lines.

    The reduction of all buckets except the last takes `reduction_seconds`. It can begin when the fraction `first_bucket` of the backward
    pass is done. The last bucket's reduction takes `last_bucket_seconds`. It begins after the other reduction and the backward pass.

    With a = forward(b), including loading, and P = backward(b), computation bounds a node if a + P gives the larger line. Otherwise,
    communication bounds the node. At the optimum, computation-bound nodes end their computation together, and communication-bound nodes
    begin the reduction together.
    """
    computed = AffineTime(forward.overhead + backward.overhead, forward.per_sample + backward.per_sample)
    until_reduction = AffineTime(
        forward.overhead + first_bucket * backward.overhead, forward.per_sample + first_bucket * backward.per_sample
    )
    return [
        AffineTime(computed.overhead + last_bucket_seconds, computed.per_sample),
        AffineTime(until_reduction.overhead + reduction_seconds + last_bucket_seconds, until_reduction.per_sample),
    ]


@dataclass(frozen=True)
class TimingSums:
    """The number of one worker's measured steps, and the sums of b, t, b² and b·t over them."""

    count: int = 0
    b: float = 0.0
    t: float = 0.0
    bb: float = 0.0
    bt: float = 0.0

    def appended(self, samples: int, seconds: float) -> TimingSums:
        """The sums with one more step."""
        return TimingSums(self.count + 1, self.b + samples, self.t + seconds, self.bb + samples * samples, self.bt + samples * seconds)

    @property
    def distinct(self) -> bool:
        """Whether the steps have at least two different sizes, which an affine fit needs."""
        return self.count * self.bb > self.b * self.b * (1 + 1e-12)

    def seconds(self, samples: float) -> float:
        """The fitted time of a step with this number of samples."""
        overhead, per_sample = self.line()
        return overhead + samples * per_sample

    def line(self) -> AffineTime:
        """The least-squares fit with non-negative coefficients. It goes through the origin if only one size was measured."""
        if self.distinct:
            per_sample = (self.count * self.bt - self.b * self.t) / (self.count * self.bb - self.b * self.b)
            overhead = (self.t - per_sample * self.b) / self.count
            if per_sample > 0 and overhead >= -1e-12 * self.t:
                return AffineTime(max(0.0, overhead), per_sample)
        return AffineTime(0.0, self.t / self.b)


def add_timings(sizes: Sequence[TimingSums], timings: Sequence[Contribution]) -> tuple[TimingSums, ...]:
    """Each worker's sums with these timings. Empty gradients, and gradients that took no time, do not count."""
    sums = list(sizes)
    for timing in timings:
        if timing.samples and timing.seconds > 0:
            sums[timing.rank] = sums[timing.rank].appended(timing.samples, timing.seconds)
    return tuple(sums)


@dataclass(frozen=True)
class OptPerfState:
    """Each worker's measured steps, and whether they are enough. If they are, the rule only measures steps to check them."""

    shares: tuple[int, ...]
    sizes: tuple[TimingSums, ...] = field(repr=False)
    since: tuple[TimingSums, ...] = field(repr=False)
    """The steps that were measured since the settled split was last checked."""
    num_updates: int = 0
    """The number of steps with this split, or since its last check."""
    num_splits: int = 1
    settled: bool = False
    max_samples: Sequence[int] | None = None


@dataclass(frozen=True, kw_only=True)
class OptPerf(Allocation):
    """The integers b_i that minimise max_i (overhead_i + s_i·b_i), Σ b_i = B, fitted after two probing splits. Cannikin, arXiv 2402.05302.

    The rule probes an even split, and then a split by speed, for `probes` updates each. Then it solves. If a worker had the same share in
    both probes, the rule assumes that it has no overhead. It fits again when the solution gives the worker a different share.

    Afterwards, the split is settled. Every `recheck_steps` updates, the rule checks the split by the mean step since the last check. The
    split is wrong if a worker differs from the prediction by more than `dead_band` times the longest predicted step. OmniLearn (arXiv
    2503.17469) tolerates as much around the mean. If the split is wrong, the rule drops the old measurements and probes again: first the
    current split, and then a split by speed.
    """

    keeps_gradients = False
    probes: int = 5
    repetitions: int = 0
    """How many B-sample gradients each worker computes before the run. They replace the first probe, with the even split."""
    recheck_steps: int | None = 100
    """None means that a settled split never changes."""
    dead_band: float = 0.05

    def __post_init__(self) -> None:
        checks.whole("allocation.probes", self.probes)
        check_repetitions(self.repetitions)
        if self.recheck_steps is not None:
            checks.whole("allocation.recheck_steps", self.recheck_steps)
        checks.number("allocation.dead_band", self.dead_band, zero=True)

    def initial(self, num_workers: int, batch_size: int, max_samples: Sequence[int] | None = None) -> OptPerfState:
        even = fastest_split([[AffineTime(0.0, 1.0)]] * num_workers, batch_size, max_samples)
        nothing = (TimingSums(),) * num_workers
        return OptPerfState(even, nothing, nothing, max_samples=max_samples)

    def shares(self, state: OptPerfState) -> tuple[int, ...]:
        return state.shares

    def observe_profile(self, state: OptPerfState, timings: Sequence[Contribution]) -> OptPerfState:
        state = replace(state, sizes=add_timings(state.sizes, timings))
        return self._decide(state) if all(size.count for size in state.sizes) else state

    def asks(self, state: OptPerfState, epoch: int) -> bool:
        return not state.settled or self._due(state.num_updates + 1)

    def observe(self, state: OptPerfState, timings: Sequence[Contribution], epoch: int = 0) -> OptPerfState:
        if state.settled:
            return state if self.recheck_steps is None else self._check(state, timings)
        state = replace(state, sizes=add_timings(state.sizes, timings), num_updates=state.num_updates + 1)
        if state.num_updates < self.probes or not all(size.count for size in state.sizes):
            return state
        return self._decide(state)

    def _decide(self, state: OptPerfState) -> OptPerfState:
        """The next probing split, or the solution."""
        total = sum(state.shares)
        by_speed = [[AffineTime(0.0, size.t / size.b)] for size in state.sizes]
        if state.num_splits == 1:
            return replace(state, shares=_split(by_speed, total, state.max_samples), num_updates=0, num_splits=2)
        shares = _split([[size.line()] for size in state.sizes], total, state.max_samples)
        affine = all(size.distinct for size in state.sizes)
        return replace(state, shares=shares, num_updates=0, num_splits=state.num_splits + 1, settled=affine or shares == state.shares)

    def _due(self, num_updates: int) -> bool:
        return self.recheck_steps is not None and num_updates >= self.recheck_steps

    def _check(self, state: OptPerfState, timings: Sequence[Contribution]) -> OptPerfState:
        """A settled state after one more update. It probes again if a due check finds times that differ from the prediction."""
        since = add_timings(state.since, timings) if timings else state.since
        state = replace(state, since=since, num_updates=state.num_updates + 1)
        if not self._due(state.num_updates):
            return state
        if not all(measured.count for measured in since):  # somebody is absent, or one of many that push to a server has not come yet
            return replace(state, num_updates=0)
        nothing = (TimingSums(),) * len(since)
        predicted = [size.seconds(measured.b / measured.count) for size, measured in zip(state.sizes, since, strict=True)]
        seen = [measured.t / measured.count for measured in since]
        if max(abs(t - p) for t, p in zip(seen, predicted, strict=True)) <= self.dead_band * max(predicted):
            return replace(state, since=nothing, num_updates=0)
        return replace(state, sizes=nothing, since=nothing, num_updates=0, num_splits=1, settled=False)


def _split(nodes: Sequence[Sequence[AffineTime]], total: int, max_samples: Sequence[int] | None) -> tuple[int, ...]:
    if max_samples is None and all(len(lines) == 1 and lines[0].overhead == 0 for lines in nodes):
        return proportional([1 / lines[0].per_sample for lines in nodes], total)
    return fastest_split(nodes, total, max_samples)
