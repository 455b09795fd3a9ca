"""Samples as bytes: what one process of a script loads, another one can train on."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from hetsim.gradcheck.turning import refused


class _Pickler(pickle.Pickler):
    """A tensor is stored without the rest of its storage, and as the same bytes in each process."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not torch.Tensor or value.layout is not torch.strided:
            return NotImplemented
        content = value.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()
        return _tensor, (content, value.dtype, tuple(value.shape), value.device.type)


def _tensor(content: bytes, dtype: torch.dtype, shape: tuple[int, ...], device: str) -> torch.Tensor:
    if not content:
        return torch.empty(shape, dtype=dtype, device=device)
    return torch.frombuffer(bytearray(content), dtype=dtype).reshape(shape).to(device)


def packed(sample: Any) -> bytes:
    """The sample as bytes, for `pickle.loads`. Raises ValueError if it cannot be stored."""
    buffer = io.BytesIO()
    try:
        _Pickler(buffer).dump(sample)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise refused(f"a sample of type {type(sample).__name__} cannot be given to another process ({error})") from None
    return buffer.getvalue()


def loaded(loader: DataLoader[Any]) -> Iterator[list[Any]]:
    """The samples of each batch of a DataLoader, loaded by this process. If it does not collate, the one element is a batch."""
    dataset: Any = loader.dataset
    if isinstance(dataset, IterableDataset):
        samples = iter(dataset)
        while batch := list(islice(samples, loader.batch_size or 1)):
            if len(batch) == (loader.batch_size or 1) or not loader.drop_last:
                yield batch
    elif loader.batch_sampler is None:
        yield from ([dataset[index]] for index in loader.sampler)
    else:
        for indices in loader.batch_sampler:
            yield dataset.__getitems__(indices) if hasattr(dataset, "__getitems__") else [dataset[index] for index in indices]


def merged(batches: Sequence[Any]) -> Any:
    """One batch of the rows of all. Raises ValueError if their tensors cannot be concatenated."""
    first = batches[0]
    if isinstance(first, torch.Tensor) and first.ndim and len({batch.shape[1:] for batch in batches}) == 1:
        return torch.cat(list(batches))
    if isinstance(first, Mapping) and len({tuple(batch) for batch in batches}) == 1:
        return {name: merged([batch[name] for batch in batches]) for name in first}
    if isinstance(first, list | tuple) and len({len(batch) for batch in batches}) == 1:
        parts = [merged(part) for part in zip(*batches, strict=True)]
        return parts if isinstance(first, list) else type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)
    if not isinstance(first, torch.Tensor) and all(batch == first for batch in batches):
        return first
    raise refused(
        "the dataset yields whole batches whose tensors differ in more than their first dimension, so one process cannot get those of all "
        "ranks: let it yield samples, and give the DataLoader a batch_size"
    )
