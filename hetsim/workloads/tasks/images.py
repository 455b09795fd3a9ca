"""Prepare images for a model: resize, shift and mirror them, if memory and their size allow it."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch.nn import functional

from hetsim.memory import check_fits
from hetsim.workloads.data.base import Arrays, Augmentation
from hetsim.workloads.device import Device
from hetsim.workloads.tasks.sequence import Indices, words

CHUNK_SAMPLES = 1000  # resized and averaged together
STANDARDISED_BYTES = 16  # for each number of a chunk: its difference from the mean, and the square of that


def check_images(arrays: Arrays, resize: int | None, augmentation: Augmentation) -> None:
    """Raise ValueError if these arrays cannot be resized or augmented, or if the result does not fit in memory."""
    num_train, channels, *sides = arrays.x_train.shape
    if resize is not None:
        if not sides:
            raise ValueError(f"workload.resize={resize} needs images, not plain features: leave it out")
        sides = [resize, resize]
    if augmentation and not sides:
        raise ValueError("workload.augmentation needs images, not plain features: leave it out")
    if sides and augmentation.pad >= min(sides):
        raise ValueError(
            f"workload.augmentation.pad={augmentation.pad} must be less than the {min(sides)} pixels of an image's side: lower it"
        )
    numbers = channels * math.prod(sides)
    nbytes = STANDARDISED_BYTES * min(num_train, CHUNK_SAMPLES) * numbers
    if resize is None:
        check_fits(f"standardising inputs of {numbers} numbers each", nbytes, "give smaller ones")
    else:
        count = num_train + len(arrays.x_test)
        check_fits(f"workload.resize={resize}, of {count} images,", 4 * count * numbers + nbytes, "lower it")


def resize_images(images: torch.Tensor, side: int) -> torch.Tensor:
    """Images of side x side pixels, as floats."""
    result = torch.empty(*images.shape[:2], side, side)
    for part, place in zip(torch.split(images, CHUNK_SAMPLES), torch.split(result, CHUNK_SAMPLES), strict=True):
        place.copy_(functional.interpolate(part.float(), size=(side, side), mode="bilinear", antialias=True))
    return result


def augment_images(
    images: torch.Tensor, augmentation: Augmentation, *, seed: int, positions: Indices, device: Device, pool: int = 0
) -> torch.Tensor:
    """Each image, randomly shifted and mirrored by (seed, its pool, its position). Pixels shifted in are zero, the mean."""
    count, channels, height, width = images.shape
    drawn = words(seed, positions, stream=2, pool=pool)
    steps = np.uint64(2 * augmentation.pad + 1)
    down, right = (((drawn >> np.uint64(shift)) % steps).astype(np.int64) for shift in (0, 20))
    rows = device.place(torch.from_numpy(down[:, None] + np.arange(height)))
    columns_ = right[:, None] + np.arange(width)
    if augmentation.mirror:
        mirrored = (drawn >> np.uint64(63)).astype(bool)
        columns_[mirrored] = columns_[mirrored, ::-1]
    columns = device.place(torch.from_numpy(columns_))
    padded = functional.pad(images, (augmentation.pad,) * 4)
    which, channel = (device.place(torch.arange(size)) for size in (count, channels))
    return padded[which[:, None, None, None], channel[None, :, None, None], rows[:, None, :, None], columns[:, None, None, :]]
