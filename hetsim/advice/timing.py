"""How long each candidate takes for the same samples, without training: every method and split, and every set of nodes that may be faster.

A set of nodes is not simulated if its bound (`bounds`) is above a time that was found: so each search ends at the fastest of its pool.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from hetsim.advice.candidates import Candidate, baseline, with_allocations
from hetsim.advice.processes import Processes
from hetsim.advice.progress import StoppedEarly
from hetsim.advice.question import Question
from hetsim.advice.simulated import Outcome
from hetsim.advice.subsets import Subsets, classes, neighbours, subsets
from hetsim.advice.variants import Variant
from hetsim.cluster.changing_links import changes
from hetsim.config.methods import FAMILIES
from hetsim.workloads.task import BYTES

STEPS = 20_000
"""The number of gradients of a simulated run, which has 20 to 300 global batches."""
QUICK = 60
"""Global batches of a run without noise, whose steps soon repeat."""
SEEDS = 3
"""Of the runs that are reported; one tells which these are."""
POINTS = 50
"""Evaluations, which tell how far a run has come."""
BEFORE_THE_END = 0.9
"""The share of a run from which its rate is taken."""
SLACK = 0.002
"""A set of nodes is simulated if by its bound it may save more than this share of the best time of its pool."""
AT_ONCE = 4
"""Sets of nodes that are simulated before the best time is looked at again."""
MOST_RUNS = 400
"""Simulated sets of nodes of a pool."""
SPLIT_EACH = 4
"""Runs that are expected of a method, with other splits; about as many are on fewer nodes."""
STEPS_DOWN = 20
"""Nodes that are left out or taken back one after the other, where not every set of nodes is looked at."""
NEAREST = 8
"""Sets with a node less or more that are simulated each time."""


@dataclass(frozen=True)
class Timed:
    """A candidate, and the seconds that the whole training takes in each run."""

    candidate: Candidate
    seconds: tuple[float, ...]
    outcome: Outcome
    timing: str = ""
    """What the seconds depend on, besides the nodes: the same for candidates that take the same time."""

    @property
    def mean(self) -> float:
        """The geometric mean."""
        return math.exp(math.fsum(map(math.log, self.seconds)) / len(self.seconds))


@dataclass
class Timing:
    """The times of candidates on one cluster, and why some have none."""

    question: Question
    processes: Processes
    sizes: tuple[int, int]
    """The numbers of the weights, and the samples of the training data."""
    refused: dict[str, str] = field(default_factory=dict)
    """By candidate, the sentence of what it cannot run with."""
    found: dict[Candidate, Timed] = field(default_factory=dict)
    """All that was timed, by a run each."""
    left: list[str] = field(default_factory=list)
    """Sentences of what was not looked at."""

    @property
    def seeds(self) -> int:
        """How many runs tell a time that is reported: one for GPUs of the catalogue without noise of the user's own."""
        nodes = self.question.experiment.cluster.nodes
        return 1 if self.question.named is not None and not any(node.noise or node.slow_spells for node in nodes) else SEEDS

    def baseline(self) -> Timed:
        """Equal batches. ValueError with one sentence if they cannot be simulated."""
        first = baseline()
        found = self.times([first], seeds=self.seeds)
        if not found:
            raise ValueError(self.refused.get(first.label, f"stopped {self.processes.progress.reason}, before plain DDP was simulated"))
        return found[0]

    def search(self) -> list[Timed]:
        """The candidates that were timed, the fastest first, by a run each: all that were before it was stopped."""
        self.processes.progress.begin("timing", 2 * SPLIT_EACH * len(self.question.methods))
        with suppress(StoppedEarly):
            found = self._once(map(Candidate, self.question.methods))  # as published
            found += self._once(with_allocations(self.question, [each.candidate for each in found]))
            if not self.question.typed("cluster.leave_out") and self.question.experiment.num_workers > 1:
                self._on_fewer(found)
        return ranked([each for each in self.found.values() if each.candidate.method in self.question.methods])

    def _on_fewer(self, found: Sequence[Timed]) -> None:
        """Time sets of nodes: of the baseline, of all that train alike, and of each family of methods."""
        made = self.question.experiment
        sets = subsets(made.cluster, batch_size=made.batch_size, nbytes=self.sizes[0] * BYTES[made.dtype])
        if not sets.all:
            self.left.append(
                f"of {sets.num:.3g} different sets of nodes, {len(sets.leave_out)} were looked at: without the slowest nodes, those "
                "behind the slowest links, without whole classes, and from the best of these on node by node"
            )
        representatives = _representatives(found)
        pools = {
            "plain DDP": self._once([baseline()]),
            "that train alike": [each for each in representatives if each.candidate.synchronous],
        }
        for family in FAMILIES:
            pools[family] = [each for each in representatives if each.candidate.method.family == family and not each.candidate.synchronous]
        best = [self._fastest(name, pool, sets) for name, pool in pools.items() if pool]
        everywhere = dict.fromkeys(each.candidate.leave_out for each in best)
        fastest: dict[str, Timed] = {}
        for each in ranked(representatives):
            fastest.setdefault(each.candidate.method.name, each)
        self._once(replace(each.candidate, leave_out=out) for each in fastest.values() for out in everywhere)
        self._share(found)

    def _share(self, found: Sequence[Timed]) -> None:
        """Give the times on fewer nodes to all that take the same time as the one that was simulated."""
        for its in [each for each in self.found.values() if each.candidate.leave_out]:
            for twin in found:
                if twin.timing == its.timing:
                    candidate = replace(twin.candidate, leave_out=its.candidate.leave_out)
                    self.found.setdefault(candidate, replace(its, candidate=candidate))

    def _fastest(self, name: str, pool: Sequence[Timed], sets: Subsets) -> Timed:
        """The fastest of the pool on any of the sets of nodes."""
        smaller = [out for out in sets.leave_out if out]
        words = self._words()
        bounds = self.processes.least_seconds(words, [_run(each.candidate) for each in pool], smaller)
        queue = [
            (self._total(least), len(out), which, out)
            for which, of_one in enumerate(bounds)
            for out, least in zip(smaller, of_one, strict=True)
        ]
        heapq.heapify(queue)
        best, num = min(pool, key=lambda each: each.mean), 0
        while queue and num < MOST_RUNS and self._may_save(queue[0][0], best):
            some = [heapq.heappop(queue) for _ in range(min(AT_ONCE, len(queue)))]
            timed = self._once(replace(pool[which].candidate, leave_out=out) for _, _, which, out in some)
            best, num = min([best, *timed], key=lambda each: each.mean), num + len(some)
        if queue and self._may_save(queue[0][0], best):
            self.left.append(f"of the methods {name}, {num} of {num + len(queue)} sets of nodes and splits were simulated")
        return best if sets.all and num < MOST_RUNS else self._descended(best)

    def _descended(self, best: Timed) -> Timed:
        """From this set of nodes on, a node less or more as long as that is faster: each time those of the lowest bounds are simulated."""
        its = classes(self.question.experiment.cluster)
        for _ in range(STEPS_DOWN):
            near = list(neighbours(best.candidate.leave_out, its))
            (bounds,) = self.processes.least_seconds(self._words(), [_run(best.candidate)], near)
            worth = sorted((least, out) for least, out in zip(bounds, near, strict=True) if self._may_save(self._total(least), best))
            timed = self._once(replace(best.candidate, leave_out=out) for _, out in worth[:NEAREST])
            nearest = min([best, *timed], key=lambda each: each.mean)
            if nearest.mean >= (1 - SLACK) * best.mean:
                break
            best = nearest
        return best

    def _may_save(self, bound: float, best: Timed) -> bool:
        """Whether a set of nodes with this bound may be faster. Where nodes may be absent or links change, bounds only order."""
        cluster = self.question.experiment.cluster
        network = cluster.network
        changing = changes([*cluster.nodes, cluster.server, *network.racks.values(), *network.between.values()])
        return bool(cluster.faults.nodes) or changing or bound < (1 - SLACK) * best.mean

    def _total(self, per_sample: float) -> float:
        """Seconds of the whole training."""
        return self.question.epochs * self.sizes[1] * per_sample

    def _once(self, candidates: Iterable[Candidate]) -> list[Timed]:
        """By one run each, or as they were timed before."""
        listed = list(dict.fromkeys(candidates))
        for each in self.times([candidate for candidate in listed if candidate not in self.found]):
            self.found[each.candidate] = each
        self.processes.progress.check()
        return [self.found[candidate] for candidate in listed if candidate in self.found]

    def times(self, candidates: Iterable[Candidate], *, seeds: int = 1, slower: Sequence[tuple[int, float]] = ()) -> list[Timed]:
        """The candidates that can be simulated, with this number of runs each, on nodes slowed down by a factor."""
        listed = list(candidates)
        runs = [(method, replace(its, seed=seed, slower=tuple(slower))) for method, its in map(_run, listed) for seed in range(seeds)]
        found = self.processes.time_all(self._words(), runs)
        timed = []
        for place, candidate in enumerate(listed):
            outcomes = found[place * seeds : (place + 1) * seeds]
            good = [each for each in outcomes if not isinstance(each, str)]
            if len(good) == len(outcomes) and all(outcome.numbers["samples_per_second"] for outcome, _ in good):
                seconds = tuple(self._seconds(outcome) for outcome, _ in good)
                timed.append(Timed(candidate, seconds, *good[0]))
            elif not candidate.leave_out and self.processes.progress.reason is None:
                said = next((each for each in outcomes if isinstance(each, str)), "it applied no samples")
                self.refused[candidate.label] = said
        return timed

    def _seconds(self, outcome: Outcome) -> float:
        """Of the whole training, by a shorter one, whose end takes as long: there the fast wait for what the slow have begun."""
        steady, whole = outcome.seconds_at(BEFORE_THE_END * outcome.applied[-1]) / BEFORE_THE_END, float(outcome.numbers["seconds"])
        longer = self.question.epochs * self.sizes[1] / outcome.applied[-1]
        return longer * steady + (whole - steady) + float(outcome.numbers["profile_seconds"])

    def _words(self) -> list[str]:
        """As many epochs as will be trained, of a data set that is smaller where these would be many steps: as some split by the epoch."""
        made, epochs = self.question.experiment, self.question.epochs
        batches = min(300 if self.seeds > 1 else QUICK, max(20, STEPS // made.num_workers))
        samples = min(self.sizes[1], max(made.batch_size, math.ceil(batches * made.batch_size / epochs)))
        return [
            *self.question.words_of_timing,
            *("backend=sim", "workload=phantom", f"workload.num_parameters={self.sizes[0]}", f"workload.num_samples={samples}"),
            *("++cluster.model=null", "trace=none", "pictures=false", f"evaluate_every_epochs={epochs / POINTS:.6g}"),
        ]


def _run(candidate: Candidate) -> tuple[str, Variant]:
    return candidate.method.name, Variant(candidate.allocation, candidate.weighs_samples, candidate.leave_out)


def _representatives(found: Sequence[Timed]) -> list[Timed]:
    """One of those that take the same time on any nodes and train alike: the first with the shortest name."""
    first: dict[tuple[str, bool], Timed] = {}
    for each in sorted(found, key=lambda each: (each.candidate.allocation is not None, each.candidate.label)):
        first.setdefault((each.timing, each.candidate.synchronous), each)
    return list(first.values())


def ranked(timed: Sequence[Timed]) -> list[Timed]:
    """The fastest first."""
    return sorted(timed, key=lambda each: each.mean)
