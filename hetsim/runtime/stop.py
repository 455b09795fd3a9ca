"""Decide whether a run continues after a version: which rank decides, and which ranks wait for the decision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hetsim.runtime.budget import Budget


@dataclass(frozen=True)
class StopRule:
    """All ranks count epochs and updates equally. Only the leader checks the losses, and the budget's seconds by its clock.

    A server leads, and its workers do not commit. Without a server, and if seconds are limited or a run that diverges is stopped,
    the other ranks wait at each commit for the leader's decision (`waits`).
    """

    budget: Budget
    waits: bool
    samples_per_epoch: int
    when_diverged: bool
    """Whether a run ends at the commit at which it has diverged."""

    @classmethod
    def of(cls, budget: Budget, *, needs_server: bool, samples_per_epoch: int, when_diverged: bool = False) -> StopRule:
        """The rule for a method with a server, or without one."""
        waits = (budget.seconds is not None or when_diverged) and not needs_server
        return cls(budget, waits, samples_per_epoch, when_diverged)

    def leader_continues(self, version: int, seconds: float, *, diverged: bool = False) -> bool:
        """The decision of the leader after its commit of this version."""
        return self.budget.allows(version, seconds) and not (diverged and self.when_diverged)

    def others_continue(self, version: int) -> bool:
        """The decision of another rank without the leader's clock. If the rule `waits`, the leader's decision replaces it."""
        return self.budget.allows(version, 0.0)


@dataclass(slots=True)
class StopDecision:
    """The leader's decision whether the run continues after a version, and the callbacks that wait for it."""

    going: bool | None = None
    """The decision; None before the leader has decided."""
    waiting: list[Callable[[bool], None]] = field(default_factory=list)
    num_asked: int = 0

    def publish(self, going: bool) -> None:
        """Publish the leader's decision to all waiting callbacks."""
        self.going = going
        for callback in self.waiting:
            callback(going)

    def wait(self, callback: Callable[[bool], None]) -> bool | None:
        """The decision. If it is not published yet, returns None and calls `callback(going)` later."""
        if self.going is None:
            self.waiting.append(callback)
        return self.going
