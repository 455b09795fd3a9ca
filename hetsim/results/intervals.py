"""The first gradients and updates in the trace of a run, which a timeline shows."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hetsim.memory import check_fits
from hetsim.results.run_files import MAX_NUMBER, REMEDY, brief, check_is_no_link

Interval = tuple[float, float, int, str]
"""Start, end, rank and kind."""

COLUMNS = ["start", "end", "rank", "kind"]
BYTES_OF_A_ROW = 100
"""What a row of the trace takes in memory while it is read, filtered and sorted."""


def read_trace(trace: Path) -> Any:
    """The whole trace of a run, as an Arrow table; ValueError with one sentence if it is none."""
    return _read(trace, None, lambda table: table)


def read_intervals(trace: Path, *, num_workers: int) -> list[Interval]:
    """The first gradients and updates of a trace; ValueError with one sentence if it is none of a run of so many workers."""
    found: list[Interval] = _read(trace, COLUMNS, first_intervals)
    for start, end, rank, _ in found:
        if any(seconds is None or not math.isfinite(seconds) or abs(seconds) > MAX_NUMBER for seconds in (start, end)):
            raise ValueError(f"{trace} has an interval from {start} to {end}, which are no times of a run: {REMEDY}")
        if rank is None or not 0 <= rank <= num_workers:
            raise ValueError(f"{trace} has rank {rank}, but its run has {num_workers} workers: {REMEDY}")
    return found


def _read(trace: Path, columns: list[str] | None, use: Callable[[Any], Any]) -> Any:
    """What `use` makes of these columns of a trace, or of all."""
    from pyarrow import ArrowException, parquet

    check_is_no_link(trace)
    if not trace.is_file():
        raise ValueError(f"{trace} is no file: {REMEDY}")
    try:
        file = parquet.ParquetFile(trace)
        there = file.schema_arrow.names
    except (ArrowException, OSError, ValueError) as error:
        raise ValueError(f"{trace} is no Parquet file ({brief(error)}): {REMEDY}") from None
    if missing := [name for name in COLUMNS if there.count(name) != 1]:
        raise ValueError(f"{trace} lacks {', '.join(missing)}: {REMEDY}")
    groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
    num_rows = sum(group.num_rows for group in groups)
    if num_rows != file.metadata.num_rows or any(
        group.column(index).num_values != group.num_rows for group in groups for index in range(group.num_columns)
    ):
        raise ValueError(f"{trace} does not hold as many rows as it says: {REMEDY}")
    check_fits(f"{trace}, of {num_rows} rows,", BYTES_OF_A_ROW * num_rows, REMEDY)
    try:
        return use(file.read(columns=columns))
    except (ArrowException, OSError, ValueError) as error:
        raise ValueError(f"{trace} cannot be read as a trace ({brief(error)}): {REMEDY}") from None


def first_intervals(table: Any, most: int = 20_000) -> list[Interval]:
    """The first gradients and updates of a trace, whose rows are in no particular order."""
    import pyarrow as pa
    from pyarrow import compute

    columns = {
        name: compute.cast(table[name], kind)
        for name, kind in {"start": pa.float64(), "end": pa.float64(), "rank": pa.int64(), "kind": pa.string()}.items()
    }
    wanted = compute.is_in(columns["kind"], pa.array(["gradient", "update"]))
    first = pa.table(columns).filter(wanted).sort_by("start").slice(0, most).to_pydict()
    return list(zip(first["start"], first["end"], first["rank"], first["kind"], strict=True))
