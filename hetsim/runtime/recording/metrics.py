"""The numbers of a run, added up during the run and independent of the trace."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hetsim.coordination.bookkeeping.contributions import SynchronousContributions
from hetsim.coordination.state import State
from hetsim.effects import Contribution
from hetsim.errors import RunFailed
from hetsim.runtime.recording.recorder import DOWN, GRADIENT, UPDATE, Recorder, RecordInterval, Row

RECENT_INTERVALS = 8
"""The number of intervals to keep per worker, for each gradient that may be after the last commit."""
WeightsOf = Callable[[Sequence[Contribution]], Iterable[tuple[int, float]]]
"""A function of the contributions to a version. It returns the rank and the factor of each."""
PER_WORKER: dict[str, type] = {"count": int, "more_gradients": int, "staleness": int, "weight": float}
"""Numbers of each worker in checkpoints. `Applied` keeps each in a list, whose name has an underscore in front."""
TOTALS: dict[str, type] = {"staleness_max": int, "num_updates": int, "seconds": float}
"""Numbers of the whole run in `Applied` and in checkpoints."""
SUMMED = ("iterations", "samples", "compute_seconds", "update_seconds", "down_seconds", "num_nonfinite")


@dataclass(slots=True)
class RankActivity:
    """The work of one rank: sums of its intervals in seconds of the run's clock. The latest intervals are kept, to be cut at the end."""

    iterations: int = 0
    samples: int = 0
    compute_seconds: float = 0.0
    update_seconds: float = 0.0
    down_seconds: float = 0.0
    """The seconds in which the rank's node was absent."""
    num_nonfinite: int = 0
    """The number of gradients with a NaN or an infinity, which were left out."""
    num_ahead: int = 1
    """The number of gradients that may still be computed after the last commit."""
    recent: deque[tuple[str, float, float, int, int]] = field(init=False, compare=False)
    """For each recent interval: its sum's name, start, end, iterations and samples."""

    def __post_init__(self) -> None:
        self.recent = deque(maxlen=RECENT_INTERVALS * self.num_ahead)

    def cut(self, seconds: float) -> None:
        """Remove the work after this time. A gradient that was unfinished then does not count."""
        recent = list(self.recent)
        self.recent.clear()
        for name, start, end, iterations, samples in recent:
            removed = end - max(start, seconds)
            if removed > 0:
                self.iterations -= iterations
                self.samples -= samples
                setattr(self, name, getattr(self, name) - removed)
                end, iterations, samples = seconds, 0, 0
            if end > start:  # what remains may be cut again, at an earlier moment
                self.recent.append((name, start, end, iterations, samples))

    def add_absence(self, start: float, end: float) -> None:
        """Add an absence of the rank's node."""
        self.down_seconds += end - start
        self.recent.append(("down_seconds", start, end, 0, 0))

    def after(self, earlier: RankActivity) -> RankActivity:
        """This activity after an earlier one of the same rank."""
        total = replace(self, **{name: getattr(earlier, name) + getattr(self, name) for name in SUMMED})
        total.recent.extend((*earlier.recent, *self.recent))
        return total

    def add(self, earlier: RankActivity) -> None:
        """Add the rank's earlier work."""
        total = self.after(earlier)
        for name in SUMMED:
            setattr(self, name, getattr(total, name))
        self.recent = total.recent

    def as_numbers(self) -> dict[str, Any]:
        """All fields as JSON numbers."""
        return {**{name: getattr(self, name) for name in SUMMED}, "recent": list(self.recent)}

    def on_clock(self, rate: float, shift: float) -> RankActivity:
        """The same activity by another clock, which shows `shift + rate * seconds` when this one shows `seconds`."""
        changed = replace(self, **{name: rate * getattr(self, name) for name in SUMMED if name.endswith("_seconds")})
        for name, start, end, iterations, samples in self.recent:
            changed.recent.append((name, shift + rate * start, shift + rate * end, iterations, samples))
        return changed

    @classmethod
    def of_numbers(cls, numbers: Mapping[str, Any], num_ahead: int) -> RankActivity:
        """The inverse of `as_numbers`."""
        activity = cls(**{name: numbers[name] for name in SUMMED}, num_ahead=num_ahead)
        activity.recent.extend((str(name), *rest) for name, *rest in numbers["recent"])
        return activity


@dataclass
class Applied:
    """The contributions to committed versions, by worker and in total."""

    num_workers: int
    weights: WeightsOf | None = field(default=None, repr=False, compare=False)
    """The factors of a group of contributions; None if they are not needed."""
    staleness_max: int = 0
    num_updates: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self._count = [0] * self.num_workers
        self._more_gradients = [0] * self.num_workers
        self._staleness = [0] * self.num_workers
        self._by_staleness: dict[int, int] = {}
        self._rounds: dict[tuple[Sequence[int], int], int] = {}  # (ranks, staleness) of a synchronous round: how many
        self._weight = [0.0] * self.num_workers
        self._alike: tuple[SynchronousContributions, int] | None = (
            None  # the last synchronous group, and how many like it follow each other
        )

    @property
    def count(self) -> list[int]:
        """The number of contributions of each worker."""
        return add_by_rank(self._count, ((ranks, count) for (ranks, _), count in self._rounds.items()))

    @property
    def num_gradients(self) -> list[int]:
        """The number of gradients in each worker's contributions."""
        return [count + more for count, more in zip(self.count, self._more_gradients, strict=True)]

    @property
    def staleness(self) -> list[int]:
        """The sum of the staleness of each worker's contributions."""
        return add_by_rank(self._staleness, ((ranks, count * staleness) for (ranks, staleness), count in self._rounds.items()))

    @property
    def weight_shares(self) -> list[float | None]:
        """Each worker's share of the sum of all factors; None before the first version."""
        self._add_alike()
        total = math.fsum(self._weight)
        return [ratio(weight, total) for weight in self._weight]

    @property
    def by_staleness(self) -> dict[int, int]:
        """The number of contributions of all workers, by staleness."""
        counts = dict(self._by_staleness)
        for (ranks, staleness), count in self._rounds.items():
            counts[staleness] = counts.get(staleness, 0) + count * len(ranks)
        return counts

    def commit(self, seconds: float, applied: Sequence[Contribution]) -> None:
        """Count the contributions to a version."""
        self.num_updates += 1
        self.seconds = seconds
        largest = 0
        if type(applied) is SynchronousContributions:
            for round_ in applied.rounds:
                key = (round_.batches.ranks, applied.staleness)
                self._rounds[key] = self._rounds.get(key, 0) + 1
            largest = applied.staleness
            self._count_alike(applied)
        else:
            if self.weights is not None:
                for rank, weight in self.weights(applied):
                    self._weight[rank] += weight
            count, total, by_staleness = self._count, self._staleness, self._by_staleness
            for contribution in applied:
                rank, staleness = contribution.rank, contribution.staleness
                count[rank] += 1
                total[rank] += staleness
                by_staleness[staleness] = by_staleness.get(staleness, 0) + 1
                if staleness > largest:
                    largest = staleness
                if contribution.num_gradients != 1:
                    self._more_gradients[rank] += contribution.num_gradients - 1
        if largest > self.staleness_max:
            self.staleness_max = largest

    def saved(self) -> dict[str, Any]:
        """All counts so far. For a checkpoint."""
        weight = list(self._weight)
        if self._alike is not None and self.weights is not None:
            for rank, factor in self.weights(self._alike[0]):
                weight[rank] += self._alike[1] * factor
        return {
            **{name: tuple(getattr(self, f"_{name}")) for name in PER_WORKER},
            "weight": tuple(weight),
            "by_staleness": dict(self._by_staleness),
            "rounds": tuple((tuple(ranks), staleness, count) for (ranks, staleness), count in self._rounds.items()),
            **{name: getattr(self, name) for name in TOTALS},
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Restore the result of `saved`. Counts of removed workers are left out."""
        for name, kind in PER_WORKER.items():
            setattr(self, f"_{name}", [*saved[name], *(kind(),) * self.num_workers][: self.num_workers])
        for name in TOTALS:
            setattr(self, name, saved[name])
        self._by_staleness, self._rounds, self._alike = dict(saved["by_staleness"]), {}, None
        for ranks, staleness, count in saved["rounds"]:
            key = tuple(rank for rank in ranks if rank < self.num_workers), staleness
            self._rounds[key] = self._rounds.get(key, 0) + count

    def _count_alike(self, applied: SynchronousContributions) -> None:
        """Groups with the same split share their factors, which are computed once, because there are N of them."""
        if self._alike is not None and _split_alike(self._alike[0], applied):
            self._alike = self._alike[0], self._alike[1] + 1
        else:
            self._add_alike()
            self._alike = applied, 1

    def _add_alike(self) -> None:
        if self._alike is not None and self.weights is not None:
            group, count = self._alike
            for rank, weight in self.weights(group):
                self._weight[rank] += count * weight
        self._alike = None


def _split_alike(first: SynchronousContributions, second: SynchronousContributions) -> bool:
    """Whether every rank has equally many samples in both, round by round. Compares layouts by identity."""
    return len(first.rounds) == len(second.rounds) and all(
        a.batches.layout is b.batches.layout and a.batches.num_samples == b.batches.num_samples
        for a, b in zip(first.rounds, second.rounds, strict=True)
    )


class Metrics(Recorder):
    """Records the work of each worker, and the contributions to versions."""

    takes_back = True

    def __init__(self, num_workers: int, *, num_ahead: int, weights: WeightsOf | None = None) -> None:
        self.num_workers = num_workers
        self.activity = [RankActivity(num_ahead=num_ahead) for _ in range(num_workers)]
        """The activity of each rank."""
        self.applied = Applied(num_workers, weights)

    def on(self, kind: int) -> RecordInterval | None:
        return {GRADIENT: self._gradient, UPDATE: self._update, DOWN: self._absence}.get(kind)

    def _gradient(self, row: Row) -> None:
        start, end, rank, _, _, samples, _, _ = row
        activity = self.activity[rank]
        finished = 1 if samples else 0  # otherwise it was given up
        activity.iterations += finished
        activity.samples += samples
        activity.compute_seconds += end - start
        activity.recent.append(("compute_seconds", start, end, finished, samples))

    def _update(self, row: Row) -> None:
        """Record a worker's update. An update that takes no time needs no cut."""
        start, end, rank = row[:3]
        if rank < self.num_workers and start != end:
            activity = self.activity[rank]
            activity.update_seconds += end - start
            activity.recent.append(("update_seconds", start, end, 0, 0))

    def _absence(self, row: Row) -> None:
        start, end, rank = row[:3]
        self.activity[rank].add_absence(start, end)

    def take_back(self, rank: int, seconds: float) -> None:
        self.activity[rank].cut(seconds)

    def commit(self, seconds: float, rank: int, state: State, applied: Sequence[Contribution]) -> None:
        self.applied.commit(seconds, applied)

    def close(self, last: State) -> None:
        check_finite(self.applied, self.activity)

    def by_rank(self) -> list[RankActivity]:
        """Each worker's activity so far."""
        return self.activity

    def restore(self, activity: Sequence[RankActivity]) -> None:
        """Continue from earlier activity."""
        self.activity[:] = activity

    def summary(self) -> dict[str, Any]:
        """Rates, staleness and idle times, up to the last commit."""
        return summary(self.applied, self.activity)


def check_finite(applied: Applied, activity: Sequence[RankActivity]) -> None:
    """Raise RunFailed if a time is too large for a float."""
    if not all(math.isfinite(seconds) for seconds in (applied.seconds, *(worker.compute_seconds for worker in activity))):
        raise RunFailed("the run's clock is larger than any float: lower the largest times of the cluster, or the spread of its noise")


def add_by_rank(numbers: Sequence[int], more: Iterable[tuple[Sequence[int], int]]) -> list[int]:
    """The numbers by rank, with each further number added to all of its ranks."""
    result = list(numbers)
    for ranks, number in more:
        for rank in ranks:
            result[rank] += number
    return result


def summary(applied: Applied, activity: Sequence[RankActivity]) -> dict[str, Any]:
    """Rates, staleness and idle times. Waiting is the time of a present node without computing or updates."""
    seconds, count, staleness, by_staleness = applied.seconds, applied.count, applied.staleness, applied.by_staleness
    for worker in activity:
        worker.cut(seconds)
    waits = [max(0.0, seconds - worker.compute_seconds - worker.update_seconds - worker.down_seconds) for worker in activity]
    return {
        "seconds": seconds,
        "updates_per_second": ratio(applied.num_updates, seconds),
        "staleness_mean": ratio(sum(staleness), sum(count)),
        "staleness_max": applied.staleness_max,
        "staleness_p50": percentile(by_staleness, 50),
        "staleness_p95": percentile(by_staleness, 95),
        "num_nonfinite_gradients": sum(worker.num_nonfinite for worker in activity),
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
            for rank, (worker, wait) in enumerate(zip(activity, waits, strict=True))
        ],
    }


def percentile(counts: Mapping[int, int], percent: int) -> int | None:
    """The smallest counted value that at least `percent` % of the values do not exceed; None without values.

    This is the nearest-rank percentile: always one of the values.
    """
    total, seen = sum(counts.values()), 0
    for value in sorted(counts):
        seen += counts[value]
        if 100 * seen >= percent * total:
            return value
    return None


def ratio(part: float, total: float) -> float | None:
    """part / total; None if `total` is 0."""
    return part / total if total else None
