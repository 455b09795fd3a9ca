"""The finished runs below a folder, as `hetsim-table` reads them."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from hetsim.files.config_file import read_config
from hetsim.files.identity import typed_overrides
from hetsim.files.keys import VARY_IN_A_ROW, without
from hetsim.files.reading import skipped
from hetsim.files.run_folders import search
from hetsim.files.schema import for_tables
from hetsim.files.summary_and_curve import LossPoint, check_has, highest_accuracy, read_curve, read_summary, time_to

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

    @cached_property
    def folder(self) -> Path:
        """The run's own folder."""
        return self.sweep / self.name

    @cached_property
    def points(self) -> list[LossPoint]:
        """The learning curve: seconds of the run's clock, training loss, test accuracy; None for a missing number."""
        return read_curve(self.folder)

    @property
    def highest_accuracy(self) -> float | None:
        """The highest test accuracy of the learning curve; None if there is none."""
        return highest_accuracy(self.points)

    def time_to(self, *, accuracy: float | None = None, loss: float | None = None) -> float | None:
        """The time at which the run first reached this test accuracy or training loss, in seconds of its clock; None if it never did."""
        return time_to(self.points, accuracy=accuracy, loss=loss)


class FinishedRuns(NamedTuple):
    """The finished runs below a folder, and remarks on failed or broken runs."""

    runs: list[FinishedRun]
    remarks: list[str]


def finished_runs(folder: Path) -> list[FinishedRun]:
    """The finished runs of `read_runs`."""
    return read_runs(folder).runs


def read_runs(folder: Path) -> FinishedRuns:
    """Read all finished runs at any depth. Raises ValueError if none is readable. Broken runs are skipped."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder: give the folder of a sweep, its hydra.sweep.dir")
    names, num_failed = search(folder)
    if not names:
        raise ValueError(f"{folder} holds no finished run: give the folder of a sweep, its hydra.sweep.dir")
    reader = _Reader(folder)
    runs, broken = list[FinishedRun](), list[str]()
    with no_garbage():
        for name in names:
            try:
                runs.append(reader.read(name))
            except ValueError as error:
                broken.append(str(error))
    if not runs:
        raise ValueError(broken[0])
    failed = [f"{num_failed} runs failed and are not in the table: see error.txt in their folders"] if num_failed else []
    return FinishedRuns(runs, failed + skipped(broken))


def finished_run(folder: Path) -> FinishedRun:
    """The finished run in a folder. Raises ValueError if it contains none."""
    return _Reader(folder.parent).read(folder.name)


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


class _Reader:
    """The runs of a folder; runs with the same config share one config object."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._configs: dict[str, Mapping[str, Any]] = {}

    def read(self, name: str) -> FinishedRun:
        """Read the files of the run in this folder."""
        folder = self.folder / name
        summary = read_summary(folder)
        check_has(folder, summary, *KEYS)
        config = without(read_config(folder), VARY_IN_A_ROW) or {"method": summary["method"]}
        shared = self._configs.setdefault(repr(config), config)
        run = FinishedRun(self.folder, name, for_tables(summary), shared, typed_overrides(folder))
        _ = run.points  # which may be broken, too
        return run
