"""The trace's rows next to a run's checkpoints: a file for each part of the run. All parts are joined at the end."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hetsim import checks
from hetsim.checkpoints.folder import ROWS, files, place, rows_path
from hetsim.coordination.state import State
from hetsim.files.writing import named_in_errors, unfinished
from hetsim.runtime.recording.trace import Trace, as_table

OF_VERSIONS = ("apply", "commit")
"""The kinds of rows that belong to a version, at any time of its commit."""


class SavedTrace(Trace):
    """A trace that writes its rows to a file in `checkpoints` for each checkpoint. `close` joins these files to the run's own."""

    def __init__(self, folder: Path, detail: str) -> None:
        super().__init__(folder, detail)
        self.folder = folder
        self.parts: list[str] = []
        """The names of the complete files, in order."""
        self.final_path = self._path
        self._path = place(folder) / "rows.parquet" if self.commits else None

    @property
    def current(self) -> Path | None:
        """The file to which rows are written now, under its temporary name."""
        return None if self._writer is None or self._path is None else unfinished(self._path)

    def split(self) -> tuple[str, ...]:
        """Complete the file of the rows since the last call. Returns the names of all complete files."""
        if self._path is None or self._closed:
            return tuple(self.parts)
        self.flush()
        assert self._written is not None
        # an older checkpoint, of this run or of one before it in the folder, may need files that are not among the parts
        names = {*self.parts, *(path.name for path in files(self.folder) if ROWS.fullmatch(path.name))}
        path = rows_path(self.folder, 1 + max((int(name[5:17]) for name in names), default=0))
        with named_in_errors(path):
            self._writer.close()
            self._written.flush()
            os.fsync(self._written.fileno())
            self._written.close()
            os.replace(unfinished(self._path), path)
        self._writer = None
        self.parts.append(path.name)
        return tuple(self.parts)

    def close(self, last: State | None = None) -> None:
        """Complete the run's own file."""
        if self._path is None or self._closed:
            return
        self.split()
        self._closed = True
        self._path = self.final_path
        for name in self.parts:
            with _open(place(self.folder) / name) as file:
                for group in range(file.num_row_groups):
                    self.write(_cast_columns(file.read_row_group(group)))
        assert self._written is not None
        assert self.final_path is not None
        with named_in_errors(self.final_path):
            self._writer.close()
            self._written.close()
        self._writer = None

    def go_on(self, names: Sequence[str]) -> None:
        """Continue after these files, which another process has completed."""
        self.parts = list(names)

    def follow(self, names: Sequence[str]) -> None:
        """Begin with the rows written so far, in a file that follows these files of the same folder."""
        self.parts = list(names)
        self.split()
        self.parts = self.parts[-1:]


def adopt(trace: Trace, run: Path, names: Sequence[str], *, seconds: Sequence[float], version: int) -> None:
    """Begin a trace with the rows of a run's files up to its checkpoint. Raises ValueError if a file is missing or invalid.

    Rows of a rank after its commit of this version are left out, because its work is done again.
    """
    if not trace.stores:
        return
    for name in names:
        if not ROWS.fullmatch(name):
            raise ValueError(f"{place(run)} has a checkpoint that names {checks.shown(name)}, which is not a file of rows: remove it")
        with _open(place(run) / name) as file:
            for group in range(file.num_row_groups):
                trace.write(_rows_until(_cast_columns(file.read_row_group(group)), seconds, version))
    if isinstance(trace, SavedTrace):
        trace.follow(names if run.resolve() == trace.folder.resolve() else ())


def row_paths(run: Path, names: Collection[str]) -> list[Path]:
    """The paths of the files with rows."""
    return [place(run) / name for name in names]


def _open(path: Path) -> Any:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        if path.is_symlink() or not path.is_file():
            raise ValueError("it is not a file of its own")
        return parquet.ParquetFile(path)
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:100]
        raise ValueError(f"{path}, a part of the trace, cannot be read ({reason}): put it there, or resume with trace=none") from None


def _cast_columns(table: Any) -> Any:
    """The table with a trace's columns."""
    import pyarrow as pa

    try:
        return table.select(as_table([]).column_names).cast(as_table([]).schema)
    except (pa.ArrowException, KeyError, ValueError) as error:
        raise ValueError(f"a part of the trace has other columns ({str(error)[:100]}): resume with trace=none") from None


def _rows_until(table: Any, seconds: Sequence[float], version: int) -> Any:
    """Each rank's rows until its commit of this version. Intervals in progress then end at the commit."""
    import pyarrow as pa

    columns: Mapping[str, Any] = {name: table.column(name).to_numpy() for name in ("start", "end", "rank", "version")}
    kinds = np.asarray(table.column("kind").to_pylist(), dtype=object)
    limits = np.asarray(seconds)[np.clip(columns["rank"], 0, len(seconds) - 1)]
    of_version = np.isin(kinds, OF_VERSIONS)
    end = np.where(of_version, columns["end"], np.minimum(columns["end"], limits))
    is_kept = np.where(of_version, columns["version"] <= version, columns["start"] < limits)
    is_kept &= (kinds != "down") | (columns["end"] < limits)  # an absence that continues is recorded when it is over
    with_ends = table.set_column(table.column_names.index("end"), "end", pa.array(end))
    return with_ends.cast(as_table([]).schema).filter(pa.array(is_kept))
