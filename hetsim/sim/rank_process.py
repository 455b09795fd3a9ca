"""One rank's program in virtual time: asks its world, and goes on with each answer."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from hetsim import effects as fx
from hetsim.effects import Effect, PeerLost, Pending, Program
from hetsim.runtime.rank import RankState
from hetsim.runtime.world import Handlers, explained
from hetsim.sim.clock import SUSPENDED, Callback, Clock

ACTIVE: Final = 0
OUTDATED: Final = 1
"""Who takes part has changed: it can only do what a rank does by itself, until it has regrouped."""
LOST: Final = 2
"""Its node is gone, and nothing reaches or leaves it any more."""

BY_ITSELF = (fx.Gradient, fx.Update, fx.LocalUpdate)
"""What a rank does without the others, and ends before it learns of a change of membership."""
WHEN_OUTDATED = (*BY_ITSELF, fx.Commit, fx.Now, fx.Regroup)
CHANGED = "who takes part has changed"


class RankProcess:
    """One rank's program in one life of its node, the rank's state, and the messages that it has not read."""

    __slots__ = (
        *("_go", "_send", "callback", "channels", "done", "env", "handlers", "messages", "program"),
        *("rank", "result", "source", "state", "status", "waits_for"),
    )

    def __init__(self, env: Clock, state: RankState, program: Program[Any], handlers: Handlers) -> None:
        self.env = env
        self.rank: int = state.rank
        self.state = state
        self.program = program
        self.handlers = handlers
        self.status = ACTIVE
        self._send = program.send  # bound once: binding a method at every turn is costly
        self._go = self.go
        self.waits_for: Effect[Any] | None = None
        self.messages: deque[Any] = deque()
        self.channels: dict[int, Any] = {}  # by receiver
        self.source: int | None = None  # of the message that `callback` waits for
        self.callback: Callback | None = None
        self.done = False
        self.result: Any = None

    @property
    def lost(self) -> bool:
        """Whether its node is gone."""
        return self.status == LOST

    def go(self, answer: Any = None) -> None:
        """Hand over an answer and ask the world what the program asks next, until an answer takes time."""
        if self.status:
            self._go_restricted(answer)
            return
        send, go, handlers = self._send, self._go, self.handlers
        try:
            while answer is not SUSPENDED:
                effect = send(answer)
                self.waits_for = effect
                answer = handlers[effect.__class__](self, effect, go)
        except StopIteration as ended:
            self.done, self.result = True, ended.value
        except AttributeError as error:
            raise explained(error, self.rank) from None

    def _go_restricted(self, answer: Any) -> None:
        """The same for a process that is lost or outdated."""
        try:
            while self.status != LOST and answer is not SUSPENDED:
                answer = self._ask(self._send(answer))
        except StopIteration as ended:
            self.done, self.result = True, ended.value

    def _ask(self, effect: Effect[Any]) -> Any:
        self.waits_for = effect
        if self.status == OUTDATED and not isinstance(effect, WHEN_OUTDATED):
            return self.refuse(effect, PeerLost(CHANGED))
        return self.handlers[effect.__class__](self, effect, self._go)

    def refuse(self, effect: Effect[Any], error: PeerLost) -> Any:
        """Throw the error at this moment, but once the program waits for the answer, and only if it still does then."""

        def fail(_: Any) -> None:
            if self.waits_for is effect:
                self.fail(error)

        return self.env.after(0.0, fail)

    def fail(self, error: PeerLost) -> None:
        """Throw an error of the world into the program, at the line where it waits."""
        if self.status == LOST:
            return
        self.callback = None
        try:
            effect = self.program.throw(error)
        except StopIteration as ended:
            self.done, self.result = True, ended.value
            return
        self.go(self._ask(effect))


class Started(Pending[Any]):
    """An effect under way: whichever comes first, the answer or the one who waits for it, finds the other."""

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
