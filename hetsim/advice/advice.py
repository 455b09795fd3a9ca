"""An advice: the candidates, ranked by expected time, with intervals, gains, costs and reasons."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hetsim import checks
from hetsim.advice.candidates import Candidate
from hetsim.advice.decision import AdvisedSplit, all_nodes, assumed, more_than_time, parts, split_of, unmeasured, what_to_do, why
from hetsim.advice.progress import Progress, StoppedEarly
from hetsim.advice.question import BASELINE, AdviceQuestion
from hetsim.advice.simulated import Goal, SimulatedRun
from hetsim.advice.simulations import Simulations, StoredAnswers
from hetsim.advice.timing import Timed, Timing, intervals, ranked
from hetsim.advice.training import CandidateTraining
from hetsim.cluster.fewer import without
from hetsim.results.tables.estimates import Estimate, estimate, paired_ratio
from hetsim.results.writing.describe import formatted

REPORTED = 10
"""The maximum number of methods in an advice by time alone, each with its fastest split and nodes. Methods with equal times count once."""
FINALISTS = 3
"""The number of candidates for each place of the decision that are timed on more seeds."""
CLEARLY = 1.005
"""A gain below this factor does not count: plain DDP is recommended."""
WORTH = 0.97
"""A published method is also trained with another split or fewer nodes if they take at most this share of its time."""


@dataclass(frozen=True)
class AdviceRow:
    """A candidate with its expected seconds, the gain over plain DDP, and its cost."""

    candidate: Candidate
    seconds: Estimate
    gain: Estimate
    cost: float | None
    why: str
    words: tuple[str, ...]
    """The arguments that run the candidate in real processes."""
    command: str
    batch_sizes: tuple[int, ...] = ()
    """The samples of each participating node in a batch, in rank order, at the end of a simulated run."""
    alike: tuple[str, ...] = ()
    """Candidates with exactly equal times, because they differ only in what they compute."""


@dataclass(frozen=True)
class Advice:
    """The rows, the best first, and plain DDP. `goal` is None for an advice by time alone."""

    cluster: str
    num_nodes: int
    workload: str
    epochs: float
    goal: Goal | None
    sentence: str
    """The recommendation, its gain, and the reason."""
    rows: tuple[AdviceRow, ...]
    baseline: AdviceRow
    alike: AdviceRow | None
    """The best candidate that trains as DDP does; None without such a candidate."""
    alike_on_all: AdviceRow | None
    """The best candidate that trains as DDP does and uses all nodes."""
    error: float | None
    """The calibration's error, which widens intervals of seconds; None for a cluster that was not calibrated."""
    num_runs: int
    refused: dict[str, str]
    num_samples: int
    """The number of samples in an epoch."""
    trains: bool
    """Whether the workload has a model."""
    more: str
    """How to compare how fast the loss falls, if `goal` is None."""
    remarks: tuple[str, ...] = ()
    """Further remarks, for example on candidates that were not tried."""
    stopped: str | None = None
    """The reason why the search ended early, with the best result so far."""
    split: AdvisedSplit | None = None
    """The recommended candidate's split of each batch; None if it is equal."""

    @property
    def best(self) -> AdviceRow:
        """The first row, or plain DDP without one."""
        return self.rows[0] if self.rows else self.baseline

    @property
    def recommended(self) -> AdviceRow:
        """The recommended row: the best, or plain DDP without a gain.

        By time alone, it is the best row that trains as DDP does, because time does not show how much a sample contributes.
        """
        return _recommended(self.best, self.alike, self.baseline, self.goal)

    @property
    def faster_still(self) -> AdviceRow | None:
        """The best row, if it is clearly faster than the recommended one and trains differently."""
        return _faster_still(self.best, self.recommended)

    @property
    def what(self) -> str:
        """The end point of the seconds, in words."""
        return f"{formatted(self.epochs)} epochs of {self.num_samples} samples" if self.goal is None else str(self.goal)


def advice(question: AdviceQuestion, processes: Simulations, tell: Callable[[str], object]) -> Advice:
    """Simulate candidates and rank them. Raises ValueError if plain DDP cannot be simulated.

    If `progress` is asked to stop, the advice contains the results so far.
    """
    real = question.experiment.workload.has_model
    words = [*question.words, f"method={BASELINE}", "allocation=even", "backend=sim"]
    timing = Timing(question, processes, processes.sizes(words))
    tell("timing all methods, splits and smaller sets of nodes")
    even = timing.baseline()
    timed = timing.search()
    if question.timing or not real or processes.progress.reason is not None:
        return _by_time(question, timing, even, timed, tell)
    training = CandidateTraining(question, processes, tell, goal=question.goal)
    tell("training plain DDP at several rates")
    try:
        best_even = training.baseline()
    except StoppedEarly:
        return _by_time(question, timing, even, timed, tell)
    try:
        chosen = training.search(worth_training(timed))
    except StoppedEarly:
        chosen = training.so_far()
    return _by_goal(question, training, best_even, chosen, even, timed, timing)


def advised(
    question: AdviceQuestion,
    processes: int | None,
    folder: Path | None,
    minutes: float | None,
    tell: Callable[[str], object],
    *,
    engine: str = "local",
) -> Advice:
    """Return the advice. It resumes from the answers in `folder`, and ends early after `minutes` or at SIGTERM."""
    if minutes is not None:
        checks.number("minutes", minutes)
    answers = None if folder is None else StoredAnswers(folder, repr(question.experiment))
    progress = Progress()
    with progress.limited(minutes), Simulations(processes, question.config_dir, progress=progress, answers=answers, engine=engine) as pool:
        return advice(question, pool, progress.above(tell))


def worth_training(timed: Sequence[Timed]) -> list[Candidate]:
    """Every method as published and, if faster, with its fastest split and nodes; also the fastest candidates that train as DDP does.

    So training tries the sets of nodes that are fastest by time.
    """
    fastest: dict[str, Timed] = {}
    published: dict[str, Timed] = {}
    for each in timed:
        name = each.candidate.method.name
        fastest.setdefault(name, each)
        if each.candidate.label == name:
            published[name] = each
    found = [each.candidate for each in published.values()]
    found += [
        each.candidate
        for name, each in fastest.items()
        if each.candidate.label != name and (name not in published or each.mean < WORTH * published[name].mean)
    ]
    return list(dict.fromkeys([*found, *_alike_ones([each.candidate for each in timed])]))


def _alike_ones(ranked_ones: Sequence[Candidate]) -> list[Candidate]:
    """From ranked candidates, the best that trains as DDP does, on any nodes and on all nodes."""
    alike = [each for each in ranked_ones if each.synchronous]
    return [*alike[:1], *[each for each in alike if not each.leave_out][:1]]


def _by_time(question: AdviceQuestion, timing: Timing, even: Timed, timed: Sequence[Timed], tell: Callable[[str], object]) -> Advice:
    groups = _same_time(timed)
    alike = [each.candidate for each in timed if each.candidate.synchronous]
    on_all = [candidate for candidate in alike if not candidate.leave_out]
    leading = [same[0] for same in groups[:REPORTED]]
    finalists = dict.fromkeys([*(each.candidate for each in timed[:FINALISTS]), *leading, *alike[:FINALISTS], *on_all[:FINALISTS]])
    again: list[Timed] = []
    if timing.processes.progress.reason is None:
        tell("timing the best again, on more seeds")
        again = ranked(timing.times(finalists, seeds=timing.seeds))
    if timing.processes.progress.reason is not None:
        again = ranked([each for each in timed if each.candidate in finalists])
    others = {same[0]: tuple(each.label for each in same[1:]) for same in groups}

    def row(each: Timed) -> AdviceRow:
        by_seed = [dict(enumerate([seconds] for seconds in one.seconds[: len(each.seconds)])) for one in (even, each)]
        found = _row(question, each.candidate, each.seconds, paired_ratio(*by_seed), each.outcome, even.outcome, rates=False)
        return replace(found, alike=others.get(each.candidate, ()))

    methods: dict[str, Timed] = {}
    for each in again:
        methods.setdefault(each.candidate.method.name, each)
    best = [next((each for each in again if each.candidate in some), None) for some in (set(alike), set(on_all))]
    shown = {again[0].candidate, *leading, *(each.candidate for each in best if each is not None)} if again else set()
    rows = [row(each) for each in methods.values() if each.candidate in shown]
    chosen = [None if each is None else row(each) for each in best]
    if timing.processes.progress.reason is None:
        timing.left[:0] = intervals(question.named, timing, even.candidate, ranked([*again, *timed]))
    return _advice(question, timing, None, rows, row(even), chosen, timing.processes.num_runs, timing.refused, even, timed)


def _same_time(timed: Sequence[Timed]) -> list[list[Candidate]]:
    """Groups of candidates with exactly equal times, the fastest first. Each method is present with its fastest candidate."""
    fastest = {each.candidate.method.name: each for each in reversed(timed)}
    groups: dict[tuple[float, ...], list[Candidate]] = {}
    for each in timed:
        if fastest[each.candidate.method.name] is each:
            groups.setdefault(each.seconds, []).append(each.candidate)
    return list(groups.values())


def _by_goal(
    question: AdviceQuestion,
    training: CandidateTraining,
    even: Candidate,
    chosen: Sequence[Candidate],
    timed_even: Timed,
    timed: Sequence[Timed],
    timing: Timing,
) -> Advice:
    goal = training.goal
    assert goal is not None
    alike = [each.at(even.factor) for each in _alike_ones([each.candidate for each in timed])]
    again = list(dict.fromkeys([even, *chosen, *(each for each in alike if each.label not in {one.label for one in chosen})]))
    training.tell(f"training the best {len(again) - 1} on fresh seeds")
    try:
        trained = {each.candidate: each for each in training.fresh(again)}
    except StoppedEarly:
        trained = {each: training.found[each] for each in again if each in training.found}
    even = min((each for each in trained.values() if each.candidate.label == even.label), key=lambda each: each.key(goal)).candidate
    times = {candidate: dict(zip(each.seeds, ([time] for time in each.times(goal)), strict=True)) for candidate, each in trained.items()}

    def row(candidate: Candidate) -> AdviceRow:
        seconds = [time for (time,) in times[candidate].values()]
        gain = paired_ratio(times[even], times[candidate])
        rates = not (question.typed("learning_rate") or question.typed("local_learning_rate"))
        return _row(question, candidate, seconds, gain, trained[candidate].outcomes[0], trained[even].outcomes[0], rates=rates)

    rows = sorted((row(each) for each in trained if each.label != even.label), key=_missed_and_seconds)
    same = [each for each in sorted([*rows, row(even)], key=_missed_and_seconds) if each.candidate.synchronous]
    if BASELINE not in {method.name for method in question.methods}:
        same = [each for each in same if each.candidate.label != even.label]
    chosen_rows = [next(iter(same), None), next((each for each in same if not each.candidate.leave_out), None)]
    refused = timing.refused | training.refused
    return _advice(question, timing, goal, rows, row(even), chosen_rows, training.processes.num_runs, refused, timed_even, timed)


def _missed_and_seconds(row: AdviceRow) -> tuple[int, float]:
    return row.seconds.num_runs - row.seconds.num_known, row.seconds.mean or 0.0


def _advice(
    question: AdviceQuestion,
    timing: Timing,
    goal: Goal | None,
    rows: Sequence[AdviceRow],
    even: AdviceRow,
    alike: Sequence[AdviceRow | None],
    num_runs: int,
    refused: dict[str, str],
    timed_even: Timed,
    timed: Sequence[Timed],
) -> Advice:
    made = question.experiment
    error = made.cluster.calibrated.spread - 1 if made.cluster.calibrated else None
    best, stopped = (rows[0] if rows else even), timing.processes.progress.reason
    remarks = [*assumed(question), *timing.left]
    if goal is not None and timed and timed[0].candidate.label != best.candidate.label:
        fastest, gain = timed[0].candidate.label, timed_even.mean / timed[0].mean
        why_not = refused.get(fastest, "in training it reaches the goal later, because its samples teach less")
        remarks.append(f"by time alone {fastest} is the fastest, {gain:.3g} times as fast as plain DDP: {why_not}")
    recommended = _recommended(best, alike[0], even, goal)
    if error is not None and recommended.gain.mean is not None and CLEARLY <= recommended.gain.mean < 1 + error:
        remarks.append(f"{recommended.gain.mean:.3g} times is less than how far each prediction may be off: run both before you decide")
    if (few := unmeasured(made.cluster, *((each.candidate, each.batch_sizes) for each in (recommended, even)))) is not None:
        remarks.append(few)
    if made.cluster.calibrated is not None and (doubts := made.cluster.calibrated.doubtful) is not None:
        remarks.insert(0, doubts)
    sentence = _sentence(question, recommended, timed_even, timed, goal)
    if (faster := _faster_still(best, recommended)) is not None:
        sentence += f" {faster.candidate.label} is faster still, {faster.gain.mean:.3g} times, but trains differently."
    return Advice(
        made.cluster.name, made.num_workers, made.workload.name, question.epochs, goal, sentence, tuple(rows), even, alike[0], alike[1],
        error, num_runs, refused, timing.sizes[1], made.workload.has_model, more_than_time(question), tuple(remarks), stopped,
        split_of(recommended.candidate, recommended.batch_sizes, made.cluster, question.gpus),
    )  # fmt: skip


def _recommended(best: AdviceRow, alike: AdviceRow | None, baseline: AdviceRow, goal: Goal | None) -> AdviceRow:
    found = best if goal is not None or alike is None else alike
    return baseline if found.gain.mean is not None and found.gain.mean < CLEARLY else found


def _faster_still(best: AdviceRow, recommended: AdviceRow) -> AdviceRow | None:
    gains = recommended.gain.mean, best.gain.mean
    return best if gains[0] is not None and gains[1] is not None and gains[1] > CLEARLY * gains[0] else None


def _sentence(question: AdviceQuestion, best: AdviceRow, even: Timed, timed: Sequence[Timed], goal: Goal | None) -> str:
    """The recommendation, its gain over plain DDP, and the reason."""
    made, candidate = question.experiment, best.candidate
    order = what_to_do(candidate, made.cluster)
    times = f"{best.gain.mean:.3g} times" if best.gain.mean is not None else ""
    to_goal = "" if goal is None else f" to {goal}"
    on_all = f" on {all_nodes(made.num_workers)}" if made.num_workers > 1 else ""
    if best.gain.mean is None or best.gain.mean < CLEARLY:
        return f"{order[0].upper()}{order[1:]}: nothing here is clearly faster than plain DDP{on_all}."
    its = next((each for each in timed if each.candidate.label == candidate.label), None)
    before = parts(_step(question, even), even.outcome.numbers["per_worker"])
    after = parts(_step(question, its), its.outcome.numbers["per_worker"]) if its is not None and candidate.synchronous else None
    return f"{order[0].upper()}{order[1:]}: {times} as fast{to_goal} as plain DDP{on_all}, {why(candidate, made.cluster, before, after)}."


def _step(question: AdviceQuestion, timed: Timed) -> float:
    """The seconds for one global batch of samples."""
    return question.experiment.batch_size / float(timed.outcome.numbers["samples_per_second"])


def _row(
    question: AdviceQuestion,
    candidate: Candidate,
    seconds: Sequence[float | None],
    gain: Estimate,
    its: SimulatedRun,
    even: SimulatedRun,
    *,
    rates: bool,
) -> AdviceRow:
    expected = estimate(seconds, scale="logarithmic")
    cluster = question.experiment.cluster
    hourly = without(cluster, candidate.leave_out).cost_per_hour
    calibrated = cluster.calibrated
    if calibrated is not None:
        expected = expected.wider(calibrated.spread)
    cost = hourly * expected.mean / 3600 if hourly and expected.mean is not None else None
    words = (*question.words, *candidate.words(rates=rates), "backend=dist")
    folder = () if question.config_dir is None else ("--config-dir", question.config_dir)
    batch_sizes = tuple(its.numbers.get("batch_sizes", ()))
    return AdviceRow(candidate, expected, gain, cost, reason(its, even), words, shlex.join(("hetsim", *folder, *words)), batch_sizes)


def reason(its: SimulatedRun, even: SimulatedRun) -> str:
    """A short reason: the part of a step that takes the time."""
    idle, staleness = its.numbers["idle_share"], its.numbers["staleness_mean"]
    rate = its.numbers["updates_per_second"] / even.numbers["updates_per_second"] if even.numbers["updates_per_second"] else 0.0
    said = f"idle {_percent(idle)} (plain DDP {_percent(even.numbers['idle_share'])}), × {rate:.3g} updates/s"
    return said + (f", staleness {formatted(staleness)}" if staleness else "")


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"
