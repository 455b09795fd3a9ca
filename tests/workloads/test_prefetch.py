"""The next batch is loaded while this one is computed, where it takes time to load; no result depends on it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from elsewhere import Elsewhere
from own_modules import EVERY_KIND, own, written
from worlds import experiment

from hetsim.effects import Batch
from hetsim.workloads import device as devices
from hetsim.workloads.device import CPU
from hetsim.workloads.own.task import OwnTask
from hetsim.workloads.task import Task
from hetsim.workloads.tasks.classification import Classification
from hetsim.workloads.tasks.prefetch import Prefetch
from hetsim.workloads.tasks.rows import Rows


class Loading:
    """Loads batches by remembering where: `log` has each with whether it was in the thread of the prefetch."""

    def __init__(self) -> None:
        self.log: list[tuple[int, bool]] = []
        self.fails_from = 10**9
        self.prefetch = Prefetch(self.load, CPU())

    def load(self, batch: Batch) -> int:
        """Its first position; ValueError for a batch that cannot be loaded."""
        self.log.append((batch.start, threading.current_thread().name.startswith("prefetch")))
        if batch.start >= self.fails_from:
            raise ValueError(f"no sample {batch.start}")
        return batch.start

    def take(self, *starts: int, samples: int = 4) -> list[int]:
        """What is taken of batches with these starts; each guess is loaded before the next batch is asked for."""
        return [found for start in starts if (found := self._take(Batch(start, samples))) is not None]

    def _take(self, batch: Batch) -> int:
        found = self.prefetch.take(batch)
        self.prefetch._thread.submit(bool).result()
        return found


@pytest.fixture
def loading() -> Iterator[Loading]:
    """With a prefetch whose thread has ended after the test."""
    made = Loading()
    yield made
    made.prefetch.close()


def test_batches_at_one_stride_are_loaded_ahead(loading: Loading) -> None:
    """From the second guess on, as the first has to come true; each batch is loaded once."""
    assert loading.take(3, 13, 23, 33, 43) == [3, 13, 23, 33, 43]
    assert loading.log == [(3, False), (13, False), (23, False), (33, True), (43, True), (53, True)]


def test_batches_at_no_stride_are_not_loaded_ahead(loading: Loading) -> None:
    """As with a server that hands ranges out to whoever comes: nothing is loaded in vain."""
    starts = (0, 4, 12, 16, 28, 32)

    assert loading.take(*starts) == list(starts)
    assert loading.log == [(start, False) for start in starts]


def test_a_wrong_guess_is_thrown_away(loading: Loading) -> None:
    """Once, until a guess has come true again: a later start, or another size."""
    assert loading.take(0, 10, 20, 35, 45, 55) == [0, 10, 20, 35, 45, 55]
    assert loading.log[3:] == [(30, True), (35, False), (45, False), (55, False), (65, True)]

    assert loading.take(65, samples=8) == [65]
    assert loading.log[8:] == [(65, False)]


def test_what_a_guess_raises_counts_if_the_batch_is_taken(loading: Loading) -> None:
    """Otherwise nobody hears of it."""
    loading.fails_from = 30

    assert loading.take(0, 10, 20, 5) == [0, 10, 20, 5]
    assert (30, True) in loading.log
    with pytest.raises(ValueError, match="no sample 30"):
        loading.take(10, 15, 20, 25, 30)


def test_a_prefetch_that_is_closed_has_no_thread(loading: Loading) -> None:
    """A run's threads end with it."""
    loading.take(0, 10, 20)
    assert any(thread.name.startswith("prefetch") for thread in threading.enumerate())

    loading.prefetch.close()

    assert not any(thread.name.startswith("prefetch") for thread in threading.enumerate())


class Small(Elsewhere):
    """A device on which no data fit."""

    def has_room_for(self, nbytes: int) -> bool:
        """They never do."""
        return False


def gradients(task: Task, starts: range) -> list[Any]:
    """Gradients and losses at the first weights of batches of 16 with these starts."""
    return [task.gradient(task.initial(), Batch(start, 16)) for start in starts]


def test_data_that_do_not_fit_on_the_device_are_gathered_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradients are the same, over the end of an epoch too."""
    made = experiment("workload=digits", workload={"num_samples": 200, "model": "lenet", "resize": 8, "augmentation": {"pad": 1}})
    taken: list[bool] = []
    take = Rows.take

    def recording(self: Rows, indices: Any) -> torch.Tensor:
        taken.append(threading.current_thread().name.startswith("prefetch"))
        return take(self, indices)

    expected = gradients(made.load()[0], range(16, 400, 48))
    monkeypatch.setattr(Rows, "take", recording)
    with (there := Small()):
        task = made.workload.load(seed=made.seed, dtype=made.dtype, device=there)
        assert isinstance(task, Classification)
        found = gradients(task, range(16, 400, 48))
        task.close()

    assert taken.count(True) == len(found) - 2
    assert [loss for _, loss in found] == [loss for _, loss in expected]
    assert all(torch.equal(mine, its) for (mine, _), (its, _) in zip(found, expected, strict=True))


def test_data_on_the_device_need_no_thread() -> None:
    """Nor those of a run on the CPU."""
    task, _ = experiment("workload=digits").load()

    gradients(task, range(0, 160, 16))

    assert not any(thread.name.startswith("prefetch") for thread in threading.enumerate())


@pytest.mark.parametrize("kind", ["regression", "float labels", "dictionary"])
@pytest.mark.parametrize("device", [Elsewhere, Small])
def test_data_of_the_users_own_are_on_the_device(
    kind: str, device: type[Elsewhere], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensors stay there if they fit, or come ahead; samples that are read one by one come a batch at a time."""
    made = own(written(tmp_path, EVERY_KIND[kind], monkeypatch))
    expected = gradients(made.load()[0], range(0, 160, 16))
    with (there := device()):
        task = made.workload.load(seed=made.seed, dtype=made.dtype, device=there)
        assert isinstance(task, OwnTask)
        found = gradients(task, range(0, 160, 16))
        task.close()

    assert there.num_checked
    assert task._train.may_be_read_ahead == (kind == "regression" and device is Small)
    assert [loss for _, loss in found] == [loss for _, loss in expected]
    assert all(torch.equal(mine, its) for (mine, _), (its, _) in zip(found, expected, strict=True))


@pytest.mark.gpu
@pytest.mark.skipif(not devices.num_cuda_devices(), reason="this machine has no CUDA device")
def test_a_gpu_computes_the_same_of_pinned_data_with_prefetch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit by bit, for many batches that are copied beside the computation."""
    made = experiment("workload=digits", device="cuda", workload={"model": "mlp", "model_options": {"hidden": [2000, 2000]}})
    expected = gradients(made.load()[0], range(0, 3200, 16))
    monkeypatch.setattr(devices.CUDA, "has_room_for", lambda *_: False)

    task = made.load()[0]
    found = gradients(task, range(0, 3200, 16))
    task.close()

    assert [loss for _, loss in found] == [loss for _, loss in expected]
    assert all(torch.equal(mine, its) for (mine, _), (its, _) in zip(found, expected, strict=True))
