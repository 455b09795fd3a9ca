"""Convert messages of loader workers to bytes: pickled, with a tensor's entries as plain bytes, even if it is a view.

PyTorch's own pickling would open a file for each tensor (its multiprocessing), or write the whole tensor behind a view.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch
from numpy.typing import NDArray

OF_NUMPY = frozenset({torch.float32, torch.float64, torch.uint8, torch.int32, torch.int64, torch.bool})
"""The usual types of numbers that NumPy has, too."""


class _Packer(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """Write a dense tensor. All other objects are written as usual."""
        if type(value) is not torch.Tensor or value.layout is not torch.strided or value.device.type != "cpu":
            return NotImplemented
        if value.requires_grad or value.is_quantized or value.is_conj() or value.is_neg():
            return NotImplemented
        if value.dtype in OF_NUMPY and value.is_contiguous():
            return torch.from_numpy, (value.numpy(),)
        dense = value if value.is_contiguous() else value.clone()  # which has the same order of axes in memory
        numbers = dense.as_strided((dense.numel(),), (1,)).view(torch.uint8).numpy()
        return _tensor, (numbers, value.dtype, tuple(value.shape), dense.stride())


def _tensor(numbers: NDArray[Any], dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    return torch.from_numpy(numbers).view(dtype).as_strided(shape, strides)


def pack(value: Any) -> bytes:
    """The bytes of a value, for `pickle.loads`."""
    file = io.BytesIO()
    _Packer(file, protocol=5).dump(value)
    return file.getvalue()
