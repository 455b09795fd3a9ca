"""The answer of an advice: the choices and all methods as tables, the commands to run, a picture, and the results as data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

from hetsim.advice.advice import AdviceFindings, AdviceRow
from hetsim.advice.decision import UNKNOWN_PARTS, script_hint
from hetsim.answers.answer import Answer, Picture, Sheet
from hetsim.results.tables.estimates import Estimate
from hetsim.results.writing.describe import formatted, unit_of_time
from hetsim.results.writing.figures import COMPUTE, INK, STEP, WAIT, own_style

GREY = "#888888"


def answer(advice: AdviceFindings, command: str = "") -> Answer:
    """The answer with this advice. `command` has asked for it."""
    return Answer(
        question=f"Which method, split and nodes are fastest for {advice.task}?",
        answer=[
            advice.sentence,
            *([advice.machines] if advice.machines else []),
            *([advice.split.sentence] if advice.split else []),
            *([f"stopped {advice.stopped}: this is the best so far"] if advice.stopped else []),
        ],
        pictures=[Picture("advice", f"Time {advice.end_point}, by {advice.num_runs} simulated runs", partial(_picture, advice))],
        sheets=[_decision(advice), _ranking(advice)],
        remarks=list(_remarks(advice)),
        command=command,
        data=_data(advice),
    )


def _decision(advice: AdviceFindings) -> Sheet:
    """The choices: plain DDP, the best that trains as DDP does, and the fastest."""
    per_epoch = advice.goal is None
    costs = any(row.cost is not None for row in (*advice.rows, advice.baseline))
    rows = [("today: plain DDP on all nodes", advice.baseline)]
    if advice.alike_on_all is not None:
        rows.append(("trains as DDP does, on all nodes", advice.alike_on_all))
    if advice.alike is not None and advice.alike.candidate.leave_out:
        rows.append(("trains as DDP does, on fewer nodes", advice.alike))
    if advice.cheapest is not None:
        rows.append(("trains as DDP does, at the lowest cost", advice.cheapest))
    if not advice.best.candidate.synchronous and advice.best in (advice.recommended, advice.faster_still):
        rows.append(("the fastest of all; it trains differently", advice.best))
    heads = ["", "method", "time", "gain over plain DDP", *(["cost per epoch" if per_epoch else "cost"] if costs else [])]
    cells, unit = [], _unit(advice)
    for name, row in rows:
        share = advice.epochs if per_epoch else 1.0
        cost = ["–" if row.cost is None else f"{row.cost / share:.3g}"] if costs else []
        cells.append([name, *_cells(row, unit, costs=False)[:3], *cost])
    below = []
    if per_epoch and advice.faster_still is not None:
        text = "The last one is fastest by time alone: it takes other steps than DDP, so the loss may fall more slowly. "
        below = [text + advice.more]
    return Sheet("The choices", heads, cells, below=below)


def _ranking(advice: AdviceFindings) -> Sheet:
    """All reported candidates, the best first, and plain DDP."""
    costs = any(row.cost is not None for row in (*advice.rows, advice.baseline))
    unit = _unit(advice)
    heads = ["", "method", "time", "gain", *(["cost", "by cost"] if costs else []), "why"]
    rows = [[str(rank), *_cells(row, unit, costs=costs)] for rank, row in enumerate(advice.rows, start=1)]
    rows.append(["–", *_cells(advice.baseline, unit, costs=costs)])
    if costs:
        in_order = sorted(row.cost for row in (*advice.rows, advice.baseline) if row.cost is not None)
        for cells, row in zip(rows, (*advice.rows, advice.baseline), strict=True):
            cells.insert(5, "–" if row.cost is None else str(1 + in_order.index(row.cost)))
    rows[-1][1] = f"plain DDP ({advice.baseline.candidate.method.name})"
    above = f"{advice.task}: time {advice.end_point}, {advice.batches}, by {advice.num_runs} simulated runs"
    return Sheet("All methods, the best first", heads, rows, above=[above])


def _unit(advice: AdviceFindings) -> tuple[str, float]:
    """The unit of all times: the name and its seconds."""
    return unit_of_time(min((row.seconds.mean for row in (*advice.rows, advice.baseline) if row.seconds.mean is not None), default=1.0))


def _cells(row: AdviceRow, unit: tuple[str, float], *, costs: bool) -> list[str]:
    rate = f", rates × {row.candidate.factor:.2g}" if row.candidate.factor != 1 else ""
    reached = row.seconds.num_known
    name, size = unit
    time = f"{row.seconds.in_unit(size)} {name}" if row.seconds.mean is not None else f"reached by {reached} of {row.seconds.num_runs}"
    cost = ["–" if row.cost is None else f"{row.cost:.3g}"] if costs else []
    return [row.label + rate, time, "–" if row.gain.mean is None else f"× {row.gain}", *cost, row.why]


def _remarks(advice: AdviceFindings) -> Iterator[str]:
    """Remarks that the tables do not contain, and the commands that run the recommended and the fastest candidate."""
    if advice.best.seconds.mean is None:
        yield f"nothing reached {advice.goal} in all its runs, in twice the time of {formatted(advice.epochs)} epochs of plain DDP: " + (
            "ask for less, or for more epochs by budget.epochs"
        )
        return
    for rank, row in enumerate(advice.rows, start=1):
        if row.alike:
            yield f"as fast as row {rank}: {'; '.join(row.alike)}"
    yield from advice.remarks
    if advice.error is not None:
        yield f"predictions may be {100 * advice.error:.0f} % off (90 %), which is in the intervals of times, not in those of gains"
    run = "run it" if advice.trains else "rehearse it, padded and without a model"
    yield f"{run}: {advice.recommended.command}"
    fixed = advice.split.script if advice.split is not None else None
    if not advice.trains:
        candidate = advice.recommended.candidate
        num_nodes = advice.num_nodes - len(candidate.leave_out)
        hint = script_hint(candidate, num_nodes=num_nodes, batch_size=advice.batch_size)
        yield hint if fixed is None or UNKNOWN_PARTS not in hint else f"train with it, in rank order: {fixed} (docs/guide/your-loop.md)"
        fixed = fixed if UNKNOWN_PARTS not in hint else None
    if fixed is not None:
        yield f"or with this split fixed, in rank order: {fixed}"
    if advice.faster_still is not None:
        yield f"the fastest, which trains differently: {advice.faster_still.command}"


@own_style()
def _picture(advice: AdviceFindings) -> Any:
    """A figure with one panel; None if plain DDP is the only candidate."""
    from matplotlib.figure import Figure

    rows = [*advice.rows, advice.baseline]
    if len({row.label for row in rows}) == 1:
        return None
    unit, size = _unit(advice)
    figure = Figure(figsize=(9, 1.3 + 0.32 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for place, row in enumerate(rows):
        seconds = row.seconds.in_unit(size)
        if seconds.mean is None:
            words = f"reached by {seconds.num_known} of {seconds.num_runs}"
            axes.text(0.01, place, words, transform=axes.get_yaxis_transform(), va="center", fontsize=8, color=GREY)
            continue
        low, high = seconds.bounds or (seconds.mean, seconds.mean)
        colour = STEP if row is advice.baseline else COMPUTE
        axes.errorbar(seconds.mean, place, xerr=[[seconds.mean - low], [high - seconds.mean]], fmt="o", color=colour, ms=5, capsize=3)
        if row.gain.mean is not None and row is not advice.baseline:
            axes.text(1.01, place, f"× {row.gain}", transform=axes.get_yaxis_transform(), va="center", fontsize=8, color=INK)
    if advice.baseline.seconds.mean is not None:
        axes.axvline(advice.baseline.seconds.mean / size, color=STEP, linewidth=1.2, linestyle="--", zorder=0)
    labels = [row.label for row in advice.rows]
    axes.set_yticks(range(len(rows)), [*labels, f"plain DDP ({advice.baseline.candidate.method.name})"], parse_math=False)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    error = "" if advice.error is None else f", wider as predictions may be {100 * advice.error:.0f} % off (90 %)"
    axes.set_xlabel(
        f"time in {unit} {advice.end_point}: mean and 95 % interval over seeds{error}; ×: gain over plain DDP", fontsize=9, color=INK
    )
    axes.set_title(advice.task, fontsize=10, color=INK, loc="left", parse_math=False)
    axes.grid(color=WAIT)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=9, labelcolor=INK)
    axes.spines[:].set_visible(False)
    return figure


def _data(advice: AdviceFindings) -> dict[str, Any]:
    """An advice as JSON values."""
    goal = None if advice.goal is None else {"accuracy": advice.goal.accuracy, "loss": advice.goal.loss}
    return {
        "cluster": advice.cluster,
        "workload": advice.workload,
        "epochs": advice.epochs,
        "samples": advice.num_samples,
        "batch_size": advice.batch_size,
        "goal": goal,
        "advice": advice.sentence,
        "machines": advice.machines,
        "split": None if advice.split is None else asdict(advice.split),
        "stopped": advice.stopped,
        "calibration_error": advice.error,
        "rows": [_row(row) for row in advice.rows],
        "baseline": _row(advice.baseline),
        "command": advice.recommended.command,
        "trains_as_ddp": None if advice.alike is None else _row(advice.alike),
        "trains_as_ddp_on_all_nodes": None if advice.alike_on_all is None else _row(advice.alike_on_all),
        "cheapest": None if advice.cheapest is None else _row(advice.cheapest),
        "remarks": list(advice.remarks),
        "simulated_runs": advice.num_runs,
        "refused": advice.refused,
    }


def _row(row: AdviceRow) -> dict[str, Any]:
    candidate = row.candidate
    return {
        "method": candidate.method.name,
        "allocation": candidate.allocation,
        "leave_out": list(candidate.leave_out),
        "rate_factor": candidate.factor,
        "trains_as_ddp": candidate.synchronous,
        "seconds": _interval(row.seconds),
        "reached": row.seconds.num_known,
        "runs": row.seconds.num_runs,
        "gain": _interval(row.gain),
        "cost": row.cost,
        "why": row.why,
        "command": row.command,
        "batch_sizes": list(row.batch_sizes),
        "alike": list(row.alike),
    }


def _interval(number: Estimate) -> dict[str, float | None]:
    return {"mean": number.mean, "low": number.low, "high": number.high}
