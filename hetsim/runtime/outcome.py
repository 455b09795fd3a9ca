"""What a finished run has to report."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from hetsim.coordination.pools import Cursors
from hetsim.coordination.state import State
from hetsim.runtime.curve import LearningCurve, Point
from hetsim.runtime.divergence import Divergence
from hetsim.runtime.experiment import Experiment
from hetsim.runtime.metrics import Applied, RankActivity
from hetsim.vector import Phantom, Vector


@dataclass(frozen=True, kw_only=True)
class Pool:
    """What became of one worker's own samples."""

    samples: int
    """How many it has."""
    num_taken: int
    """Positions of its sequence whose gradients were applied or discarded; those of a lost worker's last range are not among them."""
    closed: bool
    """Whether its owner was absent when the run ended, so that nobody could take the rest."""

    @property
    def epochs(self) -> float:
        """Passes over it."""
        return self.num_taken / self.samples

    @property
    def remainder(self) -> int:
        """Of a closed pool, how many samples its last epoch has left."""
        return (-self.num_taken % self.samples if self.num_taken else self.samples) if self.closed else 0

    @classmethod
    def each(cls, sizes: Sequence[int] | None, last: State, absent: Collection[int]) -> list[Pool] | None:
        """Those of a run that ended in this state, with these workers absent."""
        taken = last.rewound().next_sample
        if sizes is None or not isinstance(taken, Cursors):
            return None
        return [Pool(samples=samples, num_taken=taken.of[rank], closed=rank in absent) for rank, samples in enumerate(sizes)]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The numbers of a finished run, from whichever world."""

    experiment: Experiment
    start: State
    last: State
    """The state of the last commit."""
    applied: Applied
    activity: Sequence[RankActivity]
    """By rank, of the workers."""
    points: Sequence[Point]
    curve: LearningCurve
    divergence: Divergence
    num_epochs: float
    """Passes over the data in the samples that are applied in `last`."""
    profile_seconds: float
    """The seconds that measuring the workers took before the run."""
    pools: Sequence[Pool] | None = None
    """By rank, where data belong to workers."""

    @property
    def weights(self) -> Vector:
        """The weights to save: of the last version, or of the best one."""
        best = self.curve.best
        return self.last.weights if best is None else best[1]

    @property
    def num_parameters(self) -> int:
        """How many numbers the weights have, the statistics of a model's buffers among them."""
        return int(self.last.weights.nbytes // self.last.weights.itemsize)

    @property
    def is_phantom(self) -> bool:
        """Whether nothing was computed."""
        return isinstance(self.last.weights, Phantom)
