"""The protocol that every world implements: one method for each effect.

A world answers the effects of a rank's program, in its own kind of time. The method has the effect's name in snake case:
`AllReduce` is answered by `all_reduce`. If an effect is added to `hetsim.effects`, `handlers` raises an error in each world that
lacks its method. A world that cannot answer an effect declares it: `send = unsupported`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Protocol, TypeVar

from hetsim import effects as fx
from hetsim.errors import ProgramError

Caller = TypeVar("Caller", contravariant=True)
"""The rank that yields the effect: its state, or the object that holds it."""
Context = TypeVar("Context", contravariant=True)
"""The world's data for the answer: a callback, or the moment and the transport."""
Answer = TypeVar("Answer", covariant=True)
"""The effect's answer in the world's form: alone, or with the moment at which it is due."""

Handler = Callable[[Any, Any, Any], Any]


class World(Protocol[Caller, Context, Answer]):
    """Answers the effects that programs yield: `gradient(caller, effect, context)` answers a `Gradient`, and so on."""

    name: ClassVar[str]
    """Its name in errors."""

    @property
    def gradient(self) -> Callable[[Caller, fx.Gradient, Context], Answer]:
        """A mean gradient and its loss, after the seconds of the node."""

    @property
    def attempt(self) -> Callable[[Caller, fx.Attempt, Context], Answer]:
        """As `gradient`, or None if the rank gives it up."""

    @property
    def update(self) -> Callable[[Caller, fx.Update, Context], Answer]:
        """New global weights, by the rank's optimizer."""

    @property
    def local_update(self) -> Callable[[Caller, fx.LocalUpdate, Context], Answer]:
        """A worker's new local weights, by its local optimizer."""

    @property
    def send(self) -> Callable[[Caller, fx.Send, Context], Answer]:
        """None, at once, while the message is in transit."""

    @property
    def receive(self) -> Callable[[Caller, fx.Receive, Context], Answer]:
        """The next message that is due."""

    @property
    def receive_within(self) -> Callable[[Caller, fx.ReceiveWithin, Context], Answer]:
        """The next message that is due in time; None if there is none."""

    @property
    def all_reduce(self) -> Callable[[Caller, fx.AllReduce, Context], Answer]:
        """The sum over all workers in rank order, when the last worker has entered and the reduction has ended."""

    @property
    def gradient_sum(self) -> Callable[[Caller, fx.GradientSum, Context], Answer]:
        """A gradient, and the sum of all workers' gradients. Each bucket is reduced while later buckets are computed."""

    @property
    def gather(self) -> Callable[[Caller, fx.Gather, Context], Answer]:
        """The numbers of all workers in rank order."""

    @property
    def all_gather(self) -> Callable[[Caller, fx.AllGather[Any], Context], Answer]:
        """The result of `combine` for the vectors of all workers."""

    @property
    def start(self) -> Callable[[Caller, fx.Start[Any], Context], Answer]:
        """A `Pending`, at once; the effect continues."""

    @property
    def wait(self) -> Callable[[Caller, fx.Wait[Any], Context], Answer]:
        """The answer of a started effect."""

    @property
    def done(self) -> Callable[[Caller, fx.Done, Context], Answer]:
        """Whether a started effect has its answer, at once."""

    @property
    def commit(self) -> Callable[[Caller, fx.Commit, Context], Answer]:
        """Whether the run continues."""

    @property
    def regroup(self) -> Callable[[Caller, fx.Regroup, Context], Answer]:
        """The absent workers, and the state of the last commit."""

    @property
    def now(self) -> Callable[[Caller, fx.Now, Context], Answer]:
        """Seconds since the run began."""


def unsupported(*_: Any) -> Any:
    """Replaces a world's method for an effect that it cannot answer."""
    raise AssertionError("`handlers` replaces it by a function that raises a ProgramError")


class Handlers(dict[type, Handler]):
    """The method that answers each type of effect."""

    def __missing__(self, kind: type) -> Handler:
        return _refuse_other_object


def handlers(world: World[Any, Any, Any]) -> Handlers:
    """The table from effects to methods. Raises TypeError if the world lacks a method that is not declared `unsupported`."""
    table, missing = Handlers(), []
    for kind in effect_types():
        method = getattr(world, method_name(kind), None)
        if method is None:
            missing.append(kind)
        elif getattr(method, "__func__", method) is unsupported:
            table[kind] = _refusal(world.name, kind)
        else:
            table[kind] = method
    if missing:
        wanted = ", ".join(f"{method_name(kind)} for {kind.__module__}.{kind.__qualname__}" for kind in missing)
        raise TypeError(f"{type(world).__name__} ({world.name}) lacks the methods {wanted}: write them, or set them to `unsupported`")
    return table


def effect_types() -> Iterator[type[fx.Effect[Any]]]:
    """Every subclass of Effect, in any module."""
    classes: list[type[fx.Effect[Any]]] = [fx.Effect]
    while classes:
        subclasses = classes.pop(0).__subclasses__()
        classes += subclasses
        yield from subclasses


def method_name(kind: type) -> str:
    """The name of the method for an effect: all_reduce for AllReduce."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind.__name__).lower()


def as_program_error(error: AttributeError, rank: Any) -> ProgramError | None:
    """The error to raise instead of a program's AttributeError if a message lacks a header value; None for other errors."""
    message = error.obj
    if not isinstance(message, fx.Message):
        return None
    sent = ", ".join(message.header) or "nothing"
    return ProgramError(
        f"rank {rank} reads {error.name!r} of a message from rank {message.source}, whose header holds {sent}: "
        f"add {error.name}=… to that Send"
    )


def _refusal(world: str, kind: type) -> Handler:
    def refuse(caller: Any, *_: Any) -> Any:
        raise ProgramError(
            f"{world} does not support the effect {kind.__name__}, which rank {caller.rank} asks for: take another backend or method"
        )

    return refuse


def _refuse_other_object(caller: Any, effect: Any, *_: Any) -> Any:
    raise ProgramError(f"rank {caller.rank} yields {effect!r}, which is not an effect: is a 'yield from' forgotten?")
