"""What a backend needs from a workload: initial weights, gradients of ranges of samples, evaluations, an optimizer."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from hetsim import checks
from hetsim.effects import Batch, Fragment
from hetsim.vector import Phantom, Vector, length, piece, scaled
from hetsim.workloads.device import Device, device
from hetsim.workloads.partition import Divisible, Indices
from hetsim.workloads.sequence import Sequence as SampleSequence

BYTES = {"float32": 4, "float64": 8}
"""Of one number, by its dtype."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Loss on (a fixed part of) the training set and accuracy on the test set; None where a workload does not define it."""

    train_loss: float | None = None
    test_accuracy: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What else a workload reports, by its own names: the same of each evaluation of a run."""
    class_accuracy: Sequence[float | None] | None = None
    """Accuracy on the test set's samples of each class, None for a class of which there are none; None where there are no classes."""

    def named(self) -> dict[str, float | None]:
        """All of it by name, as files have it."""
        return {"train_loss": self.train_loss, "test_accuracy": self.test_accuracy, **self.metrics}


@dataclass(frozen=True)
class Recipe:
    """A class to be instantiated later, where its library may be imported: dotted name and keyword arguments."""

    target: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class OptimizerRecipe:
    """A torch.optim optimizer, its learning-rate schedule if any, and the modules besides hetsim and torch whose code may run."""

    optimizer: Recipe
    schedule: Recipe | None = None
    trust: tuple[str, ...] = ()
    key: str = "optimizer"
    """Its key in the config."""
    schedule_key: str = "learning_rate_schedule"

    @property
    def imports(self) -> tuple[str, ...]:
        """As a workload's. All but plain SGD import PyTorch's compiler, which takes two seconds, and do not use it."""
        return () if self.optimizer.target == "torch.optim.SGD" and self.schedule is None else ("torch._dynamo",)


class ParameterSpec(NamedTuple):
    """One parameter of a model, as a part of a task's vector."""

    name: str
    start: int
    """Its first number in the vector."""
    shape: tuple[int, ...]
    hidden: bool = False
    """Whether it is a matrix between hidden layers: no vector, no embedding, and not the last layer."""

    @property
    def view_shape(self) -> tuple[int, ...]:
        """Its shape for an optimizer: a hidden matrix has two dimensions, also that of a convolution."""
        return (self.shape[0], math.prod(self.shape[1:])) if self.hidden else self.shape


class Optimizer(ABC):
    """A pure step: from memory, weights and gradient to new memory and new weights."""

    by_parameter: bool = False
    """Whether a step depends on the shapes of the parameters, so that it cannot be taken on a part of the vector."""
    scale_sensitive: bool = True
    """Whether twice the gradient makes another step; not so in Adam's family."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        checks.refuse_renamed(cls, feels_scale="scale_sensitive")

    @abstractmethod
    def initial(self) -> Any:
        """The memory before the first step."""

    def in_place(self, *, memory: bool) -> Optimizer:
        """An optimizer with the same steps, which may overwrite the gradient and, with `memory`, the memory that its last step returned."""
        return self

    @abstractmethod
    def step(self, memory: Any, weights: Vector, gradient: Vector, epoch: int, fragment: Fragment | None = None) -> tuple[Any, Vector]:
        """New memory and new weights; `epoch` counts whole passes over the data, for the schedule.

        With a `fragment`, `gradient` is of its numbers alone, and so is `memory`: None before its first step.
        """

    def foresee(self, num_epochs: int) -> None:  # noqa: B027
        """Raise ValueError, with one sentence, if the schedule has fewer epochs than this."""


FORWARD = 1 / 3
"""The share of a gradient's time that its forward pass takes, where a task does not know: the backward pass takes twice as long."""


class Piece(NamedTuple):
    """Consecutive numbers of a vector whose gradients are complete at the same moment: after which share of a gradient's time."""

    size: int
    ready: float


class Bucket(NamedTuple):
    """The numbers [start, stop) of a vector, which are reduced together, and after which share of a gradient's time they are complete."""

    start: int
    stop: int
    ready: float


class Task(ABC):
    """A loaded workload."""

    num_samples: int
    """Training samples in one epoch."""
    num_parameters: int | None
    """How many numbers of a vector are parameters; those after them are averaged. None: all are parameters."""
    device: Device = device("cpu")
    """What computes; a backend calls `device.synchronise()` before it reads a clock."""
    sequence: SampleSequence
    """Which samples are at which positions, in tasks that have data."""
    forkable: bool | None = None
    """Whether forked processes compute the same gradients. None: only the user knows, and types `backend.processes`; False: never."""
    gradients_are_new: bool = False
    """Whether each gradient is a new vector that the task does not read again, so that a run may overwrite it."""
    pools: tuple[int, ...] | None = None
    """How many samples belong to each worker; None: all workers share them."""

    @abstractmethod
    def initial(self) -> Vector:
        """The weights that every run with this seed starts from."""

    @abstractmethod
    def gradient(self, at: Vector, batch: Batch) -> tuple[Vector, float]:
        """Mean gradient and mean loss of the samples at these positions: the same on every rank."""

    def loss_at(self, at: Vector, batch: Batch) -> float:
        """The mean loss of these samples without what a model draws, as dropout does: on devices of all kinds the same but for rounding."""
        return self.gradient(at, batch)[1]

    def parameters(self) -> Sequence[ParameterSpec]:
        """The parameters in the order of the vector: one of all numbers, where a task does not tell."""
        size = length(self.initial()) if self.num_parameters is None else self.num_parameters
        return (ParameterSpec("weights", 0, (size,)),)

    def pieces(self) -> Sequence[Piece] | None:
        """The pieces of a vector in the order in which a backward pass completes them, from its end to its beginning.

        None: a vector may be cut anywhere, and its numbers are completed evenly in the time after the forward pass.
        """
        return None

    def terms(
        self, at: Vector, batch: Batch, factor: float, buckets: Sequence[Bucket], complete: Callable[[int, Vector], None]
    ) -> tuple[Vector, float]:
        """`factor` times the mean gradient, as a new vector, and the mean loss.

        `complete(k, numbers)` is called for one bucket after another, as soon as its numbers are there, and may overwrite them.
        """
        gradient, loss = self.gradient(at, batch)
        term = scaled(gradient, lambda: factor)
        for k, bucket in enumerate(buckets):
            complete(k, piece(term, bucket.start, bucket.stop))
        return term, loss

    def divisible(self, workload: str) -> Divisible:
        """What a partition has to know of the training set."""
        return Divisible(workload, self.num_samples)

    def divide(self, pools: Sequence[Indices]) -> None:
        """Take batches from these pools from now on: pool i has the samples with these indices."""
        if type(getattr(self, "sequence", None)) is not SampleSequence:
            raise ValueError(
                f"{type(self).__name__} has no sample sequence to divide among the workers: give it `divide`, or take data=shared"
            )
        self.sequence = SampleSequence(self.num_samples, seed=self.sequence.seed, pools=pools)
        self.pools = tuple(map(len, pools))

    @abstractmethod
    def evaluate(self, at: Vector) -> Evaluation:
        """How good these weights are."""

    @abstractmethod
    def optimizer(self, recipe: OptimizerRecipe) -> Optimizer:
        """The optimizer for this task's vectors."""

    def named(self, at: Vector) -> dict[str, Any]:
        """The weights as tensors by name: those of the `state_dict` of a model, if there is one."""
        return {"weights": at}

    def close(self) -> None:  # noqa: B027
        """End the threads and the processes that load data, after the last gradient and the last evaluation."""


class Workload(ABC):
    """A description from a config: frozen, and checked before torch is imported."""

    name: str

    imports: ClassVar[tuple[str, ...]] = ()
    """Modules that `load` imports; they are imported once before processes are forked."""
    has_model: ClassVar[bool] = False
    """Whether its gradients are those of a torch.nn.Module, which `autocast` is for."""
    takes_trust: ClassVar[bool] = False
    """Whether it has a field `trust`, for the modules that the user trusts; a config cannot set it."""
    smaller: ClassVar[str] = "lower workload.num_samples or workload.num_parameters"
    """What to do if it does not fit into memory."""

    @abstractmethod
    def load(self, *, seed: int, dtype: str, device: Device) -> Task:
        """Read the data and build the model on this device; `dtype` is float32 or float64."""

    def check(self) -> None:  # noqa: B027
        """Raise ValueError, with one sentence, if the workload's files are missing."""

    def peak_bytes(self, dtype: str) -> int:
        """The memory that `load` takes at least, as far as the description tells."""
        return 0


def in_passes(task: Task, at: Vector, batch: Batch, most: int | None) -> tuple[Vector, float]:
    """Return the mean gradient and the mean loss, by passes over at most `most` samples: gradient accumulation. None: a single pass."""
    if most is None or batch.samples <= most:
        return task.gradient(at, batch)
    return _accumulated(task, at, divided(batch, most), batch.samples)


def terms_in_passes(
    task: Task,
    at: Vector,
    batch: Batch,
    most: int | None,
    factor: float,
    buckets: Sequence[Bucket],
    complete: Callable[[int, Vector], None],
) -> tuple[Vector, float]:
    """As `Task.terms`, of at most `most` samples computed at a time. The last pass completes the buckets, as DDP's `no_sync` has it."""
    if most is None or batch.samples <= most:
        return task.terms(at, batch, factor, buckets, complete)
    *before, last = divided(batch, most)
    total, mean_loss = _accumulated(task, at, before, batch.samples)
    share = last.samples / batch.samples

    def completed(k: int, numbers: Vector) -> None:
        if not isinstance(numbers, Phantom):
            numbers += piece(total, buckets[k].start, buckets[k].stop)
            numbers *= factor
        complete(k, numbers)

    term, loss = task.terms(at, last, share, buckets, completed)
    return term, mean_loss + loss * share


def _accumulated(task: Task, at: Vector, parts: Iterable[Batch], samples: int) -> tuple[Vector, float]:
    """Return the sums of the gradients and losses of these parts, each weighted by its share of `samples`."""
    total: Vector = None
    mean_loss = 0.0
    for part in parts:
        share = part.samples / samples
        gradient, loss = task.gradient(at, part)
        term = gradient * share
        total = term if total is None else total + term
        mean_loss += loss * share
    return total, mean_loss


def divided(batch: Batch, most: int | None) -> Iterator[Batch]:
    """Yield a range in pieces of at most `most` samples; None: the whole range."""
    if most is None or batch.samples <= most:
        yield batch
        return
    for start in range(batch.start, batch.stop, most):
        yield Batch(start, min(most, batch.stop - start), batch.pool)
