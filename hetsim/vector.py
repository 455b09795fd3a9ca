"""The arithmetic of payloads: a flat `torch.Tensor`, or a `Phantom` that has a size and no numbers.

Parameters, gradients and payloads are one flat vector each, immutable by contract: an in-place step would change
what a slower worker still holds. These operations, and ``+ - * / ** abs``, are the only ones that methods use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

Vector: TypeAlias = Any
"""A flat torch.Tensor, or a Phantom: whatever the workload makes."""


@dataclass(frozen=True, slots=True)
class Phantom:
    """A vector of `nbytes` bytes whose arithmetic returns itself: it takes time to move, and nothing else."""

    nbytes: int

    def _itself(self, *_: Any) -> Phantom:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _itself
    __pow__ = __neg__ = __abs__ = _itself


def nbytes(vector: Vector) -> int:
    """Bytes on the wire; nothing weighs nothing."""
    return 0 if vector is None else int(vector.nbytes)


def zeros_like(vector: Vector) -> Vector:
    """A vector of zeros of the same size."""
    return vector if isinstance(vector, Phantom) else vector.new_zeros(vector.shape)


def sqrt(vector: Vector) -> Vector:
    """The elementwise square root."""
    return vector if isinstance(vector, Phantom) else vector.sqrt()


def where(condition: Vector, yes: Vector, no: Vector) -> Vector:
    """`yes` where the condition holds, `no` elsewhere, element by element."""
    return yes if isinstance(yes, Phantom) else yes.where(condition, no)


def norm(vector: Vector) -> Vector:
    """The Euclidean norm, as a scalar of the vector's own kind (never a number that steers a decision)."""
    return vector if isinstance(vector, Phantom) else vector.norm()
