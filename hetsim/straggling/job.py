"""What a trace says of a job, as arrays: the seconds of each rank in each step."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hetsim.memory import check_fits

Floats: TypeAlias = NDArray[np.float64]
REMEDY = "take the trace of fewer steps"
LEAST_STEPS = 5
"""Steps of which something can be said."""
MAX_STEPS = 10**6
BYTES_OF_A_CELL = 300
"""What a step of a rank takes in memory while it is judged."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """The steps of a job, in order. Arrays have the shape (ranks, steps); NaN where a rank has no such step."""

    source: str
    gradients: Floats
    """Seconds of a rank's own computing before the collective."""
    updates: Floats
    """Seconds of its own work after it."""
    samples: Floats
    """Of its gradients."""
    links: Floats | None = None
    """Seconds of its messages to and from a server; None where ranks meet in collectives."""
    collectives: Floats | None = None
    """Seconds of each step's collectives after the last rank has entered, shape (steps,); None for a job with a server."""
    seconds: float
    """Of the whole job."""
    nbytes: int
    """Of a gradient."""
    server_seconds: float = 0.0
    """Of an update of the server."""
    num_samples: int | None = None
    """Of an epoch, where that is known."""
    method: str = "ddp"
    allocation: str = "even"
    has_samples: bool = True
    """Whether the trace says how many samples a gradient has."""
    capped_collectives: bool = False
    """Whether the CPU quota of a rank also caps the thread that adds up its part of a collective."""

    @property
    def num_ranks(self) -> int:
        """How many ranks there are, without servers."""
        return len(self.gradients)

    @property
    def num_steps(self) -> int:
        """The most steps that a rank has made."""
        return int(self.gradients.shape[1])

    @cached_property
    def computing(self) -> Floats:
        """Seconds of each rank's own work."""
        return self.gradients + self.updates


def check_size(what: str, num_ranks: int, num_steps: int) -> None:
    """ValueError with one sentence for a trace in which nobody can be compared, or that is too large."""
    if num_ranks < 2:
        raise ValueError(f"{what} has one rank, and a straggler is slower than others: give the trace of a job of several ranks")
    if num_steps < LEAST_STEPS:
        raise ValueError(f"{what} has {num_steps} steps, and chance is told from slowness by {LEAST_STEPS}: give a longer trace")
    if num_steps > MAX_STEPS:
        raise ValueError(f"{what} has {num_steps} steps, and at most {MAX_STEPS} are compared: {REMEDY}")
    check_fits(f"{what}, of {num_ranks} ranks and {num_steps} steps,", BYTES_OF_A_CELL * num_ranks * num_steps, REMEDY)


def summed(ranks: Any, steps: Any, values: Any, shape: tuple[int, int]) -> Floats:
    """The sums of these values by rank and step; NaN where there is none."""
    found, count = np.zeros(shape), np.zeros(shape)
    np.add.at(found, (ranks, steps), values)
    np.add.at(count, (ranks, steps), 1)
    return np.where(count > 0, found, np.nan)


def places(ranks: Any, moments: Any) -> NDArray[np.int64]:
    """The place of each row among those of its rank, in order of these moments."""
    order = np.lexsort((moments, ranks))
    its = np.asarray(ranks)[order]
    first = np.r_[True, its[1:] != its[:-1]]
    begins = np.maximum.accumulate(np.where(first, np.arange(len(its)), 0))
    found = np.empty(len(its), np.int64)
    found[order] = np.arange(len(its)) - begins
    return found
