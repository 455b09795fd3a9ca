"""Measure gradients before a run begins, for allocations that need the nodes' speeds."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from hetsim.effects import Batch, Contribution
from hetsim.runtime.recording.recorder import PROFILE, Recorder, interval_recorder

NUM_PERIODS = 10
"""A process with a quota computes for at least so many of its periods, because a quota does not slow the first part of one."""


def seconds_for_quota(share: float, period: float, width: int) -> float:
    """The least seconds of a worker's measurement, with a quota of `share` cores and threads on `width` cores; 0 without a quota."""
    return NUM_PERIODS * period if 0 < share < width else 0.0


@dataclass(frozen=True)
class Profile:
    """The seconds of each gradient by rank, in order, and the total seconds before the run begins."""

    seconds: Sequence[Sequence[float]] = ()
    total_seconds: float = 0.0

    def timings(self, batches: Sequence[Batch]) -> tuple[Contribution, ...]:
        """Every gradient as a contribution over its rank's batch. For an allocation."""
        return tuple(Contribution(rank, batches[rank], 0, t, 0.0) for rank, seconds in enumerate(self.seconds) for t in seconds)

    def record(self, recorders: Collection[Recorder], batches: Sequence[Batch], ranks: Iterable[int] | None = None) -> None:
        """Report the gradients of these ranks (None: of all). They are before the run, so at negative seconds."""
        record = interval_recorder(recorders, PROFILE)
        if record is None:
            return
        for rank in range(len(self.seconds)) if ranks is None else ranks:
            for start, end in pairwise(accumulate(self.seconds[rank], initial=-self.total_seconds)):
                record((start, end, rank, PROFILE, 0, batches[rank].samples, 0, 0))
