"""The results of `hetsim.run` and the other calls: a run, a comparison, a table, a search, an advice, and stragglers."""

from __future__ import annotations

import importlib.util
import io
import os
from abc import ABC
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from hetsim.answers.answer import Answer
from hetsim.answers.files import write_pictures
from hetsim.answers.html import article
from hetsim.answers.text import markdown, terminal
from hetsim.checks import printable
from hetsim.files.config_file import read_config
from hetsim.files.summary_and_curve import check_has, curve_table
from hetsim.reports.run import answer as answer_about_run
from hetsim.results.comparison.findings import ComparedNumber, Findings, Staleness
from hetsim.results.reading.intervals import read_intervals, read_trace
from hetsim.results.tables.files import arrow, write
from hetsim.results.tables.rows import TableRow
from hetsim.results.tables.table import Ranking
from hetsim.results.writing.describe import describe
from hetsim.results.writing.figures import own_style, save, timeline

P = ParamSpec("P")
R = TypeVar("R")


def printable_errors(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function to escape control characters in its errors, because errors quote folder names from unknown sources."""

    @wraps(function)
    def called(*arguments: P.args, **options: P.kwargs) -> R:
        try:
            return function(*arguments, **options)
        except ValueError as error:
            if str(error).isprintable():
                raise
            raise ValueError(printable(str(error))) from None

    return called


class Answered(ABC):
    """Results that a notebook shows as a report, and a terminal as text."""

    answer: Answer

    def _repr_html_(self) -> str | None:
        """The report as HTML for a notebook. None if the files are gone; the notebook then shows the text."""
        try:
            return article(self.answer)
        except (OSError, ValueError):
            return None

    def __repr__(self) -> str:
        return terminal(self.answer)


def as_pandas(table: Any) -> Any:
    """An Arrow table as a data frame. Raises ValueError if pandas is not installed."""
    if importlib.util.find_spec("pandas") is None:
        raise ValueError("to_pandas needs the package pandas: pip install pandas")
    return table.to_pandas()


def as_picture(figure: Any) -> Any:
    """The same figure, which a notebook shows as a picture: by itself, Jupyter shows only figures of pyplot."""
    if figure is not None:
        figure._repr_png_ = partial(_png, figure)
    return figure


def _png(figure: Any) -> bytes:
    image = io.BytesIO()
    save(figure, image)
    return image.getvalue()


@dataclass(frozen=True, repr=False)
class Run(Answered):
    """A finished run, with its `folder` and the numbers of its summary.json (`summary`). It reads its other files on demand."""

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

        `.to_pandas()` converts it to a data frame.

        Raises:
            ValueError: the run has no trace (trace=none).
        """
        return read_trace(self.folder / "trace.parquet", num_workers=self.summary.get("num_workers"))

    @printable_errors
    def curve(self) -> Any:
        """The learning curve, as an Arrow table: seconds, version, samples, training loss, test accuracy, and your own metrics."""
        return curve_table(self.folder)

    @printable_errors
    def to_pandas(self) -> Any:
        """The learning curve as a data frame."""
        return as_pandas(self.curve())

    @property
    def answer(self) -> Answer:  # type: ignore[override]
        """The report: tables, pictures, remarks and the command."""
        return answer_about_run(self.folder)

    @printable_errors
    def timeline(self) -> Any:
        """A matplotlib figure of the first steps: which rank computes, updates, communicates or waits. None if the run has no step."""
        check_has(self.folder, self.summary, "method", "cluster", "workload", "num_workers")
        size = self.summary["num_workers"]
        steps = read_intervals(self.folder / "trace.parquet", num_workers=size)
        with own_style():
            return as_picture(timeline([(f"{self.summary['method']} on {self.summary['cluster']}", steps)], num_workers=size))

    def __repr__(self) -> str:
        return f"{describe(self.summary)}\n  files in {printable(os.path.relpath(self.folder))}"


@dataclass(frozen=True, repr=False)
class Comparison(Answered):
    """A comparison of two sides; each side is a run or its repeats. A simulated side comes before a measured one."""

    answer: Answer
    """The report: tables, pictures, remarks and data."""
    found: Findings
    """All results, as `hetsim.results.comparison` returns them."""

    @property
    def names(self) -> tuple[str, str]:
        """The names of both sides."""
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
        """The rows of the comparison. Each row contains the name and key of a number, both means, and `(first − second) / |second|`.

        - `first_estimate` and `second_estimate` contain the 95 % intervals (`low`, `high`).
        - `spread` is the spread of the second side's own numbers, relative to their mean. It is None without repeats.
        - `within_spread` is true if the error is no larger than the spread. It is None without repeats.

        The relative difference is None if it has no meaning.
        """
        return [{"key": row.key, **_entries(row), "relative_error": row.error} for row in self.found.numbers]

    @property
    def components(self) -> list[dict[str, Any]]:
        """Similar rows for each component's share of the workers' time. The difference and the spread are in `percentage_points`."""
        return [{**_entries(row), "percentage_points": row.error} for row in self.found.components]

    @property
    def staleness(self) -> Staleness | None:
        """Both distributions of staleness, their means and their Wasserstein distance. None without traces or without contributions."""
        return self.found.staleness

    @property
    def intervals(self) -> list[dict[str, Any]]:
        """For each kind of interval: how many occur per update, how long they are in seconds, and the differences."""
        return list(map(asdict, self.found.intervals))

    @property
    def different(self) -> dict[str, tuple[Any, Any]]:
        """The keys in which the configs differ, except keys that may differ in a comparison."""
        return self.found.sides.different

    @printable_errors
    def draw(self, folder: str | Path) -> None:
        """Draw the curves of all runs, and a timeline of each side.

        Args:
            folder: the folder for curve.png and timeline.png.
        """
        write_pictures(self.answer, Path(folder), "hetsim-compare")


def _entries(row: ComparedNumber) -> dict[str, Any]:
    return {
        "name": row.name,
        "share": row.is_share,
        "first": row.first.mean,
        "second": row.second.mean,
        "first_estimate": row.first,
        "second_estimate": row.second,
        "spread": row.spread,
        "within_spread": row.is_within_spread,
    }


@dataclass(frozen=True, repr=False)
class Table(Answered):
    """Runs side by side, as in `hetsim-table`. Each config has one row. Within each cluster, the best row comes first."""

    answer: Answer
    """The report: tables, a picture and remarks."""
    ranking: Ranking
    """The groups of rows with all their numbers."""

    @property
    def remarks(self) -> list[str]:
        """Remarks to read before you compare rows, one sentence each."""
        return list(self.ranking.remarks)

    def __iter__(self) -> Iterator[TableRow]:
        """The rows, cluster by cluster. The best row of each cluster comes first."""
        return iter(self.ranking.rows)

    def to_arrow(self) -> Any:
        """The table as an Arrow table, with the columns of table.parquet. `.to_pandas()` converts it to a data frame."""
        return arrow(self.ranking)

    def to_pandas(self) -> Any:
        """The table as a data frame."""
        return as_pandas(self.to_arrow())

    def picture(self) -> Any:
        """A matplotlib figure with a point and an interval for each row, and the baseline."""
        return as_picture(self.answer.pictures[0].draw())

    def write(self, folder: str | Path) -> None:
        """Write table.md, table.csv, table.parquet and table.png.

        Args:
            folder: the folder for these files.
        """
        write(self.ranking, Path(folder))

    def __repr__(self) -> str:
        return "\n".join([markdown(self.answer).rstrip("\n"), *([""] if self.remarks else []), *self.remarks])


@dataclass(frozen=True, repr=False)
class Search(Answered):
    """A finished search, with its `folder` and its best trial."""

    answer: Answer
    """The report: the best trial, and a table of all trials."""
    folder: Path
    value: float | None
    """The best trial's objective, averaged over its seeds. None if no trial reached a value."""
    words: tuple[str, ...]
    """The arguments for `hetsim.run` that run the best trial."""

    @property
    def trials(self) -> Any:
        """All trials, as an Arrow table with number, state, objective, and the value of each key."""
        from pyarrow import csv

        return csv.read_csv(self.folder / "trials.csv")

    def to_pandas(self) -> Any:
        """All trials as a data frame."""
        return as_pandas(self.trials)


@dataclass(frozen=True, repr=False)
class Advice(Answered):
    """Candidates for a cluster, ranked by `hetsim-advise`."""

    answer: Answer
    """The report: tables, a picture and remarks."""
    words: tuple[str, ...]
    """The arguments for `hetsim.run` that run the recommended candidate in real processes."""

    @property
    def data(self) -> Mapping[str, Any]:
        """The output of `hetsim-advise --json`: `rows` (the best first), `baseline`, `split`, `goal` and further keys."""
        return self.answer.data

    def to_pandas(self) -> Any:
        """The rows as a data frame. The best row comes first."""
        import pyarrow as pa

        return as_pandas(pa.Table.from_pylist(self.data["rows"]).flatten())

    def picture(self) -> Any:
        """A matplotlib figure with the expected seconds, their intervals, and plain DDP."""
        return as_picture(self.answer.pictures[0].draw())


@dataclass(frozen=True, repr=False)
class Stragglers(Answered):
    """The slow ranks of a job, as found by `hetsim-stragglers`."""

    answer: Answer
    """The report: tables, a picture and remarks."""

    @property
    def data(self) -> Mapping[str, Any]:
        """The output of `hetsim-stragglers --json`: `stragglers` (the most costly first), `replay`, `verdict` and further keys."""
        return self.answer.data

    def picture(self) -> Any:
        """A matplotlib figure with the heat map of ranks and steps."""
        return as_picture(self.answer.pictures[0].draw())
