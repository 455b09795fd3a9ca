"""The interface of a workload for backends: initial weights, gradients of ranges of samples, evaluations, an optimizer."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from hetsim.effects import Batch, Fragment
from hetsim.vector import Phantom, Vector, length, piece, scaled
from hetsim.workloads.device import Device, device
from hetsim.workloads.partition import Divisible, Indices
from hetsim.workloads.tasks.sequence import Sequence as SampleSequence

BYTES = {"float32": 4, "float64": 8}
"""The bytes of one number, by its dtype."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Loss on (a fixed part of) the training set and accuracy on the test set; None where a workload does not define it."""

    train_loss: float | None = None
    test_accuracy: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Further metrics of a workload by name. All evaluations of a run have the same metrics."""
    class_accuracy: Sequence[float | None] | None = None
    """The accuracy on each class of the test set, None for a class without samples. None for a workload without classes."""

    def named(self) -> dict[str, float | None]:
        """All numbers by the names that files use."""
        return {"train_loss": self.train_loss, "test_accuracy": self.test_accuracy, **self.metrics}


@dataclass(frozen=True)
class Recipe:
    """A class to instantiate later, when its library may be imported: dotted name and keyword arguments."""

    target: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class OptimizerRecipe:
    """A torch.optim optimizer, its learning-rate schedule if any, and the user's modules whose code may run."""

    optimizer: Recipe
    schedule: Recipe | None = None
    trust: tuple[str, ...] = ()
    key: str = "optimizer"
    """The optimizer's key in the config."""
    schedule_key: str = "learning_rate_schedule"

    @property
    def imports(self) -> tuple[str, ...]:
        """The modules to import, as for a workload. All optimizers but plain SGD import PyTorch's compiler, which takes two seconds."""
        return () if self.optimizer.target == "torch.optim.SGD" and self.schedule is None else ("torch._dynamo",)


class ParameterSpec(NamedTuple):
    """One parameter of a model, as a part of a task's vector."""

    name: str
    start: int
    """The index of its first entry in the vector."""
    shape: tuple[int, ...]
    hidden: bool = False
    """Whether this is a matrix between hidden layers: no vector, no embedding, and not the last layer."""

    @property
    def view_shape(self) -> tuple[int, ...]:
        """Its shape for an optimizer. A hidden matrix has two dimensions, even if it belongs to a convolution."""
        return (self.shape[0], math.prod(self.shape[1:])) if self.hidden else self.shape


class Optimizer(ABC):
    """A pure step: from memory, weights and gradient to new memory and new weights."""

    by_parameter: bool = False
    """Whether a step depends on the shapes of the parameters, so that it cannot apply to a part of the vector."""
    scale_sensitive: bool = True
    """Whether doubling the gradient changes the step. This is false for Adam and similar optimizers."""

    @abstractmethod
    def initial(self) -> Any:
        """The memory before the first step."""

    def in_place(self, *, memory: bool) -> Optimizer:
        """An optimizer with the same steps, which may overwrite the gradient and, with `memory`, the memory that its last step returned."""
        return self

    @abstractmethod
    def step(self, memory: Any, weights: Vector, gradient: Vector, epoch: int, fragment: Fragment | None = None) -> tuple[Any, Vector]:
        """The new memory and the new weights. `epoch` counts whole passes over the data, for the schedule.

        With a `fragment`, `gradient` and `memory` contain only the fragment's entries. `memory` is None before the fragment's first step.
        """

    def foresee(self, num_epochs: int) -> None:  # noqa: B027
        """Raise ValueError if the schedule has fewer epochs than this."""


FORWARD = 1 / 3
"""The default share of the forward pass in a gradient's time. The backward pass takes twice as long."""


class Piece(NamedTuple):
    """Consecutive entries of a vector whose gradients are complete at the same time, after the fraction `ready` of a gradient's time."""

    size: int
    ready: float


class Bucket(NamedTuple):
    """The entries [start, stop) of a vector that are reduced together, complete after the fraction `ready` of a gradient's time."""

    start: int
    stop: int
    ready: float


class Task(ABC):
    """A loaded workload."""

    num_samples: int
    """The number of training samples in one epoch."""
    num_parameters: int | None
    """The number of leading entries of a vector that are parameters. The other entries are averaged. None: all are parameters."""
    device: Device = device("cpu")
    """The device that computes. A backend calls `device.synchronise()` before it reads a clock."""
    sequence: SampleSequence
    """The samples at each position, in tasks with data."""
    forkable: bool | None = None
    """Whether forked processes compute the same gradients. None: unknown, so the user has to set `backend.processes`. False: never."""
    gradients_are_new: bool = False
    """Whether each gradient is a new vector that the task does not read again, so that a run may overwrite it."""
    least_together: int | None = None
    """The smallest number of gradients with equal batch sizes that `gradients` computes faster than one by one; None: there is none."""
    pools: tuple[int, ...] | None = None
    """The number of samples of each worker; None: all workers share the samples."""

    @abstractmethod
    def initial(self) -> Vector:
        """The initial weights, which are the same for every run with this seed."""

    @abstractmethod
    def gradient(self, at: Vector, batch: Batch) -> tuple[Vector, float]:
        """The mean gradient and mean loss of the samples at these positions. They are the same on every rank."""

    def gradients(self, at: Sequence[Vector], batches: Sequence[Batch]) -> list[tuple[Vector, float]]:
        """The mean gradients and mean losses of equally large batches, each at weights of its own, equal to `gradient`'s up to rounding."""
        return [self.gradient(weights, batch) for weights, batch in zip(at, batches, strict=True)]

    def loss_at(self, at: Vector, batch: Batch) -> float:
        """The mean loss of these samples without random draws such as dropout's. On all devices it is equal up to rounding."""
        return self.gradient(at, batch)[1]

    def parameters(self) -> Sequence[ParameterSpec]:
        """The parameters in the order of the vector. By default, one parameter with all entries."""
        size = length(self.initial()) if self.num_parameters is None else self.num_parameters
        return (ParameterSpec("weights", 0, (size,)),)

    def pieces(self) -> Sequence[Piece] | None:
        """The pieces of a vector in the order in which a backward pass completes them, from its end to its beginning.

        None: a vector may be cut anywhere, and its entries are completed evenly after the forward pass.
        """
        return None

    def terms(
        self, at: Vector, batch: Batch, factor: float, buckets: Sequence[Bucket], complete: Callable[[int, Vector], None]
    ) -> tuple[Vector, float]:
        """`factor` times the mean gradient, as a new vector, and the mean loss.

        `complete(k, numbers)` is called for each bucket k as soon as its numbers are complete. It may overwrite them.
        """
        gradient, loss = self.gradient(at, batch)
        term = scaled(gradient, lambda: factor)
        for k, bucket in enumerate(buckets):
            complete(k, piece(term, bucket.start, bucket.stop))
        return term, loss

    def divisible(self, workload: str) -> Divisible:
        """The properties of the training set that a partition uses."""
        return Divisible(workload, self.num_samples)

    def divide(self, pools: Sequence[Indices]) -> None:
        """Take batches from these pools from now on. Pool i contains the samples with these indices."""
        if type(getattr(self, "sequence", None)) is not SampleSequence:
            raise ValueError(
                f"{type(self).__name__} has no sample sequence to divide among the workers: give it `divide`, or take data=shared"
            )
        self.sequence = SampleSequence(self.num_samples, seed=self.sequence.seed, pools=pools)
        self.pools = tuple(map(len, pools))

    @abstractmethod
    def evaluate(self, at: Vector) -> Evaluation:
        """Evaluate these weights."""

    @abstractmethod
    def optimizer(self, recipe: OptimizerRecipe) -> Optimizer:
        """The optimizer for this task's vectors."""

    def named(self, at: Vector) -> dict[str, Any]:
        """The weights as named tensors: a model's `state_dict`, if there is a model."""
        return {"weights": at}

    def close(self) -> None:  # noqa: B027
        """End the threads and processes that load data, after the last gradient and the last evaluation."""


class Workload(ABC):
    """A description from a config: frozen, and checked before torch is imported."""

    name: str

    imports: ClassVar[tuple[str, ...]] = ()
    """Modules that `load` imports. They are imported once before processes are forked."""
    has_model: ClassVar[bool] = False
    """Whether its gradients come from a torch.nn.Module, for which `autocast` is allowed."""
    takes_trust: ClassVar[bool] = False
    """Whether it has a field `trust` for the modules that the user trusts. A config cannot set this field."""
    smaller: ClassVar[str] = "lower workload.num_samples or workload.num_parameters"
    """The remedy if the workload does not fit into memory."""

    @abstractmethod
    def load(self, *, seed: int, dtype: str, device: Device) -> Task:
        """Read the data and build the model on this device; `dtype` is float32 or float64."""

    def check(self) -> None:  # noqa: B027
        """Raise ValueError if the workload's files are missing."""

    def peak_bytes(self, dtype: str) -> int:
        """A lower bound of the memory that `load` needs, as far as the description shows."""
        return 0


def in_passes(task: Task, at: Vector, batch: Batch, most: int | None) -> tuple[Vector, float]:
    """Return the mean gradient and mean loss from passes over at most `most` samples: gradient accumulation. None: a single pass."""
    if most is None or batch.samples <= most:
        return task.gradient(at, batch)
    return _accumulate(task, at, divide_batch(batch, most), batch.samples)


def terms_in_passes(
    task: Task,
    at: Vector,
    batch: Batch,
    most: int | None,
    factor: float,
    buckets: Sequence[Bucket],
    complete: Callable[[int, Vector], None],
) -> tuple[Vector, float]:
    """`Task.terms` in passes over at most `most` samples. The last pass completes the buckets, as with DDP's `no_sync`."""
    if most is None or batch.samples <= most:
        return task.terms(at, batch, factor, buckets, complete)
    *earlier, last = divide_batch(batch, most)
    total, mean_loss = _accumulate(task, at, earlier, batch.samples)
    share = last.samples / batch.samples

    def complete_sum(k: int, numbers: Vector) -> None:
        if not isinstance(numbers, Phantom):
            numbers += piece(total, buckets[k].start, buckets[k].stop)
            numbers *= factor
        complete(k, numbers)

    term, loss = task.terms(at, last, share, buckets, complete_sum)
    return term, mean_loss + loss * share


def _accumulate(task: Task, at: Vector, batches: Iterable[Batch], samples: int) -> tuple[Vector, float]:
    """Return the sums of the gradients and losses of these parts, each weighted by its share of `samples`."""
    total: Vector = None
    mean_loss = 0.0
    for batch in batches:
        share = batch.samples / samples
        gradient, loss = task.gradient(at, batch)
        term = gradient * share
        total = term if total is None else total + term
        mean_loss += loss * share
    return total, mean_loss


def divide_batch(batch: Batch, most: int | None) -> Iterator[Batch]:
    """Yield a range in pieces of at most `most` samples; None: the whole range."""
    if most is None or batch.samples <= most:
        yield batch
        return
    for start in range(batch.start, batch.stop, most):
        yield Batch(start, min(most, batch.stop - start), batch.pool)
