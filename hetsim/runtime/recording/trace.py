"""The trace of a run: one row for each interval or event, in columns, written to its file during the run."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from struct import Struct
from tempfile import SpooledTemporaryFile
from threading import Lock
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hetsim.coordination.bookkeeping.contributions import max_staleness
from hetsim.coordination.state import State
from hetsim.effects import Contribution
from hetsim.errors import RunFailed
from hetsim.files.writing import begin, named_in_errors, unfinished
from hetsim.runtime.recording.recorder import APPLY, COMMIT, KINDS, Recorder, RecordInterval, Row

COLUMNS = ("start", "end", "rank", "kind", "version", "samples", "staleness", "nbytes")
DETAILS = ("full", "commits", "none")
BLOCK_ROWS = 1024
MAX_LIST_NUMBERS = len(COLUMNS) * BLOCK_ROWS
"""The maximum count of numbers in the list of rows before it is packed. They stay in a processor's cache."""
MAX_BUFFERED_BYTES = 2**22
"""The maximum bytes of packed rows in the buffer before they are written to the file."""
ROW_FORMAT = "2d6q"
"""A packed row: start and end as floats, the other columns as integers."""
ROW, BLOCK = Struct(ROW_FORMAT), Struct(ROW_FORMAT * BLOCK_ROWS)
ROW_TYPE = np.dtype([(name, np.float64 if name in ("start", "end") else np.int64) for name in COLUMNS])
MAX_MEMORY_BYTES = 2**24
"""The maximum bytes of a rank's part in memory before it is written to a temporary file."""
PIECE_BYTES = 2**22
"""The bytes of a part in one message."""
DICTIONARY_COLUMNS = ("rank", "kind", "samples", "staleness", "nbytes")
"""Columns with few distinct values. A dictionary would enlarge the others."""


class Trace(Recorder):
    """Rows of (start end rank kind version samples staleness nbytes), seconds and bytes; in `trace.parquet`, unfinished, when closed.

    | kind | the row |
    |---|---|
    | gradient | a worker computes at `version` |
    | update | an optimizer step on `rank` |
    | message | from sending to delivery; `rank` is the sender |
    | all_reduce, gather | from this rank's entry to the end |
    | apply | a contribution of `rank` goes into `version`, `staleness` versions old |
    | commit | `version` exists, made of `samples` samples |
    | profile | a gradient that was measured before the run began, so at negative seconds |
    | down | a node is absent |
    | regroup | from this rank's entry to the restart |

    Two threads may record intervals at the same time; only one of them commits.
    """

    def __init__(self, folder: Path | None, detail: str) -> None:
        self.full = detail == "full"
        self.commits = detail != "none"
        self.rows: list[float] = []
        """The numbers of all rows. If rows are written to a file, only the unpacked rows."""
        self.record = self.rows.extend
        """Append the numbers of one row. If there are many, the next commit packs and writes them."""
        self._path = folder / "trace.parquet" if folder is not None and self.commits else None
        self._packed = bytearray()
        self._writer: Any = None
        self._written: BinaryIO | None = None
        self._num_samples = 0
        self._closed = False

    def begin(self, start: State) -> None:
        self._num_samples = start.num_samples

    def on(self, kind: int) -> RecordInterval | None:
        return self.record if self.full else None

    def commit(self, seconds: float, rank: int, state: State, applied: Sequence[Contribution]) -> None:
        if not self.commits:
            return
        record, version, num_samples = self.record, state.version, state.num_samples
        if self.full:
            staleness = 0
            for c in applied:
                late = c.staleness
                record((seconds, seconds, c.rank, APPLY, version, c.batch.samples, late, 0))
                if late > staleness:
                    staleness = late
        else:
            staleness = max_staleness(applied)
        record((seconds, seconds, rank, COMMIT, version, num_samples - self._num_samples, staleness, 0))
        self._num_samples = num_samples
        if len(self.rows) >= MAX_LIST_NUMBERS:
            self.spill()

    def spill(self) -> None:
        """Pack the rows in the list, block by block, and write the packed rows if they are many."""
        if self.stores:
            self._pack_blocks()
            if len(self._packed) >= MAX_BUFFERED_BYTES:
                self.flush()

    def flush(self) -> None:
        """Write all remaining rows."""
        if self.stores:
            self._pack_blocks()
            numbers = self.rows[:]
            self._packed += pack_rows(numbers)
            del self.rows[: len(numbers)]
            if self._packed or self._writer is None:
                self.write(packed_rows_as_table(self._packed))
                self._packed = bytearray()

    def write(self, table: Any) -> None:
        """Append the rows of an Arrow table to the file."""
        from pyarrow import parquet

        assert self._path is not None
        with named_in_errors(self._path):
            if self._writer is None:
                self._written = begin(self._path)
                self._writer = parquet.ParquetWriter(self._written, table.schema, use_dictionary=DICTIONARY_COLUMNS)
            self._writer.write_table(table)

    @property
    def stores(self) -> bool:
        """Whether rows are written to a file."""
        return self._path is not None

    def _pack_blocks(self) -> None:
        """Pack the whole blocks of rows in the list. Another thread may append rows at the same time."""
        while len(self.rows) >= MAX_LIST_NUMBERS:
            self._packed += BLOCK.pack(*self.rows[:MAX_LIST_NUMBERS])
            del self.rows[:MAX_LIST_NUMBERS]

    def close(self, last: State | None = None) -> None:
        """Complete the file. It gets its name together with the run's other files."""
        if self._path is not None and not self._closed:
            self._closed = True
            self.flush()
            assert self._written is not None
            with named_in_errors(self._path):
                self._writer.close()
                self._written.close()
            self._writer = None

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the file if it is not complete."""
        if self._writer is not None and self._written is not None and self._path is not None:
            with contextlib.suppress(OSError):  # on a full disk the last rows cannot be written, either
                self._writer.close()
            with contextlib.suppress(OSError):
                self._written.close()
            self._writer.is_open = False
            self._writer = None
            with contextlib.suppress(OSError):
                unfinished(self._path).unlink(missing_ok=True)


class TracePart(Trace):
    """One rank's part of a trace, which is sent to the leader: an Arrow stream in memory, or in a temporary file if it is large."""

    def __init__(self, detail: str) -> None:
        super().__init__(None, detail)
        self._spilling = Lock()
        self._file = SpooledTemporaryFile(max_size=MAX_MEMORY_BYTES)  # noqa: SIM115  (closed in __exit__)

    def on(self, kind: int) -> RecordInterval | None:
        """A rank that does not lead sees no commits, so each interval limits the rows in memory."""
        return self._record_and_spill if self.full else None

    def _record_and_spill(self, row: Row) -> None:
        self.record(row)
        if len(self.rows) >= MAX_LIST_NUMBERS:
            self.spill()

    def spill(self) -> None:
        with self._spilling:  # the program and what it started record at the same time
            super().spill()

    @property
    def stores(self) -> bool:
        return True

    def write(self, table: Any) -> None:
        import pyarrow as pa

        with named_in_errors(Path(tempfile.gettempdir())):
            if self._writer is None:
                self._writer = pa.ipc.new_stream(self._file, table.schema)
            self._writer.write_table(table)

    def close(self, last: State | None = None) -> None:
        """Finish the stream."""
        if not self._closed:
            self._closed = True
            self.flush()
            with named_in_errors(Path(tempfile.gettempdir())):
                self._writer.close()
            self._writer = None

    def drain(self) -> list[bytes]:
        """The rows so far as a finished stream, piece by piece. Later rows begin another stream."""
        with self._spilling:
            self.flush()
            with named_in_errors(Path(tempfile.gettempdir())):
                self._writer.close()
                stream = list(self.pieces())
                self._file.close()
                self._file = SpooledTemporaryFile(max_size=MAX_MEMORY_BYTES)  # noqa: SIM115  (closed in __exit__)
            self._writer = None
            return stream

    def pieces(self) -> Iterator[bytes]:
        """The finished stream, piece by piece."""
        self._file.seek(0)
        while piece := self._file.read(PIECE_BYTES):
            yield piece

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._file.close()


def append_received(trace: Trace, pieces: Iterator[bytes], *, rank: int, change: Callable[[Any], Any] = lambda batch: batch) -> None:
    """Append the part from `rank` to a trace. `change` converts each batch. Raises RunFailed if the part is unreadable."""
    import pyarrow as pa

    with SpooledTemporaryFile(max_size=MAX_MEMORY_BYTES) as file:
        for piece in pieces:
            with named_in_errors(Path(tempfile.gettempdir())):
                file.write(piece)
        file.seek(0)
        if not trace.stores:
            return
        trace.flush()
        for batch in _batches(file, rank):
            trace.write(pa.Table.from_batches([change(batch)]))


def _batches(file: Any, rank: int) -> Iterator[Any]:
    import pyarrow as pa

    try:
        with pa.ipc.open_stream(file) as reader:
            if not reader.schema.equals(as_table([]).schema):
                raise pa.ArrowInvalid("its columns are not those of a trace")
            yield from reader
    except (pa.ArrowInvalid, OSError) as error:
        raise RunFailed(f"rank {rank} sent a trace that cannot be read ({error}): run the same version of hetsim on all hosts") from None


def as_table(rows: Sequence[float]) -> Any:
    """The numbers of rows as an Arrow table, with times in seconds and kinds by name."""
    return packed_rows_as_table(pack_rows(rows))


def pack_rows(rows: Sequence[float]) -> bytes:
    """The numbers of rows, packed."""
    return b"".join(ROW.pack(*rows[first : first + len(COLUMNS)]) for first in range(0, len(rows), len(COLUMNS)))


def packed_rows_as_table(rows: bytes | bytearray) -> Any:
    """Packed rows as an Arrow table."""
    import pyarrow as pa

    columns = np.frombuffer(rows, dtype=ROW_TYPE)
    arrays: list[Any] = []
    for name in COLUMNS:
        column = columns[name]
        if name == "kind":
            arrays.append(pa.DictionaryArray.from_arrays(_as_array(column.astype(np.int8)), list(KINDS)))
        else:
            arrays.append(_as_array(column.astype(np.int32 if name in ("rank", "staleness") else column.dtype)))
    return pa.table(arrays, names=list(COLUMNS))


def _as_array(numbers: NDArray[Any]) -> Any:
    """Numbers without gaps in memory as an Arrow array; `pa.array` would import numpy.ma."""
    import pyarrow as pa

    return pa.Array.from_buffers(pa.from_numpy_dtype(numbers.dtype), len(numbers), [None, pa.py_buffer(numbers)])
