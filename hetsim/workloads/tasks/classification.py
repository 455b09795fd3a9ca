"""A classifier on labelled arrays, with its weights in one flat vector."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from hetsim.effects import Batch
from hetsim.workloads.data.base import Arrays, Augmentation
from hetsim.workloads.device import Device
from hetsim.workloads.models.registry import build_model, logits
from hetsim.workloads.partition import Divisible
from hetsim.workloads.task import Evaluation
from hetsim.workloads.tasks.flat_model import FlatModel, FlatTask
from hetsim.workloads.tasks.images import CHUNK_SAMPLES, augment_images, check_images, resize_images
from hetsim.workloads.tasks.prefetch import Prefetch
from hetsim.workloads.tasks.rows import Rows
from hetsim.workloads.tasks.sequence import Indices, evaluated_samples
from hetsim.workloads.tasks.sequence import Sequence as SampleSequence

SCORED_SAMPLES = 250
"""The number of samples to evaluate together. The activations of a small convolutional network then stay in a CPU's cache."""


class Classification(FlatTask):
    """Mean cross entropy of a model, over inputs standardised by channel with the training set's mean and deviation."""

    forkable = True

    def __init__(
        self,
        arrays: Arrays,
        *,
        model: str,
        model_options: Mapping[str, Any],
        resize: int | None,
        augmentation: Augmentation,
        seed: int,
        dtype: str,
        device: Device,
        archives: Indices | None = None,
    ) -> None:
        self.device = device
        self.seed = seed
        self.dtype: torch.dtype = getattr(torch, dtype)
        self.num_samples = len(arrays.x_train)
        self.sequence = SampleSequence(self.num_samples, seed=seed)
        self.augmentation = augmentation
        check_images(arrays, resize, augmentation)
        self._x_train, self._x_test = self._inputs(arrays, resize)
        self._labels, self._test_labels, self._archives = arrays.y_train, arrays.y_test, archives
        self._y_train, self._y_test = (Rows(torch.from_numpy(labels), device) for labels in (arrays.y_train, arrays.y_test))
        self._prefetch = Prefetch(self._take, device)
        self.num_classes = num_classes = int(max(arrays.y_train.max(), arrays.y_test.max())) + 1
        shape = self._x_train.shape
        self.model = build_model(model, model_options, shape=shape, num_classes=num_classes, seed=seed)
        self.model = device.place(self.model.to(self.dtype))
        statistics = [buffer for buffer in self.model.buffers() if buffer.is_floating_point()]
        self.flat = FlatModel(self.model, statistics, seed=seed, device=device)
        self.num_parameters: int = self.flat.num_parameters

    def gradient(self, at: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, float]:
        indices = self.sequence.indices(batch)
        labels = self._y_train.take(indices)
        inputs = self._x_train.take(indices) if self._x_train.on_device else self.device.arrived(self._prefetch.take(batch))
        inputs = self._prepare(inputs, batch)
        with _enough(batch.samples):
            return self.flat.gradient(at, batch, lambda: _loss(self.model, inputs, labels))

    def gradients(self, at: Sequence[torch.Tensor], batches: Sequence[Batch]) -> list[tuple[torch.Tensor, float]]:
        rows = [self.sequence.indices(batch) for batch in batches]
        inputs = torch.stack([self._prepare(self._x_train.take(indices), batch) for indices, batch in zip(rows, batches, strict=True)])
        labels = self._y_train.take(np.concatenate(rows)).view(len(rows), -1)
        with _enough(batches[0].samples):
            return self.flat.gradients(at, (inputs, labels), _loss)

    def loss_at(self, at: torch.Tensor, batch: Batch) -> float:
        self.flat.place(at, training=False)
        return self._score(self._x_train, self._y_train, self.sequence.indices(batch))[0]

    def close(self) -> None:
        self._prefetch.close()

    def divisible(self, workload: str) -> Divisible:
        return Divisible(workload, self.num_samples, self._labels, self._archives)

    def evaluate(self, at: torch.Tensor) -> Evaluation:
        self.flat.place(at, training=False)
        loss, _ = self._score(self._x_train, self._y_train, evaluated_samples(self.num_samples))
        _, right = self._score(self._x_test, self._y_test, np.arange(len(self._y_test)))
        of_class = np.bincount(self._test_labels, minlength=self.num_classes).tolist()
        right_of_class = np.bincount(self._test_labels[right], minlength=self.num_classes).tolist()
        return Evaluation(
            train_loss=loss,
            test_accuracy=float(right.mean()),
            class_accuracy=tuple(part / count if count else None for part, count in zip(right_of_class, of_class, strict=True)),
        )

    def _score(self, x: Rows, y: Rows, indices: Indices) -> tuple[float, NDArray[np.bool_]]:
        """The mean loss over these samples, and which of them are classified correctly."""
        loss, right = 0.0, np.zeros(len(indices), np.bool_)
        with torch.no_grad():
            for start in range(0, len(indices), SCORED_SAMPLES):
                some = indices[start : start + SCORED_SAMPLES]
                labels = y.take(some)
                with self.device.forward():
                    outputs = logits(self.model(self._standardise(x.take(some))))
                    loss += functional.cross_entropy(outputs, labels, reduction="sum").item()
                right[start : start + SCORED_SAMPLES] = (outputs.argmax(1) == labels).tolist()
        return loss / len(indices), right

    def _inputs(self, arrays: Arrays, resize: int | None) -> tuple[Rows, Rows]:
        """The inputs as stored (bytes stay bytes). Sets the mean and deviation of each channel."""
        train, test = torch.from_numpy(arrays.x_train), torch.from_numpy(arrays.x_test)
        if resize is not None:
            train, test = (resize_images(part, resize) for part in (train, test))
        axes = [axis for axis in range(train.ndim) if axis != 1]
        wide = [1, -1] + [1] * (train.ndim - 2)
        count = train.numel() // train.shape[1]
        mean = torch.zeros(train.shape[1], dtype=torch.float64)
        for part in torch.split(train, CHUNK_SAMPLES):
            mean += part.double().sum(axes) / count
        variance = torch.zeros_like(mean)
        for part in torch.split(train, CHUNK_SAMPLES):
            variance += ((part - mean.view(wide)) ** 2).sum(axes) / count
        self._mean = mean.to(self.dtype).view(wide)
        self._scale = variance.where(variance > 0, torch.ones_like(variance)).rsqrt().to(self.dtype).view(wide)
        self._mean, self._scale = self.device.place(self._mean), self.device.place(self._scale)
        return Rows(train, self.device), Rows(test, self.device)

    def _take(self, batch: Batch) -> torch.Tensor:
        """The inputs of a batch, as stored."""
        return self._x_train.take(self.sequence.indices(batch))

    def _prepare(self, inputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        """The inputs of a batch, standardised and augmented."""
        inputs = self._standardise(inputs)
        if not self.augmentation:
            return inputs
        positions = np.arange(batch.start, batch.stop)
        return augment_images(inputs, self.augmentation, seed=self.seed, positions=positions, device=self.device, pool=batch.pool)

    def _standardise(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.to(self.dtype).sub_(self._mean).mul_(self._scale)


def _loss(model: Callable[[torch.Tensor], torch.Tensor], inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits(model(inputs)), labels)


@contextmanager
def _enough(samples: int) -> Iterator[None]:
    """Give a ValueError of batch norm over a single value the key that causes it."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"workload.model: a share of {samples} samples is too small for it ({error}): raise batch_size") from None
