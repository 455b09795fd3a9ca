"""The first intervals in a run's trace, for a timeline: gradients, updates and communication."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hetsim.files.reading import MAX_NUMBER, REMEDY, brief, check_is_no_link, shown
from hetsim.memory import check_fits
from hetsim.runtime.recording.recorder import INTERVAL_KINDS, KINDS, MESSAGE
from hetsim.runtime.recording.trace import COLUMNS as TRACE_COLUMNS
from hetsim.runtime.recording.trace import as_table

Interval = tuple[float, float, int, str]
"""Start, end, rank and kind."""
Span = tuple[float, float]
"""Start and end."""

COLUMNS = ["start", "end", "rank", "kind"]
COUNTS = ("version", "samples", "staleness", "nbytes")
WORK, COMMUNICATION = (
    [row.name for row in INTERVAL_KINDS if row.drawing is not None and row.drawing.is_communication is wanted] for wanted in (False, True)
)
"""Kinds of intervals. On one rank, work may overlap with communication."""
MAX_RANKS = 32
"""The maximum number of ranks whose communication a timeline shows, besides a server."""
MAX_CLOCK_ERROR = 60.0
"""The maximum difference in seconds between the clocks of two hosts, so that a message may seem to end before it begins."""
BYTES_OF_A_ROW = 100
"""The bytes of memory for each row of the trace while it is read, filtered and sorted."""


def read_intervals(trace: Path, *, num_workers: int) -> list[Interval]:
    """The first intervals of a trace. Raises ValueError if the trace does not fit a run with this number of workers."""
    return first_intervals(read_trace(trace, num_workers=num_workers))


def read_trace(trace: Path, *, num_workers: int | None = None) -> Any:
    """The trace of a run as an Arrow table with hetsim's types. Kinds are texts.

    Raises ValueError for an invalid trace, or for a rank that a run of `num_workers` workers does not have. `num_workers` may be unknown
    (None).
    """
    from pyarrow import ArrowException, parquet

    check_is_no_link(trace)
    if not trace.is_file():
        raise ValueError(f"{trace} is not a file: {REMEDY}")
    try:
        file = parquet.ParquetFile(trace, read_dictionary=["kind"])  # a text that is repeated takes memory once
        names = file.schema_arrow.names
    except (ArrowException, OSError, ValueError, KeyError) as error:
        raise ValueError(f"{trace} is no Parquet file ({brief(error)}): {REMEDY}") from None
    if missing := [name for name in TRACE_COLUMNS if names.count(name) != 1]:
        raise ValueError(f"{trace} lacks {', '.join(missing)}: {REMEDY}")
    if others := [name for name in names if name not in TRACE_COLUMNS]:
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
        table = _cast(file.read())
    except (ArrowException, OSError, ValueError) as error:
        raise ValueError(f"{trace} cannot be read as a trace ({brief(error)}): {REMEDY}") from None
    _check(trace, table, math.inf if num_workers is None else num_workers)
    return table


def _cast(table: Any) -> Any:
    """The columns with hetsim's types, and kinds as texts. Raises ValueError for an unknown kind."""
    import pyarrow as pa

    column = table["kind"]
    if pa.types.is_dictionary(column.type):
        for chunk in column.chunks:
            if unknown := [kind for kind in chunk.dictionary.slice(0, len(KINDS) + 1).to_pylist() if kind not in KINDS]:
                raise ValueError(f"its kind {shown(unknown[0])} is none of {', '.join(KINDS)}")
    written = {**{field.name: field.type for field in as_table([]).schema}, "kind": pa.string()}
    return pa.table({name: table[name].cast(written[name]) for name in table.column_names})  # without metadata, which pandas would read


def _check(trace: Path, table: Any, num_workers: float) -> None:
    """Raise ValueError for the first row that does not fit a run with this number of workers.

    Two clocks time a message between hosts, and they may differ. So the message may seem to end before it begins.
    """
    import pyarrow as pa
    from pyarrow import compute

    start, end = (table[name].fill_null(math.nan).to_numpy() for name in ("start", "end"))
    rank = table["rank"].fill_null(-1).to_numpy()
    slack = np.where(compute.equal(table["kind"], KINDS[MESSAGE]).fill_null(False).to_numpy(), MAX_CLOCK_ERROR, 0.0)
    fine = (np.abs(start) <= MAX_NUMBER) & (np.abs(end) <= MAX_NUMBER)
    for place in np.flatnonzero(~(fine & (end >= start - slack)))[:1]:
        first, last = (table[name][int(place)].as_py() for name in ("start", "end"))
        why = "which ends before it begins" if fine[place] else "which are no times of a run"
        raise ValueError(f"{trace} has an interval from {first} to {last}, {why}: {REMEDY}")
    for place in np.flatnonzero((rank < 0) | (rank > 2 * num_workers))[:1]:  # local servers follow the server
        invalid_rank = table["rank"][int(place)].as_py()
        run = "which no run has" if num_workers == math.inf else f"but its run has {num_workers} workers"
        raise ValueError(f"{trace} has rank {invalid_rank}, {run}: {REMEDY}")
    for name in table.column_names:
        column = table[name]
        wrong = None
        if name == "kind":
            wrong = compute.index_in(column, value_set=pa.array(KINDS)).is_null()
        elif name in COUNTS:
            wrong = compute.less(column.fill_null(-1), 0)
        if wrong is not None and (place := wrong.index(True).as_py()) >= 0:
            raise ValueError(f"{trace} has a row whose {name} is {column[place].as_py()}, as none of a run is: {REMEDY}")


def first_intervals(table: Any, most: int = 20_000) -> list[Interval]:
    """The first gradients and updates of a trace, then the first messages and collectives. The trace's rows may have any order."""
    import pyarrow as pa
    from pyarrow import compute

    table = table.select(COLUMNS)
    work = compute.is_in(table["kind"], pa.array(WORK))
    communication = compute.and_(compute.is_in(table["kind"], pa.array(COMMUNICATION)), compute.less_equal(table["rank"], MAX_RANKS))
    intervals: list[Interval] = []
    for wanted in (work, communication):
        first = table.filter(wanted).sort_by("start").slice(0, most).to_pydict()
        intervals += zip(first["start"], first["end"], first["rank"], first["kind"], strict=True)
    return intervals


def after_last_entry(entered: Mapping[int, Sequence[Span]], until: float) -> dict[int, list[Span]]:
    """The rest of each collective after its last rank has entered, by rank. Only collectives that begin before `until` are returned.

    `entered` contains each rank's intervals from its own entry to the end, as in a trace. Intervals of other ranks with the same end belong
    to the same collective. A process may wake up a little later than another, but long before the next collective ends.
    """
    by_end = {rank: np.array(sorted(spans, key=lambda span: span[1]), np.float64).reshape(-1, 2) for rank, spans in entered.items()}
    starts, ends = np.concatenate([*by_end.values(), np.empty((0, 2))]).T
    entry = starts.copy()
    for rank_spans in by_end.values():
        if not len(rank_spans):
            continue
        place = np.searchsorted(rank_spans[:, 1], ends)
        earlier, later = rank_spans[np.maximum(place - 1, 0)], rank_spans[np.minimum(place, len(rank_spans) - 1)]
        nearest = np.where((np.abs(earlier[:, 1] - ends) <= np.abs(later[:, 1] - ends))[:, None], earlier, later)
        shared = (nearest[:, 0] < ends) & (nearest[:, 1] > starts)  # otherwise that rank was not in it
        entry = np.maximum(entry, np.where(shared, nearest[:, 0], starts))
    rests: dict[int, list[Span]] = {}
    at = 0
    for rank, rank_spans in by_end.items():
        rows = slice(at, at + len(rank_spans))
        kept = starts[rows] < until
        rests[rank] = list(zip(entry[rows][kept].tolist(), ends[rows][kept].tolist(), strict=True))
        at += len(rank_spans)
    return rests
