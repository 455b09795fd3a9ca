"""Whether a run goes on after a version: who decides, and who waits for the decision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hetsim.runtime.budget import Budget


@dataclass(frozen=True)
class StopRule:
    """Epochs and updates are counted alike on every rank; seconds are judged by the leader alone.

    Where there is a server, it leads and the others never ask. Where there is none and seconds are limited, the others wait
    at each commit for the leader's decision (`waits`).
    """

    budget: Budget
    waits: bool

    @classmethod
    def of(cls, budget: Budget, *, needs_server: bool) -> StopRule:
        """The rule for a method with a server, or without one."""
        return cls(budget, waits=budget.seconds is not None and not needs_server)

    def leader_goes_on(self, version: int, seconds: float) -> bool:
        """What the leader decides, which has just committed this version."""
        return self.budget.allows(version, seconds)

    def others_go_on(self, version: int) -> bool:
        """What another rank knows by itself; where it `waits`, the leader's decision counts."""
        return self.budget.allows(version, 0.0)


@dataclass(slots=True)
class StopDecision:
    """The leader's decision on going on after one version, and who waits for it."""

    going: bool | None = None
    """None: the leader has not decided yet."""
    waiting: list[Callable[[bool], None]] = field(default_factory=list)
    num_asked: int = 0

    def publish(self, going: bool) -> None:
        """The leader has decided: answer everyone who waits."""
        self.going = going
        for callback in self.waiting:
            callback(going)

    def wait(self, callback: Callable[[bool], None]) -> bool | None:
        """The decision; None if there is none yet, and then `callback(going)` is called once there is."""
        if self.going is None:
            self.waiting.append(callback)
        return self.going
