"""The finished runs below a folder, as `hetsim-table` reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hetsim.results.config_file import read_config
from hetsim.results.finished import LossPoint, check_has, read_curve, read_summary
from hetsim.results.identity import environment_hashes, typed_overrides
from hetsim.results.keys import VARY_IN_A_ROW


@dataclass(frozen=True)
class FinishedRun:
    """A finished run: its folder, its summary, its config without the keys that vary in a row, and what was typed for it."""

    folder: Path
    summary: Mapping[str, Any]
    config: Mapping[str, Any]
    typed: Mapping[str, str]

    @cached_property
    def points(self) -> list[LossPoint]:
        """The learning curve: seconds of the run's own clock, training loss, test accuracy; None where there is no number."""
        return read_curve(self.folder)


def finished_runs(folder: Path) -> list[FinishedRun]:
    """Every finished run at any depth; ValueError with one sentence if there is none, or one that is no run of this hetsim."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder: give the folder of a sweep, its hydra.sweep.dir")
    found = [finished_run(path.parent) for path in sorted(folder.rglob("summary.json"))]
    if not found:
        raise ValueError(f"{folder} holds no finished run: give the folder of a sweep, its hydra.sweep.dir")
    return found


def finished_run(folder: Path) -> FinishedRun:
    """The finished run of a folder; ValueError with one sentence if it holds none."""
    summary = read_summary(folder)
    check_has(folder, summary, "method", "backend", "seed", "seconds", "staleness_max")
    config = {key: value for key, value in read_config(folder).items() if key not in VARY_IN_A_ROW}
    config |= environment_hashes(folder, without=VARY_IN_A_ROW)
    return FinishedRun(folder, summary, config or {"method": summary["method"]}, typed_overrides(folder))
