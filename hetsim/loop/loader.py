"""The batches of a rank: a DataLoader draws the ranges that the method will probably ask for, and drops those that it does not."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, default_collate

from hetsim.effects import Batch
from hetsim.workloads.device import keep_kernels

DECIDED = ("batch_size", "batch_sampler")
"""Options of a DataLoader that the Team decides."""


def check_options(dataset: Any, options: Mapping[str, Any]) -> None:
    """Raise ValueError for a dataset or options with which ranks would not get their shares."""
    if not is_stream(dataset) and not hasattr(dataset, "__len__"):
        raise ValueError("the dataset has no __len__, by which an epoch is divided: add it")
    for name in DECIDED:
        if name in options:
            raise ValueError(f"{name} is decided by the Team, whose batch_size is that of all ranks together: leave it out of the loader")
    if options.get("in_order") is False:
        raise ValueError("in_order=False hands batches out in any order, and each must be the one that was asked for: leave it out")


def is_stream(dataset: Any) -> bool:
    """Whether the dataset has an order of its own, and no indices."""
    return isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__")


class StreamedBatches:
    """Batches of an IterableDataset: as many of this rank's next samples as its range has. The stream begins again at its end."""

    def __init__(self, dataset: Any, options: Mapping[str, Any]) -> None:
        self._collate = options.get("collate_fn") or default_collate
        self._samples: Iterator[Any] = iter(())
        self.loader: DataLoader[Any] = DataLoader(dataset, **{**options, "batch_size": None, "collate_fn": _itself})

    def get(self, batch: Batch) -> Any:
        """The next samples."""
        return self._collate([self._next() for _ in range(batch.samples)])

    def end_epoch(self) -> None:
        """Nothing: the stream goes on."""

    def close(self) -> None:
        """End the workers."""
        self._samples = iter(())

    def _next(self) -> Any:
        for sample in self._samples:
            return sample
        self._samples = iter(self.loader)
        for sample in self._samples:
            return sample
        raise ValueError("the IterableDataset has no samples on this rank: give each rank a part of the stream")


def _itself(sample: Any) -> Any:
    return sample


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

    def end_epoch(self) -> None:
        """End the workers, as a DataLoader does at the end of its epoch. Python's collector of cycles would end their queues first."""
        self._batches, self._foreseen, self._upcoming = iter(()), iter(()), None
        self._drawn.clear()

    def close(self) -> None:
        """End the workers."""
        self.end_epoch()

    def _draw(self) -> Iterator[list[int]]:
        while (batch := self._upcoming) is not None:
            self._upcoming = next(self._foreseen, None)
            self._drawn.append(batch)
            yield self._indices(batch)


class _Ranges:
    """A batch sampler."""

    is_divided = True
    """Whether the batches of a single process are those of several together. `hetsim-ddp-check` reads it."""

    def __init__(self, draw: Callable[[], Iterator[list[int]]]) -> None:
        self._draw = draw

    def __iter__(self) -> Iterator[list[int]]:
        return self._draw()
