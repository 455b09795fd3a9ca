"""Why the times of a calibration may be those of a busy machine, and not those of a training run that has the machine for itself."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hetsim.calibration.fit import Steps
from hetsim.calibration.readings import Reading

MOST_ERROR = 0.1
"""Of gradients at batch sizes that the fit has not seen, relative."""
MOST_NOISE = 0.25
"""Of gradients of the same size: the standard deviation over the mean."""
MOST_SLOW = 0.05
"""The share of gradients in slow spells."""
MOST_WAITING = 0.15
"""Seconds without a core, relative to the CPU-seconds of gradients that are computed one worker at a time."""


def doubts(steps: Sequence[Steps], alone: Sequence[Sequence[Reading]], capped: Sequence[bool]) -> list[str]:
    """Return a clause for each node and reason not to trust its times; empty if the calibration is trustworthy.

    `alone` has each node's gradients that were computed while all other nodes paused. A node that is `capped` by a quota waits by design.
    """
    found = []
    for rank, (fitted, readings, waits) in enumerate(zip(steps, alone, capped, strict=True)):
        reasons = (
            _above(fitted.error, MOST_ERROR, "error at held-out batch sizes"),
            _above(fitted.noise.deviation, MOST_NOISE, "noise"),
            _above(fitted.noise.share_in_slow_spells, MOST_SLOW, "of its gradients in slow spells"),
            None
            if waits
            else _above(_waiting(readings), MOST_WAITING, "longer than its CPU-seconds, because other programs had the processor"),
        )
        found += [f"node {rank}: {reason}" for reason in reasons if reason is not None]
    return found


def _above(value: float, most: float, what: str) -> str | None:
    """None if the value is at most the threshold, which the clause names."""
    return f"{100 * value:.0f} % {what} (at most {100 * most:.0f} %)" if value > most else None


def _waiting(readings: Sequence[Reading]) -> float:
    """The mean over a node's gradients of the seconds in which its thread had no core, relative to those in which it had one."""
    seconds, busy = math.fsum(each.seconds for each in readings), math.fsum(each.cpu_seconds for each in readings)
    return max(0.0, seconds / busy - 1) if busy else 0.0
