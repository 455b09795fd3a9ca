"""What `hetsim.run` and its relatives return: a run, two beside each other, many as a table, and a search."""

from __future__ import annotations

import importlib.util
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from hetsim.checks import printable
from hetsim.reports import of_comparison, of_run
from hetsim.reports.page import Page, Sheet, article
from hetsim.results.comparison.findings import Findings
from hetsim.results.comparison.pictures import drawing
from hetsim.results.comparison.staleness import Staleness
from hetsim.results.comparison.text import render
from hetsim.results.reading.config_file import read_config
from hetsim.results.reading.finished import check_has, curve_table
from hetsim.results.reading.intervals import read_intervals, read_trace
from hetsim.results.tables.files import arrow, html, markdown, write
from hetsim.results.tables.picture import picture
from hetsim.results.tables.rows import Row
from hetsim.results.tables.table import Table as Ranking
from hetsim.results.writing.describe import describe
from hetsim.results.writing.figures import own_style, timeline

P = ParamSpec("P")
R = TypeVar("R")


def printable_errors(function: Callable[P, R]) -> Callable[P, R]:
    """The same function, in whose errors control characters are written out: they quote names of folders, which may be a stranger's."""

    @wraps(function)
    def called(*arguments: P.args, **options: P.kwargs) -> R:
        try:
            return function(*arguments, **options)
        except ValueError as error:
            if str(error).isprintable():
                raise
            raise ValueError(printable(str(error))) from None

    return called


class InNotebooks(ABC):
    """What a notebook shows as a report."""

    @abstractmethod
    def _page(self) -> Page:
        """The report."""

    def _repr_html_(self) -> str | None:
        """What a notebook shows; None, for which it shows the text, if the files have gone."""
        try:
            return article(self._page())
        except (OSError, ValueError):
            return None


def as_pandas(table: Any) -> Any:
    """An Arrow table as a data frame. ValueError with one sentence if pandas is not installed."""
    if importlib.util.find_spec("pandas") is None:
        raise ValueError("to_pandas needs the package pandas: pip install pandas")
    return table.to_pandas()


@dataclass(frozen=True, repr=False)
class Run(InNotebooks):
    """A finished run: its `folder`, and the numbers of its summary.json, as `summary`. Its other files are read on demand."""

    folder: Path
    summary: dict[str, Any]

    @property
    @printable_errors
    def config(self) -> dict[str, Any]:
        """The resolved config."""
        return read_config(self.folder)

    @printable_errors
    def trace(self) -> Any:
        """The trace, as an Arrow table: one row for each interval, with start and end in seconds, rank and kind.

        `.to_pandas()` makes a data frame of it.

        Raises:
            ValueError: the run has no trace (trace=none).
        """
        return read_trace(self.folder / "trace.parquet", num_workers=self.summary.get("num_workers"))

    @printable_errors
    def curve(self) -> Any:
        """The learning curve, as an Arrow table: seconds of the run, version, samples, training loss, test accuracy, own metrics."""
        return curve_table(self.folder)

    @printable_errors
    def to_pandas(self) -> Any:
        """The learning curve as a data frame."""
        return as_pandas(self.curve())

    def _page(self) -> Page:
        return of_run.page(self.folder)

    @printable_errors
    def timeline(self) -> Any:
        """Who computes, updates, communicates and waits in the first steps, as a matplotlib figure; None if the run has no step."""
        check_has(self.folder, self.summary, "method", "cluster", "workload", "num_workers")
        size = self.summary["num_workers"]
        steps = read_intervals(self.folder / "trace.parquet", num_workers=size)
        with own_style():
            return timeline([(f"{self.summary['method']} on {self.summary['cluster']}", steps)], num_workers=size)

    def __repr__(self) -> str:
        return f"{describe(self.summary)}\n  files in {printable(os.path.relpath(self.folder))}"


@dataclass(frozen=True, repr=False)
class Comparison(InNotebooks):
    """Two sides, each a run or repeats of one, number by number: the simulated side first if the other is measured."""

    found: Findings
    """All that was found, as `hetsim.results.comparison` has it."""

    @property
    def names(self) -> tuple[str, str]:
        """What the sides are called."""
        return self.found.sides.names

    @property
    def sides(self) -> tuple[list[Run], list[Run]]:
        """The runs of both sides."""
        first, second = (list(map(Run, side.folders, side.summaries)) for side in self.found.sides.both)
        return first, second

    @property
    def runs(self) -> tuple[Run, Run]:
        """The first run of each side."""
        first, second = self.sides
        return first[0], second[0]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of the comparison: for each number its name, its key, both means, and `(first − second) / |second|`.

        - `first_estimate` and `second_estimate` have the 95 % intervals (`low`, `high`).
        - `spread` is how far the second side's own numbers are apart, relative to their mean. It is None without repeats.
        - `within_spread` says whether the error is no larger than the spread. It is None without repeats.

        The relative difference is None where it has no meaning.
        """
        return self.found.numbers

    @property
    def components(self) -> list[dict[str, Any]]:
        """The same of each component's share of the workers' time, with the difference, and the spread, in `percentage_points`."""
        return self.found.components

    @property
    def staleness(self) -> Staleness | None:
        """Both distributions of staleness, their means and their Wasserstein distance; None without traces, or contributions."""
        return self.found.staleness

    @property
    def intervals(self) -> list[dict[str, Any]]:
        """Of each kind of interval how many there are per update and how long they are, in seconds, with the differences."""
        return self.found.intervals

    @property
    def different(self) -> dict[str, tuple[Any, Any]]:
        """The keys in which the configs differ, except those that may differ in a comparison."""
        return self.found.sides.different

    def _page(self) -> Page:
        return of_comparison.page(self.found, "")()

    @printable_errors
    def draw(self, folder: str | Path) -> None:
        """Draw the curves of all runs, and a timeline of each side.

        Args:
            folder: the folder for curve.png and timeline.png.
        """
        drawing(self.found.sides)(Path(folder))

    def __repr__(self) -> str:
        remarks = [*(f"the runs differ in {key}: {one} and {other}" for key, (one, other) in self.different.items()), *self.found.remarks]
        return "\n".join([render(self.found), *map(printable, remarks)])


@dataclass(frozen=True, repr=False)
class Table:
    """Runs side by side, as `hetsim-table` has them: a row for each config, ranked within its cluster, the best first."""

    ranking: Ranking
    """The groups of rows with all their numbers."""

    @property
    def remarks(self) -> list[str]:
        """What is to be known before the rows are compared, a sentence each."""
        return list(self.ranking.remarks)

    def __iter__(self) -> Iterator[Row]:
        """The rows, cluster by cluster, the best of each first."""
        return iter(self.ranking.rows)

    def to_arrow(self) -> Any:
        """The table as an Arrow table, with the columns of table.parquet. `.to_pandas()` makes a data frame of it."""
        return arrow(self.ranking)

    def to_pandas(self) -> Any:
        """The same as a data frame."""
        return as_pandas(self.to_arrow())

    def picture(self) -> Any:
        """A matplotlib figure: a point and an interval for each row, and the baseline."""
        with own_style():
            return picture(self.ranking)

    def write(self, folder: str | Path) -> None:
        """Write table.md, table.csv, table.parquet and table.png.

        Args:
            folder: the folder for these files.
        """
        write(self.ranking, Path(folder))

    def __repr__(self) -> str:
        return "\n".join([markdown(self.ranking).rstrip("\n"), *([""] if self.remarks else []), *self.remarks])

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return html(self.ranking)


@dataclass(frozen=True, repr=False)
class Search(InNotebooks):
    """A finished search: its `folder`, and its best trial."""

    folder: Path
    value: float | None
    """The best trial's number, the mean over its seeds; None if no trial has one."""
    words: tuple[str, ...]
    """The words that run the best trial, for `hetsim.run`."""
    _said: str

    @property
    def trials(self) -> Any:
        """All trials, as an Arrow table: number, state, objective, and the value of each key."""
        from pyarrow import csv

        return csv.read_csv(self.folder / "trials.csv")

    def to_pandas(self) -> Any:
        """All trials as a data frame."""
        return as_pandas(self.trials)

    def _page(self) -> Page:
        trials = self.trials
        rows = [[str(value) for value in row.values()] for row in trials.to_pylist()]
        return Page(question="Which values are best?", answer=self._said, sheets=[Sheet("Trials", trials.column_names, rows)])

    def __repr__(self) -> str:
        return self._said


@dataclass(frozen=True, repr=False)
class Advice(InNotebooks):
    """Candidates for a cluster, ranked by `hetsim-advise`."""

    data: dict[str, Any]
    """What `hetsim-advise --json` prints: `rows`, the best first, `baseline`, `goal` and the rest."""
    words: tuple[str, ...]
    """The words that run the recommended candidate for real, for `hetsim.run`."""
    _said: str
    _drawn: Callable[[], Any]
    _reported: Callable[[], Page]

    def to_pandas(self) -> Any:
        """The rows as a data frame, the best first."""
        import pyarrow as pa

        return as_pandas(pa.Table.from_pylist(self.data["rows"]).flatten())

    def _page(self) -> Page:
        return self._reported()

    def picture(self) -> Any:
        """A matplotlib figure: expected seconds with their intervals, and plain DDP."""
        with own_style():
            return self._drawn()

    def __repr__(self) -> str:
        return self._said
