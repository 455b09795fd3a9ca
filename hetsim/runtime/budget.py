"""The budget of a run: when it ends."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hetsim import checks

DEFAULT_EPOCHS = 20
"""The default number of epochs, as in conf/config.yaml."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """A limit of epochs, updates or seconds of the run's clock, whichever comes first; None: no such limit."""

    epochs: float | None = None
    updates: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.epochs is None and self.updates is None and self.seconds is None:
            raise ValueError("budget has neither epochs, updates nor seconds: give at least one, such as budget.epochs=20")
        if self.epochs is not None and checks.number("budget.epochs", self.epochs) > checks.MOST:
            raise ValueError(
                f"budget.epochs must be at most {checks.MOST:g}, not {self.epochs}: type null for no limit, if you set another budget"
            )
        if self.updates is not None:
            checks.whole("budget.updates", self.updates)
        if self.seconds is not None:
            checks.number("budget.seconds", self.seconds)

    def num_positions(self, num_samples: int) -> int | None:
        """The total number of assigned positions, with `num_samples` samples in an epoch; None: no limit."""
        return None if self.epochs is None else max(1, round(self.epochs * num_samples))

    def allows(self, version: int, seconds: float) -> bool:
        """Whether a run continues after this version at this time. A limit of epochs ends the run when no samples are left."""
        return version < (self.updates or math.inf) and seconds < (self.seconds or math.inf)

    def remark(self, version: int, seconds: float) -> str | None:
        """A remark if the default number of epochs ended the run before the limit that the user set; None otherwise.

        If the user set several limits, the first one that is reached is meant to end the run.
        """
        if self.epochs != DEFAULT_EPOCHS or not self.allows(version, seconds):
            return None
        reached = [f"{version} of budget.updates={self.updates} updates"] if self.updates is not None else []
        reached += [f"{seconds:.4g} of budget.seconds={self.seconds:g} seconds"] if self.seconds is not None else []
        if not reached:
            return None
        at = " and ".join(reached)
        return f"budget.epochs={self.epochs:g}, the default, ended the run at {at}: add budget.epochs=null to run on"
