"""The data of runs in an index, as Arrow columns. Many runs are checked at a time, and unpacked only on demand."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hetsim.files.reading import MAX_NUMBER, is_text
from hetsim.files.schema import IN_TABLES, NAMES, TEXT, is_metric
from hetsim.files.summary_and_curve import LossPoint, highest_accuracy, time_to

CURVE = ("curve_seconds", "train_loss", "test_accuracy")


class Row(NamedTuple):
    """The indexed data of a run: the summary's entries for tables, and the learning curve."""

    summary: Mapping[str, Any]
    config: Mapping[str, Any]
    typed: Mapping[str, str]
    curve: StoredCurve | list[LossPoint]


@cache
def schema() -> Any:
    """The columns."""
    import pyarrow as pa

    text, number = pa.string(), pa.float64()
    return pa.schema(
        {
            "folder": text, "stamp": pa.binary(), "config": text, "typed": text, **dict.fromkeys(NAMES, text), "seed": pa.int64(),
            "diverged": pa.bool_(), **dict.fromkeys(IN_TABLES, number), "final_names": text, "final": pa.list_(number),
            **dict.fromkeys(CURVE, pa.list_(number)),
        }
    )  # fmt: skip


def table_of(rows: Iterable[tuple[str, bytes, Row]]) -> Any:
    """The table of these rows: folder, stamp of the files, and data. Rows that JSON would change are left out."""
    import pyarrow as pa

    texts = _Texts()
    columns: dict[str, list[Any]] = {name: [] for name in schema().names}
    for folder, stamp, row in rows:
        config, typed, summary = texts.of(row.config), texts.of(row.typed), row.summary
        if config is None or typed is None or not -(2**63) <= summary["seed"] < 2**63:
            continue
        points = row.curve.points() if isinstance(row.curve, StoredCurve) else row.curve
        values = (
            folder, stamp, config, typed, *(summary[name] for name in (*NAMES, "seed", "diverged", *IN_TABLES)),
            ",".join(summary["final"]), list(summary["final"].values()), *([point[column] for point in points] for column in range(3)),
        )  # fmt: skip
        for column, value in zip(columns.values(), values, strict=True):
            column.append(value)
    return pa.table(columns, schema=schema())


class _Texts:
    """Mappings as JSON text; None if JSON would change something, such as a date. Runs that share a config share its text."""

    def __init__(self) -> None:
        self._known: dict[int, str | None] = {}

    def of(self, value: Any) -> str | None:
        if id(value) not in self._known:
            self._known[id(value)] = _as_json(value)
        return self._known[id(value)]


def _as_json(value: Any) -> str | None:
    try:
        text = json.dumps(value)
        text.encode()
        return text if repr(json.loads(text)) == repr(value) else None
    except (TypeError, ValueError, RecursionError):
        return None


class StoredCurves:
    """The learning curves of a batch of runs, one after another, in a column each for seconds, loss and accuracy."""

    def __init__(self, columns: Sequence[Any], stops: NDArray[np.int64]) -> None:
        self._columns = [column.to_numpy(zero_copy_only=False) for column in columns]
        self._missing = [column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None for column in columns]
        self._stops = stops
        self._starts = np.concatenate([[0], stops[:-1]])
        self.highest = cache(self._highest)
        self.first = cache(self._first)

    def points(self, row: int) -> list[LossPoint]:
        """The points of a run."""
        seconds, loss, accuracy = (self._values(column, row) for column in range(3))
        return list(zip(seconds, loss, accuracy, strict=True))

    def _values(self, column: int, row: int) -> list[Any]:
        part, missing = slice(self._starts[row], self._stops[row]), self._missing[column]
        found: list[Any] = self._columns[column][part].tolist()
        return found if missing is None else [None if none else value for value, none in zip(found, missing[part].tolist(), strict=True)]

    def _is_whole(self, column: int) -> bool:
        """Whether every run has points, and each point has a finite number in this column."""
        return bool(np.isfinite(self._columns[column]).all() and (self._starts < self._stops).all())

    def _highest(self, column: int) -> list[float] | None:
        """The highest number of each run; None if numbers are missing."""
        found: list[float] = np.maximum.reduceat(self._columns[column], self._starts).tolist() if self._is_whole(column) else []
        return found or None

    def _first(self, column: int, sign: float, goal: float) -> list[float | None] | None:
        """The time at which each run first reached this number, as in `finished.time_to`; None if numbers are missing."""
        if not self._is_whole(column):
            return None
        seconds, values = self._columns[0], self._columns[column]
        never = len(values)
        at = np.minimum.reduceat(np.where(sign * values >= sign * goal, np.arange(never), never), self._starts)
        hit = np.minimum(at, never - 1)
        before = np.maximum(hit - 1, self._starts)
        with np.errstate(divide="ignore", invalid="ignore"):
            crossing = seconds[before] + (seconds[hit] - seconds[before]) * (goal - values[before]) / (values[hit] - values[before])
        found = np.where(hit == self._starts, seconds[hit], crossing)
        return [None if none else value for value, none in zip(found.tolist(), (at == never).tolist(), strict=True)]


@dataclass(frozen=True)
class StoredCurve:
    """The learning curve of one run in a batch."""

    all: StoredCurves
    row: int

    def points(self) -> list[LossPoint]:
        """The points of the run."""
        return self.all.points(self.row)

    def highest_accuracy(self) -> float | None:
        """The highest test accuracy; None if there is none."""
        found = self.all.highest(2)
        return highest_accuracy(self.points()) if found is None else found[self.row]

    def time_to(self, *, accuracy: float | None = None, loss: float | None = None) -> float | None:
        """The same as `finished.time_to`."""
        found = self.all.first(1, -1.0, loss) if accuracy is None else self.all.first(2, 1.0, accuracy)
        return time_to(self.points(), accuracy=accuracy, loss=loss) if found is None else found[self.row]


class Reader:
    """The rows in the batches of an index. Rows with the same config share one config object."""

    def __init__(self) -> None:
        self._mapping = cache(_mapping)
        self._names = cache(_metrics)

    def rows(self, batch: Any) -> Iterator[tuple[str, bytes, Row]]:
        """Folder, stamp and data of each row. Raises ValueError, TypeError or an Arrow error if the columns are not those of an index."""
        from pyarrow import compute

        check(batch)
        column = dict(zip(batch.schema.names, batch.columns, strict=True))
        shared = {}
        for name in ("config", "typed"):
            encoded = column[name].dictionary_encode()
            known = [self._mapping(text) for text in encoded.dictionary.to_pylist()]
            if name == "typed" and not all(is_text(value) for typed in known for value in typed.values()):
                raise ValueError("what is typed is text")
            shared[name] = [known[index] for index in encoded.indices.to_pylist()]
        entries = ("folder", "stamp", *NAMES, "seed", "diverged", *IN_TABLES, "final_names", "final")
        stops = np.cumsum(compute.list_value_length(column[CURVE[0]]).to_numpy())
        curves = StoredCurves([column[name].flatten() for name in CURVE], stops)
        for number, config, typed, folder, stamp, *values, names, final in zip(
            range(batch.num_rows), shared["config"], shared["typed"], *(column[name].to_pylist() for name in entries), strict=True
        ):
            summary = dict(zip((*NAMES, "seed", "diverged", *IN_TABLES), values, strict=True))
            summary["final"] = dict(zip(self._names(names), final, strict=True))
            yield folder, stamp, Row(summary, config, typed, StoredCurve(curves, number))


def check(batch: Any) -> None:
    """Raise ValueError if a batch contains values that no run has."""
    from pyarrow import compute

    column = dict(zip(batch.schema.names, batch.columns, strict=True))
    needed = ("folder", "stamp", "config", "typed", "method", "backend", "seed", "final_names", "final", *CURVE)
    if any(column[name].null_count for name in needed) or column[CURVE[0]].flatten().null_count:
        raise ValueError("an entry is missing")
    lengths = [compute.list_value_length(column[name]) for name in CURVE]
    if any(not length.equals(lengths[0]) for length in lengths[1:]):
        raise ValueError("a curve has as many seconds as values")
    for numbers in (*(column[name] for name in IN_TABLES), column["final"].flatten(), column[CURVE[0]].flatten()):
        if compute.all(compute.less_equal(compute.abs(numbers), MAX_NUMBER)).as_py() is False:  # also of NaN
            raise ValueError("a number is none of a run")
    for name in NAMES:
        if not all(text is None or TEXT.holds(text) for text in column[name].unique().to_pylist()):
            raise ValueError("a name is none of a run")


def _mapping(text: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("a config is a mapping")
    return found


def _metrics(names: str) -> list[str]:
    found = names.split(",")
    if not all(map(is_metric, found)):
        raise ValueError("a metric has a name")
    return found
