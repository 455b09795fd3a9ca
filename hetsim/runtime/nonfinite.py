"""Count gradients that are not finite, and keep a worker's NaN or infinity out of every average."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hetsim.effects import Batch
from hetsim.errors import RunFailed
from hetsim.runtime.recording.metrics import RankActivity
from hetsim.vector import Phantom, Vector, zeros_like

CHOICES = ("skip", "fail")


class NonfiniteGradients:
    """Checks each gradient. A gradient with a NaN or an infinity is replaced by zeros, or ends the run.

    It is replaced where it is computed, so it reaches no sum, optimizer memory, residual or table. With batch norm, the batch's statistics
    do not count either: the 1 after them also becomes 0.
    """

    def __init__(self, choice: str, activity: Sequence[RankActivity]) -> None:
        self.fails = choice == "fail"
        self.activity = activity
        """The activity of each rank, in which such gradients are counted."""

    def check(self, gradient: Vector, *, rank: int, version: int, batch: Batch) -> Vector:
        """The gradient, or zeros if it is not finite. With `fail`, raises RunFailed instead."""
        if isinstance(gradient, Phantom) or is_finite(gradient):
            return gradient
        if self.fails:
            raise RunFailed(
                f"the gradient of rank {rank} at version {version}, over the samples at positions {batch.start} to {batch.stop - 1}, is "
                "not finite: lower learning_rate, or leave such gradients out with nonfinite=skip"
            )
        self.activity[rank].num_nonfinite += 1
        return zeros_like(gradient)


def is_finite(vector: Vector) -> bool:
    """Whether all entries are finite. A finite sum has only finite terms. A sum that is not finite may have overflowed."""
    return math.isfinite(vector.sum().item()) or bool(vector.isfinite().all().item())
