"""What studies share: a table of runs that keeps each one, means and ratios with their intervals, arguments, and how figures look.

A study's scripts import it as `common`; each `run.sh` puts this folder on Python's path.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from scipy.stats import t as student

INK, FADED = "#2b2f36", "#c9ced6"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#2b2f36")
"""Of Okabe and Ito, which differ for all kinds of colour blindness."""
MARKERS = "osD^vPX"
Row = dict[str, str]


class Runs:
    """results.csv: a row for each run, found again by what identifies it; a run that is there is not made again."""

    def __init__(self, path: Path, identity: Sequence[str], found: Sequence[str]) -> None:
        self.path, self.identity, self.columns = path, tuple(identity), (*identity, *found)
        found = rows(path)
        self.rows = {self._key(row): row for row in found if None not in row.values()}
        if len(self.rows) < len(found):  # it was stopped while it wrote a row
            with path.open("w", encoding="utf-8", newline="") as file:
                writer = csv.DictWriter(file, self.columns, lineterminator="\n")
                writer.writeheader()
                writer.writerows(self.rows.values())

    def row(self, identity: Mapping[str, object], make: Callable[[], Mapping[str, object]]) -> Row:
        """The run of this identity: that of the file, or made now and appended."""
        asked = {name: str(identity[name]) for name in self.identity}
        key = self._key(asked)
        if key not in self.rows:
            found = {name: text(value) for name, value in make().items()}
            new, self.rows[key] = not self.path.exists(), asked | found
            with self.path.open("a", encoding="utf-8", newline="") as file:
                writer = csv.DictWriter(file, self.columns, lineterminator="\n")
                if new:
                    writer.writeheader()
                writer.writerow(self.rows[key])
        return self.rows[key]

    def _key(self, row: Mapping[str, str]) -> tuple[str, ...]:
        return tuple(row[name] for name in self.identity)


def rows(path: Path) -> list[Row]:
    """The rows of a CSV file, without its comments; none if there is no such file."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def text(value: object) -> str:
    """A number with five digits; all else as it is."""
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def where(table: Iterable[Row], **values: object) -> list[Row]:
    """The rows that have these values."""
    wanted = {name: str(value) for name, value in values.items()}
    return [row for row in table if all(row[name] == value for name, value in wanted.items())]


@dataclass(frozen=True)
class Interval:
    """A mean, and its 95 % interval by Student's t."""

    mean: float
    low: float
    high: float

    def __format__(self, spec: str) -> str:
        return f"{self.mean:{spec}} ({self.low:{spec}} … {self.high:{spec}})"

    @property
    def bars(self) -> list[list[float]]:
        """As matplotlib's errorbar has them."""
        return [[self.mean - self.low], [self.high - self.mean]]


def interval(values: Sequence[float]) -> Interval:
    """Of numbers that add up: accuracies, differences."""
    mean = float(np.mean(values))
    half = float(student.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0
    return Interval(mean, mean - half, mean + half)


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Ours over theirs, a geometric mean over pairs of runs of the same seed."""
    logs = interval([math.log(one / other) for one, other in zip(ours, theirs, strict=True)])
    return Interval(*(math.exp(value) for value in (logs.mean, logs.low, logs.high)))


def signed(value: float, digits: int) -> str:
    """With a sign, and no −0."""
    return f"{round(value, digits) + 0.0:+.{digits}f}".replace("-", "−")


def change(found: Interval) -> str:
    """A ratio as a change in per cent, bold if its interval does not contain 1."""
    low, mean, high = (signed(100 * (value - 1), 0) for value in (found.low, found.mean, found.high))
    shown = f"{mean} % ({low} … {high})"
    return shown if found.low <= 1 <= found.high else f"**{shown}**"


def gain(found: Interval, digits: int = 1) -> str:
    """A difference of shares in percentage points, bold if its interval does not contain 0."""
    low, mean, high = (signed(100 * value, digits) for value in (found.low, found.mean, found.high))
    shown = f"{mean} ({low} … {high})"
    return shown if found.low <= 0 <= found.high else f"**{shown}**"


def table(head: Sequence[str], body: Iterable[Sequence[object]]) -> str:
    """In Markdown."""
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines).replace("| --- |", "|---|").replace(" --- |", "---|")


def write_tables(folder: Path, tables: Sequence[str]) -> None:
    """tables.md, which a README shows in parts, and the terminal."""
    whole = "\n\n".join(tables) + "\n"
    (folder / "tables.md").write_text(whole, encoding="utf-8")
    print(whole, end="")


def arguments(about: str | None, here: Path, given: Sequence[str] | None, *, runs: bool = False, data: bool = False) -> argparse.Namespace:
    """--folder of every script; --quick of those that run something, --data-root of those that read data."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=here, help="where results.csv is")
    if runs:
        parser.add_argument("--quick", action="store_true", help="a small part of it, on data that need no download")
    if data:
        parser.add_argument(
            "--data-root", default=str(here.parents[1] / "data"), help="the folder that has MNIST/raw, and CIFAR-10 for a study of it"
        )
    asked = parser.parse_args(given)
    asked.folder.mkdir(parents=True, exist_ok=True)
    return asked


def plain(axes: Axes, **labels: Any) -> None:
    """Labels, and no frame but the axes."""
    axes.set(**labels)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    axes.title.set_fontsize(9)
    axes.xaxis.label.set_fontsize(8)
    axes.yaxis.label.set_fontsize(8)
