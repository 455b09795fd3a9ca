"""What a worker's compression has left out, with what it was before each push that may not have been applied."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from hetsim.effects import Batch


@dataclass(frozen=True, slots=True)
class Pushes:
    """The state of a worker's compression after its last push, and before each of its latest pushes.

    A push that had not been applied at a checkpoint is lost, and its range is handed out and computed again: then the
    compression goes on from before that push. Otherwise what it had left out would be sent twice.
    """

    after: Any
    before: tuple[tuple[int, Any], ...] = ()
    """(first position of the range, state before its push), the latest last."""

    def pushed(self, batch: Batch, after: Any, *, num_outstanding: int) -> Pushes:
        """With one more push, of which the last `num_outstanding` may not have been applied."""
        return Pushes(after, (*self.before, (batch.start, self.after))[-num_outstanding:])

    def resumed(self, outstanding: Collection[Batch]) -> Any:
        """The state to go on from where these ranges are handed out again."""
        again = {batch.start for batch in outstanding}
        return next((state for start, state in self.before if start in again), self.after)
