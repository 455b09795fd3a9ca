"""The findings of a comparison as text: tables, and a sentence at the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from hetsim.checks import printable
from hetsim.results.comparison.findings import Findings
from hetsim.results.comparison.staleness import Staleness
from hetsim.results.comparison.where import WITHIN, Unit, signed
from hetsim.results.tables.estimates import Estimate
from hetsim.results.writing.describe import formatted
from hetsim.runtime.recording.metrics import percentile

MAX_VALUES = 8
"""The maximum number of values of staleness to list. For more values, percentiles are listed."""
PERCENTILES = (5, 25, 50, 75, 95, 100)
SPREAD = ("spread",)
"""The head of one more column if a side has repeats."""
Line = Sequence[str]


class Section(NamedTuple):
    """A table of a comparison, whose first lines are the heads, and a sentence below it."""

    title: str
    lines: Sequence[Line]
    least: Sequence[int]
    """The minimum widths of the columns."""
    below: str = ""


def render(found: Findings) -> str:
    """The tables of numbers, components, staleness and intervals. Without traces, only the numbers."""
    return "\n".join([*about(found), *map(_table, sections(found)), found.where]).rstrip("\n")


def sections(found: Findings) -> list[Section]:
    """The tables. Without traces, only the table of the numbers."""
    made = [_numbers(found)]
    if found.components:
        made.append(_components(found))
    if found.staleness is not None:
        made.append(_staleness(found, found.staleness))
    if found.intervals:
        made.append(_intervals(found))
    return made


def about(found: Findings) -> Iterator[str]:
    """The numbers of runs if a side has several, and the meaning of the mark."""
    if found.sides.repeats:
        for side in found.sides.both:
            runs = f"{side.num_runs} runs, means with 95 % intervals" if side.num_runs > 1 else "1 run"
            yield printable(f"{side.name}: {runs}; seed {', '.join(map(str, side.seeds))}")  # a config's may be anything
        second = found.sides.second
        if second.num_runs > 1:
            yield f"spread: how far the {second.name} runs are apart; an error that is no larger is (within) it, and not claimed"
        yield ""


def _numbers(found: Findings) -> Section:
    names, repeats = found.sides.names, found.sides.repeats
    title = "relative error" if names[1] == "measured" else "first vs. second"
    lines = []
    for row in found.numbers:
        error, spread = in_points(row) if row["share"] else (_percent(row["relative_error"], "+"), _percent(row["spread"]))
        sides = [formatted(row[name]) for name in ("first", "second")]
        line = [row["name"], *(map(str, _estimates(row)) if repeats else sides), error + _mark(row), spread]
        lines.append(line if repeats else line[:-1])
    return Section("Numbers", [("", *names, title, *SPREAD[:repeats]), *lines], (16, 14, 14, 18, 10))


def in_points(row: dict[str, Any]) -> tuple[str, str]:
    """The error and the spread of a share, in percentage points."""
    first, second, spread = row["first"], row["second"], row["spread"]
    known = first is not None and second is not None
    return f"{100 * (first - second):+.2f} pp" if known else "–", "–" if spread is None else f"{100 * spread * abs(second):.2f} pp"


def _components(found: Findings) -> Section:
    repeats = found.sides.repeats
    lines = []
    for row in found.components:
        if row["name"] != "absent" or row["first"] or row["second"]:
            spread = "–" if row["spread"] is None else f"{row['spread']:.2f} pp"
            sides = [str(_in_percent(share)) for share in _estimates(row)]
            line = [row["name"], *sides, f"{signed(row['percentage_points'])} pp{_mark(row)}", spread]
            lines.append(line if repeats else line[:-1])
    heads = ("% of the time", *found.sides.names, "difference", *SPREAD[:repeats])
    return Section("Where the time went", [heads, *lines], (16, 14, 14, 18, 10))


def _estimates(row: dict[str, Any]) -> tuple[Estimate, Estimate]:
    return row["first_estimate"], row["second_estimate"]


def _in_percent(share: Estimate) -> Estimate:
    mean, low, high = (None if value is None else 100 * value for value in (share.mean, share.low, share.high))
    return replace(share, mean=mean, low=low, high=high)


def _staleness(found: Findings, told: Staleness) -> Section:
    sides = told.first, told.second
    values = sorted({*told.first, *told.second})
    if len(values) <= MAX_VALUES:
        shares = [[f"{100 * its.get(value, 0) / sum(its.values()):.2f} %" for its in sides] for value in values]
        lines = [(f"of staleness {value}", *share) for value, share in zip(values, shares, strict=True)]
    else:
        lines = [(f"p{percent}", *(str(percentile(its, percent)) for its in sides)) for percent in PERCENTILES]
    lines.append(("mean", *map(formatted, told.means)))
    relative = told.relative_distance
    distance = f"Wasserstein distance of the distributions: {formatted(told.distance)} versions"
    distance += "" if relative is None else f", {100 * relative:.2f} % of the {found.sides.second.name} mean"
    if told.spread is not None:
        distance += f"; between {found.sides.second.name} runs up to {formatted(told.spread)}{WITHIN if told.within_spread else ''}"
    return Section("Staleness", [("contributions", *found.sides.names), *lines], (16, 14, 14), distance)


def _intervals(found: Findings) -> Section:
    unit = Unit(max(abs(row[part]) for row in found.intervals for part in ("by_length", "by_number")))
    lines = []
    for row in found.intervals:
        sides = row["first"], row["second"]
        counts = [formatted(side["per_update"]) for side in sides]
        means = [Unit(side["mean_seconds"]).said(side["mean_seconds"]) if side["per_update"] else "–" for side in sides]
        lines.append((row["name"], *counts, *means, unit.fixed(row["by_length"]), unit.fixed(row["by_number"])))
    heads = ("intervals", "per update:", "", "of length:", "", "difference", "per update:")
    below = ("", *found.sides.names, *found.sides.names, "by length", "by number")
    return Section("Intervals", [heads, below, *lines], (16, 14, 14, 14, 14, 14, 14))


def _percent(share: float | None, sign: str = "") -> str:
    return "–" if share is None else f"{100 * share:{sign}.2f} %"


def _mark(row: dict[str, Any]) -> str:
    return WITHIN if row["within_spread"] else ""


def _table(section: Section) -> str:
    """A table with at least these column widths. The first column is aligned left, all others right."""
    rows = section.lines
    widths = [max(width, *(len(row[place]) + 2 for row in rows)) for place, width in enumerate(section.least[: len(rows[0])])]
    said = (row[0].ljust(widths[0]) + "".join(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)) for row in rows)
    return "\n".join([*map(str.rstrip, said), *([section.below] if section.below else [])]) + "\n"
