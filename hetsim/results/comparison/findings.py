"""All results of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hetsim.results.comparison.numbers import numbers
from hetsim.results.comparison.sides import Sides, sides
from hetsim.results.comparison.staleness import Staleness, staleness
from hetsim.results.comparison.where import components, intervals, sentence


@dataclass(frozen=True)
class Findings:
    """The numbers of both sides, and where their time went. The latter is empty unless both sides have traces."""

    sides: Sides
    numbers: list[dict[str, Any]]
    components: list[dict[str, Any]]
    staleness: Staleness | None
    intervals: list[dict[str, Any]]
    where: str
    """One sentence: the largest differences in the seconds of an update."""
    remarks: list[str]


def compare(first: Sequence[Path], second: Sequence[Path]) -> Findings:
    """Compare the runs in these folders. Raises ValueError if they cannot be compared."""
    both = sides(first, second)
    remarks = list(both.remarks)
    one, other = ([use for use in side.uses if use is not None] for side in both.both)
    if without := " and ".join(side.name for side in both.both if None in side.uses):
        remarks.append(f"where the time went is not compared: {without} has a run without intervals in its trace.parquet (trace=full)")
        return Findings(both, numbers(both), [], None, [], "", remarks)
    return Findings(
        sides=both,
        numbers=numbers(both),
        components=components(one, other),
        staleness=staleness([use.staleness for use in one], [use.staleness for use in other]),
        intervals=intervals(one, other),
        where=sentence(one, other, both.names),
        remarks=remarks,
    )


def document(found: Findings) -> dict[str, Any]:
    """The findings as JSON data. Times are in seconds, shares from 0 to 1, errors relative or in percentage points."""
    names = found.sides.names
    told = found.staleness
    return {
        "runs": {side.name: str(side.folders[0]) if side.num_runs == 1 else list(map(str, side.folders)) for side in found.sides.both},
        "different": list(found.sides.different),
        "numbers": {row["key"]: _row(row, names, "relative_error") for row in found.numbers},
        "repeats": {row["key"]: _spread(row, names) for row in found.numbers},
        "components": {row["name"]: _row(row, names, "percentage_points") | _spread(row, names) for row in found.components},
        "staleness": None if told is None else _staleness(told, names),
        "intervals": {
            row["name"]: {names[0]: row["first"], names[1]: row["second"], **{part: row[part] for part in ("by_length", "by_number")}}
            for row in found.intervals
        },
        "where": found.where,
    }


def _row(row: dict[str, Any], names: tuple[str, str], error: str) -> dict[str, Any]:
    return {names[0]: row["first"], names[1]: row["second"], error: row[error]}


def _spread(row: dict[str, Any], names: tuple[str, str]) -> dict[str, Any]:
    """Both intervals, and whether the error is no larger than the spread of the second side."""
    bounds = {f"{name}_interval": row[f"{side}_estimate"].bounds for name, side in zip(names, ("first", "second"), strict=True)}
    return {**bounds, "spread": row["spread"], "within_spread": row["within_spread"]}


def _staleness(told: Staleness, names: tuple[str, str]) -> dict[str, Any]:
    counts = {name: {str(value): count for value, count in its.items()} for name, its in zip(names, (told.first, told.second), strict=True)}
    return {
        "contributions": counts,
        "mean": dict(zip(names, told.means, strict=True)),
        "wasserstein_distance": told.distance,
        "relative_distance": told.relative_distance,
        "spread": told.spread,
        "within_spread": told.within_spread,
    }
