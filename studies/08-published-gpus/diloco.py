"""Rounds of DiLoCo and local SGD on four L40S: simulated with one rank that is slower than the others, and measured all-reduces.

A synchronisation takes longer after more local steps, although all GPUs are equal: by about 3 ms for each step. So one of the four
ranks is slower by that. The seconds of an all-reduce by bandwidth are those of rounds with one local step.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from common import rows
from simulated import simulated_round

RANKS = 4


class Run(NamedTuple):
    """A measured run, in seconds: of a local step, and of a synchronisation."""

    name: str
    algorithm: str
    period: int
    bandwidth: str
    compute: float
    sync: float

    @property
    def round(self) -> float:
        """What is predicted: the local steps and the synchronisation."""
        return self.period * self.compute + self.sync


def read(path: Path) -> list[Run]:
    """The calibration, without DDP."""
    return [
        Run(
            row["run"],
            row["algorithm"],
            int(row["H"]),
            row["bandwidth"],
            float(row["compute_ms_median"]) / 1e3,
            float(row["sync_ms_mean"]) / 1e3,
        )
        for row in rows(path)
        if row["algorithm"] != "ddp"
    ]


def _median(runs: Collection[Run], name: str) -> float:
    return statistics.median(getattr(run, name) for run in runs)


def _nearest(runs: Sequence[Run], algorithm: str) -> list[Run]:
    """Runs of this algorithm, or of any if it has none."""
    return [run for run in runs if run.algorithm == algorithm] or list(runs)


def slower(runs: Sequence[Run], algorithm: str) -> float:
    """Seconds by which one rank's local step is slower: half by runs of this algorithm, half by those of both."""

    def excess(chosen: Sequence[Run]) -> float:
        found = []
        for run in chosen:
            if run.period > 1:
                once = [each for each in runs if (each.period, each.bandwidth) == (1, run.bandwidth)]
                found.append((run.sync - _median(_nearest(once, run.algorithm), "sync")) / (run.period - 1))
        return statistics.median(found)

    own = [run for run in _nearest(runs, algorithm) if run.period > 1]
    return (excess(own or runs) + excess(runs)) / 2


def predict(runs: Sequence[Run], algorithm: str, period: int, bandwidth: str) -> float:
    """Seconds of a round."""
    several = [run for run in runs if run.period > 1]
    once = [run for run in runs if run.period == 1]
    compute = _median(_nearest(once if period == 1 else several, algorithm), "compute")
    late = slower(runs, algorithm)
    reduction = _median(_nearest([run for run in once if run.bandwidth == bandwidth], algorithm), "sync") - late
    return simulated_round(period, (compute,) * (RANKS - 1) + (compute + late,), reduction)


def predictions(published: Path) -> list[Mapping[str, object]]:
    """The seconds of a round for each key of `diloco_to_predict.csv`."""
    runs = read(published / "diloco_measured_calibration.csv")
    return [
        {**key, "round_seconds": predict(runs, key["algorithm"], int(key["H"]), key["bandwidth"])}
        for key in rows(published / "diloco_to_predict.csv")
    ]


def left_out(runs: Sequence[Run]) -> list[tuple[Run, float]]:
    """Each run that has another of its period and its bandwidth, predicted without it."""
    found = []
    for run in runs:
        others = [other for other in runs if other != run]
        if any((other.period, other.bandwidth) == (run.period, run.bandwidth) for other in others):
            found.append((run, predict(others, run.algorithm, run.period, run.bandwidth)))
    return found
