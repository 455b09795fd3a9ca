"""An advice as text: a table, the commands to run, and remarks."""

from __future__ import annotations

from collections.abc import Iterator

from hetsim import checks
from hetsim.advice.advice import Advice, Row
from hetsim.advice.decision import in_own_script
from hetsim.results.writing.describe import formatted

Cells = tuple[list[str], list[list[str]]]
"""The heads and the rows of a table."""


def text(found: Advice) -> str:
    """The text for the terminal: the recommendation, the decision, all methods, and remarks."""
    head = f"{found.cluster}, {found.workload}: seconds to {found.what}, by {found.num_runs} simulated runs"
    stopped = [f"stopped {found.stopped}: this is the best so far"] if found.stopped else []
    split = [found.split.sentence] if found.split else []
    parts = ([found.sentence, *split, *stopped], _decision(found), [checks.printable(head)], _aligned(*ranking(found)), remarks(found))
    return "\n\n".join("\n".join(lines) for lines in parts)


def _decision(found: Advice) -> Iterator[str]:
    """The choices, one line each."""
    yield from _aligned(*decision(found))
    if found.goal is None and found.faster_still is not None:
        yield "The last one is fastest by time alone: it takes other steps than DDP, so the loss may fall more slowly. " + found.more


def decision(found: Advice) -> Cells:
    """The choices as a table: plain DDP, the best that trains as DDP does, and the fastest."""
    per_epoch = found.goal is None
    costs = any(row.cost is not None for row in (*found.rows, found.baseline))
    rows = [("today: plain DDP on all nodes", found.baseline)]
    if found.alike_on_all is not None:
        rows.append(("trains as DDP does, on all nodes", found.alike_on_all))
    if found.alike is not None and found.alike.candidate.leave_out:
        rows.append(("trains as DDP does, on fewer nodes", found.alike))
    if not found.best.candidate.synchronous and found.best in (found.recommended, found.faster_still):
        rows.append(("the fastest of all; it trains differently", found.best))
    heads = ["", "method", "seconds", "gain over plain DDP", *(["cost per epoch" if per_epoch else "cost"] if costs else [])]
    cells = []
    for name, row in rows:
        share = found.epochs if per_epoch else 1.0
        cost = ["–" if row.cost is None else f"{row.cost / share:.3g}"] if costs else []
        cells.append([name, *_cells(row, costs=False)[:3], *cost])
    return heads, cells


def ranking(found: Advice) -> Cells:
    """All reported candidates, the best first, and plain DDP, as a table."""
    costs = any(row.cost is not None for row in (*found.rows, found.baseline))
    heads = ["", "method", "seconds", "gain", *(["cost"] if costs else []), "why"]
    rows = [[str(rank), *_cells(row, costs)] for rank, row in enumerate(found.rows, start=1)]
    rows.append(["–", *_cells(found.baseline, costs)])
    rows[-1][1] = f"plain DDP ({found.baseline.candidate.method.name})"
    return heads, rows


def _aligned(heads: list[str], rows: list[list[str]]) -> Iterator[str]:
    widths = [max(len(cells[column]) for cells in (heads, *rows)) for column in range(len(heads))]
    for cells in (heads, *rows):
        yield "  ".join(f"{cell:{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()


def _cells(row: Row, costs: bool) -> list[str]:
    rate = f", rates × {row.candidate.factor:.2g}" if row.candidate.factor != 1 else ""
    reached = row.seconds.num_known
    seconds = str(row.seconds) if row.seconds.mean is not None else f"reached by {reached} of {row.seconds.num_runs}"
    cost = ["–" if row.cost is None else f"{row.cost:.3g}"] if costs else []
    return [row.candidate.label + rate, seconds, "–" if row.gain.mean is None else f"× {row.gain}", *cost, row.why]


def remarks(found: Advice) -> Iterator[str]:
    """Remarks that the tables do not contain, and the commands that run the recommended and the fastest candidate."""
    if found.best.seconds.mean is None:
        yield f"nothing reached {found.goal} in all its runs, in twice the time of {formatted(found.epochs)} epochs of plain DDP: " + (
            "ask for less, or for more epochs by budget.epochs"
        )
        return
    for rank, row in enumerate(found.rows, start=1):
        if row.alike:
            yield f"as fast as row {rank}: {', '.join(row.alike)}"
    yield from found.remarks
    if found.error is not None:
        yield f"predictions may be {100 * found.error:.0f} % off (90 %), which is in the intervals of seconds, not in those of gains"
    run = "run it" if found.trains else "rehearse it, padded and without a model"
    yield f"{run}: {checks.printable(found.recommended.command)}"
    if not found.trains:
        yield in_own_script(found.recommended.candidate, split=found.split is not None)
    if found.split is not None and found.split.script is not None:
        yield f"or with this split fixed, in rank order: {found.split.script}"
    if found.faster_still is not None:
        yield f"the fastest, which trains differently: {checks.printable(found.faster_still.command)}"
