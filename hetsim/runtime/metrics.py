"""A run in numbers, added up as it goes and independent of the trace."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hetsim.coordination.contributions import SynchronousContributions
from hetsim.effects import Contribution

RECENT = 8  # intervals remembered per worker, and as many more for each further gradient that may lie beyond the last commit


@dataclass(slots=True)
class RankActivity:
    """What one rank did: intervals in seconds of the run's clock, added up, the latest kept to be cut at the run's end."""

    iterations: int = 0
    samples: int = 0
    compute_seconds: float = 0.0
    update_seconds: float = 0.0
    down_seconds: float = 0.0
    """In which its node was not there."""
    num_ahead: int = 1
    """Gradients that may still be computed behind the last commit."""
    _recent: deque[tuple[str, float, float, int, int]] = field(init=False, compare=False)
    """The sum that an interval counts in, its start and end, and the iterations and samples that count with it."""

    def __post_init__(self) -> None:
        self._recent = deque(maxlen=RECENT * self.num_ahead)

    def gradient(self, start: float, end: float, samples: int) -> None:
        """A gradient was computed."""
        self.iterations += 1
        self.samples += samples
        self.compute_seconds += end - start
        self._recent.append(("compute_seconds", start, end, 1, samples))

    def update(self, start: float, end: float) -> None:
        """An optimizer step was taken; one that takes no time leaves nothing to tell."""
        if start == end:
            return
        self.update_seconds += end - start
        self._recent.append(("update_seconds", start, end, 0, 0))

    def down(self, start: float, end: float) -> None:
        """Its node was not there."""
        self.down_seconds += end - start
        self._recent.append(("down_seconds", start, end, 0, 0))

    def recall(self, is_gradient: bool, start: float, end: float, samples: int) -> None:
        """One of the latest intervals, which is added up already."""
        self._recent.append(("compute_seconds", start, end, 1, samples) if is_gradient else ("update_seconds", start, end, 0, 0))

    def cut(self, seconds: float) -> None:
        """Take back what lies behind this moment: a gradient that was not finished then does not count."""
        recent = list(self._recent)
        self._recent.clear()
        for name, start, end, iterations, samples in recent:
            beyond = end - max(start, seconds)
            if beyond > 0:
                self.iterations -= iterations
                self.samples -= samples
                setattr(self, name, getattr(self, name) - beyond)
                end, iterations, samples = seconds, 0, 0
            if end > start:  # what is left may be cut again, at an earlier moment
                self._recent.append((name, start, end, iterations, samples))


@dataclass
class Applied:
    """What the committed versions were made of, by worker and in all."""

    num_workers: int
    staleness_max: int = 0
    num_updates: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self._count = [0] * self.num_workers
        self._staleness = [0] * self.num_workers
        self._rounds: dict[tuple[Sequence[int], int], int] = {}  # of these ranks together, so late: how many

    @property
    def count(self) -> list[int]:
        """Contributions of each worker."""
        return added(self._count, ((ranks, count) for (ranks, _), count in self._rounds.items()))

    @property
    def staleness(self) -> list[int]:
        """How late each worker's contributions were, added up."""
        return added(self._staleness, ((ranks, count * staleness) for (ranks, staleness), count in self._rounds.items()))

    def commit(self, seconds: float, applied: Sequence[Contribution]) -> int:
        """A version was made of these contributions: how late the latest of them was."""
        self.num_updates += 1
        self.seconds = seconds
        latest = 0
        if type(applied) is SynchronousContributions:
            for its in applied.rounds:
                key = (its.batches.ranks, applied.staleness)
                self._rounds[key] = self._rounds.get(key, 0) + 1
            latest = applied.staleness
        else:
            count, total = self._count, self._staleness
            for contribution in applied:
                rank, staleness = contribution.rank, contribution.staleness
                count[rank] += 1
                total[rank] += staleness
                if staleness > latest:
                    latest = staleness
        if latest > self.staleness_max:
            self.staleness_max = latest
        return latest


def added(numbers: Sequence[int], more: Iterable[tuple[Sequence[int], int]]) -> list[int]:
    """The numbers by rank, with so much more for each of these ranks."""
    result = list(numbers)
    for ranks, number in more:
        for rank in ranks:
            result[rank] += number
    return result


def summary(applied: Applied, busy: Sequence[RankActivity]) -> dict[str, Any]:
    """Rates, staleness and idleness. Waiting is everything that is neither compute nor update."""
    seconds, count, staleness = applied.seconds, applied.count, applied.staleness
    for worker in busy:
        worker.cut(seconds)
    waits = [max(0.0, seconds - worker.compute_seconds - worker.update_seconds - worker.down_seconds) for worker in busy]
    return {
        "seconds": seconds,
        "updates_per_second": ratio(applied.num_updates, seconds),
        "staleness_mean": ratio(sum(staleness), sum(count)),
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
                "down_seconds": worker.down_seconds,
                "staleness_mean": ratio(staleness[rank], count[rank]),
            }
            for rank, (worker, wait) in enumerate(zip(busy, waits, strict=True))
        ],
    }


def ratio(part: float, whole: float) -> float | None:
    """part / whole; None where there is nothing to divide by."""
    return part / whole if whole else None
