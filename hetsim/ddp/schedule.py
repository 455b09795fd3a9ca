"""The samples of each rank in each step: a pure function of the seed, the epoch and the decisions, so it is the same on all ranks.

A loader with workers draws batches some steps ahead. So a new split takes effect a fixed number of steps after its decision. L is the
largest look-ahead of all ranks. At the beginning of step k+2, all ranks know the measurements of step k, and no rank has drawn batches
beyond step k+1+L. So these measurements count from step k+2+L.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetsim import checks
from hetsim.policies.allocation import proportional

STREAM = 18  # no other random stream with the same seed has this number


@dataclass(frozen=True)
class Step:
    """One step of all ranks: the range [start, start + samples) of the epoch's order, and each rank's number of samples."""

    epoch: int
    start: int
    samples: int
    shares: tuple[int, ...]
    """The shares in rank order. Their sum is `samples`."""
    split: tuple[int, ...]
    """The split of a whole global batch in this step. It differs from `shares` only in the short last step of an epoch."""
    ends_window: bool
    """Whether this is the last of `accumulate` steps, after which the gradients are reduced."""

    @property
    def full(self) -> bool:
        """Whether this is a whole global batch."""
        return self.shares == self.split

    def weight(self, rank: int) -> float:
        """N·b_i/R: the factor on the rank's mean gradient before N of them are averaged."""
        return len(self.shares) * self.shares[rank] / self.samples

    @property
    def weights(self) -> tuple[float, ...]:
        """The weights of all ranks."""
        return tuple(map(self.weight, range(len(self.shares))))

    def range_of(self, rank: int) -> range:
        """The positions of this rank. A rank without samples computes the step's first sample, with weight 0."""
        first = self.start + sum(self.shares[:rank])
        return range(first, first + self.shares[rank]) if self.shares[rank] else range(self.start, self.start + 1)


@dataclass(frozen=True)
class Data:
    """The samples to divide into steps."""

    num_samples: int
    batch_size: int
    seed: int = 0
    shuffle: bool = True
    drop_last: bool = False
    accumulate: int = 1
    """The number of steps in a window. The split never changes within a window, and incomplete windows are dropped."""

    def __post_init__(self) -> None:
        checks.whole("the number of samples", self.num_samples)
        checks.whole("batch_size", self.batch_size)
        checks.whole("seed", self.seed, least=0)
        checks.whole("accumulate", self.accumulate)
        if self.accumulate > 1 and not self.drop_last:
            raise ValueError(
                f"with accumulate={self.accumulate}, the steps of a window must have equal weight, and the last ones of an epoch have not: "
                "add drop_last=True to the loader"
            )
        if self.drop_last and self.num_samples < self.batch_size * self.accumulate:
            raise ValueError(
                f"batch_size={self.batch_size} times accumulate={self.accumulate} is more than the {self.num_samples} samples there are, "
                "and drop_last=True drops them all: lower it"
            )

    def num_steps(self, position: int = 0) -> int:
        """The number of steps of an epoch from this position on."""
        remaining = self.num_samples - position
        if not self.drop_last:
            return -(-remaining // self.batch_size)
        return remaining // (self.batch_size * self.accumulate) * self.accumulate

    def order(self, epoch: int) -> NDArray[np.int64]:
        """The samples in the order of this epoch."""
        if not self.shuffle:
            return np.arange(self.num_samples)
        return np.random.default_rng([self.seed, epoch, STREAM]).permutation(self.num_samples)


@dataclass
class Schedule:
    """The steps from one position on. Step 0 is the first one after the start, or after a resume."""

    data: Data
    num_ranks: int
    shares: tuple[int, ...]
    """The shares of step 0."""
    look_ahead: int = 0
    """L: the maximum number of steps that any rank draws batches ahead of the loop."""
    epoch: int = 0
    position: int = 0
    """The number of samples of the epoch before step 0."""
    pending: Sequence[tuple[int, tuple[int, ...]]] = ()
    """Decisions from before step 0 that take effect at later steps."""
    _decisions: list[tuple[int, tuple[int, ...]]] = field(init=False)
    _offset: int = field(init=False, default=0)
    """The number of the first step of the current epoch."""
    _before: list[tuple[int, int, int]] = field(init=False, default_factory=list)
    """The previous epochs: number, position and offset of each."""

    def __post_init__(self) -> None:
        if self.data.batch_size < self.num_ranks:
            raise ValueError(f"batch_size={self.data.batch_size} is less than one sample for each of {self.num_ranks} ranks: raise it")
        checks.whole("the position in the epoch", self.position, least=0)
        checks.whole("the epoch", self.epoch, least=0)
        self._decisions = [(0, tuple(self.shares)), *((first, tuple(shares)) for first, shares in self.pending)]

    def resume(self, epoch: int, position: int, shares: Sequence[int], pending: Sequence[tuple[int, tuple[int, ...]]]) -> None:
        """Continue at this position of this epoch, or at the beginning of the next one if the epoch has no step left."""
        if self.data.num_steps(position) < 1:  # saved after the last step of an epoch, or too few samples are left for a whole step
            epoch, position = epoch + 1, 0
        self.epoch, self.position, self.shares, self.pending = epoch, position, tuple(shares), pending
        self.__post_init__()

    def decided(self, shares: tuple[int, ...], *, before: int) -> None:
        """Add a new split. All ranks know it before any rank without look-ahead draws the step of number `before`."""
        window = self.data.accumulate
        first = -(-(before + self.look_ahead) // window) * window
        self._decisions = [(at, old) for at, old in self._decisions if at < first]
        while len(self._decisions) > 1 and self._decisions[1][0] <= before - window:
            del self._decisions[0]  # no window that is still open or to come is split so
        self._decisions.append((first, tuple(shares)))

    def split(self, number: int) -> tuple[int, ...]:
        """Each rank's samples in a whole global batch, in the step of this number."""
        return next((shares for first, shares in reversed(self._decisions) if first <= number), self._decisions[0][1])

    def steps(self, number: int) -> Iterator[Step]:
        """The remaining steps of the current epoch, from this number on. Each step is divided when it is requested."""
        data, begin = self.data, self._begin
        for index in range(number - self._offset, data.num_steps(begin)):
            start = begin + index * data.batch_size
            samples = min(data.batch_size, data.num_samples - start)
            split = self.split(self._offset + index)
            shares = split if samples == data.batch_size else short_split(split, samples)
            ends = (index + 1) % data.accumulate == 0
            yield Step(self.epoch, start, samples, shares, split, ends)

    @property
    def _begin(self) -> int:
        return self.position if self._offset == 0 else 0

    def num_steps(self) -> int:
        """The number of steps of the current epoch, including steps before a resume."""
        return self.data.num_steps(self._begin)

    def fewest_samples(self) -> int:
        """The samples of the current epoch's last step, which has the fewest."""
        data = self.data
        return data.batch_size if data.drop_last else (data.num_samples - self._begin) % data.batch_size or data.batch_size

    def weighs_alike(self) -> bool:
        """Whether the short last step of an epoch has the same weights as the others while the split does not change."""
        steps = [Step(0, 0, sum(shares), shares, shares, True) for shares in (self.shares, short_split(self.shares, self.fewest_samples()))]
        return steps[0].weights == steps[1].weights

    def is_over(self, number: int) -> bool:
        """Whether the step of this number is after the end of the current epoch."""
        return number - self._offset >= self.num_steps()

    def begin_epoch(self, number: int) -> None:
        """Begin the next epoch with the step of this number."""
        self._before.append((self.epoch, self.position, self._offset))
        self.epoch += 1
        self.position, self._offset = 0, number

    def back_to(self, number: int) -> int:
        """Go back: the step of this number is the next one again. Returns the number."""
        while number < self._offset:
            self.epoch, self.position, self._offset = self._before.pop()
        return number

    def at(self, number: int) -> tuple[int, int]:
        """The epoch and position of the step of this number, which is at most the first step after the current epoch."""
        for epoch, position, offset in reversed(self._before if number < self._offset else []):
            if offset <= number:
                return epoch, (position if offset == 0 else 0) + (number - offset) * self.data.batch_size
        if self.is_over(number):
            return self.epoch + 1, 0
        return self.epoch, self._begin + (number - self._offset) * self.data.batch_size

    def window_of(self, number: int) -> int:
        """The number of the first step in the window of this step."""
        return number - (number - self._offset) % self.data.accumulate

    def state(self, number: int) -> dict[str, Any]:
        """The start of a run that continues with the step of this number, as plain numbers and lists."""
        number = self.window_of(number)
        epoch, position = self.at(number)
        return {
            "epoch": epoch,
            "position": position,
            "shares": list(self.split(number)),
            "pending": [[first - number, list(shares)] for first, shares in self._decisions if first > number],
        }


def short_split(shares: Sequence[int], samples: int) -> tuple[int, ...]:
    """A split of fewer samples than a global batch, in proportion to the shares and at least one each. If too few, the largest get one."""
    if samples >= len(shares):
        return proportional(shares, samples, max_samples=shares)
    first = sorted(range(len(shares)), key=lambda rank: (-shares[rank], rank))[:samples]
    return tuple(int(rank in first) for rank in range(len(shares)))
