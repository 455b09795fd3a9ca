"""Whether a run goes on after a version: who decides, and who waits for the decision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


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
