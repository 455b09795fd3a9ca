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

from hetsim.results.reading.config_file import check_leaves, read_config
from hetsim.results.reading.identity import typed_overrides
from hetsim.results.reading.index import LEAST, NAME, Place, is_settled, read_index, search, write_index
from hetsim.results.reading.index_columns import Row, StoredCurve
from hetsim.results.reading.keys import VARY_IN_A_ROW, with_added, without
from hetsim.results.reading.run_files import skipped
from hetsim.results.reading.schema import for_tables
from hetsim.results.reading.summary_and_curve import LossPoint, check_has, highest_accuracy, read_curve, read_summary, time_to

KEYS = ("method", "backend", "seed", "seconds", "staleness_max")
"""The entries of summary.json that the table needs, besides those of every run."""


@dataclass(frozen=True)
class FinishedRun:
    """A finished run: its folder, what tables need of its summary, its config without the keys that vary in a row, what was typed for it.

    Of many runs, those of one config share it: it is not to be changed.
    """

    sweep: Path
    name: str
    """Of the run's folder, relative to that of the sweep."""
    summary: Mapping[str, Any]
    config: Mapping[str, Any]
    typed: Mapping[str, str]
    stored: StoredCurve | None = None
    """The learning curve as the index has it; None if it is to be read from the files."""

    @cached_property
    def folder(self) -> Path:
        """The run's own folder."""
        return self.sweep / self.name

    @cached_property
    def points(self) -> list[LossPoint]:
        """The learning curve: seconds of the run's own clock, training loss, test accuracy; None where there is no number."""
        return read_curve(self.folder) if self.stored is None else self.stored.points()

    @property
    def highest_accuracy(self) -> float | None:
        """Of its learning curve; None if it has none."""
        return highest_accuracy(self.points) if self.stored is None else self.stored.highest_accuracy()

    def time_to(self, *, accuracy: float | None = None, loss: float | None = None) -> float | None:
        """When it first reached this test accuracy, or this training loss, in seconds of its own clock; None if it never did."""
        if self.stored is None:
            return time_to(self.points, accuracy=accuracy, loss=loss)
        return self.stored.time_to(accuracy=accuracy, loss=loss)


class FinishedRuns(NamedTuple):
    """The finished runs below a folder, and remarks on those that failed or are broken."""

    runs: list[FinishedRun]
    remarks: list[str]


def finished_runs(folder: Path) -> list[FinishedRun]:
    """The finished runs of `read_runs`."""
    return read_runs(folder).runs


def read_runs(folder: Path) -> FinishedRuns:
    """Every finished run at any depth; ValueError with one sentence if none can be read. Broken runs are skipped.

    Many runs are read from the index of the folder, which is brought up to date.
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
        found, broken = dict[Place, FinishedRun](), list[str]()
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
    """The finished run of a folder; ValueError with one sentence if it holds none."""
    return _Reader(folder.parent).of_files(folder.name)


def keep_index(folder: Path, *, num_runs: int) -> None:
    """Update the index of a sweep's folder, if it has enough runs for an index."""
    if num_runs >= LEAST:
        with contextlib.suppress(ValueError, OSError):  # whoever reads the runs is told
            finished_runs(folder)


@contextlib.contextmanager
def no_garbage() -> Iterator[None]:
    """While this lasts, Python does not look for garbage: there is none among what is read, and the more there is the longer it looks."""
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
        """The run in this folder."""
        folder = self.folder / name
        summary = read_summary(folder)
        check_has(folder, summary, *KEYS)
        config = _of_a_row(read_config(folder))
        shared = self._shared(config or {"method": summary["method"]})
        found = FinishedRun(self.folder, name, for_tables(summary), shared, typed_overrides(folder))
        _ = found.points  # which may be broken, too
        return found

    def of_index(self, name: str, row: Row) -> FinishedRun:
        """The run of this folder as the index has it; ValueError if its config is none."""
        if id(row.config) not in self._checked:
            check_leaves(self.folder / NAME, row.config)
            self._checked[id(row.config)] = self._shared(_of_a_row(with_added(dict(row.config))))
        stored = row.curve if isinstance(row.curve, StoredCurve) else None
        return FinishedRun(self.folder, name, row.summary, self._checked[id(row.config)], row.typed, stored)

    def _shared(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._configs.setdefault(repr(config), config)
