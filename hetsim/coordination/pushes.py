"""The state of a worker's compression now, and before each push that the server may not have applied."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from hetsim.effects import Batch


@dataclass(frozen=True, slots=True)
class Pushes:
    """The state of a worker's compression after its last push, and before each of its latest pushes.

    A push that had not been applied at a checkpoint is lost, and its range is assigned and computed again. Then the
    compression resumes from its state before that push; otherwise its residual would be sent twice.
    """

    after: Any
    before: tuple[tuple[Batch, Any], ...] = ()
    """(range, state before its push), the latest last."""

    def appended(self, batch: Batch, after: Any, *, num_outstanding: int) -> Pushes:
        """Add a push. The server may not have applied the last `num_outstanding` pushes."""
        return Pushes(after, (*self.before, (batch, self.after))[-num_outstanding:])

    def resumed(self, outstanding: Collection[Batch]) -> Any:
        """The state to resume from if these ranges are assigned again."""
        starts = {(batch.pool, batch.start) for batch in outstanding}
        return next((state for batch, state in self.before if (batch.pool, batch.start) in starts), self.after)
