"""The finished runs below a folder, as `hetsim-table` reads them."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from hetsim.results.config_file import check_leaves, read_config
from hetsim.results.finished import LossPoint, check_has, check_summary, read_curve, read_summary
from hetsim.results.identity import environment_hashes, typed_overrides
from hetsim.results.index import LEAST, NAME, Row, is_settled, places, read_index, write_index
from hetsim.results.keys import VARY_IN_A_ROW, with_added
from hetsim.results.run_files import is_number, is_text

KEYS = ("method", "backend", "seed", "seconds", "staleness_max")
"""The entries of summary.json that the table needs, besides those of every run."""


@dataclass(frozen=True)
class FinishedRun:
    """A finished run: its folder, its summary, its config without the keys that vary in a row, and what was typed for it.

    Of many runs, those of one config share it: it is not to be changed.
    """

    folder: Path
    summary: Mapping[str, Any]
    config: Mapping[str, Any]
    typed: Mapping[str, str]

    @cached_property
    def points(self) -> list[LossPoint]:
        """The learning curve: seconds of the run's own clock, training loss, test accuracy; None where there is no number."""
        return read_curve(self.folder)


def finished_runs(folder: Path) -> list[FinishedRun]:
    """Every finished run at any depth; ValueError with one sentence if there is none, or one that is no run of this hetsim.

    Many runs are read from the index of the folder, which is brought up to date.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder: give the folder of a sweep, its hydra.sweep.dir")
    begun = datetime.now(UTC)
    there = places(folder)
    if not there:
        raise ValueError(f"{folder} holds no finished run: give the folder of a sweep, its hydra.sweep.dir")
    reader = _Reader(folder)
    with _no_garbage():
        known = read_index(folder, there, reader.of_index) if len(there) >= LEAST else {}
        found = [known.get(place.name) or reader.of_files(place.name) for place in there]
    if sum(place.name not in known and is_settled(place, begun=begun) for place in there) >= LEAST:
        write_index(folder, ((place, _row(run)) for place, run in zip(there, found, strict=True)), begun=begun)
    return found


def finished_run(folder: Path) -> FinishedRun:
    """The finished run of a folder; ValueError with one sentence if it holds none."""
    return _Reader(folder.parent).of_files(folder.name)


def keep_index(folder: Path, *, num_runs: int) -> None:
    """Bring the index of a sweep's folder up to date, if so many runs are worth one."""
    if num_runs >= LEAST:
        with contextlib.suppress(ValueError, OSError):  # whoever reads the runs is told
            finished_runs(folder)


@contextlib.contextmanager
def _no_garbage() -> Iterator[None]:
    """While this lasts, Python does not look for garbage: there is none among what is read, and the more there is the longer it looks."""
    looks = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if looks:
            gc.enable()


class _Reader:
    """The runs of a folder, of which those of one config share it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._configs: dict[str, Mapping[str, Any]] = {}
        self._checked: dict[int, Mapping[str, Any]] = {}

    def of_files(self, name: str) -> FinishedRun:
        """The run in this folder."""
        folder = self.folder / name
        summary = read_summary(folder)
        check_has(folder, summary, *KEYS)
        config = {key: value for key, value in read_config(folder).items() if key not in VARY_IN_A_ROW}
        config |= environment_hashes(folder, without=VARY_IN_A_ROW)
        return FinishedRun(folder, summary, self._shared(config or {"method": summary["method"]}), typed_overrides(folder))

    def of_index(self, name: str, row: Row) -> FinishedRun:
        """The run of this folder as the index has it, and checked as what files say; ValueError if it is none."""
        folder = self.folder / name
        path = self.folder / NAME
        check_summary(path, row.summary)
        check_has(folder, row.summary, *KEYS)
        if id(row.config) not in self._checked:
            check_leaves(path, row.config)
            self._checked[id(row.config)] = self._shared(with_added(dict(row.config)))
        if id(row.typed) not in self._checked and isinstance(row.typed, dict) and all(map(is_text, row.typed.values())):
            self._checked[id(row.typed)] = row.typed
        if id(row.typed) not in self._checked or not all(is_number(seconds) for seconds, _, _ in row.points):
            raise ValueError(f"{path} is no index")
        run = FinishedRun(folder, row.summary, self._checked[id(row.config)], row.typed)
        vars(run)["points"] = row.points
        return run

    def _shared(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._configs.setdefault(repr(config), config)


def _row(run: FinishedRun) -> Row | None:
    """What the index keeps of a run; None if its curve cannot be read, which is said to whoever asks for it."""
    try:
        return Row(run.summary, run.config, run.typed, run.points)
    except ValueError:
        return None
