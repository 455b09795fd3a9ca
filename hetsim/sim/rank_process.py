"""One rank's program as a process in virtual time: yields effects to its world, and resumes with each answer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from hetsim import effects as fx
from hetsim.effects import Effect, PeerLost, Pending, Program
from hetsim.runtime.rank import RankState
from hetsim.runtime.world import Handlers, as_program_error
from hetsim.sim.clock import SUSPENDED, Callback, VirtualClock

ACTIVE: Final = 0
OUTDATED: Final = 1
"""The membership has changed. Until it has regrouped, the process may only yield effects that need no other rank."""
LOST: Final = 2
"""The process's node has crashed. It sends and receives nothing any more."""

MEMBERSHIP_CHANGED = "the membership has changed"


class RankProcess:
    """One rank's program between two crashes of its node, the rank's state, and the messages that it has not received."""

    __slots__ = (
        *("_resume", "_send", "callback", "channels", "done", "env", "handlers", "interrupt", "messages", "program"),
        *("rank", "result", "source", "state", "status", "waits_for"),
    )

    def __init__(self, env: VirtualClock, state: RankState, program: Program[Any], handlers: Handlers) -> None:
        self.env = env
        self.rank: int = state.rank
        self.state = state
        self.program = program
        self.handlers = handlers
        self.status = ACTIVE
        self._send = program.send  # bound once: binding a method for every effect is costly
        self._resume = self.resume
        self.waits_for: Effect[Any] | None = None
        self.messages: deque[Any] = deque()
        self.channels: dict[int, Any] = {}  # by receiver
        self.source: int | None = None  # of the message that `callback` waits for
        self.callback: Callback | None = None
        self.interrupt: Callable[[], None] | None = None  # of what it computes, if that is given up for a message
        self.done = False
        self.result: Any = None

    def begin(self, program: Program[Any]) -> None:
        """Replace the program by another one, which `resume` begins."""
        self.program.close()
        self.program, self._send = program, program.send
        self.waits_for = None

    @property
    def lost(self) -> bool:
        """Whether its node has crashed."""
        return self.status == LOST

    def resume(self, answer: Any = None) -> None:
        """Send an answer into the program, and request the next one from the world, until an answer takes time."""
        if self.status:
            self._resume_restricted(answer)
            return
        send, resume, handlers = self._send, self._resume, self.handlers
        try:
            while answer is not SUSPENDED:
                effect = send(answer)
                self.waits_for = effect
                answer = handlers[type(effect)](self, effect, resume)
        except StopIteration as stop:
            self.done, self.result = True, stop.value
        except AttributeError as error:
            self._explain(error)
            raise

    def _resume_restricted(self, answer: Any) -> None:
        """The same for a process that is lost or outdated."""
        try:
            while self.status != LOST and answer is not SUSPENDED:
                answer = self._ask(self._send(answer))
        except StopIteration as stop:
            self.done, self.result = True, stop.value
        except AttributeError as error:
            self._explain(error)
            raise

    def _explain(self, error: AttributeError) -> None:
        """Raise a ProgramError instead of the error of a message that lacks a header value."""
        if (lacking := as_program_error(error, self.rank)) is not None:
            raise lacking from None

    def _ask(self, effect: Effect[Any]) -> Any:
        self.waits_for = effect
        if self.status == OUTDATED and effect.communicates and not isinstance(effect, fx.Commit | fx.Regroup):
            return self.fail_soon(effect, PeerLost(MEMBERSHIP_CHANGED))
        return self.handlers[effect.__class__](self, effect, self._resume)

    def fail_soon(self, effect: Effect[Any], error: PeerLost) -> Any:
        """Throw the error into the program at this time, if it still waits for this effect then."""

        def fail(_: Any) -> None:
            if self.waits_for is effect:
                self.fail(error)

        return self.env.after(0.0, fail)

    def fail(self, error: PeerLost) -> None:
        """Throw an error of the world into the program now, at the line where it waits."""
        if self.status == LOST:
            return
        self.callback = None
        try:
            effect = self.program.throw(error)
        except StopIteration as stop:
            self.done, self.result = True, stop.value
            return
        except AttributeError as lacking:
            self._explain(lacking)
            raise
        self.resume(self._ask(effect))


class PendingAnswer(Pending[Any]):
    """A started effect. Its answer and its callback may arrive in either order."""

    __slots__ = ("effect",)

    def __init__(self, effect: Effect[Any]) -> None:
        self.effect = effect
        self.answer: Any = SUSPENDED
        self.callback: Callback | None = None

    def resolve(self, answer: Any) -> None:
        """Set the answer, and call the callback if one waits."""
        self.answer = answer
        if self.callback is not None:
            self.callback(answer)
