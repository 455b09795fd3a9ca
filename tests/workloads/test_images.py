"""Images that cannot be resized or shifted as asked for are refused before anything is made of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from worlds import experiment

from hetsim import memory
from hetsim.effects import Batch
from hetsim.workloads.data.base import Arrays
from hetsim.workloads.device import CPU
from hetsim.workloads.tasks.images import Augmentation, check_images

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a large side": (
        {"resize": 20_000},
        "workload.resize=20000, of 1797 images, would take 9275.2 GB of memory, and 24.0 GB are available: lower it",
    ),
    "a side beyond all numbers": (
        {"resize": 10**23},
        "workload.resize must be at most 1000000000000000, not 100000000000000000000000",
    ),
    "a shift by the whole image": (
        {"augmentation": {"pad": 8}},
        "workload.augmentation.pad=8 must be less than the 8 pixels of an image's side: lower it",
    ),
    "a shift beyond all numbers": (
        {"augmentation": {"pad": 10**23}},
        "workload.augmentation.pad must be at most 1000000000000000, not 100000000000000000000000",
    ),
    "a shift by the whole image as it is resized": (
        {"resize": 5, "augmentation": {"pad": 5}},
        "workload.augmentation.pad=5 must be less than the 5 pixels of an image's side: lower it",
    ),
}


@pytest.mark.parametrize(("keys", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_made_of_images_is_refused(monkeypatch: pytest.MonkeyPatch, keys: dict[str, Any], sentence: str) -> None:
    """When they are loaded, in one sentence that names the key."""
    monkeypatch.setattr(memory, "available_bytes", lambda: 24 * 10**9)

    with pytest.raises(ValueError, match=r"^workload\.") as error:
        experiment("workload=digits", workload=keys).load()
    assert str(error.value) == sentence


def test_the_largest_shift_leaves_a_pixel() -> None:
    """One less than the side can be trained with."""
    task, _ = experiment("workload=digits", workload={"augmentation": {"pad": 7}}).load()

    gradient, _ = task.gradient(task.initial(), Batch(0, 64))

    assert gradient.isfinite().all()


def test_a_side_of_images_is_the_shorter_one() -> None:
    """Of 6 x 7 pixels."""
    arrays = Arrays(np.zeros((3, 1, 6, 7)), np.zeros(3, dtype=int), np.zeros((2, 1, 6, 7)), np.zeros(2, dtype=int))

    check_images(arrays, None, Augmentation(pad=5))
    with pytest.raises(ValueError, match=r"^workload\.augmentation\.pad=6 must be less than the 6 pixels"):
        check_images(arrays, None, Augmentation(pad=6))


def test_inputs_too_large_to_be_standardised_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is done in doubles, of up to 1000 samples at once."""
    monkeypatch.setattr(memory, "available_bytes", lambda: 16 * 1000 * 64 - 1)

    with pytest.raises(ValueError, match=r"^standardising inputs of 64 numbers each would take 0\.0010 GB of memory, and 0\.0010 GB are"):
        experiment("workload=digits").load()
    monkeypatch.setattr(memory, "available_bytes", lambda: 16 * 1000 * 64)
    experiment("workload=digits").workload.load(seed=0, dtype="float32", device=CPU())
