"""Communication between ranks besides gradients: their agreement at the start, and the seconds of their windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist

from hetsim.ddp.clock import Clock
from hetsim.ddp.grain import Grain
from hetsim.ddp.timed import Timed
from hetsim.ddp.windows import Window
from hetsim.effects import Batch, Contribution
from hetsim.policies.allocation import Allocation

UNREAD_WINDOWS = 4
"""The number of GPU marks to keep before the oldest is read. By then, the GPU has reached it, so nothing waits."""


class Control:
    """Collectives on small CPU tensors in a separate gloo group. They never wait for a GPU, nor for gradients."""

    def __init__(self, group: Any = None) -> None:
        ranks = None if group is None else dist.get_process_group_ranks(group)
        alone = ranks is not None
        self.group = cast(Any, dist.new_group(ranks, timeout_of(group), "gloo", use_local_synchronization=alone))
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)

    def gather(self, numbers: Sequence[int]) -> list[list[int]]:
        """The integers of each rank, in rank order. All ranks pass equally many."""
        mine = torch.tensor(numbers, dtype=torch.int64)
        everything = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(everything, mine, group=self.group)
        return [each.tolist() for each in everything]

    def sum(self, flat: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks, in place."""
        dist.all_reduce(flat, group=self.group)
        return flat

    def begin_gather(self, number: float) -> tuple[torch.Tensor, Any]:
        """Start to gather each rank's number, in rank order. The result is valid after waiting for the returned work."""
        numbers = torch.zeros(self.size, dtype=torch.float64)
        numbers[self.rank] = number
        return numbers, dist.all_reduce(numbers, group=self.group, async_op=True)

    def gather_rows(self, rows: torch.Tensor) -> list[torch.Tensor]:
        """The rows of all ranks; each rank may have any number of rows."""
        counts = [count for (count,) in self.gather([len(rows)])]
        padded = torch.zeros(max(counts), *rows.shape[1:], dtype=rows.dtype)
        padded[: len(rows)] = rows
        everything = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(everything, padded, group=self.group)
        return [each[:count] for each, count in zip(everything, counts, strict=True)]

    def check_same(self, number: int, otherwise: str) -> None:
        """Raise ValueError with this sentence, on every rank, if the ranks' numbers differ."""
        if len({each for (each,) in self.gather([number])}) > 1:
            raise ValueError(otherwise)

    def check_agreed(self, **values: int) -> None:
        """Raise ValueError, on every rank, if the ranks' values differ."""
        everything = self.gather(list(values.values()))
        for place, name in enumerate(values):
            numbers = [each[place] for each in everything]
            if len(set(numbers)) > 1:
                raise ValueError(f"{name} must be the same on all ranks, and is not ({', '.join(map(str, numbers))} in rank order)")


def timeout_of(group: Any) -> timedelta | None:
    """The timeout of this group, or of the group of all ranks; None if its backends do not report it."""
    group = group or dist.group.WORLD
    options: list[Any] = [getattr(group._get_backend(device), "options", None) for device in group._device_types]
    return max((each._timeout for each in options if hasattr(each, "_timeout")), default=None)


@dataclass(frozen=True)
class _Report:
    """A window for the allocation to observe, with the exchange that the allocation requested."""

    window: Window
    seconds: torch.Tensor | None = None
    work: Any = None


class Balance:
    """The allocation's state, and the measurements since it last requested them. All but the seconds are the same on all ranks.

    A window counts if it has the newest split. The first `warmup_steps` windows of each split do not count, because kernels are chosen and
    compiled in them. Short steps at the end of an epoch do not count either, nor outliers, nor windows in which a rank only waited. If a
    rank has no other windows, the allocation observes nothing.
    """

    def __init__(
        self,
        allocation: Allocation,
        state: Any,
        control: Control,
        *,
        warmup_steps: int,
        grain: Grain = Grain(),  # noqa: B008 it is frozen
        bounds: Sequence[int] | None = None,
    ) -> None:
        """The allocation divides a batch into units of the `grain`. `bounds` are the ranks' maximum units."""
        self.allocation, self.state, self.grain, self._bounds = allocation, state, grain, bounds
        self.measures = type(allocation).observe is not Allocation.observe
        self.num_exchanges = 0
        self._control, self._warmup_steps = control, warmup_steps
        self._last: Window | None = None
        self._report: _Report | None = None
        self._num_windows = 0  # of the present split
        self._unread: list[tuple[Window, bool]] = []
        """Windows, and whether each counts."""
        self._num_steps = 0
        """The number of steps to report, which is the same on all ranks."""
        self._timed = Timed()

    @property
    def shares(self) -> tuple[int, ...]:
        """The newest split."""
        return self.grain.samples(self.allocation.shares(self.state), self._bounds)

    def end_window(self, window: Window) -> None:
        """End a window. It is reported in the next one."""
        self._last = window

    def begin_exchange(self, clock: Clock) -> None:
        """Start to exchange measurements if the allocation asks for them. Called when the first gradients of a window are ready."""
        window, self._last = self._last, None
        if window is None or not self.measures:
            return
        if window.step.split != self.shares:
            self._num_windows = 0
            return
        self._num_windows += 1
        counts = self._num_windows > self._warmup_steps
        if window.step.full and window.measured:
            self._unread.append((window, counts))
            self._num_steps += window.num_steps * counts
        if not counts:
            return
        asked = self._num_steps > 0 and self.allocation.asks(self.state, window.epoch)
        self._read(clock, keep=0 if asked else UNREAD_WINDOWS)
        if not asked:
            self._report = _Report(window)
            return
        self.num_exchanges += 1
        self._report = _Report(window, *self._control.begin_gather(self._timed.mean()))
        self._num_steps = 0

    def _read(self, clock: Clock, *, keep: int) -> None:
        while len(self._unread) > keep:
            window, counts = self._unread.pop(0)
            seconds, samples = window.seconds(clock) / window.num_steps, window.step.shares[self._control.rank]
            if seconds <= 0:
                continue
            if counts:
                self._timed.add(seconds, samples, window.num_steps)
            else:
                self._timed.know(seconds, samples)

    def decided(self) -> tuple[int, ...] | None:
        """At the beginning of a step: observe the exchange of the step before. Returns the new split, or None if it is unchanged."""
        report, self._report = self._report, None
        if report is None:
            return None
        before, timings = self.shares, tuple[Contribution, ...]()
        if report.seconds is not None:
            report.work.wait()
            seconds = report.seconds.tolist()
            if min(seconds) > 0:
                units = [samples // self.grain.multiple_of for samples in report.window.step.split]
                timings = tuple(
                    Contribution(rank, Batch(0, number), report.window.number, seconds[rank], 0.0) for rank, number in enumerate(units)
                )
        self.state = self.allocation.observe(self.state, timings, report.window.epoch)
        if self.shares == before:
            return None
        self._num_windows = self._num_steps = 0
        self._timed.forget()
        self._unread.clear()
        return self.shares
