"""Reading back what a finished run left in its folder."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hetsim.results.run_files import MAX_NUMBER, REMEDY, brief, from_json, is_number, read_text, shown
from hetsim.results.schema import check_kinds, lacking

NUMBERS = {
    # what a number is called in a comparison: where it stands in summary.json
    "updates/s": "updates_per_second",
    "samples/s": "samples_per_second",
    "mean staleness": "staleness_mean",
    "idle share": "idle_share",
    "final loss": "final.train_loss",
    "final accuracy": "final.test_accuracy",
}
COLUMNS = ("seconds", "train_loss", "test_accuracy")
"""What is read of curve.csv."""


def read_summary(run: Path) -> dict[str, Any]:
    """The summary of a run's folder; ValueError with one sentence if there is none, or one that is not as hetsim writes it."""
    if not run.is_dir():
        raise ValueError(f"{run} is no folder of a finished run: give one that holds a summary.json")
    path = run / "summary.json"
    summary = from_json(str(path), read_text(path))
    check_kinds(path, summary)
    missing = [name for name, key in NUMBERS.items() if lacking(summary, [key])]
    if missing:
        raise ValueError(f"{path} lacks {', '.join(missing)}: give the folder of a run of this version of hetsim")
    return dict(summary)


def check_has(run: Path, summary: Mapping[str, Any], *keys: str) -> None:
    """ValueError with one sentence if the summary lacks one of these keys, as those of earlier versions may."""
    if missing := lacking(summary, keys):
        raise ValueError(f"{run} is no run of this version of hetsim: it lacks {', '.join(missing)}; move it elsewhere")


def read_curve(run: Path) -> list[tuple[float, float | None, float | None]]:
    """The learning curve of a run: seconds of its own clock, training loss, test accuracy; None where there is no number."""
    path = run / "curve.csv"
    try:
        head, *rows = csv.reader(read_text(path).splitlines() or [""])
    except csv.Error as error:
        raise ValueError(f"{path} cannot be read as CSV ({brief(error)}): {REMEDY}") from None
    if missing := [name for name in COLUMNS if name not in head]:
        raise ValueError(f"{path} lacks {', '.join(missing)}: {REMEDY}")
    return [_point(f"{path}, line {line}", dict(zip(head, row, strict=False))) for line, row in enumerate(rows, 2) if row]


def curve_table(run: Path) -> Any:
    """The learning curve of a run with all its columns, as an Arrow table; null where there is no number."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    read_curve(run)  # its sentences say what is wrong, and where
    path = run / "curve.csv"
    kinds = {"version": pa.int64(), "samples": pa.int64(), **dict.fromkeys(COLUMNS, pa.float64())}
    try:
        return arrow_csv.read_csv(path, convert_options=arrow_csv.ConvertOptions(column_types=kinds))
    except pa.ArrowException as error:
        raise ValueError(f"{path} cannot be read as CSV ({brief(error)}): {REMEDY}") from None


def _point(what: str, row: Mapping[str, str]) -> tuple[float, float | None, float | None]:
    seconds, loss, accuracy = (_number(what, name, row.get(name)) for name in COLUMNS)
    if not is_number(seconds):
        raise ValueError(f"{what}: seconds must be a number of at most {MAX_NUMBER:g}, not {shown(row['seconds'])}: {REMEDY}")
    return seconds, loss, accuracy


def _number(what: str, name: str, text: str | None) -> float | None:
    """None for an empty field. A loss may be infinite, or no number at all, where training diverged."""
    if text is None:
        raise ValueError(f"{what} has no {name}: {REMEDY}")
    try:
        return float(text) if text else None
    except ValueError:
        raise ValueError(f"{what}: {name} must be a number, not {shown(text)}: {REMEDY}") from None


def seconds_to(run: Path, accuracy: float) -> float | None:
    """When a run's curve first reached this test accuracy, in seconds of the run's own clock; None if it never did."""
    return next((seconds for seconds, _, reached in read_curve(run) if reached is not None and reached >= accuracy), None)
