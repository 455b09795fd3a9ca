"""Read the files of a finished run."""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from hetsim.files.reading import MAX_NUMBER, REMEDY, brief, from_json, is_number, read_text, shown
from hetsim.files.schema import check_kinds, missing_keys

NUMBERS = {
    # what a number is called in a comparison: where it stands in summary.json
    "updates/s": "updates_per_second",
    "samples/s": "samples_per_second",
    "mean staleness": "staleness_mean",
    "idle share": "idle_share",
    "final loss": "final.train_loss",
    "final accuracy": "final.test_accuracy",
}
MAX_CURVE_BYTES = 10**7
"""The maximum length of a curve.csv, enough for 100,000 evaluations."""
LossPoint: TypeAlias = tuple[float, float | None, float | None]
"""A point of a learning curve: seconds of the run's clock, training loss, test accuracy."""
COLUMNS = ("seconds", "train_loss", "test_accuracy")
"""The columns of every curve.csv, besides the counts of versions and samples. Further columns are a workload's own metrics."""

Point: TypeAlias = tuple[float, Mapping[str, float | None]]
"""Seconds of a run's clock, and the evaluated numbers by name; None for a missing number."""
Curve: TypeAlias = Sequence[Point]


def read_summary(run: Path) -> dict[str, Any]:
    """The summary in a run's folder. Raises ValueError if it is missing or invalid."""
    if not run.is_dir():
        raise ValueError(f"{run} is not the folder of a finished run: give one that contains a summary.json")
    path = run / "summary.json"
    summary = from_json(str(path), read_text(path))
    check_summary(path, summary)
    return dict(summary)


def check_summary(path: Path, summary: Any) -> None:
    """Raise ValueError for an invalid summary."""
    check_kinds(path, summary)
    missing = [name for name, key in NUMBERS.items() if missing_keys(summary, [key])]
    if missing:
        raise ValueError(f"{path} lacks {', '.join(missing)}: give the folder of a run of this version of hetsim")


def check_has(run: Path, summary: Mapping[str, Any], *keys: str) -> None:
    """Raise ValueError if the summary lacks one of these keys. A Team's summary lacks some."""
    if missing := missing_keys(summary, keys):
        raise ValueError(f"{run} is not a run of this version of hetsim: it lacks {', '.join(missing)}; move it elsewhere")


def read_curve(run: Path) -> list[LossPoint]:
    """The learning curve of a run: seconds of its clock, training loss, test accuracy; None for a missing number."""
    return [(seconds, numbers["train_loss"], numbers["test_accuracy"]) for seconds, numbers in read_points(run)]


def read_points(run: Path) -> Curve:
    """The learning curve of a run with all evaluated numbers."""
    path = run / "curve.csv"
    try:
        head, *rows = csv.reader(read_text(path, max_bytes=MAX_CURVE_BYTES).splitlines() or [""])
    except csv.Error as error:
        raise ValueError(f"{path} cannot be read as CSV ({brief(error)}): {REMEDY}") from None
    if missing := [name for name in COLUMNS if name not in head]:
        raise ValueError(f"{path} lacks {', '.join(missing)}: {REMEDY}")
    if wrong := [name for name in head if not name.isidentifier()] + [name for name in head if head.count(name) > 1]:
        raise ValueError(f"{path} has the column {shown(wrong[0])}, and must have each by one name of letters, digits and _: {REMEDY}")
    points = [_point(f"{path}, line {line}", head, dict(zip(head, row, strict=False))) for line, row in enumerate(rows, 2) if row]
    for (start, _), (end, _) in itertools.pairwise(points):
        if end < start:
            raise ValueError(f"{path} goes back from {start} to {end} seconds, as no curve of a run does: {REMEDY}")
    return points


def curve_table(run: Path) -> Any:
    """The learning curve of a run as an Arrow table with all columns. Missing numbers are null."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    points = read_points(run)  # its sentences say what is wrong, and where
    path = run / "curve.csv"
    judged = points[0][1] if points else {}
    kinds = {"version": pa.int64(), "samples": pa.int64(), **dict.fromkeys((*COLUMNS, *judged), pa.float64())}
    try:
        return arrow_csv.read_csv(path, convert_options=arrow_csv.ConvertOptions(column_types=kinds))
    except pa.ArrowException as error:
        raise ValueError(f"{path} cannot be read as CSV ({brief(error)}): {REMEDY}") from None


def _point(place: str, head: Sequence[str], row: Mapping[str, str]) -> Point:
    numbers = {name: _number(place, name, row.get(name)) for name in head if name not in ("version", "samples")}
    seconds = numbers.pop("seconds")
    if not is_number(seconds):
        raise ValueError(f"{place}: seconds must be a number of at most {MAX_NUMBER:g}, not {shown(row['seconds'])}: {REMEDY}")
    return seconds, numbers


def _number(place: str, name: str, text: str | None) -> float | None:
    """The number in a field; None for an empty field. A loss may be infinite or NaN if training diverged."""
    if text is None:
        raise ValueError(f"{place} has no {name}: {REMEDY}")
    try:
        return float(text) if text else None
    except ValueError:
        raise ValueError(f"{place}: {name} must be a number, not {shown(text)}: {REMEDY}") from None


def time_to(points: Sequence[LossPoint], *, accuracy: float | None = None, loss: float | None = None) -> float | None:
    """The time at which a learning curve first reached this test accuracy or training loss; None if it never did.

    The time is in seconds of the run's clock, interpolated between this evaluation and the previous one.
    """
    column, sign, goal = (2, 1.0, accuracy) if accuracy is not None else (1, -1.0, loss)
    assert goal is not None
    previous: tuple[float, float] | None = None
    for point in points:
        seconds, value = point[0], point[column]
        if value is None or not math.isfinite(value):
            continue
        if sign * value >= sign * goal:
            return seconds if previous is None else _crossing(previous, (seconds, value), goal)
        previous = seconds, value
    return None


def _crossing(previous: tuple[float, float], current: tuple[float, float], goal: float) -> float:
    (start, low), (end, high) = previous, current
    return start + (end - start) * (goal - low) / (high - low)


def highest_accuracy(points: Sequence[LossPoint]) -> float | None:
    """The highest test accuracy of a learning curve; None if there is none."""
    return max((accuracy for _, _, accuracy in points if accuracy is not None), default=None)


def value_at(points: Sequence[LossPoint], moment: float, column: int) -> float | None:
    """The interpolated value of a column at this moment. None if the run had ended, or the column has no number there."""
    numbers = [(point[0], value) for point in points if (value := point[column]) is not None]
    for (start, first), (end, second) in itertools.pairwise(numbers):
        if start <= moment <= end:
            share = (moment - start) / (end - start) if end > start else 1.0
            return (1 - share) * first + share * second
    return next((value for seconds, value in numbers if seconds == moment), None)
