"""What a finished run has to report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hetsim.coordination.state import State
from hetsim.runtime.curve import Point
from hetsim.runtime.experiment import Experiment
from hetsim.runtime.metrics import Applied, RankActivity


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The numbers of a run, from whichever world."""

    experiment: Experiment
    start: State
    last: State
    """The state of the last commit."""
    applied: Applied
    activity: Sequence[RankActivity]
    """By rank, of the workers."""
    points: Sequence[Point]
    profile_seconds: float
    """What measuring the workers took before the run began."""
