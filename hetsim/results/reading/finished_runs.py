"""The finished runs below a folder, as `hetsim-table` reads them."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from hetsim.files.config_file import check_leaves, read_config
from hetsim.files.identity import typed_overrides
from hetsim.files.keys import VARY_IN_A_ROW, without
from hetsim.files.reading import skipped
from hetsim.files.run_folders import RunFolder, is_settled, search
from hetsim.files.schema import for_tables
from hetsim.files.summary_and_curve import LossPoint, check_has, highest_accuracy, read_curve, read_summary, time_to
from hetsim.results.reading.index import LEAST, NAME, read_index, write_index
from hetsim.results.reading.index_columns import Row, StoredCurve

KEYS = ("method", "backend", "seed", "seconds", "staleness_max")
"""The entries of summary.json that the table needs, besides those of every run."""


@dataclass(frozen=True)
class FinishedRun:
    """A finished run: its folder, the summary's entries for tables, its config without the keys that vary in a row, and its overrides.

    Runs of one config share the config object, so do not change it.
    """

    sweep: Path
    name: str
    """The run's folder, relative to the sweep's folder."""
    summary: Mapping[str, Any]
    config: Mapping[str, Any]
    typed: Mapping[str, str]
    stored: StoredCurve | None = None
    """The learning curve from the index; None if it has to be read from the files."""

    @cached_property
    def folder(self) -> Path:
        """The run's own folder."""
        return self.sweep / self.name

    @cached_property
    def points(self) -> list[LossPoint]:
        """The learning curve: seconds of the run's clock, training loss, test accuracy; None for a missing number."""
        return read_curve(self.folder) if self.stored is None else self.stored.points()

    @property
    def highest_accuracy(self) -> float | None:
        """The highest test accuracy of the learning curve; None if there is none."""
        return highest_accuracy(self.points) if self.stored is None else self.stored.highest_accuracy()

    def time_to(self, *, accuracy: float | None = None, loss: float | None = None) -> float | None:
        """The time at which the run first reached this test accuracy or training loss, in seconds of its clock; None if it never did."""
        if self.stored is None:
            return time_to(self.points, accuracy=accuracy, loss=loss)
        return self.stored.time_to(accuracy=accuracy, loss=loss)


class FinishedRuns(NamedTuple):
    """The finished runs below a folder, and remarks on failed or broken runs."""

    runs: list[FinishedRun]
    remarks: list[str]


def finished_runs(folder: Path) -> list[FinishedRun]:
    """The finished runs of `read_runs`."""
    return read_runs(folder).runs


def read_runs(folder: Path) -> FinishedRuns:
    """Read all finished runs at any depth. Raises ValueError if none is readable. Broken runs are skipped.

    If the folder has many runs, they are read from its index, which is updated first.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder: give the folder of a sweep, its hydra.sweep.dir")
    begun = datetime.now(UTC)
    there, num_failed = search(folder)
    if not there:
        raise ValueError(f"{folder} holds no finished run: give the folder of a sweep, its hydra.sweep.dir")
    reader = _Reader(folder)
    with no_garbage():
        known = read_index(folder, there, reader.of_index) if len(there) >= LEAST else {}
        found, broken = dict[RunFolder, FinishedRun](), list[str]()
        for place in there:
            try:
                found[place] = known.get(place.name) or reader.of_files(place.name)
            except ValueError as error:
                broken.append(str(error))
    if not found:
        raise ValueError(broken[0])
    if sum(place.name not in known and is_settled(place, begun=begun) for place in found) >= LEAST:
        write_index(
            folder,
            ((place, Row(run.summary, run.config, run.typed, run.stored or run.points)) for place, run in found.items()),
            begun=begun,
        )
    failed = [f"{num_failed} runs failed and are not in the table: see error.txt in their folders"] if num_failed else []
    return FinishedRuns(list(found.values()), failed + skipped(broken))


def finished_run(folder: Path) -> FinishedRun:
    """The finished run in a folder. Raises ValueError if it contains none."""
    return _Reader(folder.parent).of_files(folder.name)


def keep_index(folder: Path, *, num_runs: int) -> None:
    """Update the index of a sweep's folder if the folder has enough runs."""
    if num_runs >= LEAST:
        with contextlib.suppress(ValueError, OSError):  # whoever reads the runs is told
            finished_runs(folder)


@contextlib.contextmanager
def no_garbage() -> Iterator[None]:
    """Within this context, Python does not collect garbage. The read data contain none, and the search takes longer the more data exist."""
    looks = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if looks:
            gc.enable()


def _of_a_row(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config without the keys in which the runs of a row may differ."""
    return without(config, VARY_IN_A_ROW)


class _Reader:
    """The runs of a folder; runs with the same config share one config object."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._configs: dict[str, Mapping[str, Any]] = {}
        self._checked: dict[int, Mapping[str, Any]] = {}

    def of_files(self, name: str) -> FinishedRun:
        """The run in this folder, from its files."""
        folder = self.folder / name
        summary = read_summary(folder)
        check_has(folder, summary, *KEYS)
        config = _of_a_row(read_config(folder))
        shared = self._shared(config or {"method": summary["method"]})
        found = FinishedRun(self.folder, name, for_tables(summary), shared, typed_overrides(folder))
        _ = found.points  # which may be broken, too
        return found

    def of_index(self, name: str, row: Row) -> FinishedRun:
        """The run in this folder, from the index. Raises ValueError if its config is invalid."""
        if id(row.config) not in self._checked:
            check_leaves(self.folder / NAME, row.config)
            self._checked[id(row.config)] = self._shared(_of_a_row(dict(row.config)))
        stored = row.curve if isinstance(row.curve, StoredCurve) else None
        return FinishedRun(self.folder, name, row.summary, self._checked[id(row.config)], row.typed, stored)

    def _shared(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._configs.setdefault(repr(config), config)
