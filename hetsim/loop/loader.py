"""The batches of a rank: a DataLoader draws the ranges that the method will probably ask for, and drops those that it does not."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from hetsim.effects import Batch
from hetsim.workloads.device import keep_kernels

DECIDED = ("batch_size", "batch_sampler", "sampler")
"""Options of a DataLoader that the Team decides."""


def check_options(dataset: Any, options: Mapping[str, Any]) -> None:
    """Raise ValueError for a dataset or options with which ranks would not get their shares."""
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        raise ValueError("an IterableDataset has its own order of samples, so no rank can get its share: take a Dataset with indices")
    if not hasattr(dataset, "__len__"):
        raise ValueError("the dataset has no __len__, by which an epoch is divided: add it")
    for name in DECIDED:
        if name in options:
            raise ValueError(f"{name} is decided by the Team, whose batch_size is that of all ranks together: leave it out of the loader")
    if options.get("in_order") is False:
        raise ValueError("in_order=False hands batches out in any order, and each must be the one that was asked for: leave it out")


class DrawnBatches:
    """Batches of a dataset by their ranges. The DataLoader's workers load ahead what `foresee(batch)` yields: it, and those after it."""

    def __init__(
        self, dataset: Any, indices: Callable[[Batch], list[int]], foresee: Callable[[Batch], Iterator[Batch]], options: Mapping[str, Any]
    ) -> None:
        self._indices = indices
        self._foresee = foresee
        self._foreseen: Iterator[Batch] = iter(())
        self._upcoming: Batch | None = None
        """The range that the DataLoader draws next."""
        self._drawn = deque[Batch]()
        """The ranges that the DataLoader has drawn and not returned yet."""
        self._batches: Iterator[Any] = iter(())
        keep_kernels()  # before the first batch; their sizes change
        self.loader: DataLoader[Any] = DataLoader(dataset, batch_sampler=_Ranges(self._draw), **options)

    def get(self, batch: Batch) -> Any:
        """The samples of this range."""
        if batch not in self._drawn and batch != self._upcoming:
            self._foreseen = self._foresee(batch)
            self._upcoming = next(self._foreseen)
        while True:
            for data in self._batches:
                if self._drawn.popleft() == batch:
                    return data
            self._batches = iter(self.loader)

    def _draw(self) -> Iterator[list[int]]:
        while (batch := self._upcoming) is not None:
            self._upcoming = next(self._foreseen, None)
            self._drawn.append(batch)
            yield self._indices(batch)


class _Ranges:
    """A batch sampler."""

    def __init__(self, draw: Callable[[], Iterator[list[int]]]) -> None:
        self._draw = draw

    def __iter__(self) -> Iterator[list[int]]:
        return self._draw()


def moved(batch: Any, device: Any) -> Any:
    """The batch with all movable parts on the device, in containers of the same types."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if hasattr(batch, "to"):
        return batch.to(device)
    if isinstance(batch, Mapping):
        parts = {name: moved(part, device) for name, part in batch.items()}
        if not isinstance(batch, MutableMapping):
            return type(batch)(parts)  # type: ignore[call-arg]
        other = copy.copy(batch)  # a defaultdict takes other arguments than its parts
        other.update(parts)
        return other
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(moved(part, device) for part in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(moved(part, device) for part in batch)
    return batch
