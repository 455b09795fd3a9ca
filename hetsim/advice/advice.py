"""An advice: what was compared, ranked by expected time, with intervals, gains, costs and reasons."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hetsim.advice.candidates import Candidate
from hetsim.advice.processes import Processes
from hetsim.advice.question import BASELINE, Question
from hetsim.advice.simulated import Goal, Outcome
from hetsim.advice.timing import SEEDS, Timed, Timing, ranked
from hetsim.advice.training import Training
from hetsim.cluster.fewer import without
from hetsim.results.tables.estimates import Estimate, estimate, paired_ratio
from hetsim.results.writing.describe import formatted

REPORTED = 10
"""Methods of an advice by time alone, each with its fastest split and nodes; those that take the same time count once."""
WORTH = 0.97
"""Another split or fewer nodes are trained beside a method as it was published if they take at most this share of its time."""


@dataclass(frozen=True)
class Row:
    """A candidate with its expected seconds, how many times as long equal batches take, and what it costs."""

    candidate: Candidate
    seconds: Estimate
    gain: Estimate
    cost: float | None
    why: str
    words: tuple[str, ...]
    """What runs it for real."""
    command: str
    alike: tuple[str, ...] = ()
    """Candidates that take the same time to the last bit, as they differ in what they compute alone."""


@dataclass(frozen=True)
class Advice:
    """The rows, the best first, and equal batches; `goal` is None where time alone was asked for."""

    cluster: str
    workload: str
    epochs: float
    goal: Goal | None
    rows: tuple[Row, ...]
    baseline: Row
    error: float | None
    """The calibration's hold-out error, by which intervals of seconds are wider; None: the cluster was not calibrated."""
    num_runs: int
    refused: dict[str, str]

    @property
    def synchronous(self) -> Row | None:
        """The best that trains as equal batches do."""
        return next((row for row in self.rows if row.candidate.synchronous), None)


def advice(question: Question, processes: Processes, tell: Callable[[str], object]) -> Advice:
    """Simulate candidates and rank them. ValueError with one sentence if equal batches cannot be simulated."""
    phantom = question.experiment.workload
    real = phantom.has_model
    words = [*question.words, f"method={BASELINE}", "allocation=even", "backend=sim"]
    timing = Timing(question, processes, processes.sizes(words))
    tell("timing all methods, splits and smaller sets of nodes")
    even = timing.baseline()
    timed = timing.search()
    if question.timing or not real:
        return _by_time(question, timing, even, timed, tell)
    training = Training(question, processes, tell, goal=question.goal)
    tell("training equal batches at several rates")
    best_even = training.baseline()
    chosen = training.search(worth_training(timed))
    return _by_goal(question, training, best_even, chosen, timing.refused)


def worth_training(timed: Sequence[Timed]) -> list[Candidate]:
    """Every method as it was published, and beside it its fastest other split and nodes, if that is faster."""
    fastest: dict[str, Timed] = {}
    published: dict[str, Timed] = {}
    for each in timed:
        name = each.candidate.method.name
        fastest.setdefault(name, each)
        if each.candidate.label == name:
            published[name] = each
    found = [each.candidate for each in published.values()]
    return found + [
        each.candidate
        for name, each in fastest.items()
        if each.candidate.label != name and (name not in published or each.mean < WORTH * published[name].mean)
    ]


def _by_time(question: Question, timing: Timing, even: Timed, timed: Sequence[Timed], tell: Callable[[str], object]) -> Advice:
    tell("timing the best again, on more seeds")
    alike = _alike(timed)
    leading = [same[0] for same in alike[:REPORTED]]
    synchronous = [each.candidate for each in timed if each.candidate.synchronous][:1]
    others = {same[0]: tuple(each.label for each in same[1:]) for same in alike}
    again = ranked(timing.times(dict.fromkeys([*leading, *synchronous]), seeds=SEEDS))

    def row(each: Timed) -> Row:
        by_seed = [dict(enumerate([seconds] for seconds in one.seconds)) for one in (even, each)]
        found = _row(question, each.candidate, each.seconds, paired_ratio(*by_seed), each.outcome, even.outcome, rates=False)
        return replace(found, alike=others.get(each.candidate, ()))

    return _advice(question, None, [row(each) for each in again], row(even), timing.processes.num_runs, timing.refused)


def _alike(timed: Sequence[Timed]) -> list[list[Candidate]]:
    """The fastest candidate of each method, the fastest first, those together that take the same time to the last bit."""
    fastest = {each.candidate.method.name: each for each in reversed(timed)}
    groups: dict[tuple[float, ...], list[Candidate]] = {}
    for each in timed:
        if fastest[each.candidate.method.name] is each:
            groups.setdefault(each.seconds, []).append(each.candidate)
    return list(groups.values())


def _by_goal(question: Question, training: Training, even: Candidate, chosen: Sequence[Candidate], refused: dict[str, str]) -> Advice:
    training.tell(f"training the best {len(chosen)} on fresh seeds")
    goal = training.goal
    assert goal is not None
    trained = {each.candidate: each for each in training.fresh(list(dict.fromkeys([even, *chosen])))}
    even = min((each for each in trained.values() if each.candidate.label == even.label), key=lambda each: each.key(goal)).candidate
    times = {candidate: dict(zip(each.seeds, ([time] for time in each.times(goal)), strict=True)) for candidate, each in trained.items()}

    def row(candidate: Candidate) -> Row:
        seconds = [time for (time,) in times[candidate].values()]
        gain = paired_ratio(times[even], times[candidate])
        rates = not (question.typed("learning_rate") or question.typed("local_learning_rate"))
        return _row(question, candidate, seconds, gain, trained[candidate].outcomes[0], trained[even].outcomes[0], rates=rates)

    rows = sorted((row(each) for each in chosen if each.label != even.label), key=_missed_and_seconds)
    return _advice(question, goal, rows, row(even), training.processes.num_runs, refused | training.refused)


def _missed_and_seconds(row: Row) -> tuple[int, float]:
    return row.seconds.num_runs - row.seconds.num_known, row.seconds.mean or 0.0


def _advice(question: Question, goal: Goal | None, rows: Sequence[Row], even: Row, num_runs: int, refused: dict[str, str]) -> Advice:
    made = question.experiment
    error = made.cluster.calibrated.error if made.cluster.calibrated else None
    return Advice(made.cluster.name, made.workload.name, question.epochs, goal, tuple(rows), even, error, num_runs, refused)


def _row(
    question: Question, candidate: Candidate, seconds: Sequence[float | None], gain: Estimate, its: Outcome, even: Outcome, *, rates: bool
) -> Row:
    expected = estimate(seconds, scale="logarithmic")
    cluster = question.experiment.cluster
    hourly = without(cluster, candidate.leave_out).cost_per_hour
    calibrated = cluster.calibrated
    if calibrated is not None and expected.mean is not None:
        low, high = expected.bounds or (expected.mean, expected.mean)
        expected = replace(expected, low=low / (1 + calibrated.error), high=high * (1 + calibrated.error))
    cost = hourly * expected.mean / 3600 if hourly and expected.mean is not None else None
    words = (*question.words, *candidate.words(rates=rates), "backend=dist")
    folder = () if question.config_dir is None else ("--config-dir", question.config_dir)
    return Row(candidate, expected, gain, cost, reason(its, even), words, shlex.join(("hetsim", *folder, *words)))


def reason(its: Outcome, even: Outcome) -> str:
    """Where time goes, in a few words."""
    idle, staleness = its.numbers["idle_share"], its.numbers["staleness_mean"]
    rate = its.numbers["updates_per_second"] / even.numbers["updates_per_second"] if even.numbers["updates_per_second"] else 0.0
    said = f"idle {_percent(idle)} (equal batches {_percent(even.numbers['idle_share'])}), × {rate:.3g} updates"
    return said + (f", staleness {formatted(staleness)}" if staleness else "")


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"


def as_data(found: Advice) -> dict[str, Any]:
    """The advice as plain numbers, lists and texts, for JSON."""

    def row(each: Row) -> dict[str, Any]:
        def interval(number: Estimate) -> dict[str, float | None]:
            return {"mean": number.mean, "low": number.low, "high": number.high}

        candidate = each.candidate
        return {
            "method": candidate.method.name,
            "allocation": candidate.allocation,
            "leave_out": list(candidate.leave_out),
            "rate_factor": candidate.factor,
            "synchronous": candidate.synchronous,
            "seconds": interval(each.seconds),
            "reached": each.seconds.num_known,
            "runs": each.seconds.num_runs,
            "gain": interval(each.gain),
            "cost": each.cost,
            "why": each.why,
            "command": each.command,
            "alike": list(each.alike),
        }

    goal = None if found.goal is None else {"accuracy": found.goal.accuracy, "loss": found.goal.loss}
    return {
        "cluster": found.cluster,
        "workload": found.workload,
        "epochs": found.epochs,
        "goal": goal,
        "calibration_error": found.error,
        "rows": [row(each) for each in found.rows],
        "baseline": row(found.baseline),
        "simulated_runs": found.num_runs,
        "refused": found.refused,
    }
