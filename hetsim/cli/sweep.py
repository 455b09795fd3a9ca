"""The runs of a sweep: what a search optimises, and how all runs ended."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hetsim import checks
from hetsim.results.folder import write_text
from hetsim.results.summary import formatted, seconds_to

OBJECTIVES = (
    *("seconds", "updates_per_second", "samples_per_second", "staleness_mean", "staleness_max", "idle_share"),
    *("num_updates", "num_samples", "wall_seconds", "final.train_loss", "final.test_accuracy"),
)


SECONDS_TO = re.compile(r"seconds_to_(0?\.\d+|1(?:\.0*)?)")


DIRECTIONS = {"minimize": math.inf, "maximize": -math.inf}  # and what is worse than any number


@dataclass(frozen=True)
class Outcome:
    """How a run of a sweep ended. As a float it is what a search is after."""

    run: str
    typed: tuple[str, ...]
    objective: float
    already: bool = False
    failure: str | None = None

    def __float__(self) -> float:
        return self.objective


def failed(folder: Path, sentence: str, traceback: str = "") -> None:
    """Leave word in the folder of a run."""
    with contextlib.suppress(OSError):
        write_text(folder / "error.txt", f"{sentence}\n{traceback}")


def succeeded(folder: Path) -> None:
    """Take away what an earlier failure left."""
    with contextlib.suppress(OSError):
        (folder / "error.txt").unlink(missing_ok=True)


def check_objective(key: Any) -> None:
    """ValueError with one sentence if this is nothing that a search can be after."""
    if key is not None and key not in OBJECTIVES and not SECONDS_TO.fullmatch(str(key)):
        known = ", ".join((*OBJECTIVES, "seconds_to_0.9 (to that test accuracy)"))
        raise ValueError(f"objective={key} is no number of a run: take one of {known}{checks.suggestion(key, OBJECTIVES)}")


def check_search(key: Any, direction: str) -> None:
    """ValueError with one sentence if a search does not know what it is after."""
    if direction not in DIRECTIONS:
        raise ValueError(f"hydra.sweeper.direction must be minimize or maximize, not {direction}: a search has one objective")
    if key is None:
        raise ValueError("objective is missing: name the number that the search is after, such as objective=seconds_to_0.9")


def objective(key: str | None, summary: Mapping[str, Any], run: Path, *, worst: float) -> float:
    """The number of a finished run that a search is after; `worst` if it has none."""
    if key is None:
        return worst
    found: Any
    if within := SECONDS_TO.fullmatch(key):
        found = seconds_to(run, float(within[1]))
    else:
        found = summary
        for part in key.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
    return worst if found is None else float(found)


def ended(outcomes: Sequence[Outcome], folder: str) -> str:
    """The line behind a sweep: how many runs are there now."""
    there = sum(outcome.failure is None for outcome in outcomes)
    already = sum(outcome.already for outcome in outcomes)
    of = "" if there == len(outcomes) else f" of {len(outcomes)}"
    return f"{there}{of} run{'' if len(outcomes) == 1 else 's'}{f' ({already} were there already)' if already else ''} in {folder}"


def failures(outcomes: Sequence[Outcome]) -> str:
    """The lines behind a sweep of which not every run succeeded: each that failed, with its sentence; empty if none did."""
    failed = [outcome for outcome in outcomes if outcome.failure is not None]
    lines = [f"hetsim: {len(failed)} of {len(outcomes)} runs failed:", *(f"  {outcome.run}: {outcome.failure}" for outcome in failed)]
    return "\n".join(lines) if failed else ""


def best(outcomes: Sequence[Outcome], key: str, *, worst: float) -> str:
    """The line behind a search."""
    found = [outcome for outcome in outcomes if outcome.objective != worst]
    if not found:
        return f"no run has a number for objective={key}"
    chosen = (min if worst > 0 else max)(found, key=float)
    varied = [override for override in chosen.typed if any(override not in outcome.typed for outcome in outcomes)]
    return f"best {key} of these runs: {formatted(chosen.objective)} with {' '.join(varied) or 'what was given'} in {chosen.run}"
