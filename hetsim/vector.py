"""The arithmetic of payloads: a flat `torch.Tensor`, or a `Phantom`, which has a size but no entries.

Parameters, gradients and payloads are one flat vector each, immutable by contract: an in-place step would change
the weights that a slower worker still holds. Methods use only these operations and ``+ - * / ** abs``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Vector: TypeAlias = Any
"""A flat torch.Tensor, or a Phantom, depending on the workload."""


@dataclass(frozen=True, slots=True)
class Phantom:
    """A vector of `nbytes` bytes without entries, of `itemsize` bytes each. Only sending it takes time. Arithmetic returns itself."""

    nbytes: int
    itemsize: int = 4

    def _itself(self, *_: Any) -> Phantom:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _itself
    __pow__ = __neg__ = __abs__ = _itself


def nbytes(vector: Vector) -> int:
    """The bytes in a message; 0 for None."""
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


def scaled(vector: Vector, factor: Callable[[], float] | None, *, in_place: bool = False) -> Vector:
    """`vector` times `factor()`, which is called only if the vector has entries. Without a factor, the vector itself."""
    if factor is None or isinstance(vector, Phantom):
        return vector
    return vector.mul_(factor()) if in_place else vector * factor()


def weighted_sum(vectors: Sequence[Vector], factors: Callable[[], Sequence[float]]) -> Vector:
    """Σ f_i v_i in this order. `factors` is called only if the vectors have entries."""
    total: Vector = None
    if isinstance(vectors[0], Phantom):
        return vectors[0]
    for vector, factor in zip(vectors, factors(), strict=True):
        term = vector if factor == 1.0 else vector * factor
        total = term if total is None else total + term
    return total


def operations_of_sum(num_vectors: int) -> int:
    """The number of products and sums on whole vectors in a `weighted_sum`; 0 for one vector, whose factor is usually 1."""
    return 2 * num_vectors - 1 if num_vectors > 1 else 0


def norm(vector: Vector) -> Vector:
    """The Euclidean norm, as a scalar of the vector's own kind. It is no float, so that no decision depends on it."""
    return vector if isinstance(vector, Phantom) else vector.norm()


def unit(vector: Vector) -> Vector:
    """The vector with norm 1 in this direction; a zero vector stays zero."""
    if isinstance(vector, Phantom):
        return vector
    size = norm(vector)
    return where(size > 0, vector / size, zeros_like(vector))


def with_tail(vector: Vector, of: Vector, num_parameters: int | None) -> Vector:
    """`vector` with the entries after the first `num_parameters` replaced by those of `of`. None: there are no such entries.

    A model with batch norm has its statistics there. They are averaged, and rules for gradients do not apply to them.
    """
    if num_parameters is None or isinstance(vector, Phantom) or len(vector) == num_parameters:
        return vector
    joined = vector.clone()
    joined[num_parameters:] = of[num_parameters:]
    return joined


def length(vector: Vector) -> int:
    """The number of entries."""
    return vector.nbytes // vector.itemsize if isinstance(vector, Phantom) else len(vector)


def piece(vector: Vector, start: int, stop: int) -> Vector:
    """The entries [start, stop) of a vector."""
    return Phantom((stop - start) * vector.itemsize, vector.itemsize) if isinstance(vector, Phantom) else vector[start:stop]


def with_piece(vector: Vector, start: int, numbers: Vector) -> Vector:
    """`vector` with the entries from `start` on replaced by `numbers`."""
    if isinstance(vector, Phantom):
        return vector
    if len(numbers) == len(vector):
        return numbers
    joined = vector.clone()
    joined[start : start + len(numbers)] = numbers
    return joined


def compress(vector: Vector, threshold: float, num_parameters: int | None) -> Vector:
    """Two bits for each entry: +threshold if it is at least the threshold, −threshold if it is at most −threshold, else 0.

    The entries after the first `num_parameters` are not compressed.
    """
    if isinstance(vector, Phantom):
        return Phantom(-(-vector.nbytes // vector.itemsize // 4), itemsize=1)
    import torch

    numbers, tail = vector[:num_parameters], vector[len(vector) if num_parameters is None else num_parameters :]
    codes = (numbers >= threshold).byte() + 2 * (numbers <= -threshold).byte()
    quads = torch.nn.functional.pad(codes, (0, -len(codes) % 4)).view(-1, 4)
    packed = quads[:, 0] | quads[:, 1] << 2 | quads[:, 2] << 4 | quads[:, 3] << 6
    return torch.cat([packed, tail.clone().view(torch.uint8)])


def decompress(packed: Vector, threshold: float, like: Vector, num_parameters: int | None) -> Vector:
    """Unpack the result of `compress`, to the size and kind of `like`."""
    if isinstance(packed, Phantom):
        return like
    import torch

    count = len(like) if num_parameters is None else num_parameters
    quads = packed[: -(-count // 4)]
    codes = torch.stack([quads >> shift & 3 for shift in (0, 2, 4, 6)], dim=1).view(-1)[:count]
    numbers = threshold * ((codes == 1).to(like.dtype) - (codes == 2).to(like.dtype))
    return torch.cat([numbers, packed[len(quads) :].clone().view(like.dtype)])


def pack_largest(vector: Vector, keep: int, chunk: int, num_parameters: int | None) -> Vector:
    """The `keep` entries with the largest absolute values in each `chunk` of consecutive entries, with their positions in two bytes.

    A vector shorter than a chunk is one chunk. The entries after the first `num_parameters` are sent completely.
    """
    size = length(vector) if num_parameters is None else num_parameters
    chunk = min(chunk, size)
    keep = min(keep, chunk)
    if isinstance(vector, Phantom):
        return Phantom(-(-size // chunk) * keep * (vector.itemsize + 2) + (length(vector) - size) * vector.itemsize, itemsize=1)
    import torch

    chunks = torch.nn.functional.pad(vector[:size], (0, -size % chunk)).view(-1, chunk)
    places = chunks.abs().topk(keep, dim=1).indices
    sections = (chunks.gather(1, places).view(-1), places.short().view(-1), vector[size:].clone())
    return torch.cat([part.view(torch.uint8) for part in sections])


def unpack_largest(packed: Vector, keep: int, chunk: int, like: Vector, num_parameters: int | None) -> Vector:
    """Unpack the result of `pack_largest`, to the size and kind of `like`. Entries that were not sent are zero."""
    if isinstance(packed, Phantom):
        return like
    import torch

    size = len(like) if num_parameters is None else num_parameters
    chunk = min(chunk, size)
    num_chunks, keep = -(-size // chunk), min(keep, chunk)
    values, places, tail = packed.split([num_chunks * keep * like.itemsize, num_chunks * keep * 2, (len(like) - size) * like.itemsize])
    chunks = like.new_zeros(num_chunks, chunk)
    chunks.scatter_(1, places.clone().view(torch.int16).view(-1, keep).long(), values.clone().view(like.dtype).view(-1, keep))
    return torch.cat([chunks.view(-1)[:size], tail.clone().view(like.dtype)])
