"""How long each candidate takes for the same samples, without training: first as published, then the best with other splits and nodes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hetsim.advice.candidates import Candidate, as_published, baseline, with_allocations, with_fewer
from hetsim.advice.processes import Processes
from hetsim.advice.question import Question
from hetsim.advice.simulated import Outcome

STEPS = 20_000
"""Gradients of a simulated run: so many in all, of 20 to 300 global batches."""
SEEDS = 3
"""Of the runs that are reported; one tells which these are."""
POINTS = 50
"""Evaluations, which tell how far a run has come."""
BEFORE_THE_END = 0.9
"""The share of a run from which its rate is taken."""
KEPT = 12
"""Candidates that are tried with fewer nodes."""


@dataclass(frozen=True)
class Timed:
    """A candidate, and the seconds that the whole training takes in each run."""

    candidate: Candidate
    seconds: tuple[float, ...]
    outcome: Outcome

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

    def baseline(self) -> Timed:
        """Equal batches. ValueError with one sentence if they cannot be simulated."""
        first = baseline()
        found = self.times([first], seeds=SEEDS)
        if not found:
            raise ValueError(self.refused[first.label])
        return found[0]

    def search(self) -> list[Timed]:
        """The candidates that were timed, the fastest first, by a run each."""
        found = self.times(as_published(self.question))
        found += self.times(with_allocations(self.question, [each.candidate for each in found]))
        best = [each.candidate for each in ranked(found)[:KEPT]]
        return ranked([*found, *self.times(with_fewer(self.question, best, self.slowest()))])

    def slowest(self) -> list[int]:
        """The nodes, the slowest first: by how many gradients each makes where nobody waits for anybody."""
        from hetsim.config.methods import read
        from hetsim.trust.shipped import configs

        found = self.processes.run_all([self._words(Candidate(read(configs() / "method" / "asgd.yaml")), 0)])[0]
        if isinstance(found, str):
            raise ValueError(found)
        workers = found.numbers["per_worker"]
        return sorted(range(len(workers)), key=lambda rank: (workers[rank]["samples"], rank))

    def times(self, candidates: Iterable[Candidate], *, seeds: int = 1) -> list[Timed]:
        """The candidates that can be simulated, by so many runs each."""
        listed = list(candidates)
        found = self.processes.run_all([self._words(each, seed) for each in listed for seed in range(seeds)])
        timed = []
        for place, candidate in enumerate(listed):
            outcomes = found[place * seeds : (place + 1) * seeds]
            good = [each for each in outcomes if not isinstance(each, str)]
            if len(good) == len(outcomes) and all(each.numbers["samples_per_second"] for each in good):
                timed.append(Timed(candidate, tuple(map(self._seconds, good)), good[0]))
            else:
                said = next((each for each in outcomes if isinstance(each, str)), "it applied no samples")
                self.refused[candidate.label] = said
        return timed

    def _seconds(self, outcome: Outcome) -> float:
        """Of the whole training, by a shorter one, whose end takes as long: there the fast wait for what the slow have begun."""
        steady, whole = outcome.seconds_at(BEFORE_THE_END * outcome.applied[-1]) / BEFORE_THE_END, float(outcome.numbers["seconds"])
        longer = self.question.epochs * self.sizes[1] / outcome.applied[-1]
        return longer * steady + (whole - steady) + float(outcome.numbers["profile_seconds"])

    def _words(self, candidate: Candidate, seed: int) -> list[str]:
        """As many epochs as will be trained, of a data set that is smaller where these would be many steps: as some split by the epoch."""
        made, epochs = self.question.experiment, self.question.epochs
        batches = min(300, max(20, STEPS // made.num_workers))
        samples = min(self.sizes[1], max(made.batch_size, math.ceil(batches * made.batch_size / epochs)))
        return [
            *self.question.words_of_timing,
            *candidate.words(rates=False),
            *("backend=sim", "workload=phantom", f"workload.num_parameters={self.sizes[0]}", f"workload.num_samples={samples}"),
            *(f"seed={made.seed + seed}", "trace=none", "pictures=false", f"evaluate_every_epochs={epochs / POINTS:.6g}"),
        ]


def ranked(timed: Sequence[Timed]) -> list[Timed]:
    """The fastest first."""
    return sorted(timed, key=lambda each: each.mean)
