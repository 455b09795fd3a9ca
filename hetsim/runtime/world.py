"""The protocol that every world implements: one method for each effect.

A world is asked by a rank's program and answers in its own kind of time. Each effect has a method of its name in snake case:
`AllReduce` is answered by `all_reduce`. Whoever adds an effect to `hetsim.effects` is told by `handlers` which worlds lack
its method; a world that cannot answer an effect says so by `send = unsupported`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator
from types import GeneratorType
from typing import Any, ClassVar, Protocol, TypeVar

from hetsim import effects as fx
from hetsim.errors import ProgramError

Who = TypeVar("Who", contravariant=True)
"""Who asks: the state of a rank, or what holds it."""
How = TypeVar("How", contravariant=True)
"""How it is to be answered: a callback, or the moment and the transport."""
Answer = TypeVar("Answer", covariant=True)
"""The effect's answer, with what else the world needs to know of it."""

Handler = Callable[[Any, Any, Any], Any]


class World(Protocol[Who, How, Answer]):
    """Answers the effects that programs yield: `gradient(who, effect, how)` answers a `Gradient`, and so on."""

    name: ClassVar[str]
    """As it stands in error sentences."""

    @property
    def gradient(self) -> Callable[[Who, fx.Gradient, How], Answer]:
        """A mean gradient and its loss, after the seconds that the node takes."""

    @property
    def update(self) -> Callable[[Who, fx.Update, How], Answer]:
        """New global weights, by the rank's optimizer."""

    @property
    def local_update(self) -> Callable[[Who, fx.LocalUpdate, How], Answer]:
        """A worker's own new weights, by its local optimizer."""

    @property
    def send(self) -> Callable[[Who, fx.Send, How], Answer]:
        """None, at once; the message is under way."""

    @property
    def receive(self) -> Callable[[Who, fx.Receive, How], Answer]:
        """The next message that is due."""

    @property
    def all_reduce(self) -> Callable[[Who, fx.AllReduce, How], Answer]:
        """The sum over all workers in rank order, once the last has entered and the reduction has taken its time."""

    @property
    def gather(self) -> Callable[[Who, fx.Gather, How], Answer]:
        """The numbers of all workers in rank order."""

    @property
    def start(self) -> Callable[[Who, fx.Start[Any], How], Answer]:
        """A `Pending`, at once; the effect is under way."""

    @property
    def wait(self) -> Callable[[Who, fx.Wait[Any], How], Answer]:
        """The answer of a started effect."""

    @property
    def commit(self) -> Callable[[Who, fx.Commit, How], Answer]:
        """Whether the run goes on."""

    @property
    def regroup(self) -> Callable[[Who, fx.Regroup, How], Answer]:
        """Who is absent, and the state of the last commit."""

    @property
    def now(self) -> Callable[[Who, fx.Now, How], Answer]:
        """Seconds since the run began."""


def unsupported(*_: Any) -> Any:
    """Stands in a world in the place of the method of an effect that it cannot answer."""
    raise AssertionError("`handlers` puts a refusal in its place")


class Handlers(dict[type, Handler]):
    """The method that answers each type of effect."""

    def __missing__(self, kind: type) -> Handler:
        return _refuse_no_effect


def handlers(world: World[Any, Any, Any]) -> Handlers:
    """The table from effect to method; TypeError if the world neither has nor declares unsupported the method of any effect."""
    table, lacking = Handlers(), []
    for kind in effect_types():
        method = getattr(world, method_name(kind), None)
        if method is None:
            lacking.append(kind)
        elif getattr(method, "__func__", method) is unsupported:
            table[kind] = _refusal(world.name, kind)
        else:
            table[kind] = method
    if lacking:
        wanted = ", ".join(f"{method_name(kind)} for {kind.__module__}.{kind.__qualname__}" for kind in lacking)
        raise TypeError(f"{type(world).__name__} ({world.name}) lacks the methods {wanted}: write them, or set them to `unsupported`")
    return table


def effect_types() -> Iterator[type[fx.Effect[Any]]]:
    """Every subclass of Effect, whoever defined it."""
    fresh: list[type[fx.Effect[Any]]] = [fx.Effect]
    while fresh:
        subclasses = fresh.pop(0).__subclasses__()
        fresh += subclasses
        yield from subclasses


def method_name(kind: type) -> str:
    """AllReduce: all_reduce."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind.__name__).lower()


def place(program: Generator[Any, Any, Any]) -> str:
    """The file and line at which a program waits, within the programs that it delegates to."""
    while isinstance(inner := getattr(program, "gi_yieldfrom", None), GeneratorType):
        program = inner
    frame = getattr(program, "gi_frame", None)
    return "" if frame is None else f"{frame.f_code.co_filename}, line {frame.f_lineno}"


def explained(error: AttributeError, rank: Any) -> Exception:
    """What to raise in the place of an AttributeError of a program: a ProgramError if a message lacks a header value."""
    message = error.obj
    if not isinstance(message, fx.Message):
        return error
    sent = ", ".join(message.header) or "nothing"
    return ProgramError(
        f"rank {rank} reads {error.name!r} of a message from rank {message.source}, whose header holds {sent}: "
        f"add {error.name}=… to that Send"
    )


def _refusal(world: str, kind: type) -> Handler:
    def refuse(who: Any, *_: Any) -> Any:
        raise ProgramError(
            f"{world} does not support the effect {kind.__name__}, which rank {who.rank} asks for: take another backend or method"
        )

    return refuse


def _refuse_no_effect(who: Any, effect: Any, *_: Any) -> Any:
    raise ProgramError(f"rank {who.rank} yields {effect!r}, which is no effect: is a 'yield from' forgotten?")
