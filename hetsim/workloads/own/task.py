"""A task from a user's own model, data, loss and metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from hetsim import checks
from hetsim.effects import Batch
from hetsim.workloads.data.part import part_of
from hetsim.workloads.device import Device
from hetsim.workloads.own.chance import fixed_seed
from hetsim.workloads.own.loader_workers import LoaderWorkers
from hetsim.workloads.own.samples import Samples, arguments_and_target
from hetsim.workloads.own.training import Training
from hetsim.workloads.own.users_code import UsersError, users_code
from hetsim.workloads.partition import Divisible
from hetsim.workloads.task import Evaluation
from hetsim.workloads.tasks.flat_model import FlatModel, FlatTask
from hetsim.workloads.tasks.prefetch import Prefetch
from hetsim.workloads.tasks.sequence import Indices, Sequence, evaluated_samples

EVALUATED_TOGETHER = 256
"""The number of samples in a batch of an evaluation."""
TRIED_SAMPLES = 8
"""The number of samples in the batch that tries the model, loss and metrics before a run."""
TAKEN = ("seconds", "version", "samples", "train_loss", "test_loss")
"""Names that no metric may have, because other columns of the learning curve use them."""
ACCURACY = "test_accuracy"
"""The metric that becomes `Evaluation.test_accuracy`."""

Judge = Callable[[Any, Any], Any]
"""A loss or a metric: a function of outputs and targets."""


class OwnTask(FlatTask):
    """The mean loss of the user's model on the user's data."""

    def __init__(
        self, training: Training, *, function: str, num_samples: int | None, seed: int, dtype: str, device: Device,
        workers: LoaderWorkers | None = None,
    ) -> None:  # fmt: skip
        self.device = device
        self.function = function
        self.seed = seed
        self.loss = training.loss
        kind: torch.dtype = getattr(torch, dtype)
        _check(training, function)
        options: dict[str, Any] = {"function": function, "seed": seed, "dtype": kind, "device": device, "workers": workers}
        self._train = Samples(training.train, "train", training, stream=3, **options)
        self._test = None if training.test is None else Samples(training.test, "test", training, stream=4, **options)
        self._workers = workers
        # own code may read a file, whose position forked processes would share, or change with its calls: a number must be typed
        self.forkable = False if self._train.in_processes else None
        if workers is not None and not any(data.in_processes for data in (self._train, self._test) if data is not None):
            raise self._error(
                "workload.loader_workers would do nothing, because all data are tensors, which are read by index: leave it out"
            )
        if num_samples is not None:
            self._train.take(part_of(len(self._train), num_samples, self._train.labels()))
        self.num_samples = len(self._train)
        self.sequence = Sequence(self.num_samples, seed=seed)
        self._prefetch = Prefetch(self._begin, device)
        self._load_batch = self._prefetch.take if self._train.may_be_read_ahead else self._begin
        self.metrics = {"test_loss": training.loss, **training.metrics}
        self.model: nn.Module = device.place(training.model.to(kind))
        self.flat = FlatModel(self.model, self._try(), seed=seed, device=device)
        self.num_parameters: int = self.flat.num_parameters

    def gradient(self, at: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, float]:
        data = self._load_batch(batch)()
        with users_code(self.function, f"the gradient of {batch.samples} samples"):
            return self.flat.gradient(at, batch, lambda: self._mean_loss(data))

    def loss_at(self, at: torch.Tensor, batch: Batch) -> float:
        self.flat.place(at, training=False)
        return self._means(self._train, self.sequence.indices(batch), {"loss": self.loss})["loss"]

    def _begin(self, batch: Batch) -> Callable[[], Any]:
        return self._train.begin(self.sequence.indices(batch), np.arange(batch.start, batch.stop), batch.pool)

    def divisible(self, workload: str) -> Divisible:
        return Divisible(workload, self.num_samples, self._train.labels())

    def close(self) -> None:
        if self._workers is not None:
            self._workers.close()
        self._prefetch.close()

    def evaluate(self, at: torch.Tensor) -> Evaluation:
        self.flat.place(at, training=False)
        train = self._means(self._train, evaluated_samples(self.num_samples), {"train_loss": self.loss})
        test = {} if self._test is None else self._means(self._test, np.arange(len(self._test)), self.metrics)
        return Evaluation(train_loss=train["train_loss"], test_accuracy=test.pop(ACCURACY, None), metrics=test)

    def _means(self, samples: Samples, indices: Indices, functions: Mapping[str, Judge]) -> dict[str, float]:
        """The means of these functions of outputs and targets over these samples."""
        sums = dict.fromkeys(functions, 0.0)
        with torch.no_grad():
            for some in np.split(indices, range(EVALUATED_TOGETHER, len(indices), EVALUATED_TOGETHER)):
                data = samples.batch(some, some)
                with self.device.forward():
                    outputs, target = self._outputs(data)
                for name, function in functions.items():
                    with users_code(self.function, name), self.device.forward():
                        value = function(outputs, target)
                        if isinstance(value, torch.Tensor) and value.numel() != 1:
                            raise self._error(
                                f"{name} is a tensor of shape {tuple(value.shape)}: let it return one number, the mean over the samples"
                            )
                        sums[name] += len(some) * float(value)
        return {name: total / len(indices) for name, total in sums.items()}

    def _outputs(self, data: Any) -> tuple[Any, Any]:
        """The model's outputs for a batch, and the batch's target."""
        arguments, target = arguments_and_target(data)
        with users_code(self.function, "the model"):
            return self.model(*arguments), target

    def _mean_loss(self, data: Any) -> torch.Tensor:
        outputs, target = self._outputs(data)
        with users_code(self.function, "the loss"):
            loss = self.loss(outputs, target)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            result = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else checks.shown(loss)
            raise self._error(f"the loss is {result}: let it return a tensor of one number, the mean over the batch")
        return loss.reshape(()) if loss.ndim else loss

    def _try(self) -> list[torch.Tensor]:
        """Compute a loss and the metrics of a few samples, to refuse code that fails.

        Returns the running statistics: the buffers of modules that change one of their buffers in training.
        """
        count = min(TRIED_SAMPLES, self.num_samples)
        with fixed_seed(self.seed):
            data = self._train.batch(self.sequence.indices(Batch(0, count)), np.arange(count))
            self.model.eval()
            with self.device.forward():
                self._mean_loss(data)  # a lazy module takes its shapes from it
            if self._test is not None:
                self._means(self._test, np.arange(min(TRIED_SAMPLES, len(self._test))), self.metrics)
            buffers = dict(self.model.named_buffers())
            initial_buffers = {name: buffer.clone() for name, buffer in buffers.items()}
            self.model.train()
            with self.device.forward():
                loss = self._mean_loss(data)
        if not loss.requires_grad:
            raise self._error("the loss does not depend on the model's parameters: compute it from the outputs")
        if not math.isfinite(loss.item()):
            raise self._error(
                f"the loss of the first {count} samples is {loss.item()} before any step: correct the model, the loss or the data"
            )
        if replaced := [name for name, buffer in self.model.named_buffers() if buffer is not buffers.get(name)]:
            raise self._error(f"the model replaces its buffer {replaced[0]} by another tensor: change the buffer in place, as with copy_")
        changing = {_owner(name) for name, buffer in buffers.items() if not torch.equal(buffer, initial_buffers[name])}
        with torch.no_grad():
            for name, buffer in buffers.items():
                buffer.copy_(initial_buffers[name])
        return [buffer for name, buffer in buffers.items() if _owner(name) in changing and buffer.is_floating_point()]

    def _error(self, problem: str) -> UsersError:
        return UsersError.of(self.function, problem)


def _owner(buffer: str) -> str:
    """The name of the module with the buffer of this name."""
    return buffer.rpartition(".")[0]


def _check(training: Training, function: str) -> None:
    """Raise UsersError if the function did not return a valid Training."""
    if not isinstance(training.model, nn.Module):
        raise UsersError.of(function, f"model must be a torch.nn.Module, not {checks.shown(training.model)}")
    if not any(parameter.requires_grad for parameter in training.model.parameters()):
        raise UsersError.of(function, "model has no parameters that are trained: give it some")
    if not isinstance(training.metrics, Mapping):
        raise UsersError.of(function, "metrics must map names to functions, as in {'test_error': error}")
    functions = {
        "loss": training.loss,
        "collate": training.collate or list,
        **{f"metrics[{name!r}]": value for name, value in training.metrics.items()},
    }
    for name, value in functions.items():
        if not callable(value):
            raise UsersError.of(function, f"{name} must be a function, not {checks.shown(value)}")
    for name in training.metrics:
        if not (isinstance(name, str) and name.isidentifier()):
            raise UsersError.of(function, f"metrics[{name!r}] has no name for a column: take letters, digits and _, as in test_error")
        if name in TAKEN:
            raise UsersError.of(function, f"metrics[{name!r}] has the name of a column that is there already: rename it")
    if training.metrics and training.test is None:
        raise UsersError.of(function, "metrics are of the test set, which is missing: give test=")
