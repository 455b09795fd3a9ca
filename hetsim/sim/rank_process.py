"""Drive one program in virtual time: ten lines, and a table of performers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from hetsim.effects import Effect, PeerLost, Pending, Program
from hetsim.sim.clock import SUSPENDED, Callback, Clock


class RankProcess:
    """One rank's program in one life, and what the world remembers of it: optimizers' memories, messages that it has not read."""

    __slots__ = (
        *(
            "_go",
            "_send",
            "done",
            "epoch",
            "channels",
            "local_memory",
            "lost",
            "memory",
            "messages",
            "handlers",
            "program",
            "rank",
            "result",
        ),
        *("source", "callback", "version", "waits_for"),
    )

    def __init__(self, rank: int, program: Program[Any], handlers: Handlers) -> None:
        self.rank = rank
        self.program = program
        self._send = program.send  # made once: a bound method is dear to make at every turn
        self._go = self.go
        self.handlers = handlers
        self.memory: Any = None  # the optimizer's
        self.local_memory: Any = None  # of its own steps
        self.version = 0  # of the weights it was given last
        self.epoch = 0
        self.waits_for: Effect[Any] | None = None
        self.messages: deque[Any] = deque()
        self.channels: dict[int, Any] = {}  # to whom it has sent
        self.source: int | None = None  # of the message that `callback` waits for
        self.callback: Callback | None = None
        self.done = False
        self.lost = False  # its node is gone, and nothing reaches or leaves it any more
        self.result: Any = None

    def go(self, answer: Any = None) -> None:
        """Hand an answer over and perform what is asked next, until an answer takes time."""
        if self.lost:
            return
        send, go, handlers = self._send, self._go, self.handlers
        try:
            while answer is not SUSPENDED:
                effect = send(answer)
                self.waits_for = effect
                answer = handlers[effect.__class__](self, effect, go)
        except StopIteration as ended:
            self.done, self.result = True, ended.value

    def refuse(self, effect: Effect[Any], error: PeerLost, env: Clock) -> Any:
        """Throw it in this moment, but when the program waits for the answer, if it still does then."""

        def fail(_: Any) -> None:
            if self.waits_for is effect:
                self.fail(error)

        return env.after(0.0, fail)

    def fail(self, error: PeerLost) -> None:
        """Throw an error of the world into the program, at the line where it waits."""
        if self.lost:
            return
        self.callback = None
        try:
            effect = self.program.throw(error)
        except StopIteration as ended:
            self.done, self.result = True, ended.value
            return
        self.waits_for = effect
        self.go(self.handlers[effect.__class__](self, effect, self.go))


class Handlers(dict[type, Callable[..., Any]]):
    """By the type of an effect, who performs it: (player, effect, then) → its answer, or LATER and then `callback(answer)` in time."""

    def __missing__(self, kind: type) -> Callable[..., Any]:
        return _no_effect


def _no_effect(process: RankProcess, effect: Any, _then: Callback) -> Any:
    raise AssertionError(f"rank {process.rank} yields {effect!r}, which is no effect: is a 'yield from' forgotten?")


class Started(Pending[Any]):
    """An effect under way: whoever comes first, the answer or the one who waits for it, finds the other."""

    __slots__ = ("effect",)

    def __init__(self, effect: Effect[Any]) -> None:
        self.effect = effect
        self.answer: Any = SUSPENDED
        self.callback: Callback | None = None

    def resolve(self, answer: Any) -> None:
        """The answer is here."""
        self.answer = answer
        if self.callback is not None:
            self.callback(answer)
