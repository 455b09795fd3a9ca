"""The index of a sweep's folder: the data that `hetsim-table` needs from all finished runs, in one file.

A row of the index counts only if the run's files are unchanged: by inode, size, and the times of their last modification and change. A
program cannot set the time of change. So repeated, edited, copied or unpacked runs are read again, and missing runs are not listed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from hetsim.files.lock import sole_writer
from hetsim.files.reading import check_is_no_link
from hetsim.files.run_folders import RunFolder, is_settled
from hetsim.files.writing import written_whole
from hetsim.memory import check_fits
from hetsim.results.reading.index_columns import Reader, Row, schema, table_of

NAME = ".index.parquet"
LEAST = 200
"""The number of unindexed runs from which an index is written. Fewer runs are quick to read one by one."""
MAX_BYTES = 4 * 10**9
"""The maximum size of an index in memory."""


def read_index(folder: Path, there: Sequence[RunFolder], make: Callable[[str, Row], Any]) -> dict[str, Any]:
    """Apply `make` to the index's rows of these places with unchanged files. Returns the results by name; empty without a valid index."""
    path = folder / NAME
    from pyarrow import ArrowException, parquet

    try:
        check_is_no_link(path)
        if not path.is_file():
            return {}
        file = parquet.ParquetFile(path)
        groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
        if (
            not file.schema_arrow.equals(schema(), check_metadata=False)
            or sum(group.num_rows for group in groups) != file.metadata.num_rows
        ):
            return {}
        size = sum(group.total_byte_size for group in groups)
        check_fits(f"{path}", size, "remove it")
        return {} if size > MAX_BYTES else _rows(file, dict(there), make)
    except (ArrowException, OSError, ValueError, TypeError, KeyError, RecursionError):
        return {}  # the files say it


def _rows(file: Any, there: Mapping[str, bytes], make: Callable[[str, Row], Any]) -> dict[str, Any]:
    reader = Reader()
    return {
        name: make(name, row)
        for batch in file.iter_batches(batch_size=10_000)
        for name, stamp, row in reader.rows(batch)
        if there.get(name) == stamp
    }


def write_index(folder: Path, rows: Iterable[tuple[RunFolder, Row]], *, begun: datetime) -> None:
    """Write the index of these rows, which were read after `begun`.

    Does nothing if another process is writing the index or the folder is not writable.
    """
    from pyarrow import parquet

    table = table_of((place.name, place.stamp, row) for place, row in rows if is_settled(place, begun=begun))
    try:
        with sole_writer(folder) as ours:
            if ours:
                with written_whole(folder / NAME) as file:
                    parquet.write_table(table, file, row_group_size=10_000, compression="zstd")
    except OSError:
        return  # a disk that is full, or a folder of somebody else's
