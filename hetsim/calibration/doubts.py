"""Reasons to suspect that a calibration measured a busy machine."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hetsim.calibration.fit import Steps
from hetsim.calibration.readings import Reading

MOST_ERROR = 0.1
"""The maximum relative error of gradients at held-out batch sizes."""
MOST_NOISE = 0.25
"""The maximum noise of gradients of one size: the standard deviation divided by the mean."""
MOST_SLOW = 0.05
"""The maximum share of gradients in slow spells."""
MOST_WAITING = 0.15
"""The maximum seconds without a core, relative to the CPU-seconds of gradients that are computed one worker at a time."""


def doubts(steps: Sequence[Steps], alone: Sequence[Sequence[Reading]], capped: Sequence[bool]) -> list[str]:
    """Return a clause for each node and reason not to trust its times; empty if the calibration is trustworthy.

    `alone` contains each node's gradients while all other nodes paused. A node that is `capped` by a quota waits by design.
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


def crowded(widths: Sequence[int], machines: Sequence[float], cores: Sequence[float]) -> list[str]:
    """Return a clause if workers that compute with several threads share fewer cores, where no measurement predicts another.

    Each worker has its number of threads, a number for its machine, and the cores there.
    """
    found = []
    for machine in dict.fromkeys(machines):
        here = [rank for rank, its in enumerate(machines) if its == machine]
        threads, room = sum(widths[rank] for rank in here), int(cores[here[0]])
        if max(widths[rank] for rank in here) > 1 and threads > room:
            nodes = f"node {here[0]}" if len(here) == 1 else f"nodes {', '.join(map(str, here))}"
            found.append(f"{nodes}: {threads} threads on {room} core{'s' * (room > 1)} (lower threads)")
    return found


def _above(value: float, most: float, what: str) -> str | None:
    """A clause with the threshold; None if the value is at most the threshold."""
    return f"{100 * value:.0f} % {what} (at most {100 * most:.0f} %)" if value > most else None


def _waiting(readings: Sequence[Reading]) -> float:
    """The mean over a node's gradients of the thread's seconds without a core, relative to its seconds with a core."""
    seconds, busy = math.fsum(each.seconds for each in readings), math.fsum(each.cpu_seconds for each in readings)
    return max(0.0, seconds / busy - 1) if busy else 0.0
