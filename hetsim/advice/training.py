"""Find the candidates that reach the goal first, by rounds of training in virtual time with ever fewer candidates and more seeds.

Successive halving (Jamieson and Talwalkar 2016, arXiv 1502.07943) over candidates and learning rates. With T, the time that plain DDP
takes, a round takes T/8, then T/4, then T. The reported candidates are trained again, on seeds that were not used for the choice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hetsim.advice.candidates import Candidate, baseline
from hetsim.advice.question import AdviceQuestion
from hetsim.advice.simulated import Goal, SimulatedRun
from hetsim.advice.simulations import Simulations

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""The factors on a method's learning rates."""
BETWEEN = (0.7, 1.0, 1.4)
"""The factors on the best rate so far, in the last round."""
SEEDS = 3
FRESH_SEEDS = 10
FIRST_FRESH = 1000
"""The offset of the fresh seeds, on which reported candidates are trained, from the config's seeds."""
UNITS = 200
"""The expected number of full-length runs of an advice. Only the progress bar uses it."""
POINTS = 100
"""The number of evaluations in plain DDP's time."""
SLACK = 1.25
"""The default goal is a test error (or loss) of this factor times plain DDP's lowest."""


@dataclass(frozen=True)
class TrainingRound:
    """A round: its share of plain DDP's time, its number of seeds, and how many candidates remain after it. Each rate counts separately."""

    share: float
    seeds: int
    remaining: int


ROUNDS = (TrainingRound(1 / 8, 1, 24), TrainingRound(1 / 4, 2, 6))
REPORTED = 4


@dataclass(frozen=True)
class Trained:
    """A candidate, its seeds, and the outcome of each run."""

    candidate: Candidate
    seeds: tuple[int, ...]
    outcomes: tuple[SimulatedRun, ...]
    profile_seconds: float = 0.0

    def times(self, goal: Goal) -> list[float | None]:
        """The seconds to the goal in each run; None if the run did not reach it."""
        return [outcome.time_to(goal) for outcome in self.outcomes]

    def key(self, goal: Goal | None) -> tuple[float, ...]:
        """A sort key, the better candidate first.

        It contains the number of missed goals, the mean time to the goal, the runs' least distance from it, and their mean last loss.
        """
        times = self.times(goal) if goal is not None else []
        reached = [time for time in times if time is not None]
        distance = _mean([outcome.distance_to(goal) for outcome in self.outcomes]) if goal is not None else 0.0
        loss = _mean([outcome.last_loss for outcome in self.outcomes])
        return len(times) - len(reached), _mean(reached) if reached else math.inf, distance, loss


@dataclass
class CandidateTraining:
    """Trains candidates in virtual time, on one cluster."""

    question: AdviceQuestion
    processes: Simulations
    tell: Callable[[str], object]
    goal: Goal | None = None
    horizon: float = 0.0
    """The seconds in which plain DDP reaches the goal."""
    refused: dict[str, str] = field(default_factory=dict)
    trained: dict[Candidate, Trained] = field(default_factory=dict)
    """The latest training of each candidate."""

    def baseline(self) -> Candidate:
        """Plain DDP at its best rate. This sets the time, and the goal if none is given.

        Raises ValueError if plain DDP cannot be trained, or has neither an accuracy nor a loss.
        """
        question, epochs = self.question, self.question.epochs
        self.processes.progress.begin("training", UNITS)
        often = [f"budget.epochs={epochs:g}", f"evaluate_every_epochs={epochs / POINTS:.6g}", "stop_when_diverged=true"]
        tried = self._train([baseline(self.question.even).at(factor) for factor in self._factors()], often, self._seeds(SEEDS))
        if not tried:
            raise ValueError(next(iter(self.refused.values())))
        self.goal = question.goal or max((reachable_goal(result) for result in tried), key=_hardness)
        best = min(tried, key=lambda result: result.key(self.goal))
        times = [time for time in best.times(self.goal) if time is not None]
        longest = max(outcome.numbers["seconds"] + outcome.numbers["profile_seconds"] for outcome in best.outcomes)
        self.horizon = max(times) if len(times) == len(best.outcomes) else longest
        return best.candidate

    def search(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """The best few candidates at their best rates, the best first. Each combination of method, split and nodes occurs once."""
        remaining = [candidate.at(factor) for candidate in candidates for factor in self._factors()]
        for number, stage in enumerate(ROUNDS, start=1):
            self.tell(f"training {len(remaining)} candidates with their rates for {100 * stage.share:g} % of the time")
            tried = sorted(self.train_for_share(remaining, stage.share, self._seeds(stage.seeds)), key=lambda result: result.key(self.goal))
            twice = 2 if number < len(ROUNDS) else 1
            remaining = [result.candidate for result in _best_of_each(tried, twice)][: stage.remaining]
        rates = BETWEEN if len(self._factors()) > 1 else (1.0,)
        remaining = [candidate.at(candidate.factor * factor) for candidate in remaining for factor in rates]
        self.tell(f"training {len(remaining)} candidates with their rates for all of it")
        tried = sorted(self.train_for_share(remaining, 1.0, self._seeds(SEEDS)), key=lambda result: result.key(self.goal))
        return [result.candidate for result in _best_of_each(tried, 1)][:REPORTED]

    def train_fresh(self, candidates: Sequence[Candidate]) -> list[Trained]:
        """Train the candidates on fresh seeds, for twice plain DDP's time, so that slightly late candidates get a time, too."""
        return self.train_for_share(candidates, 2.0, tuple(FIRST_FRESH + seed for seed in self._seeds(FRESH_SEEDS)))

    def train_for_share(self, candidates: Sequence[Candidate], share: float, seeds: tuple[int, ...]) -> list[Trained]:
        """Train the candidates on these seeds, for this share of plain DDP's time."""
        often = [
            *("budget.epochs=null", f"budget.seconds={share * self.horizon:.6g}", "stop_when_diverged=true"),
            *("evaluate_every_epochs=null", f"evaluate_every_seconds={self.horizon / POINTS:.6g}"),
        ]
        return self._train(candidates, often, seeds, share)

    def _train(self, candidates: Sequence[Candidate], more: Sequence[str], seeds: tuple[int, ...], share: float = 1.0) -> list[Trained]:
        """Train those candidates that can be trained."""
        always = ("backend=sim", "trace=none", "pictures=false", *more)
        runs = [
            [*self.question.words, *candidate.words(rates=len(self._factors()) > 1), *always, f"seed={seed}"]
            for candidate in candidates
            for seed in seeds
        ]
        results = self.processes.run_all(runs, share)
        trained = []
        for place, candidate in enumerate(candidates):
            outcomes = results[place * len(seeds) : (place + 1) * len(seeds)]
            good = tuple(outcome for outcome in outcomes if not isinstance(outcome, str))
            if len(good) == len(outcomes):
                trained.append(Trained(candidate, seeds, good))
                self.trained[candidate] = trained[-1]
            elif self.processes.progress.reason is None:
                self.refused[candidate.label] = next(outcome for outcome in outcomes if isinstance(outcome, str))
        self.processes.progress.check()
        return trained

    def best_so_far(self) -> list[Candidate]:
        """The best few candidates so far, each at its best rate."""
        tried = sorted(self.trained.values(), key=lambda result: result.key(self.goal))
        return [result.candidate for result in _best_of_each(tried, 1)][:REPORTED]

    def _seeds(self, count: int) -> tuple[int, ...]:
        return tuple(self.question.experiment.seed + number for number in range(count))

    def _factors(self) -> tuple[float, ...]:
        """The factors on rates. A rate that the user typed is not searched."""
        return (1.0,) if self.question.typed("learning_rate") or self.question.typed("local_learning_rate") else FACTORS


def reachable_goal(baseline: Trained) -> Goal:
    """The goal that all these runs reach: 1.25 times the highest of their lowest test errors, or of their lowest losses."""
    accuracies = [max((point[2] for point in outcome.curve if point[2] is not None), default=None) for outcome in baseline.outcomes]
    reached = [accuracy for accuracy in accuracies if accuracy is not None]
    if len(reached) == len(accuracies):
        return Goal(accuracy=max(0.0, 1 - SLACK * (1 - min(reached))))
    losses = [
        min((point[1] for point in outcome.curve if point[1] is not None and point[1] < math.inf), default=math.inf)
        for outcome in baseline.outcomes
    ]
    return Goal(loss=SLACK * max(losses))


def _mean(numbers: Sequence[float]) -> float:
    return math.fsum(numbers) / len(numbers)


def _hardness(goal: Goal) -> float:
    return goal.accuracy if goal.accuracy is not None else -(goal.loss or 0.0)


def _best_of_each(tried: Sequence[Trained], times: int) -> list[Trained]:
    """The first `times` of these for each combination of method, split and nodes, which may occur with several rates."""
    counts: dict[str, int] = {}
    kept = []
    for result in tried:
        counts[result.candidate.label] = counts.get(result.candidate.label, 0) + 1
        if counts[result.candidate.label] <= times:
            kept.append(result)
    return kept
