"""What a search optimises: a number of summary.json, or the time to a test accuracy."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hetsim import checks
from hetsim.registry import SHIPPED, current_name
from hetsim.results.finished import read_curve, time_to

OBJECTIVES = (
    *("seconds", "updates_per_second", "samples_per_second", "idle_share"),
    *("staleness_mean", "staleness_p50", "staleness_p95", "staleness_max"),
    *("num_updates", "num_samples", "wall_seconds", "final.train_loss", "final.test_accuracy"),
)
SECONDS_TO = re.compile(r"seconds_to_(0?\.\d+|1(?:\.0*)?)")
OWN = "hetsim.workloads.own.Own"
METRIC = re.compile(r"final\.[A-Za-z_]\w*")
WORST = {"minimize": math.inf, "maximize": -math.inf}
"""What is worse than any number, by the direction of a search."""


def check_objective(key: Any, *, workload: Any) -> None:
    """ValueError with one sentence if no run has a number of this name; None is no objective.

    If the workload, in this part of the config, is of the user's own, it may have metrics whose names are known after a run.
    """
    target = workload.get("_target_") if isinstance(workload, Mapping) else None
    is_own = target == OWN or not (isinstance(target, str) and current_name(target) in SHIPPED["workload"])
    if is_own and isinstance(key, str) and METRIC.fullmatch(key):
        return
    if key is not None and key not in OBJECTIVES and not SECONDS_TO.fullmatch(str(key)):
        known = ", ".join((*OBJECTIVES, "seconds_to_0.9 (to that test accuracy)"))
        raise ValueError(f"objective={key} is no number of a run: take one of {known}{checks.suggestion(key, OBJECTIVES)}")


def check_search(key: Any, direction: str) -> None:
    """ValueError with one sentence if a search has several directions, or no objective."""
    if direction not in WORST:
        raise ValueError(f"hydra.sweeper.direction must be minimize or maximize, not {direction}: a search has one objective")
    if key is None:
        raise ValueError("objective is missing: name the number that the search is after, such as objective=seconds_to_0.9")


def search_direction(hydra_config: Any) -> str | None:
    """The direction of the search in Hydra's part of a config; None if its sweeper is no search."""
    direction = hydra_config.sweeper.get("direction")
    return None if direction is None else str(getattr(direction, "name", direction))


def objective_value(key: str | None, summary: Mapping[str, Any], run: Path, *, worst: float) -> float:
    """The number of a finished run that a search optimises; `worst` if the run has none.

    ValueError with one sentence if the run's workload has no metric of this name.
    """
    final = summary.get("final")
    if key is not None and METRIC.fullmatch(key) and final is not None and (name := key.removeprefix("final.")) not in final:
        raise ValueError(f"objective={key} is no number of this run: take one of {', '.join(final)}{checks.suggestion(name, final)}")
    if key is None:
        return worst
    found: Any
    if within := SECONDS_TO.fullmatch(key):
        found = time_to(read_curve(run), accuracy=float(within[1]))
    else:
        found = summary
        for part in key.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
    return worst if found is None else float(found)
