"""Gradients that are measured before a run begins, for allocations that want to know the nodes' speeds."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from hetsim.effects import Batch, Contribution
from hetsim.runtime.recorder import PROFILE, Recorder, interval_recorder


@dataclass(frozen=True)
class Profile:
    """The seconds of each gradient of each rank, in order, and what the whole profile took until the run began."""

    seconds: Sequence[Sequence[float]] = ()
    total_seconds: float = 0.0

    def timings(self, batches: Sequence[Batch]) -> tuple[Contribution, ...]:
        """For an allocation: every gradient, over these samples of each rank."""
        return tuple(Contribution(rank, batches[rank], 0, t, 0.0) for rank, its in enumerate(self.seconds) for t in its)

    def record(self, recorders: Collection[Recorder], batches: Sequence[Batch], *, ranks: Collection[int]) -> None:
        """Report the gradients of these ranks, which lie before the run: at negative seconds."""
        record = interval_recorder(recorders, PROFILE)
        if record is None:
            return
        for rank in ranks:
            for start, end in pairwise(accumulate(self.seconds[rank], initial=-self.total_seconds)):
                record((start, end, rank, PROFILE, 0, batches[rank].samples, 0, 0))
