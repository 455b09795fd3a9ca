"""The answer about a job's stragglers: a verdict, a table of the ranks, possible savings, and a heat map of ranks and steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from hetsim.answers.answer import Answer, Picture, Sheet
from hetsim.results.writing.describe import duration
from hetsim.results.writing.figures import INK, WAIT, own_style
from hetsim.straggling.accounting import WAITING, Part, account
from hetsim.straggling.findings import StragglerFindings
from hetsim.straggling.job import Floats
from hetsim.straggling.judging import COMPUTING, JudgedJob, Straggler
from hetsim.straggling.verdict import share, verdict

MAX_ROWS = 16
MOST_RANKS, MOST_STEPS = 256, 300
"""The maximum number of cells of the picture. With more ranks or steps, each cell shows the slowest of several."""
DARKEST = 4.0
"""The factor from which the colour does not change."""


def answer(findings: StragglerFindings, command: str = "") -> Answer:
    """The answer with these findings. `command` has asked for it."""
    judged_job, replay = findings.judged_job, findings.replay
    sheets = [Sheet("Ranks", _heads(judged_job), _rows(judged_job), max_printed=MAX_ROWS)]
    parts = account(judged_job)
    seconds = judged_job.job.seconds
    shares = [(_name(part), duration(part.seconds), share(part.seconds / seconds)) for part in parts]
    sheets.append(Sheet("Where the time goes", ("the job's time", "seconds", "share"), shares, max_printed=MAX_ROWS))
    if replay is not None and replay.saved:
        saved = [(change, share(part)) for change, part in replay.saved.items()]
        sheets.append(Sheet("The job, replayed", ("the job, replayed", "saves"), saved))
    return Answer(
        question=f"Which ranks of {judged_job.job.source} are slow, and what do they cost?",
        answer=[verdict(judged_job, replay, parts)],
        pictures=[
            Picture(
                "stragglers", "Time of each rank in each step, divided by the fast ranks'; grey: no step", partial(_picture, judged_job)
            )
        ],
        sheets=sheets,
        remarks=list(_remarks(findings)),
        command=command,
        data=_data(findings),
    )


def _name(part: Part) -> str:
    """A part of the job's time in words."""
    if part.of == "":
        return {COMPUTING: "computing at the fastest rank's pace", WAITING: "waiting for the slowest of a step"}.get(part.name, part.name)
    return f"{'all ranks' if part.rank is None else f'rank {part.rank}'}: {part.of} {part.name}"


def _heads(judged_job: JudgedJob) -> tuple[str, ...]:
    """The heads of the table's columns."""
    return "rank", "computing", *(() if judged_job.links is None else ("links",)), "slow", "costs"


def _rows(judged_job: JudgedJob) -> list[tuple[str, ...]]:
    """The ranks in the table, the slow ones first."""
    by_rank: dict[int, list[Straggler]] = {}
    for straggler in judged_job.stragglers:
        by_rank.setdefault(-1 if straggler.rank is None else straggler.rank, []).append(straggler)
    order = [rank for rank in by_rank if rank >= 0] + [rank for rank in range(judged_job.job.num_ranks) if rank not in by_rank]
    rows = [_row(judged_job, rank, by_rank.get(rank, [])) for rank in order]
    blank = ("",) * (len(_heads(judged_job)) - 3)
    for straggler in by_rank.get(-1, []):
        rows.append(("all", *blank, f"{straggler.part}: {', '.join(straggler.kinds)}", share(straggler.cost or 0.0)))
    return rows


def _row(judged_job: JudgedJob, rank: int, stragglers: Sequence[Straggler]) -> tuple[str, ...]:
    links = () if judged_job.links is None else (f"× {judged_job.links.slowdown[rank]:.2f}",)
    slow = "; ".join(f"{straggler.part}: {', '.join(straggler.kinds)}" for straggler in stragglers)
    costs = [straggler.cost for straggler in stragglers if straggler.cost is not None]
    return f"{rank}", f"× {judged_job.computing.slowdown[rank]:.2f}", *links, slow, share(sum(costs)) if costs else ""


def _remarks(findings: StragglerFindings) -> Iterator[str]:
    job, replay = findings.judged_job.job, findings.replay
    if job.collectives is not None and job.slow_links is None:
        yield "a collective ends on all ranks together, so this trace does not show whose link is slow"
    if job.has_samples and _unequal(job.samples):
        yield "ranks have unequal shares of the batch: their steps are compared, not their samples"
    if replay is not None:
        yield f"the replay of the unchanged job takes {share(abs(replay.error))} {'longer' if replay.error > 0 else 'less'} than the trace"
        yield from replay.remarks
    yield from job.remarks
    if findings.why_no_replay:
        yield findings.why_no_replay


def _unequal(samples: Any) -> bool:
    means = [float(row[row > 0].mean()) for row in samples if (row > 0).any()]
    return bool(means) and max(means) > 1.05 * min(means)


@own_style()
def _picture(judged_job: JudgedJob) -> Any:
    """A figure with a panel for computing, and one for links if the job has any."""
    from matplotlib.figure import Figure

    panels = {"computing": judged_job.computing.heat} | ({} if judged_job.links is None else {"links": judged_job.links.heat})
    num_ranks = judged_job.job.num_ranks
    figure = Figure(figsize=(9, 1.2 + len(panels) * (0.7 + min(4.0, 0.22 * num_ranks))), layout="constrained")
    rows = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    for axes, (name, heat) in zip(rows, panels.items(), strict=True):
        cells = _coarse(_coarse(heat, MOST_STEPS, axis=1), MOST_RANKS, axis=0)
        colours = {"cmap": "RdBu_r", "vmin": -np.log2(DARKEST), "vmax": np.log2(DARKEST)}
        extent = (0, heat.shape[1], num_ranks - 0.5, -0.5)
        shown = axes.imshow(np.log2(cells), extent=extent, aspect="auto", interpolation="none", **colours)
        axes.set_facecolor(WAIT)
        axes.set_ylabel("rank", fontsize=9, color=INK)
        axes.set_title(f"{name}: time divided by the fast ranks'", fontsize=10, color=INK, loc="left")
        for axis in (axes.xaxis, axes.yaxis):
            axis.get_major_locator().set_params(integer=True)
        axes.tick_params(labelsize=9, labelcolor=INK)
        axes.spines[:].set_visible(False)
        bar = figure.colorbar(shown, ax=axes, ticks=[-2, -1, 0, 1, 2], format=lambda value, _: f"× {2.0**value:g}")
        bar.ax.tick_params(labelsize=9, labelcolor=INK)
        bar.outline.set_visible(False)
    rows[-1].set_xlabel("step", fontsize=9, color=INK)
    return figure


def _coarse(heat: Floats, most: int, *, axis: int) -> Floats:
    """At most `most` cells along this axis, each with the largest value of its part; NaN if no value is known."""
    size = heat.shape[axis]
    begins = np.linspace(0, size, min(most, size) + 1).astype(int)[:-1]
    largest: Floats = np.maximum.reduceat(np.where(np.isfinite(heat), heat, -np.inf), begins, axis=axis)
    return np.where(np.isfinite(largest), largest, np.nan)


def _data(findings: StragglerFindings) -> dict[str, Any]:
    """The findings as JSON values."""
    judged_job, replay = findings.judged_job, findings.replay
    parts = account(judged_job)
    return {
        "source": judged_job.job.source,
        "num_ranks": judged_job.job.num_ranks,
        "num_steps": judged_job.job.num_steps,
        "seconds": judged_job.job.seconds,
        "verdict": verdict(judged_job, replay, parts),
        "parts": [{"part": part.name, "of": part.of, "rank": part.rank, "seconds": part.seconds} for part in parts],
        "cost": judged_job.cost,
        "computing": judged_job.computing.slowdown.tolist(),
        "links": None if judged_job.links is None else judged_job.links.slowdown.tolist(),
        "stragglers": [_straggler(straggler) for straggler in judged_job.stragglers],
        "replay": None if replay is None else {"error": replay.error, "saved": dict(replay.saved)},
        "remarks": list(_remarks(findings)),
    }


def _straggler(straggler: Straggler) -> dict[str, Any]:
    return {
        "rank": straggler.rank,
        "ranks": list(straggler.ranks),
        "part": straggler.part,
        "kinds": list(straggler.kinds),
        "slowdown": straggler.slowdown,
        "cost": straggler.cost,
        "period_steps": straggler.period,
        "spells": [{"first_step": spell.first, "last_step": spell.last, "slowdown": spell.factor} for spell in straggler.spells],
    }
