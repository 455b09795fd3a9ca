"""The objective of a search: a number of summary.json, or the time to a test accuracy."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hetsim import checks
from hetsim.files.summary_and_curve import read_curve, time_to

OBJECTIVES = {
    **dict.fromkeys(("seconds", "staleness_mean", "staleness_max", "idle_share", "wall_seconds", "final.train_loss"), "minimize"),
    **dict.fromkeys(("updates_per_second", "samples_per_second", "num_updates", "num_samples", "final.test_accuracy"), "maximize"),
}
"""The numbers of a run, and the better direction of each."""
SECONDS_TO = re.compile(r"seconds_to_(0?\.\d+|1(?:\.0*)?)")
OWN = re.compile(r"final\.\w+")
DIRECTIONS = ("minimize", "maximize")


def direction_of(objective: str, direction: str | None) -> str:
    """The direction of a search: the given one, or the better direction of the number.

    Raises ValueError for an unknown number, or for a metric of the user's own without a direction.
    """
    usual = "minimize" if SECONDS_TO.fullmatch(objective) else OBJECTIVES.get(objective)
    if usual is None and not OWN.fullmatch(objective):
        names = ", ".join((*OBJECTIVES, "seconds_to_0.9 (to that test accuracy)", "final.NAME of your own workload"))
        raise ValueError(f"--objective {objective} is not a number of a run: take one of {names}{checks.suggestion(objective, OBJECTIVES)}")
    if direction is not None and direction not in DIRECTIONS:
        raise ValueError(f"--direction must be minimize or maximize, not {direction}")
    if usual is None and direction is None:
        raise ValueError(f"--objective {objective} is a number of your own: add --direction minimize or --direction maximize")
    return direction or usual or ""


def objective_value(objective: str, summary: Mapping[str, Any], run: Path) -> float | None:
    """The objective of a finished run; None if the run lacks the number."""
    if within := SECONDS_TO.fullmatch(objective):
        return time_to(read_curve(run), accuracy=float(within[1]))
    value: Any = summary
    for part in objective.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return None if value is None else float(value)


def on_the_way(objective: str, loss: float | None, accuracy: float | None) -> float | None:
    """The value of an evaluation during a run that corresponds to the objective at its end; None if there is none.

    It has the objective's direction. For a time to an accuracy, it is the test error.
    """
    if SECONDS_TO.fullmatch(objective):
        return None if accuracy is None else 1 - accuracy
    return {"final.test_accuracy": accuracy, "final.train_loss": loss}.get(objective)
