"""The runs of a sweep: what each is called, whether it is there already, and how all of them ended."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hetsim import checks, report

FREE = ("objective", "download")  # keys that change neither what a run computes nor what it leaves
OBJECTIVES = (
    *("seconds", "updates_per_second", "samples_per_second", "staleness_mean", "staleness_max", "idle_share"),
    *("num_updates", "num_samples", "wall_seconds", "final.train_loss", "final.test_accuracy"),
)
SECONDS_TO = re.compile(r"seconds_to_(0?\.\d+|1(?:\.0*)?)")
DIRECTIONS = {"minimize": math.inf, "maximize": -math.inf}  # and what is worse than any number
IDENTITY, TYPED = "# identity: ", "# typed: "


def identity(entries: Mapping[str, Any]) -> str:
    """Twelve hexadecimal digits that are the same for the same resolved config, and differ where any value of it does."""
    told = {key: value for key, value in entries.items() if key not in FREE}
    return hashlib.sha256(repr(_ordered(told)).encode()).hexdigest()[:12]


def _ordered(entry: Any) -> Any:
    if isinstance(entry, Mapping):
        return tuple(sorted((repr(key), repr(_ordered(value))) for key, value in entry.items()))
    return [_ordered(part) for part in entry] if isinstance(entry, list | tuple) else entry


def name(entries: Mapping[str, Any]) -> str:
    """What the folder of a run is called: a legal file name of at most 120 letters, its method, cluster, seed and identity."""
    cluster = entries.get("cluster")
    place = cluster.get("name") if isinstance(cluster, Mapping) else cluster
    return f"{_legal(entries.get('method'))}-{_legal(place)}-s{_legal(entries.get('seed'), most=20)}-{identity(entries)}"


def _legal(part: Any, *, most: int = 40) -> str:
    return re.sub(r"[^A-Za-z0-9_.+-]+", "_", str(part))[:most].strip("-._") or "x"


def header(identity: str, typed: Sequence[str]) -> str:
    """The comment at the top of a run's config.yaml: its identity, and what was typed to get it."""
    return f"{IDENTITY}{identity}\n{TYPED}{json.dumps(list(typed))}\n"


def typed(run: Path) -> dict[str, str]:
    """What was typed for a finished run, value by key; empty where its config.yaml does not say."""
    for line in _head(run):
        if line.startswith(TYPED):
            overrides = [override.partition("=") for override in json.loads(line.removeprefix(TYPED))]
            return {key.lstrip("+~"): value for key, _, value in overrides}
    return {}


def _head(run: Path) -> list[str]:
    try:
        with (run / "config.yaml").open(encoding="utf-8") as file:
            return [file.readline().rstrip("\n"), file.readline().rstrip("\n")]
    except (OSError, ValueError):
        return []


def finished(run: Path, identity: str) -> dict[str, Any] | None:
    """The summary of the run of this identity, if this folder holds it: summary.json is the last file that a run writes."""
    if _head(run)[:1] != [IDENTITY + identity]:
        return None
    with contextlib.suppress(OSError, ValueError):
        summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
        return summary if isinstance(summary, dict) else None
    return None


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One process at a time, where the system can lock a folder: the same run twice in a sweep is run once."""
    try:
        import fcntl

        lock = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):
        yield
        return
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


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
        report.write_text(folder / "error.txt", f"{sentence}\n{traceback}")


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


def seconds_to(run: Path, accuracy: float) -> float | None:
    """When a run's curve first reached this test accuracy, on the run's own clock; None if it never did."""
    with (run / "curve.csv").open(encoding="utf-8", newline="") as file:
        curve = [(float(row["seconds"]), float(row["test_accuracy"] or -1)) for row in csv.DictReader(file)]
    return next((seconds for seconds, reached in curve if reached >= accuracy), None)


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
    return f"best {key} of these runs: {report.shown(chosen.objective)} with {' '.join(varied) or 'what was given'} in {chosen.run}"
