"""Time candidates for the same samples, without training: every method and split, and every set of nodes that may be faster.

A set of nodes is not simulated if its bound (`bounds`) is above a known time. So each search finds the fastest candidate of its pool.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby

from hetsim.advice.candidates import Candidate, LeaveOut, Subsets, allocation_variants, baseline, classes, neighbours, subsets
from hetsim.advice.conditions import Conditions, Key
from hetsim.advice.progress import StoppedEarly
from hetsim.advice.question import AdviceQuestion
from hetsim.advice.simulated import SimulatedRun
from hetsim.advice.simulations import Simulations
from hetsim.advice.variants import Variant
from hetsim.cluster.fewer import without
from hetsim.cluster.model import Cluster
from hetsim.cluster.network.changing import changes, seconds_of_changes
from hetsim.config.methods import FAMILIES
from hetsim.results.writing.describe import duration
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
WORTH_SOME = 0.95
"""Some of several equal nodes are left out only if that takes less than this share of the time, and of its bound, with all or none."""
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
class Courses:
    """The runs of a candidate with one seed, in the conditions of the cluster that it has met so far."""

    candidate: Candidate
    seed: int
    second: float | None = None
    """The second whose condition is to be simulated next; None without conditions."""
    begin: float | None = None
    """The seconds before the first sample."""
    answers: dict[Key, tuple[SimulatedRun, str]] = field(default_factory=dict)
    per_sample: dict[Key, float] = field(default_factory=dict)
    seconds: float | None = None
    """The seconds of the whole training, when all its conditions are known."""
    longest: tuple[SimulatedRun, str] | tuple[()] = ()
    """The run in the condition in which the training is for longest."""
    refused: str | None = None


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
    conditions: Conditions | None = None
    """The conditions of the cluster, if it changes later than in a simulated run; else None."""
    doubt: str | None = None
    """Why the times may be wrong, before the recommendation."""
    least_step_of_all: dict[Candidate, float] = field(default_factory=dict)
    """For each candidate without some of several equal nodes, a lower bound of its step's seconds with all of them, or without them."""

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

        If the cluster changes later than in a usual run, all runs are longer, or there is one in each condition of the cluster.
        """
        first = baseline(self.question.even)
        times = self.times([first], seeds=self.seeds)
        if not times:
            progress = self.processes.progress
            raise ValueError(self.refused[first.label] if progress.reason is None else progress.too_early)
        (even,) = times
        cluster, most = self.question.experiment.cluster, STEPS / self.question.experiment.num_workers
        usual, needed = self.batches, self._needed(cluster, even)
        if needed > max(most, usual) and not (conditions := Conditions.of(cluster)).many and conditions.schedule.changes:
            self.conditions = conditions
            needed = self._needed(conditions.schedule.steady(conditions.schedule.at(0.0)[0]), even)
        self.batches = max(usual, math.ceil(min(needed, most)))
        if self.batches > usual or self.conditions is not None:
            (even,) = self.times([first], seeds=self.seeds) or times
        if self.batches < needed:
            self.doubt = f"judged by the first {duration(even.outcome.numbers['seconds'])} of a cluster that may change later"
        return even

    def _needed(self, cluster: Cluster, timed: CandidateTimes) -> float:
        """The number of batches that show how the cluster changes, by the rate of this candidate."""
        experiment, numbers = self.question.experiment, timed.outcome.numbers
        all_batches = math.ceil(self.question.epochs * self.sizes[1] / experiment.batch_size)
        rate: float = numbers["samples_per_second"] / experiment.batch_size
        return min(all_batches, seconds_of_changes(cluster) * rate)

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
        best = [self._fastest(name, pool, sets).candidate.leave_out for name, pool in pools.items() if pool]
        if experiment.cluster.cost_per_hour and pools["that train alike"]:
            self._time_cheapest(pools["that train alike"], sets)
        everywhere = dict.fromkeys(out for some in best for out in (some, *sets.whole(some)) if len(out) < experiment.num_workers)
        fastest: dict[str, CandidateTimes] = {}
        for times in ranking(representatives):
            fastest.setdefault(times.candidate.method.name, times)
        self._single_times(replace(times.candidate, leave_out=out) for times in fastest.values() for out in everywhere)
        self._copy_times(timed)
        self._drop_unexplained(sets)

    def _drop_unexplained(self, sets: Subsets) -> None:
        """Drop candidates without some of several equal nodes, unless a bound explains that they are clearly faster."""
        by_candidate: dict[Candidate, list[CandidateTimes]] = {}
        for times in self.timed.values():
            by_candidate.setdefault(replace(times.candidate, leave_out=()), []).append(times)
        num, batch_size = self.question.experiment.num_workers, self.question.experiment.batch_size
        whole = [out for out in sets.leave_out if sets.is_whole(out) and num - len(out) <= batch_size]
        for candidate, timed in by_candidate.items():
            some = [times for times in timed if not sets.is_whole(times.candidate.leave_out)]
            best = min((times.mean for times in timed if sets.is_whole(times.candidate.leave_out)), default=None)
            if not some or best is None:
                continue
            (bounds,) = self.processes.least_seconds(self._words(), [_method_and_variant(candidate)], whole)
            least = 0.0 if self._changes else min(bounds, default=0.0)
            for times in some:
                if times.mean < WORTH_SOME * min(best, self._total(least)):
                    self.least_step_of_all[times.candidate] = batch_size * least
                else:
                    del self.timed[times.candidate]

    def _copy_times(self, timed: Sequence[CandidateTimes]) -> None:
        """Copy the times on fewer nodes to all candidates that take the same time as the simulated one."""
        for simulated in [times for times in self.timed.values() if times.candidate.leave_out]:
            for twin in timed:
                if twin.timing == simulated.timing:
                    candidate = replace(twin.candidate, leave_out=simulated.candidate.leave_out)
                    self.timed.setdefault(candidate, replace(simulated, candidate=candidate))

    def _fastest(self, name: str, pool: Sequence[CandidateTimes], sets: Subsets) -> CandidateTimes:
        """The fastest candidate of the pool on any of the sets of nodes, without some of several equal nodes only if that saves much."""
        variants = [_method_and_variant(times.candidate) for times in pool]
        queues: tuple[list[tuple[float, int, int, LeaveOut]], ...] = ([], [])
        for which, bounds in enumerate(self.processes.least_seconds(self._words(), variants, sets.leave_out)):
            by_set = dict(zip(sets.leave_out, map(self._total, bounds), strict=True))
            explains = 0.0 if self._changes else WORTH_SOME * min(bound for out, bound in by_set.items() if sets.is_whole(out))
            for out, bound in by_set.items():
                if out and (sets.is_whole(out) or bound < explains):
                    queues[not sets.is_whole(out)].append((bound, len(out), which, out))
        best, most, num_left = min(pool, key=lambda times: times.mean), MOST_RUNS, 0
        for queue, share in zip(queues, (1 - SLACK, WORTH_SOME), strict=True):
            heapq.heapify(queue)
            while queue and most > 0 and self._may_save(queue[0][0], best, share):
                first = [heapq.heappop(queue) for _ in range(min(AT_ONCE, len(queue)))]
                timed = self._single_times(replace(pool[which].candidate, leave_out=out) for _, _, which, out in first)
                best, most = min([best, *timed], key=lambda times: times.mean), most - len(first)
            if queue and self._may_save(queue[0][0], best, share):
                num_left += len(queue)
        if num_left:
            num = MOST_RUNS - most
            self.remarks.append(f"of the methods {name}, {num} of {num + num_left} sets of nodes and splits were simulated")
        return best if sets.all and most > 0 else self._descent(best, sets)

    def _time_cheapest(self, pool: Sequence[CandidateTimes], sets: Subsets) -> None:
        """Time the sets of whole classes of equal nodes that may cost less than all that were timed, the lowest bound of a cost first."""
        whole = [out for out in sets.leave_out if sets.is_whole(out)]
        hourly = [without(self.question.experiment.cluster, out).cost_per_hour for out in whole]
        variants = [_method_and_variant(times.candidate) for times in pool]
        queue = [
            (price * bound / 3600, which, out)
            for which, bounds in enumerate(self.processes.least_seconds(self._words(), variants, whole))
            for price, bound, out in zip(hourly, map(self._total, bounds), whole, strict=True)
        ]
        least = min(map(self.cost, pool))
        for bound, which, out in sorted(queue)[:MOST_RUNS]:
            if self._changes or bound < (1 - SLACK) * least:
                timed = self._single_times([replace(pool[which].candidate, leave_out=out)])
                least = min([least, *map(self.cost, timed)])

    def cost(self, times: CandidateTimes) -> float:
        """The cost of the training."""
        return without(self.question.experiment.cluster, times.candidate.leave_out).cost_per_hour * times.mean / 3600

    def _descent(self, best: CandidateTimes, sets: Subsets) -> CandidateTimes:
        """Leave out or take back nodes while that is faster. Each step simulates the sets with the lowest bounds.

        Equal nodes go together, unless some of them are left out already.
        """
        node_classes = classes(self.question.experiment.cluster)
        for _ in range(STEPS_DOWN):
            out = best.candidate.leave_out
            near = [*(sets.whole_neighbours(out) if sets.is_whole(out) else neighbours(out, node_classes))]
            (bounds,) = self.processes.least_seconds(self._words(), [_method_and_variant(best.candidate)], near)
            worth = sorted((least, out) for least, out in zip(bounds, near, strict=True) if self._may_save(self._total(least), best))
            timed = self._single_times(replace(best.candidate, leave_out=out) for _, out in worth[:NEAREST])
            nearest = min([best, *timed], key=lambda times: times.mean)
            if nearest.mean >= (1 - SLACK) * best.mean:
                break
            best = nearest
        return best

    @cached_property
    def _changes(self) -> bool:
        """Whether nodes may be absent or links change. Bounds then only set the order."""
        cluster = self.question.experiment.cluster
        network = cluster.network
        return bool(cluster.faults.nodes) or changes([*cluster.nodes, cluster.server, *network.racks.values(), *network.between.values()])

    def _may_save(self, bound: float, best: CandidateTimes, share: float = 1 - SLACK) -> bool:
        """Whether a set of nodes with this bound may take less than this share of the best time."""
        return self._changes or bound < share * best.mean

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
        """The times of the candidates that can be simulated, with one run for each seed. `slower` slows nodes down by factors.

        If the cluster has conditions, there is one run for each seed and each condition that a candidate meets.
        """
        runs = [Courses(candidate, seed, self._first_second(candidate)) for candidate in candidates for seed in range(seeds)]
        waiting = runs
        while waiting:
            variants = [
                (method, replace(variant, seed=run.seed, slower=tuple(slower), second=run.second))
                for run in waiting
                for method, variant in [_method_and_variant(run.candidate)]
            ]
            for run, answer in zip(waiting, self.processes.time_all(self._words(), variants), strict=True):
                self._continue(run, answer)
            waiting = [run for run in waiting if run.seconds is None and run.refused is None]
        timed = []
        for candidate, of_one in groupby(runs, key=lambda run: run.candidate):
            courses = list(of_one)
            reason = next((run.refused for run in courses if run.refused is not None), None)
            if reason is None:
                timed.append(CandidateTimes(candidate, tuple(run.seconds or 0.0 for run in courses), *courses[0].longest))
            elif not candidate.leave_out and self.processes.progress.reason is None:
                self.refused[candidate.label] = reason
        return timed

    def _first_second(self, candidate: Candidate) -> float | None:
        """The first second at which one of the candidate's nodes is present; None without conditions."""
        if self.conditions is None:
            return None
        return self.conditions.course(1.0, {}, candidate.leave_out, collective=not candidate.needs_server).missing

    def _continue(self, run: Courses, answer: tuple[SimulatedRun, str] | str) -> None:
        """Add a simulated condition to a run. The run then has its seconds, or the second of a condition that is still to simulate."""
        if isinstance(answer, str) or not answer[0].numbers["samples_per_second"]:
            run.refused = answer if isinstance(answer, str) else "it applied no samples"
            return
        outcome, _ = answer
        samples = outcome.applied[-1]
        per_sample = self._per_sample(outcome)
        total = self.question.epochs * self.sizes[1]
        begin = float(outcome.numbers["seconds"]) - samples * per_sample + float(outcome.numbers["profile_seconds"])
        if self.conditions is None:
            run.seconds, run.longest = begin + total * per_sample, answer
            return
        run.begin = begin if run.begin is None else run.begin
        key = self.conditions.key(run.second or 0.0)
        run.answers[key], run.per_sample[key] = answer, per_sample
        collective = not run.candidate.needs_server
        course = self.conditions.course(total, run.per_sample, run.candidate.leave_out, collective=collective)
        run.second = course.missing
        if course.longest is not None:
            run.seconds, run.longest = run.begin + course.seconds, run.answers[course.longest]
        elif course.missing is None:
            run.refused = "its nodes are absent for good before the end"

    def _per_sample(self, outcome: SimulatedRun) -> float:
        """The seconds for a sample after the warm-up, and before the end, when fast nodes wait for slow nodes' unfinished work."""
        samples = outcome.applied[-1]
        begin = min(0.5, WARM_UP * self.question.experiment.batch_size / samples)
        warm, late = (outcome.seconds_at(share * samples) for share in (begin, BEFORE_THE_END))
        return (late - warm) / (BEFORE_THE_END - begin) / samples

    def step_seconds(self, timed: CandidateTimes) -> float:
        """The seconds for one global batch of samples: the mean over all conditions of the cluster."""
        if self.conditions is None:
            return self.question.experiment.batch_size / float(timed.outcome.numbers["samples_per_second"])
        return self.question.experiment.batch_size * timed.mean / (self.question.epochs * self.sizes[1])

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
