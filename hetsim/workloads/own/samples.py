"""The samples of a map-style Dataset, as batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import TensorDataset, default_collate

from hetsim.memory import out_of_memory
from hetsim.workloads.device import Device
from hetsim.workloads.own.chance import restore
from hetsim.workloads.own.items import indices_of, read_samples, takes_lists, underlying_dataset
from hetsim.workloads.own.loader_workers import LoaderWorkers
from hetsim.workloads.own.training import Training
from hetsim.workloads.own.users_code import UsersError, reason, users_code
from hetsim.workloads.tasks.rows import Rows
from hetsim.workloads.tasks.sequence import Indices, Words, words


class Samples:
    """The batches of a Dataset: from a tensor or TensorDataset by index, else by `__getitems__` or sample by sample.

    The random numbers of a sample are a function of (seed, stream, pool, position). With `__getitems__`, the position is the first one in
    the batch.
    """

    def __init__(
        self, dataset: Any, name: str, training: Training, *, function: str, seed: int, stream: int, dtype: torch.dtype, device: Device,
        workers: LoaderWorkers | None = None,
    ) -> None:  # fmt: skip
        self.name = name
        self.function = function
        self.seed = seed
        self.stream = stream
        self.dtype = dtype
        self.device = device
        self._collate = training.collate
        if not (isinstance(dataset, Sized) and hasattr(dataset, "__getitem__")):
            kind = type(dataset).__name__
            raise UsersError.of(function, f"{name} must be a map-style Dataset, with __len__ and __getitem__, not {kind}")
        with users_code(function, f"the length of {name}"):
            empty = not len(dataset)
        if empty:
            raise UsersError.of(function, f"{name} has no samples: give it at least one")
        with users_code(function, f"the indices of {name}"):
            self._chosen = indices_of(dataset)
        self.dataset = underlying_dataset(dataset)
        tensors = _whole_tensors(self.dataset) if training.collate is None else None
        self._rows = None if tensors is None else self._rows_of(tensors)
        self._workers = workers if tensors is None else None

    def __len__(self) -> int:
        return len(self._chosen)

    def take(self, part: Indices) -> None:
        """Keep only these samples."""
        self._chosen = self._chosen[part]

    def labels(self) -> NDArray[np.int64] | None:
        """The labels if they are known: the last tensor of a TensorDataset, or the `targets` of torchvision's data sets. Else None."""
        with users_code(self.function, "the targets of the data"):
            targets = self.dataset.tensors[-1] if type(self.dataset) is TensorDataset else getattr(self.dataset, "targets", None)
        try:
            labels = np.asarray(targets)
        except Exception:
            return None
        at_hand = labels.dtype.kind in "ui" and labels.shape == (len(self.dataset),)
        return labels[self._chosen].astype(np.int64) if at_hand else None

    @property
    def in_processes(self) -> bool:
        """Whether loader workers read the samples."""
        return self._workers is not None

    @property
    def may_be_read_ahead(self) -> bool:
        """Whether another thread can `begin` a batch, and this saves time.

        If the rank reads samples itself, the program draws from the same generators as the samples.
        """
        return self.in_processes or (self._rows is not None and not all(rows.on_device for rows in self._rows))

    def batch(self, indices: Indices, positions: Indices) -> Any:
        """The samples with these indices, at these positions."""
        return self.begin(indices, positions)()

    def begin(self, indices: Indices, positions: Indices, pool: int = 0) -> Callable[[], Any]:
        """Read these samples, at these positions of this pool. The returned function, called in the program's thread, makes the batch."""
        chosen = self._chosen[indices]
        if self._rows is not None:
            with users_code(self.function, f"{self.name}[…]"):
                tensors = [rows.take(chosen) for rows in self._rows]
            return lambda: [self._place(self.device.arrived(tensor)) for tensor in tensors]
        samples, generators = self._read(chosen, words(self.seed, positions, stream=self.stream, pool=pool))
        finish = self._begin_batch(samples)

        def batch() -> Any:
            if generators is not None:
                restore(generators)
            return finish()

        return batch

    def _read(self, chosen: Indices, drawn: Words) -> tuple[list[Any], Any]:
        """The samples, and the next states of the generators if another process has drawn from its own."""
        with users_code(self.function, f"{self.name}[…]"):
            if self._workers is not None:
                return self._workers.read(self.name, chosen, drawn, together=takes_lists(self.dataset))
            return read_samples(self.dataset, chosen, drawn), None

    def _begin_batch(self, samples: list[Any]) -> Callable[[], Any]:
        """A function that makes a batch of the samples. The program's thread calls it, because a user's collate may draw numbers."""
        if self._collate is not None:
            return lambda: self._place(self._own_batch(samples))
        try:
            batch = self._place(default_collate(samples))
        except (TypeError, KeyError, IndexError, RuntimeError) as error:
            if out_of_memory(error) is not None:
                raise
            remedy = "let them be tensors of one shape, numbers, or tuples or dictionaries of these, or give collate="
            raise UsersError.of(self.function, f"the samples of {self.name} make no batch ({reason(error)}): {remedy}") from None
        return lambda: map_tensors(self.device.arrived, batch)

    def _own_batch(self, samples: list[Any]) -> Any:
        assert self._collate is not None
        with users_code(self.function, "collate"):
            return self._collate(samples)

    def _rows_of(self, tensors: tuple[torch.Tensor, ...]) -> list[Rows]:
        with users_code(self.function, f"{self.name}[…]"):
            for tensor in tensors:
                if self._chosen.min() < 0 or self._chosen.max() >= len(tensor):
                    raise IndexError(f"it has no sample {max(self._chosen, key=abs)}, but {len(tensor)}")
        return [Rows(tensor, self.device) for tensor in tensors]

    def _place(self, batch: Any) -> Any:
        """The batch on the device. Floating-point numbers get the run's precision."""
        return map_tensors(self._cast, batch)

    def _cast(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.device.place(tensor.to(self.dtype) if tensor.is_floating_point() else tensor)


def map_tensors(function: Callable[[torch.Tensor], torch.Tensor], batch: Any) -> Any:
    """A batch with the function applied to each of its tensors."""
    if isinstance(batch, torch.Tensor):
        return function(batch)
    if isinstance(batch, Mapping):
        return {name: map_tensors(function, value) for name, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(map_tensors(function, value) for value in batch))
    return type(batch)(map_tensors(function, value) for value in batch) if isinstance(batch, list | tuple) else batch


def _whole_tensors(dataset: Any) -> tuple[torch.Tensor, ...] | None:
    """The tensors with all samples, if they exist. A batch is then a part of each tensor."""
    if type(dataset) is TensorDataset:
        return dataset.tensors
    return (dataset,) if isinstance(dataset, torch.Tensor) else None


def arguments_and_target(batch: Any) -> tuple[Any, Any]:
    """The model's arguments and the target of a batch. The last entry of a tuple is the target. Any other batch is both."""
    if isinstance(batch, list | tuple):
        return batch[:-1] or batch, batch[-1]
    return (batch,), batch
