"""Byte arrays in LeCun's IDX format, packed by gzip or not. The size that a file claims can be refused before it is unpacked."""

from __future__ import annotations

import gzip
import math
import shlex
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetsim.memory import check_fits
from hetsim.workloads.data.archive import check_ratio

BYTES = 0x08
"""The type in the magic number."""


def existing_file(path: Path) -> Path | None:
    """The file of this name, or the packed file next to it; None if there is neither."""
    return next((candidate for candidate in (path, path.with_name(f"{path.name}.gz")) if candidate.is_file()), None)


def read_idx(path: Path, *, num_axes: int) -> NDArray[np.uint8]:
    """The array in a file. Raises ValueError if the file contains no such byte array, or more than fits in memory."""
    packed = path.suffix == ".gz"
    try:
        with gzip.open(path) if packed else path.open("rb") as file:
            shape = _shape(file, path, num_axes)
            size = math.prod(shape)
            if packed:
                check_ratio(str(path), path.stat().st_size, size, remedy=f"gunzip {shlex.quote(str(path))}")
            check_fits(str(path), size, "take a smaller data set")
            array = np.empty(size, dtype=np.uint8)
            filled = 0
            while filled < size and (count := file.readinto(array.data[filled:])):
                filled += count
            complete = filled == size and not file.read(1)
    except (OSError, EOFError, zlib.error, struct.error) as error:
        raise ValueError(f"{path} is damaged ({error}): fetch it again") from None
    if not complete:
        has = "more" if filled == size else filled
        raise ValueError(f"{path} is damaged (it has {has} of the {size} bytes that it claims to hold): fetch it again")
    return array.reshape(shape)


def _shape(file: Any, path: Path, num_axes: int) -> tuple[int, ...]:
    zero, kind, axes = struct.unpack(">HBB", file.read(4))
    if (zero, kind, axes) != (0, BYTES, num_axes):
        raise ValueError(f"{path} holds no bytes in {num_axes} dimensions in the IDX format: fetch it again")
    shape: tuple[int, ...] = struct.unpack(f">{axes}I", file.read(4 * axes))
    return shape
