"""Drive one program in virtual time: ten lines, and a table of performers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from simpy import Environment
from simpy.events import Timeout

from hetsim.effects import Effect, Pending, Program

Then = Callable[[Any], None]


class Later:
    """A performer's word that the answer comes later, through `then`."""


LATER: Final = Later()


class Player:
    """One rank's program, and what the world remembers of the rank."""

    __slots__ = ("done", "epoch", "local_memory", "memory", "performers", "program", "rank", "result", "version", "waits_for")

    def __init__(self, rank: int, program: Program[Any], performers: Mapping[type, Callable[..., Any]]) -> None:
        self.rank = rank
        self.program = program
        self.performers = performers
        self.memory: Any = None  # the optimizer's
        self.local_memory: Any = None  # of its own steps
        self.version = 0  # of the weights it was given last
        self.epoch = 0
        self.waits_for: Effect[Any] | None = None
        self.done = False
        self.result: Any = None

    def go(self, answer: Any = None) -> None:
        """Hand an answer over and perform what is asked next, until an answer takes time."""
        while answer is not LATER:
            try:
                effect = self.program.send(answer)
            except StopIteration as ended:
                self.done, self.result = True, ended.value
                return
            self.waits_for = effect
            answer = self.perform(effect, self.go)

    def perform(self, effect: Effect[Any], then: Then) -> Any:
        """The answer, or LATER: then `then` is called with it when its time has come."""
        performer = self.performers.get(type(effect))
        assert performer is not None, f"rank {self.rank} yields {effect!r}, which is no effect: is a 'yield from' forgotten?"
        return performer(self, effect, then)


class Started(Pending[Any]):
    """An effect under way: whoever comes first, the answer or the one who waits for it, finds the other."""

    __slots__ = ()

    def __init__(self) -> None:
        self.answer: Any = LATER
        self.then: Then | None = None

    def resolve(self, answer: Any) -> None:
        """The answer is here."""
        self.answer = answer
        if self.then is not None:
            self.then(answer)


def after(env: Environment, seconds: float, then: Then, answer: Any = None) -> Any:
    """Call `then(answer)` so many virtual seconds from now."""
    timeout = Timeout(env, seconds, answer)
    assert timeout.callbacks is not None
    timeout.callbacks.append(lambda event: then(event.value))
    return LATER
