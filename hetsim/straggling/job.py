"""A trace of a job as arrays: the seconds of each rank in each step."""

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
"""The minimum number of steps for any result."""
MAX_STEPS = 10**6
BYTES_OF_A_CELL = 300
"""The bytes of memory for each rank's step during the analysis."""


@dataclass(frozen=True)
class SlowLinks:
    """The ranks whose links are described as slower than the fastest rank's. A collective's trace does not show them."""

    ranks: tuple[int, ...]
    slowdown: float
    """The median of their slowdowns."""
    share: float
    """The share of a collective's seconds that it would save if all links were as fast as the fastest one."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """The steps of a job, in order. Arrays have the shape (ranks, steps), with NaN for missing steps."""

    source: str
    gradients: Floats
    """The seconds of a rank's own computing before the collective."""
    updates: Floats
    """The seconds of a rank's own work after the collective."""
    samples: Floats
    """The samples of each gradient."""
    loading: Floats | None = None
    """The seconds of a rank's computing in which it waits for its data loader; None if unknown."""
    links: Floats | None = None
    """The seconds of a rank's messages to and from a server; None in jobs with collectives."""
    collectives: Floats | None = None
    """The seconds of each step's collectives after the last rank's entry, shape (steps,); None for a job with a server."""
    slow_links: SlowLinks | None = None
    seconds: float
    """The seconds of the whole job."""
    nbytes: int
    """The bytes of a gradient."""
    server_seconds: float = 0.0
    """The seconds of the server's update."""
    num_samples: int | None = None
    """The samples of an epoch; None if unknown."""
    waiting: float = 0.0
    """In a job with a server, the mean seconds in which a rank neither computes nor communicates."""
    absent: float = 0.0
    """In a job with a server, the mean seconds in which a rank is absent."""
    method: str = "ddp"
    allocation: str = "even"
    remarks: tuple[str, ...] = ()
    """What a reader of the results must know about the trace."""
    has_samples: bool = True
    """Whether the trace contains the samples of gradients."""
    capped_collectives: bool = False
    """Whether a rank's CPU quota also caps the thread that adds up its part of a collective."""

    @property
    def num_ranks(self) -> int:
        """The number of ranks, without servers."""
        return len(self.gradients)

    @property
    def num_steps(self) -> int:
        """The maximum number of steps of a rank."""
        return int(self.gradients.shape[1])

    @cached_property
    def computing(self) -> Floats:
        """The seconds of each rank's own work."""
        return self.gradients + self.updates


def check_size(source: str, num_ranks: int, num_steps: int) -> None:
    """Raise ValueError for a trace that is too large, or has no ranks to compare."""
    if num_ranks < 2:
        raise ValueError(f"{source} has one rank, and a straggler is slower than others: give the trace of a job of several ranks")
    if num_steps < LEAST_STEPS:
        raise ValueError(f"{source} has {num_steps} steps, and chance is told from slowness by {LEAST_STEPS}: give a longer trace")
    if num_steps > MAX_STEPS:
        raise ValueError(f"{source} has {num_steps} steps, and at most {MAX_STEPS} are compared: {REMEDY}")
    check_fits(f"{source}, of {num_ranks} ranks and {num_steps} steps,", BYTES_OF_A_CELL * num_ranks * num_steps, REMEDY)


def sums_by_step(ranks: Any, steps: Any, values: Any, shape: tuple[int, int]) -> Floats:
    """The sums of these values by rank and step; NaN without values."""
    sums, count = np.zeros(shape), np.zeros(shape)
    np.add.at(sums, (ranks, steps), values)
    np.add.at(count, (ranks, steps), 1)
    return np.where(count > 0, sums, np.nan)


def places(ranks: Any, moments: Any) -> NDArray[np.int64]:
    """The index of each row among its rank's rows, in order of these times."""
    order = np.lexsort((moments, ranks))
    sorted_ranks = np.asarray(ranks)[order]
    first = np.r_[True, sorted_ranks[1:] != sorted_ranks[:-1]]
    begins = np.maximum.accumulate(np.where(first, np.arange(len(sorted_ranks)), 0))
    indices = np.empty(len(sorted_ranks), np.int64)
    indices[order] = np.arange(len(sorted_ranks)) - begins
    return indices
