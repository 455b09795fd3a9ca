"""Gradients that are not finite: they are counted, and no worker's NaN or infinity goes into an average."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hetsim.effects import Batch
from hetsim.errors import RunFailed
from hetsim.runtime.metrics import RankActivity
from hetsim.vector import Phantom, Vector, zeros_like

CHOICES = ("skip", "fail")


class NonfiniteGradients:
    """What becomes of each gradient: one with a NaN or an infinity is left out, as a zero, or ends the run.

    It is replaced where it is computed, so that it reaches no sum, no memory of an optimizer, no residual and no table. With batch norm
    the batch's statistics do not count either: the 1 that follows them becomes 0, too.
    """

    def __init__(self, choice: str, activity: Sequence[RankActivity]) -> None:
        self.fails = choice == "fail"
        self.activity = activity
        """By rank: where such gradients are counted."""

    def checked(self, gradient: Vector, *, rank: int, version: int, batch: Batch) -> Vector:
        """The gradient, or zeros. RunFailed, with `fail`, if it is not finite."""
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
    """Whether all numbers are finite. A sum that is finite has only such terms; one that is not may have overflowed."""
    return math.isfinite(vector.sum().item()) or bool(vector.isfinite().all().item())
