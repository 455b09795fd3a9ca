"""The outcome of a finished run, from which its summary is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hetsim.coordination.state import State
from hetsim.runtime.curve import Point
from hetsim.runtime.experiment import Experiment
from hetsim.runtime.metrics import Applied, RankActivity


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The numbers of a run, the same in every world."""

    experiment: Experiment
    start: State
    last: State
    """The state of the last commit."""
    applied: Applied
    activity: Sequence[RankActivity]
    """Of the workers, by rank."""
    points: Sequence[Point]
    profile_seconds: float
    """Seconds that measuring the workers took before the run began."""
