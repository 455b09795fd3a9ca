"""The answer of a comparison: tables of numbers, components, staleness and intervals, pictures, and the results as data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from hetsim.answers.answer import Answer, Picture, Sheet
from hetsim.files.reading import shown
from hetsim.files.summary_and_curve import check_has, read_points
from hetsim.results.comparison.findings import WITHIN, ComparedNumber, Findings, Staleness, Unit, signed
from hetsim.results.comparison.sides import Sides
from hetsim.results.reading.intervals import read_intervals
from hetsim.results.tables.estimates import Estimate
from hetsim.results.writing.describe import formatted
from hetsim.results.writing.figures import curves, own_style, timeline
from hetsim.runtime.recording.metrics import percentile

RATE = "updates_per_second"
MAX_VALUES = 8
"""The maximum number of values of staleness to list. For more values, percentiles are listed."""
PERCENTILES = (5, 25, 50, 75, 95, 100)
SPREAD = ("spread",)
"""The head of one more column if a side has repeats."""


def answer(findings: Findings, command: str = "") -> Answer:
    """The answer with these findings. `command` has asked for it."""
    sides = findings.sides
    return Answer(
        question=_question(sides),
        answer=list(_sentences(findings)),
        pictures=[
            Picture("timeline", "The first steps of the first run of each side", partial(_timelines, sides)),
            Picture("curve", "What was evaluated during the runs", partial(_curves, sides)),
        ],
        sheets=list(_sheets(findings)),
        remarks=[*sides.sentences, *findings.remarks, *_warnings(sides)],
        command=command,
        data=_data(findings),
    )


def _question(sides: Sides) -> str:
    first, second = sides.both
    if second.name == "measured":
        return f"How close is the simulation to the measurement of {first.title}?"
    if first.title == second.title:
        return f"How do two sides of {first.title} differ?"
    return f"How do {first.title} and {second.title} differ?"


def _sentences(findings: Findings) -> Iterator[str]:
    rate = next(row for row in findings.numbers if row.key == RATE)
    if rate.error is not None:
        first, second = findings.sides.names
        within = ", which is within the spread of its repeats" if rate.is_within_spread else ""
        yield (
            f"The {first} side makes {formatted(rate.first.mean)} updates/s and the {second} side {formatted(rate.second.mean)}: "
            f"{100 * rate.error:+.2f} %{within}."
        )
    if findings.where:
        yield f"{findings.where[0].upper()}{findings.where[1:]}."


def _warnings(sides: Sides) -> Iterator[str]:
    for side in sides.both:
        warnings = [warning for summary in side.summaries for warning in summary.get("warnings", ())]
        yield from (f"{side.name}: {warning}" for warning in dict.fromkeys(warnings))


def _sheets(findings: Findings) -> Iterator[Sheet]:
    yield _numbers(findings)
    if findings.components:
        yield _components(findings)
    if findings.staleness is not None:
        yield _staleness(findings.sides, findings.staleness)
    if findings.intervals:
        yield _intervals(findings)
    if findings.sides.different:
        rows = [(key, *map(shown, values)) for key, values in findings.sides.different.items()]
        yield Sheet("Keys that differ", ("", *findings.sides.names), rows, max_printed=0)


def _about(sides: Sides) -> Iterator[str]:
    """The numbers of runs if a side has several, and the meaning of the mark."""
    if sides.repeats:
        for side in sides.both:
            runs = f"{side.num_runs} runs, means with 95 % intervals" if side.num_runs > 1 else "1 run"
            yield f"{side.name}: {runs}; seed {', '.join(map(str, side.seeds))}"
        if sides.second.num_runs > 1:
            yield f"spread: how far the {sides.second.name} runs are apart; an error that is no larger is (within) it, and not claimed"


def _numbers(findings: Findings) -> Sheet:
    names, repeats = findings.sides.names, findings.sides.repeats
    head = "relative error" if names[1] == "measured" else "first vs. second"
    rows = []
    for row in findings.numbers:
        error, spread = in_points(row) if row.is_share else (_percent(row.error, "+"), _percent(row.spread))
        sides = [str(side) if repeats else formatted(side.mean) for side in (row.first, row.second)]
        rows.append([row.name, *sides, error + _mark(row), *[spread][:repeats]])
    return Sheet("Numbers", ("", *names, head, *SPREAD[:repeats]), rows, above=list(_about(findings.sides)), widths=(16, 14, 14, 18, 10))


def in_points(row: ComparedNumber) -> tuple[str, str]:
    """The error and the spread of a share, in percentage points."""
    first, second = row.first.mean, row.second.mean
    if first is None or second is None:
        return "–", "–"
    return f"{100 * (first - second):+.2f} pp", "–" if row.spread is None else f"{100 * row.spread * abs(second):.2f} pp"


def _components(findings: Findings) -> Sheet:
    repeats = findings.sides.repeats
    rows = []
    for row in findings.components:
        if row.name != "absent" or row.first.mean or row.second.mean:
            spread = "–" if row.spread is None else f"{row.spread:.2f} pp"
            sides = [str(_in_percent(share)) for share in (row.first, row.second)]
            difference = "–" if row.error is None else f"{signed(row.error)} pp{_mark(row)}"
            rows.append([row.name, *sides, difference, *[spread][:repeats]])
    heads = ("% of the time", *findings.sides.names, "difference", *SPREAD[:repeats])
    return Sheet("Where the time went", heads, rows, widths=(16, 14, 14, 18, 10))


def _in_percent(share: Estimate) -> Estimate:
    mean, low, high = (None if value is None else 100 * value for value in (share.mean, share.low, share.high))
    return replace(share, mean=mean, low=low, high=high)


def _staleness(sides: Sides, staleness: Staleness) -> Sheet:
    distributions = staleness.first, staleness.second
    values = sorted({*staleness.first, *staleness.second})
    if len(values) <= MAX_VALUES:
        shares = [[f"{100 * counts.get(value, 0) / sum(counts.values()):.2f} %" for counts in distributions] for value in values]
        rows = [(f"of staleness {value}", *share) for value, share in zip(values, shares, strict=True)]
    else:
        rows = [(f"p{percent}", *(str(percentile(counts, percent)) for counts in distributions)) for percent in PERCENTILES]
    rows.append(("mean", *map(formatted, staleness.means)))
    relative = staleness.relative_distance
    distance = f"Wasserstein distance of the distributions: {formatted(staleness.distance)} versions"
    distance += "" if relative is None else f", {100 * relative:.2f} % of the {sides.second.name} mean"
    if staleness.spread is not None:
        within = WITHIN if staleness.within_spread else ""
        distance += f"; between {sides.second.name} runs up to {formatted(staleness.spread)}{within}"
    return Sheet("Staleness", ("contributions", *sides.names), rows, below=[distance], widths=(16, 14, 14))


def _intervals(findings: Findings) -> Sheet:
    names = findings.sides.names
    unit = Unit(max(abs(part) for row in findings.intervals for part in (row.by_length, row.by_number)))
    rows = [["", *names, *names, "by length", "by number"]]
    for row in findings.intervals:
        sides = row.first, row.second
        counts = [formatted(side.per_update) for side in sides]
        means = [Unit(side.mean_seconds).unsigned(side.mean_seconds) if side.per_update else "–" for side in sides]
        rows.append([row.name, *counts, *means, unit.fixed(row.by_length), unit.fixed(row.by_number)])
    heads = ("intervals", "per update:", "", "of length:", "", "difference", "per update:")
    return Sheet("Intervals", heads, rows, widths=(16, 14, 14, 14, 14, 14, 14))


def _percent(share: float | None, sign: str = "") -> str:
    return "–" if share is None else f"{100 * share:{sign}.2f} %"


def _mark(row: ComparedNumber) -> str:
    return WITHIN if row.is_within_spread else ""


def _check_titles(sides: Sides) -> None:
    for side in sides.both:
        for run, summary in zip(side.folders, side.summaries, strict=True):
            check_has(run, summary, "method", "cluster", "workload", "num_workers")


def _curves(sides: Sides) -> Any:
    """The curves of all runs, in one panel for each number."""
    _check_titles(sides)
    points = [(side.name, [read_points(run) for run in side.folders]) for side in sides.both]
    with own_style():
        return curves(points, title=" and ".join(dict.fromkeys(side.title for side in sides.both)))


def _timelines(sides: Sides) -> Any:
    """The timelines of both first runs on one axis; None if one of them has no trace."""
    _check_titles(sides)
    traces = [side.folders[0] / "trace.parquet" for side in sides.both]
    sizes = [side.summaries[0]["num_workers"] for side in sides.both]
    if not all(trace.exists() for trace in traces):
        return None
    steps = [read_intervals(trace, num_workers=size) for trace, size in zip(traces, sizes, strict=True)]
    titles = [f"{side.name}: {side.title}" for side in sides.both]
    with own_style():
        return timeline(list(zip(titles, steps, strict=True)), num_workers=max(sizes))


def _data(findings: Findings) -> dict[str, Any]:
    """The findings as JSON values. Errors are relative or in percentage points."""
    names = findings.sides.names
    return {
        "runs": {side.name: str(side.folders[0]) if side.num_runs == 1 else list(map(str, side.folders)) for side in findings.sides.both},
        "different": list(findings.sides.different),
        "numbers": {row.key: _means(row, names) | {"relative_error": row.error} for row in findings.numbers},
        "repeats": {row.key: _spread(row, names) for row in findings.numbers},
        "components": {
            row.name: {**_means(row, names), "percentage_points": row.error, **_spread(row, names)} for row in findings.components
        },
        "staleness": None if findings.staleness is None else _staleness_data(findings.staleness, names),
        "intervals": {
            row.name: {names[0]: asdict(row.first), names[1]: asdict(row.second), "by_length": row.by_length, "by_number": row.by_number}
            for row in findings.intervals
        },
        "where": findings.where,
    }


def _means(row: ComparedNumber, names: tuple[str, str]) -> dict[str, float | None]:
    return {names[0]: row.first.mean, names[1]: row.second.mean}


def _spread(row: ComparedNumber, names: tuple[str, str]) -> dict[str, Any]:
    """Both intervals, and whether the error is no larger than the spread of the second side."""
    bounds = {f"{name}_interval": side.bounds for name, side in zip(names, (row.first, row.second), strict=True)}
    return {**bounds, "spread": row.spread, "within_spread": row.is_within_spread}


def _staleness_data(staleness: Staleness, names: tuple[str, str]) -> dict[str, Any]:
    distributions = zip(names, (staleness.first, staleness.second), strict=True)
    return {
        "contributions": {name: {str(value): count for value, count in counts.items()} for name, counts in distributions},
        "mean": dict(zip(names, staleness.means, strict=True)),
        "wasserstein_distance": staleness.distance,
        "relative_distance": staleness.relative_distance,
        "spread": staleness.spread,
        "within_spread": staleness.within_spread,
    }
