"""A method is a generator that asks; a backend answers. Time passes at a ``yield from`` and nowhere else.

A *program* is a generator of *effects*. It never sees which world answers: the simulator in virtual time, or the distributed
backend in real time. An error of the world is thrown into the program, so it surfaces at the method's own line.

    computed = yield from Gradient(at=weights, batch=batch)

Effects and their answers are immutable by contract, as vectors are. They are not frozen dataclasses, because these set each
field by a function call, and several effects are made for every gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from hetsim.errors import PeerLost as PeerLost  # programs catch it
from hetsim.errors import ProgramError as ProgramError  # plans raise it
from hetsim.vector import Vector

T = TypeVar("T")

Program = Generator["Effect[Any]", Any, T]
"""What one rank does, from its first effect to its result."""


@dataclass(frozen=True, slots=True)
class Node:
    """Where a program runs: ranks 0 … N−1 are workers; `rank` N is the server in methods that have one, and local servers follow it.

    N is `num_workers`. `own` is a dictionary of values that the program keeps on this rank between versions, such as a compression's
    residual. Checkpoints save `own`, so the values must be immutable, like vectors. After a crash or a regroup, `own` is empty.
    """

    rank: int
    num_workers: int
    own: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    local_server: int | None = None
    """The rank of this worker's local server; None in methods without local servers."""

    @property
    def server(self) -> int:
        """The rank of the worker's server: its local server, or else the rank after the last worker."""
        return self.num_workers if self.local_server is None else self.local_server


@dataclass(slots=True, unsafe_hash=True)
class Batch:
    """The half-open range [`start`, `start` + `samples`) of the sequence of shuffled epochs of one `pool` of samples.

    All workers share pool 0, unless the data belong to workers: then pool i contains the samples of worker i.
    """

    start: int
    samples: int
    pool: int = 0

    @property
    def stop(self) -> int:
        """The first position after the range."""
        return self.start + self.samples

    def __bool__(self) -> bool:
        return self.samples > 0


@dataclass(slots=True, unsafe_hash=True)
class Computed:
    """The mean `gradient` over `samples` samples (a flat vector), their mean `loss`, and the `seconds` of the computation."""

    gradient: Vector
    loss: float
    samples: int
    seconds: float


@dataclass(slots=True, unsafe_hash=True)
class Contribution:
    """One worker's gradient as a policy sees it: its `rank` and `batch`, the `version` of its weights, its `seconds` and its mean `loss`.

    `staleness` is τ in versions. A compensation corrects `gradient`, a flat vector that was computed at the weights `used`.
    If workers take local steps before a push, `gradient` is the change of the weights by `num_gradients` steps, w_i − x_i.
    """

    rank: int
    batch: Batch
    version: int
    seconds: float
    loss: float
    staleness: int = 0
    gradient: Vector = None
    used: Vector = None
    num_gradients: int = 1

    @property
    def samples(self) -> int:
        """The number of samples in the mean gradient, or in all local steps of a change of the weights."""
        return self.batch.samples


class Message:
    """A received message: its `source` (a rank), its `payload` (a vector or None), and the values of its `header` as attributes.

    A header is data for programs only; the backends ignore it. Reading a value that was not sent ends the run with a ProgramError.
    """

    __slots__ = ("__dict__", "payload", "source")

    def __init__(self, source: int, header: dict[str, Any], payload: Vector = None) -> None:
        self.source = source
        self.payload = payload
        self.__dict__ = header

    @property
    def header(self) -> dict[str, Any]:
        """The header's values by name."""
        return self.__dict__

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


class Effect(Generic[T]):
    """A question to the backend whose answer is a T."""

    __slots__ = ()

    communicates: ClassVar[bool] = True
    """Whether the answer needs other ranks. A rank with an outdated membership may yield only effects that need no other rank."""

    def __iter__(self) -> Generator[Effect[Any], Any, T]:
        return (yield self)  # type: ignore[no-any-return]


@dataclass(slots=True)
class Gradient(Effect[Computed]):
    """The mean gradient over `batch` at the weights `at`. Takes the seconds of the node's model, or of the real device.

    `version` is the version of the global weights that `at` comes from. The trace records this version.
    """

    communicates: ClassVar[bool] = False
    at: Vector
    batch: Batch
    version: int


@dataclass(frozen=True, slots=True)
class Fragment:
    """The entries [`start`, `stop`) of a vector, for methods that exchange and update one part of the weights at a time."""

    start: int
    stop: int


@dataclass(slots=True)
class Attempt(Effect[Computed | None]):
    """A `Gradient` (`at`, `batch`, `version`) that the rank gives up after `within` seconds, or when a message arrives.

    The answer is then None, and the program receives this message. If it has already arrived, the gradient does not begin. The seconds
    until then count as computing. Real processes without padding first finish the gradient, unless `backend.micro_batch` divides it.
    """

    communicates: ClassVar[bool] = False
    at: Vector
    batch: Batch
    version: int
    within: float = inf


@dataclass(slots=True)
class Update(Effect[Vector]):
    """One optimizer step from `at` along `gradient`: the new weights. Takes `seconds_per_update` of the server or the node.

    With a `fragment`, `gradient` contains only the entries of the fragment. The other weights do not change, and the optimizer has a
    separate memory for each fragment. A `tentative` step does not change the optimizer's memory. With `in_place`, the new weights may
    overwrite the gradient: do not read it again. A server takes longer if the gradient was made by `operations` on vectors, such as sums.
    """

    communicates: ClassVar[bool] = False
    at: Vector
    gradient: Vector
    fragment: Fragment | None = None
    tentative: bool = False
    in_place: bool = field(default=False, compare=False)
    operations: int = field(default=0, compare=False)


@dataclass(slots=True)
class LocalUpdate(Effect[Vector]):
    """One step of this worker's local optimizer from `at` along `gradient`: its next weights.

    It takes `seconds_per_local_update`. `version` and `epoch` belong to the worker's newest global weights. The local learning-rate
    schedule depends on the epoch. Without a local optimizer, the answer is `at`, without any delay. `in_place` is as in `Update`.
    """

    communicates: ClassVar[bool] = False
    at: Vector
    gradient: Vector
    version: int
    epoch: int
    in_place: bool = field(default=False, compare=False)


TAKEN = frozenset(("source", "header", "sent_at", "due_at"))
"""Attributes that every message has in one of the worlds. Header values may not use these names."""


class Send(Effect[None]):
    """Send a message with a `payload` (a vector or None) to the rank `to`, without waiting: a slow receiver never blocks a sender.

    Values of the `header` are numbers or a Batch.
    """

    __slots__ = ("header", "payload", "to")

    def __init__(self, to: int, payload: Vector = None, **header: Any) -> None:
        if not TAKEN.isdisjoint(header):
            raise ValueError("a message has a source and a header already, and its times: give the header value another name")
        self.to = to
        self.payload = payload
        self.header = header


@dataclass(slots=True)
class Receive(Effect[Message]):
    """The next message due, from any rank or from `source`; raises PeerLost if that rank is lost."""

    source: int | None = None


@dataclass(slots=True)
class ReceiveWithin(Effect["Message | None"]):
    """The next message due within `seconds`, from any rank or from `source`; None if there is none.

    A message due exactly at the end counts. With 0 seconds, a message due now counts. Raises PeerLost if the source is lost.
    """

    seconds: float
    source: int | None = None


@dataclass(slots=True)
class AllReduce(Effect[Vector]):
    """The sum of every worker's `factor()` times `value` (a vector), the same on every rank; waits until all workers have entered.

    With `in_place`, the sum may overwrite the value, so do not read the value again. This saves copies, like MPI's IN_PLACE.
    """

    value: Vector
    in_place: bool = field(default=False, compare=False)
    factor: Callable[[], float] | None = field(default=None, compare=False)


@dataclass(slots=True)
class GradientSum(Effect[Computed]):
    """`factor()` times the mean gradient over `batch` at the weights `at`, summed over all workers during the backward pass.

    The answer contains this sum as its gradient, with the samples, loss and seconds of this worker's own gradient. `version` is the
    version of the weights. The vector is divided from its end into buckets of about `bucket_bytes` (`hetsim.runtime.buckets`). The
    backend reduces one bucket after another, each when the backward pass of every worker has produced it. A worker without samples
    computes nothing and adds zero. PyTorch's DDP, arXiv 2006.15704.
    """

    at: Vector
    batch: Batch
    version: int
    factor: Callable[[], float]
    bucket_bytes: int


@dataclass(slots=True)
class Gather(Effect[tuple[float, ...]]):
    """Every worker's `number`, in rank order; waits until all workers have entered. Each pair exchanges eight bytes both ways."""

    number: float


@dataclass(slots=True)
class AllGather(Effect[T]):
    """Gather every worker's `value` (vectors of one size, in rank order) and answer `combine(values)`. Waits until all have entered.

    For vectors that a ring cannot add up, such as compressed ones. `combine` is pure: the simulator calls it once for all ranks.
    """

    value: Vector
    combine: Callable[[Mapping[int, Vector]], T]


class Pending(Generic[T]):
    """An effect that was started and may not have been answered yet; `Wait` gives its answer."""

    __slots__ = ("answer", "callback")


@dataclass(slots=True)
class Start(Effect[Pending[T]]):
    """Start an `effect` and continue without its answer."""

    effect: Effect[T]


@dataclass(slots=True)
class Wait(Effect[T]):
    """The answer of the effect that `Start` returned as `pending`; waits for it if necessary."""

    pending: Pending[T]


@dataclass(slots=True)
class Done(Effect[bool]):
    """Whether the answer of the effect `pending` is available. Takes no time."""

    pending: Pending[Any]


@dataclass(slots=True)
class Commit(Effect[bool]):
    """Record and evaluate a new global `version`, and check the budget. Takes no time. The answer is whether to continue.

    `state` contains everything that a restart from this version needs. `applied` lists the contributions that made this version.
    """

    version: int
    state: Any
    applied: Sequence[Contribution] = ()


@dataclass(frozen=True, slots=True)
class Regrouped:
    """The ranks of the workers that are `absent` now, and the `state` of the last commit."""

    absent: frozenset[int]
    state: Any


class Regroup(Effect[Regrouped]):
    """Restart from the last commit with all active ranks; waits until all have entered, and takes `regroup_seconds`."""

    __slots__ = ()


class Now(Effect[float]):
    """Seconds since the run began."""

    __slots__ = ()
    communicates: ClassVar[bool] = False
