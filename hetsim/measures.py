"""A run in numbers, added up as it goes and independent of the trace."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hetsim.effects import Contribution

RECENT = 8  # intervals remembered per worker, and as many more for each further gradient that may lie beyond the last commit


@dataclass
class Busy:
    """What one rank did: intervals in seconds of the run's clock, added up, the latest kept to be cut at the run's end."""

    iterations: int = 0
    samples: int = 0
    compute_seconds: float = 0.0
    update_seconds: float = 0.0
    num_ahead: int = 1
    """Gradients that may still be computed behind the last commit."""
    _recent: deque[tuple[bool, float, float, int]] = field(init=False)

    def __post_init__(self) -> None:
        self._recent = deque(maxlen=RECENT * self.num_ahead)

    def gradient(self, start: float, end: float, samples: int) -> None:
        """A gradient was computed."""
        self.iterations += 1
        self.samples += samples
        self.compute_seconds += end - start
        self._recent.append((True, start, end, samples))

    def update(self, start: float, end: float) -> None:
        """An optimizer step was taken."""
        self.update_seconds += end - start
        self._recent.append((False, start, end, 0))

    def cut(self, seconds: float) -> None:
        """Take back what lies behind the last commit: a gradient that was not finished then does not count."""
        for is_gradient, start, end, samples in self._recent:
            beyond = end - max(start, seconds)
            if beyond > 0:
                if is_gradient:
                    self.iterations -= 1
                    self.samples -= samples
                    self.compute_seconds -= beyond
                else:
                    self.update_seconds -= beyond
        self._recent.clear()


@dataclass
class Applied:
    """What the committed versions were made of, by worker and in all."""

    num_workers: int
    count: list[int] = field(init=False)
    staleness: list[int] = field(init=False)
    staleness_max: int = 0
    num_updates: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.count = [0] * self.num_workers
        self.staleness = [0] * self.num_workers

    def commit(self, seconds: float, applied: Sequence[Contribution]) -> None:
        """A version was made of these contributions."""
        self.num_updates += 1
        self.seconds = seconds
        for contribution in applied:
            self.count[contribution.rank] += 1
            self.staleness[contribution.rank] += contribution.staleness
            self.staleness_max = max(self.staleness_max, contribution.staleness)


def summary(applied: Applied, busy: Sequence[Busy]) -> dict[str, Any]:
    """Rates, staleness and idleness. Waiting is everything that is neither compute nor update."""
    seconds = applied.seconds
    for worker in busy:
        worker.cut(seconds)
    waits = [max(0.0, seconds - worker.compute_seconds - worker.update_seconds) for worker in busy]
    return {
        "seconds": seconds,
        "updates_per_second": ratio(applied.num_updates, seconds),
        "staleness_mean": ratio(sum(applied.staleness), sum(applied.count)),
        "staleness_max": applied.staleness_max,
        "idle_share": ratio(sum(waits), seconds * len(waits)),
        "per_worker": [
            {
                "rank": rank,
                "iterations": worker.iterations,
                "samples": worker.samples,
                "compute_seconds": worker.compute_seconds,
                "update_seconds": worker.update_seconds,
                "wait_seconds": wait,
                "staleness_mean": ratio(applied.staleness[rank], applied.count[rank]),
            }
            for rank, (worker, wait) in enumerate(zip(busy, waits, strict=True))
        ],
    }


def ratio(part: float, whole: float) -> float | None:
    """part / whole; None where there is nothing to divide by."""
    return part / whole if whole else None
