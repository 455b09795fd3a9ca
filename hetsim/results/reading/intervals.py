"""The first intervals in the trace of a run, which a timeline shows: gradients, updates and communication."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hetsim.memory import check_fits
from hetsim.results.reading.run_files import MAX_NUMBER, REMEDY, brief, check_is_no_link, shown
from hetsim.runtime.recorder import KINDS
from hetsim.runtime.trace import COLUMNS as TRACE_COLUMNS

Interval = tuple[float, float, int, str]
"""Start, end, rank and kind."""
Span = tuple[float, float]
"""Start and end."""

COLUMNS = ["start", "end", "rank", "kind"]
WORK, COMMUNICATION = ("gradient", "update"), ("message", "all_reduce", "gather")
"""Kinds of intervals; those of one rank overlap where it computes while it communicates."""
MAX_RANKS = 32
"""The ranks of which a timeline shows the communication, and a server after them."""
BYTES_OF_A_ROW = 100
"""What a row of the trace takes in memory while it is read, filtered and sorted."""


def read_trace(trace: Path) -> Any:
    """The whole trace of a run, as an Arrow table; ValueError with one sentence if it is none."""
    return read_columns(trace, None, lambda table: table.replace_schema_metadata())  # which pandas would read


def read_intervals(trace: Path, *, num_workers: int) -> list[Interval]:
    """The first intervals of a trace; ValueError with one sentence if it is none of a run of so many workers."""
    found: list[Interval] = read_columns(trace, COLUMNS, first_intervals)
    for start, end, rank, kind in found:
        check_interval(trace, start, end, rank, num_workers=num_workers, kind=kind)
    return found


def check_interval(
    trace: Path, start: float | None, end: float | None, rank: int | None, *, num_workers: int, kind: str | None = None
) -> None:
    """ValueError with one sentence for an interval that is none of a run of so many workers.

    A message between hosts is timed by two clocks, which agree within an error: it may seem to end before it begins.
    """
    if any(seconds is None or not math.isfinite(seconds) or abs(seconds) > MAX_NUMBER for seconds in (start, end)):
        raise ValueError(f"{trace} has an interval from {start} to {end}, which are no times of a run: {REMEDY}")
    if rank is None or not 0 <= rank <= 2 * num_workers:  # local servers follow the server
        raise ValueError(f"{trace} has rank {rank}, but its run has {num_workers} workers: {REMEDY}")
    if kind != "message" and start is not None and end is not None and end < start:
        raise ValueError(f"{trace} has an interval from {start} to {end}, which ends before it begins: {REMEDY}")


def read_columns(trace: Path, columns: list[str] | None, use: Callable[[Any], Any]) -> Any:
    """What `use` makes of these columns of a trace, or of all; ValueError with one sentence if it is none, or `use` says what is wrong."""
    from pyarrow import ArrowException, parquet

    check_is_no_link(trace)
    if not trace.is_file():
        raise ValueError(f"{trace} is no file: {REMEDY}")
    try:
        file = parquet.ParquetFile(trace, read_dictionary=["kind"])  # a text that is repeated takes memory once
        there = file.schema_arrow.names
    except (ArrowException, OSError, ValueError, KeyError) as error:
        raise ValueError(f"{trace} is no Parquet file ({brief(error)}): {REMEDY}") from None
    if missing := [name for name in columns or COLUMNS if there.count(name) != 1]:
        raise ValueError(f"{trace} lacks {', '.join(missing)}: {REMEDY}")
    if others := [name for name in there if name not in TRACE_COLUMNS]:
        raise ValueError(f"{trace} has a column {shown(others[0])}, as no trace has: {REMEDY}")
    groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
    num_rows = sum(group.num_rows for group in groups)
    if num_rows != file.metadata.num_rows:
        raise ValueError(f"{trace} does not hold as many rows as it says: {REMEDY}")
    unpacked = sum(group.total_byte_size for group in groups)  # a broken column's own size would end the process in Arrow
    if unpacked > BYTES_OF_A_ROW * num_rows + 10**6:
        raise ValueError(f"{trace} would take {unpacked} bytes for {num_rows} rows, as no trace does: {REMEDY}")
    check_fits(f"{trace}, of {num_rows} rows,", BYTES_OF_A_ROW * num_rows, REMEDY)
    try:
        return use(_with_kinds(file.read(columns=columns)))
    except (ArrowException, OSError, ValueError) as error:
        raise ValueError(f"{trace} cannot be read as a trace ({brief(error)}): {REMEDY}") from None


def _with_kinds(table: Any) -> Any:
    """The table with its kinds as texts; ValueError for a text that is no kind."""
    import pyarrow as pa

    column = table["kind"]
    if pa.types.is_dictionary(column.type):
        for chunk in column.chunks:
            if unknown := [kind for kind in chunk.dictionary.slice(0, len(KINDS) + 1).to_pylist() if kind not in KINDS]:
                raise ValueError(f"its kind {shown(unknown[0])} is none of {', '.join(KINDS)}")
        column = column.cast(pa.string())
    return table.set_column(table.column_names.index("kind"), "kind", column)


def first_intervals(table: Any, most: int = 20_000) -> list[Interval]:
    """The first gradients and updates of a trace, whose rows are in no particular order; then the first messages and collectives."""
    import pyarrow as pa
    from pyarrow import compute

    columns = {
        name: compute.cast(table[name], kind)
        for name, kind in {"start": pa.float64(), "end": pa.float64(), "rank": pa.int64(), "kind": pa.string()}.items()
    }
    work = compute.is_in(columns["kind"], pa.array(WORK))
    communication = compute.and_(compute.is_in(columns["kind"], pa.array(COMMUNICATION)), compute.less_equal(columns["rank"], MAX_RANKS))
    found: list[Interval] = []
    for wanted in (work, communication):
        first = pa.table(columns).filter(wanted).sort_by("start").slice(0, most).to_pydict()
        found += zip(first["start"], first["end"], first["rank"], first["kind"], strict=True)
    return found


def after_last_entry(entered: Mapping[int, Sequence[Span]], until: float) -> dict[int, list[Span]]:
    """What remains of collectives that begin before `until`, by rank, if they begin when their last rank has entered.

    `entered` has each rank's intervals, from its own entry to the end, as a trace has them. Of another rank the one that ends at the
    same time is the same collective; a process may wake up a little later than another one, long before the next collective ends.
    """
    by_end = {rank: np.array(sorted(spans, key=lambda span: span[1]), np.float64).reshape(-1, 2) for rank, spans in entered.items()}
    starts, ends = np.concatenate([*by_end.values(), np.empty((0, 2))]).T
    entry = starts.copy()
    for its in by_end.values():
        if not len(its):
            continue
        place = np.searchsorted(its[:, 1], ends)
        before, after = its[np.maximum(place - 1, 0)], its[np.minimum(place, len(its) - 1)]
        nearest = np.where((np.abs(before[:, 1] - ends) <= np.abs(after[:, 1] - ends))[:, None], before, after)
        shared = (nearest[:, 0] < ends) & (nearest[:, 1] > starts)  # otherwise that rank was not in it
        entry = np.maximum(entry, np.where(shared, nearest[:, 0], starts))
    found: dict[int, list[Span]] = {}
    at = 0
    for rank, its in by_end.items():
        here = slice(at, at + len(its))
        kept = starts[here] < until
        found[rank] = list(zip(entry[here][kept].tolist(), ends[here][kept].tolist(), strict=True))
        at += len(its)
    return found
