"""Which part of a gradient a push to the server carries, and what happens to the rest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from hetsim import checks
from hetsim.vector import Vector, compress, decompress, nbytes, with_tail, zeros_like


class Compression(ABC):
    """Decides what a worker sends in place of its gradient."""

    @abstractmethod
    def initial(self, weights: Vector) -> Any:
        """A worker's state before its first push of a run, and of a restarted run.

        Args:
            weights: the weights W, a flat vector.
        """

    @abstractmethod
    def pack(self, state: Any, gradient: Vector, num_parameters: int | None) -> tuple[Any, Vector]:
        """The state after a push, and the payload to send.

        Args:
            state: the worker's state.
            gradient: the gradient, a flat vector.
            num_parameters: the first numbers of the vector that are gradient (None: all). The others are averaged and sent unchanged.
        """

    @abstractmethod
    def unpack(self, payload: Vector, like: Vector, num_parameters: int | None) -> Vector:
        """The gradient that the server reads from a payload.

        Args:
            payload: the payload of `pack`.
            like: a vector of the gradient's size and kind.
            num_parameters: the first numbers of the vector that are gradient (None: all).
        """


@dataclass(frozen=True)
class NoCompression(Compression):
    """The payload is the gradient."""

    def initial(self, weights: Vector) -> None:
        return None

    def pack(self, state: None, gradient: Vector, num_parameters: int | None) -> tuple[None, Vector]:
        return None, gradient

    def unpack(self, payload: Vector, like: Vector, num_parameters: int | None) -> Vector:
        return payload


@dataclass(frozen=True)
class TwoBitState:
    """What a worker's pushes have not carried yet, and how many pushes there were."""

    residual: Vector
    num_pushes: int = 0


@dataclass(frozen=True, kw_only=True)
class TwoBit(Compression):
    """Send ±threshold or 0 for each number, add the residual to the next push; every `full_every`-th push is sent in full.

    CD-SGD, arXiv 2106.10796: two-bit quantisation with error feedback, corrected by a full push every k. The full push
    carries the residual too: otherwise it would never be sent once gradients are small. `full_every` null: no full pushes.
    """

    threshold: float
    full_every: int | None = None

    def __post_init__(self) -> None:
        checks.number("compression.threshold", self.threshold)
        if self.full_every is not None:
            checks.whole("compression.full_every", self.full_every)

    def initial(self, weights: Vector) -> TwoBitState:
        return TwoBitState(zeros_like(weights))

    def pack(self, state: TwoBitState, gradient: Vector, num_parameters: int | None) -> tuple[TwoBitState, Vector]:
        count = state.num_pushes + 1
        wanted = with_tail(gradient + state.residual, gradient, num_parameters)
        if self.full_every is not None and count % self.full_every == 0:
            return TwoBitState(zeros_like(wanted), count), wanted
        payload = compress(wanted, self.threshold, num_parameters)
        return TwoBitState(wanted - decompress(payload, self.threshold, gradient, num_parameters), count), payload

    def unpack(self, payload: Vector, like: Vector, num_parameters: int | None) -> Vector:
        whole = nbytes(payload) == nbytes(like)
        return payload if whole else decompress(payload, self.threshold, like, num_parameters)
