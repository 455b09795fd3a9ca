"""An advice: the candidates, ranked by expected time, with intervals, gains, costs and reasons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hetsim import checks
from hetsim.advice.candidates import Candidate
from hetsim.advice.decision import (
    AdvisedSplit,
    advised_split,
    all_nodes,
    assumptions,
    gain_reason,
    label,
    loss_hint,
    step_parts,
    unmeasured_remark,
    what_to_do,
    why_some,
)
from hetsim.advice.ends import Ends, at_ends, unsure_gpus
from hetsim.advice.progress import Progress, StoppedEarly
from hetsim.advice.question import BASELINE, AdviceQuestion
from hetsim.advice.simulated import Goal, SimulatedRun
from hetsim.advice.simulations import Simulations, StoredAnswers
from hetsim.advice.timing import CandidateTimes, Timing, ranking
from hetsim.advice.training import CandidateTraining
from hetsim.cluster.fewer import without
from hetsim.config.typed import command_line
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
    label: str
    """The candidate in words, without its rates."""
    words: tuple[str, ...]
    """The arguments that run the candidate in real processes."""
    command: str
    batch_sizes: tuple[int, ...] = ()
    """The samples of each participating node in a batch, in rank order, at the end of a simulated run."""
    alike: tuple[str, ...] = ()
    """Candidates with exactly equal times, because they differ only in what they compute."""


@dataclass(frozen=True)
class AdviceFindings:
    """The rows, the best first, and plain DDP. `goal` is None for an advice by time alone."""

    cluster: str
    num_nodes: int
    workload: str
    task: str
    """What is trained and where, in words."""
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
    cheapest: AdviceRow | None
    """The candidate that trains as DDP does at the lowest cost; None without prices."""
    error: float | None
    """The calibration's error, which widens intervals of seconds; None for a cluster that was not calibrated."""
    num_runs: int
    refused: dict[str, str]
    num_samples: int
    """The number of samples in an epoch."""
    batch_size: int
    batches: str
    """The batch size in words."""
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
    machines: str | None = None
    """The named GPUs of each machine, as a sentence; None if no GPU is named."""

    @property
    def best(self) -> AdviceRow:
        """The first row, or plain DDP without one."""
        return self.rows[0] if self.rows else self.baseline

    @property
    def recommended(self) -> AdviceRow:
        """The recommended row: the best, or plain DDP without a gain.

        By time alone, it is the best row that trains as DDP does, because time does not show how much a sample contributes.
        """
        return _recommended_row(self.best, self.alike, self.baseline, self.goal)

    @property
    def faster_still(self) -> AdviceRow | None:
        """The best row, if it is clearly faster than the recommended one and trains differently."""
        return _faster_row(self.best, self.recommended)

    @property
    def end_point(self) -> str:
        """The end point of the times, in words."""
        epochs = f"{formatted(self.epochs)} epoch{'' if self.epochs == 1 else 's'}"
        return f"for {epochs} of {self.num_samples} samples" if self.goal is None else f"to {self.goal}"


def advice(question: AdviceQuestion, processes: Simulations, tell: Callable[[str], object]) -> AdviceFindings:
    """Simulate candidates and rank them. Raises ValueError if plain DDP cannot be simulated.

    If `progress` is asked to stop, the advice contains the results so far.
    """
    real = question.experiment.workload.has_model
    timing = Timing(question, processes, processes.sizes(question.words_of_baseline))
    tell("timing all methods, splits and smaller sets of nodes")
    even = timing.baseline()
    timed = timing.search()
    if question.timing or not real or processes.progress.reason is not None:
        return _advice_by_time(question, timing, even, timed, tell)
    training = CandidateTraining(question, processes, tell, goal=question.goal)
    tell("training plain DDP at several rates")
    try:
        best_even = training.baseline()
    except StoppedEarly:
        return _advice_by_time(question, timing, even, timed, tell)
    try:
        chosen = training.search(worth_training(timed))
    except StoppedEarly:
        chosen = training.best_so_far()
    return _advice_by_goal(question, training, best_even, chosen, even, timed, timing)


def advised(
    question: AdviceQuestion,
    processes: int | None,
    folder: Path | None,
    minutes: float | None,
    tell: Callable[[str], object],
    *,
    engine: str = "local",
) -> AdviceFindings:
    """Return the advice. It resumes from the answers in `folder`, and ends early after `minutes` or at SIGTERM."""
    if minutes is not None:
        checks.number("minutes", minutes)
    answers = None if folder is None else StoredAnswers(folder, repr(question.experiment))
    progress, alone = Progress(), engine == "local" and question.is_small
    with (
        progress.time_limit(minutes),
        Simulations(processes, question.config_dir, progress=progress, answers=answers, engine=engine, alone=alone) as pool,
    ):
        return advice(question, pool, progress.line_printer(tell))


def worth_training(timed: Sequence[CandidateTimes]) -> list[Candidate]:
    """Every method as published and, if faster, with its fastest split and nodes; also the fastest candidates that train as DDP does.

    So training tries the sets of nodes that are fastest by time.
    """
    fastest: dict[str, CandidateTimes] = {}
    published: dict[str, CandidateTimes] = {}
    for times in timed:
        name = times.candidate.method.name
        fastest.setdefault(name, times)
        if times.candidate.label == name:
            published[name] = times
    candidates = [times.candidate for times in published.values()]
    candidates += [
        times.candidate
        for name, times in fastest.items()
        if times.candidate.label != name and (name not in published or times.mean < WORTH * published[name].mean)
    ]
    return list(dict.fromkeys([*candidates, *_best_alike([times.candidate for times in timed])]))


def _best_alike(candidates: Sequence[Candidate]) -> list[Candidate]:
    """From ranked candidates, the best that trains as DDP does, on any nodes and on all nodes."""
    alike = [candidate for candidate in candidates if candidate.synchronous]
    return [*alike[:1], *[candidate for candidate in alike if not candidate.leave_out][:1]]


def _advice_by_time(
    question: AdviceQuestion, timing: Timing, even: CandidateTimes, timed: Sequence[CandidateTimes], tell: Callable[[str], object]
) -> AdviceFindings:
    groups = _same_time(timed)
    alike = [times.candidate for times in timed if times.candidate.synchronous]
    on_all = [candidate for candidate in alike if not candidate.leave_out]
    leading = [same[0] for same in groups[:REPORTED]]
    finalists = dict.fromkeys([*(times.candidate for times in timed[:FINALISTS]), *leading, *alike[:FINALISTS], *on_all[:FINALISTS]])
    retimed: list[CandidateTimes] = []
    if timing.processes.progress.reason is None:
        tell("timing the best again, on more seeds")
        retimed = ranking(timing.times(finalists, seeds=timing.seeds))
    if timing.processes.progress.reason is not None:
        retimed = ranking([times for times in timed if times.candidate in finalists])
    cluster, names = question.experiment.cluster, question.gpus
    others = {same[0]: tuple(label(candidate, cluster, names) for candidate in same[1:]) for same in groups}

    def row(times: CandidateTimes) -> AdviceRow:
        by_seed = [dict(enumerate([seconds] for seconds in one.seconds[: len(times.seconds)])) for one in (even, times)]
        result = _row(question, times.candidate, times.seconds, paired_ratio(*by_seed), times.outcome, even.outcome, rates=False)
        return replace(result, alike=others.get(times.candidate, ()))

    methods: dict[str, CandidateTimes] = {}
    for times in retimed:
        methods.setdefault(times.candidate.method.name, times)
    best = [next((times for times in retimed if times.candidate in some), None) for some in (set(alike), set(on_all))]
    priced = [times for times in timed if times.candidate.synchronous] if question.experiment.cluster.cost_per_hour else []
    best.append(min(priced, key=timing.cost, default=None))
    shown = {retimed[0].candidate, *leading, *(times.candidate for times in best[:2] if times is not None)} if retimed else set()
    rows = [row(times) for times in methods.values() if times.candidate in shown]
    chosen = [None if times is None else row(times) for times in best]
    return _advice(question, timing, None, rows, row(even), chosen, timing.refused, even, timed)


def _same_time(timed: Sequence[CandidateTimes]) -> list[list[Candidate]]:
    """Groups of candidates with exactly equal times, the fastest first. Each method is present with its fastest candidate."""
    fastest = {times.candidate.method.name: times for times in reversed(timed)}
    groups: dict[tuple[float, ...], list[Candidate]] = {}
    for times in timed:
        if fastest[times.candidate.method.name] is times:
            groups.setdefault(times.seconds, []).append(times.candidate)
    return list(groups.values())


def _advice_by_goal(
    question: AdviceQuestion,
    training: CandidateTraining,
    even: Candidate,
    chosen: Sequence[Candidate],
    timed_even: CandidateTimes,
    timed: Sequence[CandidateTimes],
    timing: Timing,
) -> AdviceFindings:
    goal = training.goal
    assert goal is not None
    alike = [candidate.at(even.factor) for candidate in _best_alike([times.candidate for times in timed])]
    labels = {candidate.label for candidate in chosen}
    finalists = list(dict.fromkeys([even, *chosen, *(candidate for candidate in alike if candidate.label not in labels)]))
    training.tell(f"training the best {len(finalists) - 1} on fresh seeds")
    try:
        trained = {result.candidate: result for result in training.train_fresh(finalists)}
    except StoppedEarly:
        trained = {candidate: training.trained[candidate] for candidate in finalists if candidate in training.trained}
    even = min(
        (result for result in trained.values() if result.candidate.label == even.label), key=lambda result: result.key(goal)
    ).candidate
    times = {
        candidate: dict(zip(result.seeds, ([time] for time in result.times(goal)), strict=True)) for candidate, result in trained.items()
    }

    def row(candidate: Candidate) -> AdviceRow:
        seconds = [time for (time,) in times[candidate].values()]
        gain = paired_ratio(times[even], times[candidate])
        rates = not (question.typed("learning_rate") or question.typed("local_learning_rate"))
        return _row(question, candidate, seconds, gain, trained[candidate].outcomes[0], trained[even].outcomes[0], rates=rates)

    rows = sorted((row(candidate) for candidate in trained if candidate.label != even.label), key=_missed_and_seconds)
    same = [advice_row for advice_row in sorted([*rows, row(even)], key=_missed_and_seconds) if advice_row.candidate.synchronous]
    if BASELINE not in {method.name for method in question.methods}:
        same = [advice_row for advice_row in same if advice_row.candidate.label != even.label]
    chosen_rows = [next(iter(same), None), next((advice_row for advice_row in same if not advice_row.candidate.leave_out), None)]
    chosen_rows.append(
        min((advice_row for advice_row in same if advice_row.cost is not None), key=lambda row: row.cost or 0.0, default=None)
    )
    refused = timing.refused | training.refused
    return _advice(question, timing, goal, rows, row(even), chosen_rows, refused, timed_even, timed)


def _missed_and_seconds(row: AdviceRow) -> tuple[int, float]:
    return row.seconds.num_runs - row.seconds.num_known, row.seconds.mean or 0.0


def _advice(
    question: AdviceQuestion,
    timing: Timing,
    goal: Goal | None,
    rows: Sequence[AdviceRow],
    even: AdviceRow,
    alike: Sequence[AdviceRow | None],
    refused: dict[str, str],
    timed_even: CandidateTimes,
    timed: Sequence[CandidateTimes],
) -> AdviceFindings:
    experiment = question.experiment
    error = experiment.cluster.calibrated.spread - 1 if experiment.cluster.calibrated else None
    best = rows[0] if rows else even
    recommended = _recommended_row(best, alike[0], even, goal)
    ends = Ends()
    if question.named is not None and goal is None and timing.processes.progress.reason is None:
        tried = [times.candidate for times in timed]
        ends = at_ends(timing, timed_even.candidate, recommended.candidate, tried, unsure_gpus(question.named))
    stopped = timing.processes.progress.reason
    remarks = [*assumptions(question), *ends.remarks, *timing.remarks]
    if question.named is not None and stopped is None and {method.name for method in question.methods} == {BASELINE}:
        split = "" if question.typed("allocation") else "with every split and "
        remarks.append(f"ddp was tried {split}on every set of GPUs: name other candidates by method=ssgd,dbs_sgd (hetsim-methods)")
    if goal is not None and timed and timed[0].candidate.label != best.candidate.label:
        fastest, gain = label(timed[0].candidate, experiment.cluster, question.gpus), timed_even.mean / timed[0].mean
        why_not = refused.get(timed[0].candidate.label, "in training it reaches the goal later, because its samples teach less")
        remarks.append(f"by time alone {fastest} is the fastest, {gain:.3g} times as fast as plain DDP: {why_not}")
    if error is not None and recommended.gain.mean is not None and CLEARLY <= recommended.gain.mean < 1 + error:
        remarks.append(f"{recommended.gain.mean:.3g} times is less than how far each prediction may be off: run both before you decide")
    used = [(row.candidate, row.batch_sizes) for row in (recommended, even)]
    if (few := unmeasured_remark(experiment.cluster, question.gpus, *used)) is not None:
        remarks.append(few)
    if experiment.cluster.calibrated is not None and (doubts := experiment.cluster.calibrated.doubtful) is not None:
        remarks.insert(0, doubts)
    sentence = _sentence(timing, recommended, timed_even, timed, goal, ends.unless)
    if (least := timing.least_step_of_all.get(replace(recommended.candidate, factor=1.0))) is not None:
        sentence += f" {why_some(least)}"
    if timing.doubt is not None:
        sentence = f"{timing.doubt[0].upper()}{timing.doubt[1:]}: {sentence[0].lower()}{sentence[1:]}"
    if (faster := _faster_row(best, recommended)) is not None:
        sentence += f" {faster.label} is faster still, {faster.gain.mean:.3g} times, but trains differently."
    return AdviceFindings(
        cluster=experiment.cluster.name,
        num_nodes=experiment.num_workers,
        workload=experiment.workload.name,
        task=f"{question.task} on {question.place}",
        epochs=question.epochs,
        goal=goal,
        sentence=sentence,
        rows=tuple(rows),
        baseline=even,
        alike=alike[0],
        alike_on_all=alike[1],
        cheapest=alike[2],
        error=error,
        num_runs=timing.processes.num_runs,
        refused=refused,
        num_samples=timing.sizes[1],
        batch_size=experiment.batch_size,
        batches=question.batches,
        trains=experiment.workload.has_model,
        more=loss_hint(question),
        remarks=tuple(remarks),
        stopped=stopped,
        split=advised_split(recommended.candidate, recommended.batch_sizes, experiment.cluster, question.gpus),
        machines=question.machines,
    )


def _recommended_row(best: AdviceRow, alike: AdviceRow | None, baseline: AdviceRow, goal: Goal | None) -> AdviceRow:
    row = best if goal is not None or alike is None else alike
    return baseline if row.gain.mean is not None and row.gain.mean < CLEARLY else row


def _faster_row(best: AdviceRow, recommended: AdviceRow) -> AdviceRow | None:
    gains = recommended.gain.mean, best.gain.mean
    return best if gains[0] is not None and gains[1] is not None and gains[1] > CLEARLY * gains[0] else None


def _sentence(
    timing: Timing, best: AdviceRow, even: CandidateTimes, timed: Sequence[CandidateTimes], goal: Goal | None, unless: str
) -> str:
    """The recommendation, at which ends another choice is better, its gain over plain DDP, and the reason."""
    experiment, candidate, names = timing.question.experiment, best.candidate, timing.question.gpus
    order = what_to_do(candidate, experiment.cluster, names) + (f", {unless}" if unless else "")
    gain = f"{best.gain.mean:.3g} times" if best.gain.mean is not None else ""
    to_goal = "" if goal is None else f" to {goal}"
    on_all = f" on {all_nodes(experiment.num_workers, names)}" if experiment.num_workers > 1 else ""
    if best.gain.mean is None or best.gain.mean < CLEARLY:
        return f"{order[0].upper()}{order[1:]}: nothing here is clearly faster than plain DDP{on_all}."
    times = next((entry for entry in timed if entry.candidate.label == candidate.label), None)
    ddp_step = step_parts(timing.step_seconds(even), even.outcome.numbers["per_worker"])
    step = (
        step_parts(timing.step_seconds(times), times.outcome.numbers["per_worker"]) if times is not None and candidate.synchronous else None
    )
    why = gain_reason(candidate, experiment.cluster, ddp_step, step)
    return f"{order[0].upper()}{order[1:]}: {gain} as fast{to_goal} as plain DDP{on_all}, {why}."


def _row(
    question: AdviceQuestion,
    candidate: Candidate,
    seconds: Sequence[float | None],
    gain: Estimate,
    run: SimulatedRun,
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
    batch_sizes = tuple(run.numbers.get("batch_sizes", ()))
    in_words = label(candidate, cluster, question.gpus)
    command = command_line(words, question.config_dir)
    return AdviceRow(candidate, expected, gain, cost, reason(run, even), in_words, words, command, batch_sizes)


def reason(run: SimulatedRun, even: SimulatedRun) -> str:
    """A short reason: the part of a step that takes the time."""
    idle, staleness = run.numbers["idle_share"], run.numbers["staleness_mean"]
    rate = run.numbers["updates_per_second"] / even.numbers["updates_per_second"] if even.numbers["updates_per_second"] else 0.0
    text = f"idle {_percent(idle)} (plain DDP {_percent(even.numbers['idle_share'])}), × {rate:.3g} updates/s"
    return text + (f", staleness {formatted(staleness)}" if staleness else "")


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"
