"""The samples of a map-style Dataset, as batches."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Subset, TensorDataset, default_collate

from hetsim.memory import out_of_memory
from hetsim.workloads.device import Device
from hetsim.workloads.own.chance import seed_everything
from hetsim.workloads.own.training import Training
from hetsim.workloads.own.users_code import UsersError, reason, users_code
from hetsim.workloads.sequence import Indices, words


class Samples:
    """The batches of a Dataset: a tensor's or a TensorDataset's by index, others' by `__getitems__`, or sample by sample.

    What a sample draws by itself is a function of (seed, stream, position): of its own position, or of the batch's first one with
    `__getitems__`.
    """

    def __init__(
        self, dataset: Any, what: str, made: Training, *, function: str, seed: int, stream: int, dtype: torch.dtype, device: Device
    ) -> None:
        self.what = what
        self.function = function
        self.seed = seed
        self.stream = stream
        self.dtype = dtype
        self.device = device
        if not (isinstance(dataset, Sized) and hasattr(dataset, "__getitem__")):
            kind = type(dataset).__name__
            raise UsersError.of(function, f"{what} must be a map-style Dataset, with __len__ and __getitem__, not {kind}")
        with users_code(function, f"the length of {what}"):
            self._chosen = np.arange(len(dataset), dtype=np.int64)
        if not len(self._chosen):
            raise UsersError.of(function, f"{what} has no samples: give it at least one")
        with users_code(function, f"the indices of {what}"):
            while type(dataset) is Subset:
                self._chosen, dataset = np.asarray(dataset.indices, dtype=np.int64)[self._chosen], dataset.dataset
        self.dataset = dataset
        self._collate = made.collate
        self._tensors = _whole_tensors(dataset) if made.collate is None else None

    def __len__(self) -> int:
        return len(self._chosen)

    def take(self, part: Indices) -> None:
        """Keep only these samples."""
        self._chosen = self._chosen[part]

    def labels(self) -> NDArray[np.int64] | None:
        """Whole numbers where they are at hand: the last tensor of a TensorDataset, or the `targets` that torchvision's sets have."""
        with users_code(self.function, "the targets of the data"):
            found = self.dataset.tensors[-1] if type(self.dataset) is TensorDataset else getattr(self.dataset, "targets", None)
        try:
            labels = np.asarray(found)
        except Exception:
            return None
        at_hand = labels.dtype.kind in "ui" and labels.shape == (len(self.dataset),)
        return labels[self._chosen].astype(np.int64) if at_hand else None

    def batch(self, indices: Indices, positions: Indices) -> Any:
        """The samples with these indices, which stand at these positions."""
        chosen = self._chosen[indices]
        if self._tensors is not None:
            rows = torch.from_numpy(chosen)
            with users_code(self.function, f"{self.what}[…]"):
                return [self._cast(tensor.index_select(0, rows)) for tensor in self._tensors]
        with users_code(self.function, f"{self.what}[…]"):
            samples = self._samples(chosen, words(self.seed, positions, stream=self.stream))
        if self._collate is not None:
            with users_code(self.function, "collate"):
                return self._cast(self._collate(samples))
        try:
            return self._cast(default_collate(samples))
        except (TypeError, KeyError, IndexError, RuntimeError) as error:
            if out_of_memory(error) is not None:
                raise
            remedy = "let them be tensors of one shape, numbers, or tuples or dictionaries of these, or give collate="
            raise UsersError.of(self.function, f"the samples of {self.what} make no batch ({reason(error)}): {remedy}") from None

    def _samples(self, chosen: Indices, drawn: Any) -> list[Any]:
        if hasattr(self.dataset, "__getitems__"):
            seed_everything(int(drawn[0]) >> 32)
            return list(self.dataset.__getitems__(chosen.tolist()))
        samples = []
        for index, word in zip(chosen.tolist(), drawn.tolist(), strict=True):
            seed_everything(word >> 32)
            samples.append(self.dataset[index])
        return samples

    def _cast(self, batch: Any) -> Any:
        """Tensors on the device; floating-point numbers have the run's precision, whatever they are stored in."""
        if isinstance(batch, torch.Tensor):
            return self.device.place(batch.to(self.dtype) if batch.is_floating_point() else batch)
        if isinstance(batch, Mapping):
            return {name: self._cast(value) for name, value in batch.items()}
        if isinstance(batch, tuple) and hasattr(batch, "_fields"):
            return type(batch)(*map(self._cast, batch))
        return type(batch)(map(self._cast, batch)) if isinstance(batch, list | tuple) else batch


def _whole_tensors(dataset: Any) -> tuple[torch.Tensor, ...] | None:
    """The tensors that hold all samples, if there are such: a batch of them is a part of each."""
    if type(dataset) is TensorDataset:
        return dataset.tensors
    return (dataset,) if isinstance(dataset, torch.Tensor) else None


def arguments_and_target(batch: Any) -> tuple[Any, Any]:
    """The model's arguments and the target of a batch: of a tuple the last entry is the target; any other batch is both."""
    if isinstance(batch, list | tuple):
        return batch[:-1] or batch, batch[-1]
    return (batch,), batch
