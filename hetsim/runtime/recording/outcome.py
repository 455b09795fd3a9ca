"""The results of a finished run."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from hetsim.coordination.bookkeeping.pools import Cursors
from hetsim.coordination.state import State
from hetsim.runtime.experiment import Experiment
from hetsim.runtime.recording.curve import LearningCurve, Point
from hetsim.runtime.recording.divergence import Divergence
from hetsim.runtime.recording.metrics import Applied, RankActivity
from hetsim.vector import Phantom, Vector


@dataclass(frozen=True, kw_only=True)
class PoolUse:
    """The use of one worker's own samples."""

    samples: int
    """The number of samples in the pool."""
    num_taken: int
    """The number of positions whose gradients were applied or discarded. A lost worker's last range is not included."""
    closed: bool
    """Whether the owner was absent at the end of the run, so that the remaining samples were unavailable."""

    @property
    def epochs(self) -> float:
        """The number of passes over the pool."""
        return self.num_taken / self.samples

    @property
    def remainder(self) -> int:
        """The remaining samples of a closed pool's last epoch."""
        return (-self.num_taken % self.samples if self.num_taken else self.samples) if self.closed else 0

    @classmethod
    def of_run(cls, sizes: Sequence[int] | None, last: State, absent: Collection[int]) -> list[PoolUse] | None:
        """The pools of a run that ended in state `last`, with these workers absent."""
        cursors = last.rewound().next_sample
        if sizes is None or not isinstance(cursors, Cursors):
            return None
        return [PoolUse(samples=samples, num_taken=cursors.of[rank], closed=rank in absent) for rank, samples in enumerate(sizes)]


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """The numbers of a finished run, from any world."""

    experiment: Experiment
    start: State
    last: State
    """The state of the last commit."""
    applied: Applied
    activity: Sequence[RankActivity]
    """The activity of the workers, by rank."""
    points: Sequence[Point]
    curve: LearningCurve
    divergence: Divergence
    num_epochs: float
    """The number of passes over the data in the samples that are applied in `last`."""
    profile_seconds: float
    """The seconds of measuring the workers before the run."""
    pools: Sequence[PoolUse] | None = None
    """The pools by rank if data belong to workers; else None."""
    num_restarts: int = 0
    """The number of times that no node had the weights any more."""

    @property
    def weights(self) -> Vector:
        """The weights to save: of the last or the best version."""
        best = self.curve.best
        return self.last.weights if best is None else best[1]

    @property
    def num_parameters(self) -> int:
        """The length of the weights, including the statistics of a model's buffers."""
        return int(self.last.weights.nbytes // self.last.weights.itemsize)

    @property
    def is_phantom(self) -> bool:
        """Whether the run computed no numbers."""
        return isinstance(self.last.weights, Phantom)
