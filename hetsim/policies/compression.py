"""What a push to the server leaves out, and what becomes of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from hetsim import checks
from hetsim.vector import Vector, compress, decompress, nbytes, with_tail, zeros_like


class Compression(ABC):
    """Decides what a worker sends in place of its gradient. `num_parameters`: how much of a vector is gradient (None: all)."""

    @abstractmethod
    def initial(self, weights: Vector) -> Any:
        """A worker's state before its first push; it starts afresh when a run is started again."""

    @abstractmethod
    def pack(self, state: Any, gradient: Vector, num_parameters: int | None) -> tuple[Any, Vector]:
        """The state after this push, and what goes through the wire."""

    @abstractmethod
    def unpack(self, payload: Vector, like: Vector, num_parameters: int | None) -> Vector:
        """The gradient that the server takes a payload for; a vector like the weights."""


@dataclass(frozen=True)
class NoCompression(Compression):
    """A gradient is pushed as it is."""

    def initial(self, weights: Vector) -> None:
        return None

    def pack(self, state: None, gradient: Vector, num_parameters: int | None) -> tuple[None, Vector]:
        return None, gradient

    def unpack(self, payload: Vector, like: Vector, num_parameters: int | None) -> Vector:
        return payload


@dataclass(frozen=True)
class TwoBitState:
    """What a worker's pushes have left out so far, and how many there were."""

    residual: Vector
    num_pushes: int = 0


@dataclass(frozen=True, kw_only=True)
class TwoBit(Compression):
    """±threshold or 0 for each number, what is left out added to the next push; every `full_every`-th push leaves nothing out.

    CD-SGD, arXiv 2106.10796: two-bit quantisation with error feedback, corrected by a full push every k. What was left out
    goes with the full push: kept back, it would never be sent where gradients have become small. `full_every` null: never.
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
