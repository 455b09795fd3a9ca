"""The leader's record of losses: when ranks were lost, detected and back, and the measured times of regroups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from threading import Lock
from typing import Any

from hetsim.distributed.membership.keeper import Loss, View


class Ledger:
    """The losses of one run, by the host's clock. Threads that see a loss and the thread that regroups may write it at the same time."""

    def __init__(self, members: Sequence[int]) -> None:
        self._members = dict.fromkeys(members, 0)
        self._generation = 0
        self._lock = Lock()
        self._seen: dict[int, float] = {}
        """The time at which this process itself saw the loss of a rank, before the keeper announced it."""
        self._losses: list[tuple[Loss, float]] = []
        """The losses, and the times at which this process knew them."""
        self._returns: list[tuple[int, float]] = []
        self._regroups: list[tuple[float, float]] = []
        self.shift = 0.0
        """This host's clock minus the clock of the first leader's host."""

    def lost_connection(self, rank: int, now: float) -> None:
        """Record that the connection to this rank broke."""
        with self._lock:
            self._seen[rank] = min(now, self._seen.get(rank, now))

    def see(self, view: View, now: float) -> None:
        """Record a newer view."""
        with self._lock:
            if view.generation <= self._generation:  # what the leader has seen is known from it
                return
            self._generation = view.generation
            for loss in view.lost:
                known = min(now, self._seen.pop(loss.rank, now))
                self._losses.append((loss._replace(at=min(loss.at, known)), known))  # a launcher may notice it later
            for rank, incarnation in view.members.items():
                if self._members.get(rank) != incarnation:
                    self._seen.pop(rank, None)
                    self._returns.append((rank, now))
            self._members = dict(view.members)

    def regrouped(self, last_entry: float, end: float) -> None:
        """Record the time of a regroup, from its last entry to its end."""
        with self._lock:
            self._regroups.append((last_entry, end))

    def saved(self) -> dict[str, Any]:
        """The leader's record by the first leader's clock, for a rank that joins and may lead later."""
        with self._lock:
            seen = {"losses": self._losses, "returns": self._returns, "regroups": self._regroups}
            return {"generation": self._generation, "members": dict(self._members), **_shifted(seen, -self.shift)}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Take over the leader's record, with its times. This process's later entries stay."""
        with self._lock:
            seen = _shifted(saved, self.shift)
            losses, returns = seen["losses"], seen["returns"]
            ahead = self._generation > saved["generation"]
            self._losses[: len(losses) if ahead else None] = losses
            self._returns[: len(returns) if ahead else None] = returns
            self._regroups = seen["regroups"]
            if not ahead:
                self._generation, self._members = saved["generation"], dict(saved["members"])

    @property
    def untold(self) -> dict[int, float]:
        """The ranks whose connections broke at the end of the run before the keeper announced their loss, and the times."""
        with self._lock:
            return {rank: at for rank, at in self._seen.items() if rank in self._members}

    def absences(self, absent: Mapping[int, float], began: float, end: float) -> Iterator[tuple[int, float, float]]:
        """(rank, from, until) in seconds of the run, for each absence until its end.

        `absent` are the ranks that were absent at the run's begin or resume, and the begins of their absences in seconds of the run.
        """
        since = {rank: began + seconds for rank, seconds in absent.items()}
        losses = [(loss.at, False, loss.rank) for loss, _ in self._losses] + [(at, False, rank) for rank, at in self.untold.items()]
        moves = sorted(losses + [(at, True, rank) for rank, at in self._returns])
        for at, returns, rank in moves:
            if not returns:
                since.setdefault(rank, at)
            elif rank in since:
                yield rank, since.pop(rank) - began, at - began
        for rank, at in since.items():
            if at < end:
                yield rank, at - began, end - began

    def as_numbers(self, began: float) -> dict[str, Any] | None:
        """The numbers for the summary; None without any event."""
        untold = self.untold
        if not (self._losses or self._returns or self._regroups or untold):
            return None
        detections = [seen - loss.at for loss, seen in self._losses]
        regroups = [end - start for start, end in self._regroups]
        return {
            "detection_seconds": _mean(detections),
            "regroup_seconds": _mean(regroups),
            "regroups": [{"seconds": start - began, "took": end - start} for start, end in self._regroups],
            "lost": [{"rank": loss.rank, "seconds": loss.at - began, "detection_seconds": seen - loss.at} for loss, seen in self._losses]
            + [{"rank": rank, "seconds": at - began, "detection_seconds": None} for rank, at in untold.items()],
            "joined": [{"rank": rank, "seconds": at - began} for rank, at in self._returns],
        }


def _shifted(seen: Mapping[str, Any], seconds: float) -> dict[str, list[Any]]:
    """The same times, by a clock that is this many seconds ahead."""
    return {
        "losses": [(loss._replace(at=loss.at + seconds), known + seconds) for loss, known in seen["losses"]],
        "returns": [(rank, at + seconds) for rank, at in seen["returns"]],
        "regroups": [(start + seconds, end + seconds) for start, end in seen["regroups"]],
    }


def _mean(numbers: Sequence[float]) -> float | None:
    return fmean(numbers) if numbers else None
