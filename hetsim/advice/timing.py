"""Time candidates for the same samples, without training: every method and split, and every set of nodes that may be faster.

A set of nodes is not simulated if its bound (`bounds`) is above a known time. So each search finds the fastest candidate of its pool.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from hetsim.advice.candidates import Candidate, Subsets, allocation_variants, baseline, classes, neighbours, subsets
from hetsim.advice.progress import StoppedEarly
from hetsim.advice.question import BASELINE, AdviceQuestion
from hetsim.advice.simulated import SimulatedRun
from hetsim.advice.simulations import Simulations
from hetsim.advice.variants import Variant
from hetsim.catalogue.tables import OWN
from hetsim.catalogue.times import SPREAD, Times
from hetsim.cluster.network.changing import changes, seconds_of_changes
from hetsim.config.methods import FAMILIES
from hetsim.config.resolved import Named
from hetsim.workloads.task import BYTES

STEPS = 20_000
"""The number of gradients of a simulated run."""
WARM_UP = 25
"""The number of global batches before a run's rate is measured: methods with a delay warm up for 20 updates, `optperf` probes for 10."""
LEAST, QUICK, MOST = 50, 60, 300
"""The global batches of a simulated run: at least, with GPUs of the catalogue, whose steps soon repeat, and at most with others."""
SEEDS = 3
"""The number of seeds for reported candidates. One seed is enough to select them."""
POINTS = 50
"""The number of evaluations, which record a run's progress."""
BEFORE_THE_END = 0.9
"""The fraction of a run after which its rate is measured."""
SLACK = 0.002
"""A smaller saving of time, as a fraction, does not count: that of a set of nodes, or of a split over a simpler one."""
SIMPLEST = (None, "even", "dbs")
"""The splits of a method, the simplest first: as published, equal, by measured speed. Any other one is less simple."""
AT_ONCE = 4
"""The number of sets of nodes that are simulated before the best time is checked again."""
MOST_RUNS = 400
"""The maximum number of simulated sets of nodes for each pool."""
SPLIT_EACH = 4
"""The expected number of runs of each method with other splits. About as many runs use fewer nodes."""
STEPS_DOWN = 20
"""The maximum number of steps that leave out or take back a node, if not every set of nodes is tried."""
NEAREST = 8
"""The number of sets with one node less or more that are simulated in each step."""
BETTER = 0.99
"""Another choice is better if it takes at most this fraction of the recommendation's time."""
TIMED_AT_ENDS = 12
"""The number of choices that are timed again at each end of the intervals: the fastest on each set of nodes."""


@dataclass(frozen=True)
class CandidateTimes:
    """A candidate, and the seconds of the whole training in each run."""

    candidate: Candidate
    seconds: tuple[float, ...]
    outcome: SimulatedRun
    timing: str = ""
    """The properties on which the seconds depend, besides the nodes. Candidates with equal `timing` take the same time."""

    @property
    def mean(self) -> float:
        """The geometric mean of the seconds."""
        return math.exp(math.fsum(map(math.log, self.seconds)) / len(self.seconds))


@dataclass
class Timing:
    """The times of candidates on one cluster, and the reasons for missing times."""

    question: AdviceQuestion
    processes: Simulations
    sizes: tuple[int, int]
    """The length of the weights, and the number of training samples."""
    refused: dict[str, str] = field(default_factory=dict)
    """By candidate, the error of its run."""
    timed: dict[Candidate, CandidateTimes] = field(default_factory=dict)
    """All candidates that were timed, with one run each."""
    remarks: list[str] = field(default_factory=list)
    """Sentences on candidates that were not tried, and on what the times leave out."""
    batches: int = 0
    """The number of global batches of a simulated run."""

    def __post_init__(self) -> None:
        """Choose the usual number of batches."""
        self.batches = min(MOST if self.seeds > 1 else QUICK, max(LEAST, STEPS // self.question.experiment.num_workers))

    @property
    def seeds(self) -> int:
        """The number of runs for a reported time: one for GPUs of the catalogue without the user's own noise and faults."""
        cluster = self.question.experiment.cluster
        random = bool(cluster.faults.nodes) or any(node.noise or node.slow_spells for node in cluster.nodes)
        return 1 if self.question.named is not None and not random else SEEDS

    def baseline(self) -> CandidateTimes:
        """The time of equal batches. Raises ValueError if they cannot be simulated.

        If the cluster changes later than in a usual run, this run and those of the candidates are longer.
        """
        first = baseline(self.question.even)
        times = self.times([first], seeds=self.seeds)
        if not times:
            progress = self.processes.progress
            raise ValueError(self.refused[first.label] if progress.reason is None else progress.too_early)
        (even,) = times
        experiment = self.question.experiment
        all_batches = math.ceil(self.question.epochs * self.sizes[1] / experiment.batch_size)
        needed = min(all_batches, seconds_of_changes(experiment.cluster) / even.outcome.numbers["seconds"] * self.batches)
        if self.batches < needed:
            self.batches = max(self.batches, math.ceil(min(needed, STEPS / experiment.num_workers)))
            (even,) = self.times([first], seeds=self.seeds) or times
            if self.batches < needed:
                self.remarks.append(
                    f"the cluster changes over time, and each candidate was simulated for about {even.outcome.numbers['seconds']:.3g} s "
                    "only: if the cluster changes later, these times are wrong, so simulate the best candidates with hetsim"
                )
        return even

    def search(self) -> list[CandidateTimes]:
        """All candidates that were timed before the search was stopped, the fastest first, with one run each."""
        self.processes.progress.begin("timing", 2 * SPLIT_EACH * len(self.question.methods))
        with suppress(StoppedEarly):
            timed = self._single_times(map(Candidate, self.question.methods))  # as published
            timed += self._single_times(allocation_variants(self.question, [times.candidate for times in timed]))
            if not self.question.typed("cluster.leave_out") and self.question.experiment.num_workers > 1:
                self._time_subsets(timed)
        candidates = [times for times in self.timed.values() if times.candidate.method in self.question.methods]
        return ranking([times for times in candidates if times.candidate.allocation is None or self.question.even is None])

    def _time_subsets(self, timed: Sequence[CandidateTimes]) -> None:
        """Time sets of nodes: for the baseline, for all candidates that train alike, and for each family of methods."""
        experiment = self.question.experiment
        sets = subsets(experiment.cluster, batch_size=experiment.batch_size, nbytes=self.sizes[0] * BYTES[experiment.dtype])
        if not sets.all:
            self.remarks.append(
                f"of {sets.num:.3g} different sets of nodes, {len(sets.leave_out)} were looked at: without the slowest nodes, those "
                "behind the slowest links, without whole classes, and from the best of these on node by node"
            )
        representatives = _representatives(timed)
        pools = {
            "plain DDP": self._single_times([baseline(self.question.even)]),
            "that train alike": [times for times in representatives if times.candidate.synchronous],
        }
        for family in FAMILIES:
            pools[family] = [
                times for times in representatives if times.candidate.method.family == family and not times.candidate.synchronous
            ]
        best = [self._fastest(name, pool, sets) for name, pool in pools.items() if pool]
        everywhere = dict.fromkeys(times.candidate.leave_out for times in best)
        fastest: dict[str, CandidateTimes] = {}
        for times in ranking(representatives):
            fastest.setdefault(times.candidate.method.name, times)
        self._single_times(replace(times.candidate, leave_out=out) for times in fastest.values() for out in everywhere)
        self._copy_times(timed)

    def _copy_times(self, timed: Sequence[CandidateTimes]) -> None:
        """Copy the times on fewer nodes to all candidates that take the same time as the simulated one."""
        for simulated in [times for times in self.timed.values() if times.candidate.leave_out]:
            for twin in timed:
                if twin.timing == simulated.timing:
                    candidate = replace(twin.candidate, leave_out=simulated.candidate.leave_out)
                    self.timed.setdefault(candidate, replace(simulated, candidate=candidate))

    def _fastest(self, name: str, pool: Sequence[CandidateTimes], sets: Subsets) -> CandidateTimes:
        """The fastest candidate of the pool on any of the sets of nodes."""
        smaller = [out for out in sets.leave_out if out]
        words = self._words()
        bounds = self.processes.least_seconds(words, [_method_and_variant(times.candidate) for times in pool], smaller)
        queue = [
            (self._total(least), len(out), which, out)
            for which, of_one in enumerate(bounds)
            for out, least in zip(smaller, of_one, strict=True)
        ]
        heapq.heapify(queue)
        best, num = min(pool, key=lambda times: times.mean), 0
        while queue and num < MOST_RUNS and self._may_save(queue[0][0], best):
            some = [heapq.heappop(queue) for _ in range(min(AT_ONCE, len(queue)))]
            timed = self._single_times(replace(pool[which].candidate, leave_out=out) for _, _, which, out in some)
            best, num = min([best, *timed], key=lambda times: times.mean), num + len(some)
        if queue and self._may_save(queue[0][0], best):
            self.remarks.append(f"of the methods {name}, {num} of {num + len(queue)} sets of nodes and splits were simulated")
        return best if sets.all and num < MOST_RUNS else self._descent(best)

    def _descent(self, best: CandidateTimes) -> CandidateTimes:
        """Leave out or take back nodes while that is faster. Each step simulates the sets with the lowest bounds."""
        node_classes = classes(self.question.experiment.cluster)
        for _ in range(STEPS_DOWN):
            near = list(neighbours(best.candidate.leave_out, node_classes))
            (bounds,) = self.processes.least_seconds(self._words(), [_method_and_variant(best.candidate)], near)
            worth = sorted((least, out) for least, out in zip(bounds, near, strict=True) if self._may_save(self._total(least), best))
            timed = self._single_times(replace(best.candidate, leave_out=out) for _, out in worth[:NEAREST])
            nearest = min([best, *timed], key=lambda times: times.mean)
            if nearest.mean >= (1 - SLACK) * best.mean:
                break
            best = nearest
        return best

    def _may_save(self, bound: float, best: CandidateTimes) -> bool:
        """Whether a set of nodes with this bound may be faster. If nodes may be absent or links change, bounds only set the order."""
        cluster = self.question.experiment.cluster
        network = cluster.network
        changing = changes([*cluster.nodes, cluster.server, *network.racks.values(), *network.between.values()])
        return bool(cluster.faults.nodes) or changing or bound < (1 - SLACK) * best.mean

    def _total(self, per_sample: float) -> float:
        """The seconds of the whole training."""
        return self.question.epochs * self.sizes[1] * per_sample

    def _single_times(self, candidates: Iterable[Candidate]) -> list[CandidateTimes]:
        """The times of these candidates with one run each, from earlier runs where possible."""
        listed = list(dict.fromkeys(candidates))
        for times in self.times([candidate for candidate in listed if candidate not in self.timed]):
            self.timed[times.candidate] = times
        self.processes.progress.check()
        return [self.timed[candidate] for candidate in listed if candidate in self.timed]

    def times(self, candidates: Iterable[Candidate], *, seeds: int = 1, slower: Sequence[tuple[int, float]] = ()) -> list[CandidateTimes]:
        """The times of the candidates that can be simulated, with one run for each seed. `slower` slows nodes down by factors."""
        listed = list(candidates)
        runs = [
            (method, replace(variant, seed=seed, slower=tuple(slower)))
            for method, variant in map(_method_and_variant, listed)
            for seed in range(seeds)
        ]
        answers = self.processes.time_all(self._words(), runs)
        timed = []
        for place, candidate in enumerate(listed):
            outcomes = answers[place * seeds : (place + 1) * seeds]
            good = [answer for answer in outcomes if not isinstance(answer, str)]
            if len(good) == len(outcomes) and all(outcome.numbers["samples_per_second"] for outcome, _ in good):
                seconds = tuple(self._seconds(outcome) for outcome, _ in good)
                timed.append(CandidateTimes(candidate, seconds, *good[0]))
            elif not candidate.leave_out and self.processes.progress.reason is None:
                reason = next((answer for answer in outcomes if isinstance(answer, str)), "it applied no samples")
                self.refused[candidate.label] = reason
        return timed

    def _seconds(self, outcome: SimulatedRun) -> float:
        """The seconds of the whole training, from the rate in a shorter run.

        The rate is that after the warm-up, and before the end, when fast nodes wait for slow nodes' unfinished work.
        """
        samples = outcome.applied[-1]
        begin = min(0.5, WARM_UP * self.question.experiment.batch_size / samples)
        warm, late = (outcome.seconds_at(share * samples) for share in (begin, BEFORE_THE_END))
        longer = self.question.epochs * self.sizes[1] / samples - 1
        further = longer * (late - warm) / (BEFORE_THE_END - begin)
        return float(outcome.numbers["seconds"]) + further + float(outcome.numbers["profile_seconds"])

    def _words(self) -> list[str]:
        """The budget: as many epochs as will be trained, each of fewer batches if these are many steps. Some methods split by epoch."""
        epochs = self.question.epochs
        samples = min(self.sizes[1], math.ceil(self.batches / epochs) * self.question.experiment.batch_size)
        return [
            *self.question.words_of_timing,
            *("backend=sim", "workload=phantom", f"workload.num_parameters={self.sizes[0]}", f"workload.num_samples={samples}"),
            *("++cluster.model=null", "trace=none", "pictures=false", f"evaluate_every_epochs={epochs / POINTS:.6g}"),
        ]


def _method_and_variant(candidate: Candidate) -> tuple[str, Variant]:
    return candidate.method.name, Variant(candidate.allocation, candidate.weighs_samples, candidate.leave_out)


def _representatives(timed: Sequence[CandidateTimes]) -> list[CandidateTimes]:
    """One candidate of each set that trains alike and takes the same time on any nodes: the first one with the shortest name."""
    first: dict[tuple[str, bool], CandidateTimes] = {}
    for times in sorted(timed, key=lambda times: (times.candidate.allocation is not None, times.candidate.label)):
        first.setdefault((times.timing, times.candidate.synchronous), times)
    return list(first.values())


def ranking(timed: Sequence[CandidateTimes]) -> list[CandidateTimes]:
    """The candidates, the fastest first. If splits of a method take the same time but for `SLACK`, the simplest one comes first."""
    fastest: dict[tuple[str, tuple[int, ...]], float] = {}
    for times in timed:
        group = (times.candidate.method.name, times.candidate.leave_out)
        fastest[group] = min(times.mean, fastest.get(group, math.inf))

    def key(times: CandidateTimes) -> tuple[float, int, float]:
        least = fastest[times.candidate.method.name, times.candidate.leave_out]
        if times.mean > (1 + SLACK) * least:
            return times.mean, 0, times.mean
        split = times.candidate.allocation
        return least, SIMPLEST.index(split) if split in SIMPLEST else len(SIMPLEST), times.mean

    return sorted(timed, key=key)


def intervals(named: Named | None, timing: Timing, even: Candidate, timed: Sequence[CandidateTimes]) -> Iterator[str]:
    """Sentences on how each named GPU's time is known, and whether the first choice is the best at both ends of the intervals."""
    if named is None:
        return
    yield from map(str, named.times.values())
    if any(times.series[0] != OWN for times in named.times.values()):
        yield f"a program of your own {SPREAD}"
    if {times.candidate.method.name for times in timed} == {BASELINE}:
        tried = "with every split and " if even.allocation is None else ""
        yield f"ddp was tried {tried}on every set of GPUs: name other candidates by method=ssgd,dbs_sgd (hetsim-methods)"
    unsure = {name: estimate for name, estimate in named.times.items() if estimate.error}
    alike = [times.candidate for times in timed if times.candidate.synchronous] or [times.candidate for times in timed]
    if not unsure or not alike:
        return
    pool = _pool(alike, named, unsure)
    gains, flips = [], []
    for slower, description in _ends(named, unsure):
        retimed = ranking(timing.times([*pool, even], slower=slower))
        seconds = {times.candidate: times.mean for times in retimed}
        if alike[0] not in seconds or even not in seconds:
            continue
        gains.append(seconds[even] / seconds[alike[0]])
        best = next(times.candidate for times in retimed if times.candidate.synchronous or times.candidate == alike[0])
        if seconds[best] < BETTER * seconds[alike[0]]:
            flips.append(f"if {description}, {best.label} is better: {seconds[even] / seconds[best]:.3g} times as fast as plain DDP")
    if not gains:
        return
    of = " and ".join(unsure)
    yield (
        f"the recommendation {'changes' if flips else 'stays best'} across the error range of {of} (gain {min(gains):.3g} to "
        f"{max(gains):.3g} times)"
    )
    yield from dict.fromkeys(flips)


def _pool(alike: Sequence[Candidate], named: Named, unsure: Mapping[str, Times]) -> list[Candidate]:
    """The fastest candidate on each set of nodes, and the first choice with and without all GPUs of each estimated name."""
    fastest: dict[tuple[int, ...], Candidate] = {}
    for candidate in alike:
        fastest.setdefault(candidate.leave_out, candidate)
    pool = [*fastest.values()][:TIMED_AT_ENDS]
    every = sum(map(len, named.ranks.values()))
    for name in unsure:
        ranks = named.ranks[name]
        for out in ({*alike[0].leave_out} | {*ranks}, {*alike[0].leave_out} - {*ranks}):
            if len(out) < every:
                pool.append(replace(alike[0], leave_out=tuple(sorted(out))))
    return [*dict.fromkeys(pool)]


def _ends(named: Named, unsure: Mapping[str, Times]) -> Iterator[tuple[list[tuple[int, float]], str]]:
    """Both ends of each interval: the unsure GPUs of a chip slower or faster by their error, all others unchanged, and a description."""
    by_chip: dict[str, list[str]] = {}
    for name, times in unsure.items():
        by_chip.setdefault(times.gpu.die, []).append(name)
    for names in by_chip.values():
        error = max(unsure[name].error for name in names)
        take = f"{' and '.join(names)} {'takes' if len(names) == 1 else 'take'}"
        for factor in (1 + error, 1 / (1 + error)):
            yield [(rank, factor) for name in names for rank in named.ranks[name]], f"{take} {factor:.3g} times as long"
