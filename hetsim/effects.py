"""A method is a generator that asks; a backend answers. Time passes at a ``yield from`` and nowhere else.

What an effect carries and what it is answered with is immutable by contract, as vectors are: a frozen dataclass sets each
field by a call, and several are made for every gradient.

A *program* is a generator of *effects*. It never sees which world answers: the simulator does it in virtual
time, the distributed backend in real time. An error of the world is thrown into the program, so it surfaces at
the method's own line.

    computed = yield from Gradient(at=weights, batch=batch)
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from hetsim.errors import PeerLost as PeerLost  # programs catch it
from hetsim.vector import Vector

T = TypeVar("T")

Program = Generator["Effect[Any]", Any, T]
"""What a rank does, from its first question to its result."""


@dataclass(frozen=True, slots=True)
class Node:
    """Where a program runs: ranks 0 … N−1 work, rank N serves where a method has a server.

    `own` holds by name what the program keeps on its rank from one version to the next, such as what a compression left out.
    A checkpoint saves it, so its values are immutable, as vectors are; after a crash or a regroup it is empty.
    """

    rank: int
    num_workers: int
    own: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def server(self) -> int:
        """The rank of the server: the last one."""
        return self.num_workers


@dataclass(slots=True, unsafe_hash=True)
class Batch:
    """The half-open range [start, start + samples) of the one global sequence of shuffled epochs."""

    start: int
    samples: int

    @property
    def stop(self) -> int:
        """The first position behind the range."""
        return self.start + self.samples

    def __bool__(self) -> bool:
        return self.samples > 0


@dataclass(slots=True, unsafe_hash=True)
class Computed:
    """A mean gradient over `samples` samples, their mean loss, and what it took in seconds."""

    gradient: Vector
    loss: float
    samples: int
    seconds: float


@dataclass(slots=True, unsafe_hash=True)
class Contribution:
    """One worker's gradient as a policy sees it: over which batch, from which version, in how many seconds."""

    rank: int
    batch: Batch
    version: int
    seconds: float
    loss: float
    staleness: int = 0
    gradient: Vector = None
    used: Vector = None

    @property
    def samples(self) -> int:
        """How many samples its mean is over."""
        return self.batch.samples


class Message:
    """What arrived: its `source`, its `payload` (a vector or None), and its header's values as attributes.

    The worlds do not read a header to steer anything. Reading a value that was not sent ends the run with a ProgramError.
    """

    __slots__ = ("__dict__", "payload", "source")

    def __init__(self, source: int, header: dict[str, Any], payload: Vector = None) -> None:
        self.source = source
        self.payload = payload
        self.__dict__ = header

    @property
    def header(self) -> dict[str, Any]:
        """Its values by name."""
        return self.__dict__

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


class Effect(Generic[T]):
    """A question to the backend whose answer is a T."""

    __slots__ = ()

    def __iter__(self) -> Generator[Effect[Any], Any, T]:
        answer: T = yield self
        return answer


@dataclass(slots=True)
class Gradient(Effect[Computed]):
    """The mean gradient of these samples at these weights; takes what the node's model says, or what its device takes.

    `version` is that of the global weights which `at` was made from, for the trace.
    """

    at: Vector
    batch: Batch
    version: int


@dataclass(slots=True)
class Update(Effect[Vector]):
    """One optimizer step from `at` along `gradient`: the new weights. Costs `seconds_per_update` of whoever does it."""

    at: Vector
    gradient: Vector


@dataclass(slots=True)
class LocalUpdate(Effect[Vector]):
    """One step of this worker's own optimizer: its next weights. Costs the node's `seconds_per_update`.

    `version` and `epoch` are those of the newest global weights that this worker has: the local schedule goes by the epoch.
    Without a local optimizer the answer is `at` itself, at once.
    """

    at: Vector
    gradient: Vector
    version: int
    epoch: int


class Send(Effect[None]):
    """Hand a message over and go on: a sender is never held by a slow receiver. Header values are numbers or a Batch."""

    __slots__ = ("header", "payload", "to")

    def __init__(self, to: int, payload: Vector = None, **header: Any) -> None:
        self.to = to
        self.payload = payload
        self.header = header


@dataclass(slots=True)
class Receive(Effect[Message]):
    """The next message due, from anyone or from `source`; raises PeerLost if that one is gone."""

    source: int | None = None


@dataclass(slots=True)
class AllReduce(Effect[Vector]):
    """The sum over all workers' values, the same on every rank; waits for the last to enter."""

    value: Vector


@dataclass(slots=True)
class Gather(Effect[tuple[float, ...]]):
    """Every worker's number, in rank order; waits for the last to enter. Eight bytes each way."""

    number: float


class Pending(Generic[T]):
    """An effect that was started and may not have been answered yet; `Wait` for it."""

    __slots__ = ("answer", "callback")


@dataclass(slots=True)
class Start(Effect[Pending[T]]):
    """Begin an effect and go on without its answer."""

    effect: Effect[T]


@dataclass(slots=True)
class Wait(Effect[T]):
    """The answer of an effect that was started."""

    pending: Pending[T]


@dataclass(slots=True)
class Commit(Effect[bool]):
    """A global version exists: record, evaluate, check the budget. Costs no time. Answers whether to go on.

    `state` is all that is needed to start again from here; `applied` are the contributions that made this version.
    """

    version: int
    state: Any
    applied: Sequence[Contribution] = ()


@dataclass(frozen=True, slots=True)
class Regrouped:
    """Who is not there now, and the state of the last commit."""

    absent: frozenset[int]
    state: Any


class Regroup(Effect[Regrouped]):
    """Begin anew, from the last commit, with everyone who is there; waits for the last of them, and costs `regroup_seconds`."""

    __slots__ = ()


class Now(Effect[float]):
    """Seconds since the run began."""

    __slots__ = ()
