"""An advice in words: a table, what to run, and what the numbers do not say."""

from __future__ import annotations

from collections.abc import Iterator

from hetsim import checks
from hetsim.advice.advice import Advice, Row
from hetsim.results.writing.describe import formatted


def text(found: Advice) -> str:
    """For the terminal."""
    what = f"{formatted(found.epochs)} epochs" if found.goal is None else str(found.goal)
    head = f"{found.cluster}, {found.workload}: seconds to {what}, by {found.num_runs} simulated runs"
    return "\n".join([checks.printable(head), "", *_table(found), "", *_remarks(found)])


def _table(found: Advice) -> Iterator[str]:
    costs = any(row.cost is not None for row in (*found.rows, found.baseline))
    heads = ["", "method", "seconds", "gain", *(["cost"] if costs else []), "why"]
    rows = [[str(rank), *_cells(row, costs)] for rank, row in enumerate(found.rows, start=1)]
    rows.append(["–", *_cells(found.baseline, costs)])
    rows[-1][1] = f"equal batches ({found.baseline.candidate.method.name})"
    widths = [max(len(cells[column]) for cells in (heads, *rows)) for column in range(len(heads))]
    for cells in (heads, *rows):
        yield "  ".join(f"{cell:{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()


def _cells(row: Row, costs: bool) -> list[str]:
    rate = f", rates × {row.candidate.factor:.2g}" if row.candidate.factor != 1 else ""
    reached = row.seconds.num_known
    seconds = str(row.seconds) if row.seconds.mean is not None else f"reached by {reached} of {row.seconds.num_runs}"
    cost = ["–" if row.cost is None else f"{row.cost:.3g}"] if costs else []
    return [row.candidate.label + rate, seconds, "–" if row.gain.mean is None else f"× {row.gain}", *cost, row.why]


def _remarks(found: Advice) -> Iterator[str]:
    best = found.rows[0] if found.rows else found.baseline
    if best.seconds.mean is None:
        yield f"nothing reached {found.goal} in all its runs, in twice the time of {formatted(found.epochs)} epochs of equal batches: " + (
            "ask for less, or for more epochs by budget.epochs"
        )
        return
    for rank, row in enumerate(found.rows, start=1):
        if row.alike:
            yield f"as long as {rank} take: {', '.join(row.alike)}"
    if any(row.candidate.leave_out for row in found.rows):
        yield "leave slow nodes out: the best does" if best.candidate.leave_out else "the best keeps all nodes"
    else:
        yield "no node is better left out"
    if found.goal is None:
        yield "time alone does not say how fast the loss falls: ask without the word timing"
        if (same := found.synchronous) is not None and same is not best:
            yield f"the fastest that trains as equal batches do: {same.candidate.label}, × {same.gain}"
    if found.error is not None:
        yield f"the calibration's hold-out error, {100 * found.error:.1f} %, is in the intervals of seconds, not in those of gains"
    yield f"run it: {checks.printable(best.command)}"
