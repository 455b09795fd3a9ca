"""Which part of a gradient, or of a change by local steps, a worker sends, and how it treats the rest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from hetsim import checks
from hetsim.vector import Vector, compress, decompress, nbytes, pack_largest, unpack_largest, with_tail, zeros_like


class Compression(ABC):
    """Decides what a worker sends instead of its gradient."""

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
            num_parameters: how many leading entries of the vector are the gradient (None: all). The other entries are sent unchanged
                and averaged.
        """

    @abstractmethod
    def unpack(self, payload: Vector, like: Vector, num_parameters: int | None) -> Vector:
        """The gradient that the server reads from a payload.

        Args:
            payload: the payload of `pack`.
            like: a vector of the gradient's size and dtype.
            num_parameters: how many leading entries of the vector are the gradient (None: all).
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
    """The residual that a worker's pushes have not sent yet, and the number of pushes."""

    residual: Vector
    num_pushes: int = 0


@dataclass(frozen=True, kw_only=True)
class TwoBit(Compression):
    """Send ±threshold or 0 for each number, and add the residual to the next push. Send every `full_every`-th push in full.

    CD-SGD, arXiv 2106.10796: two-bit quantisation with error feedback, corrected by a full push every k. The full push
    includes the residual, because small gradients would never send it otherwise. With `full_every` null, there are no full pushes.
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
        full = nbytes(payload) == nbytes(like)
        return payload if full else decompress(payload, self.threshold, like, num_parameters)


MAX_CHUNK = 2**15
"""The largest number of entries in a chunk, because an entry's position takes two bytes."""


@dataclass(frozen=True)
class TopKState:
    """e: the residual that a worker has not sent yet."""

    residual: Vector


@dataclass(frozen=True, kw_only=True)
class TopK(Compression):
    """Send the `keep` largest entries of each `chunk`, and add the rest to the next push: e ← β e + Δ, send top-k(e), e ← e − sent.

    SparseLoCo, arXiv 2508.15706, for the changes Δ of local steps. The decay β < 1 forgets entries that are never sent. An entry takes its
    own bytes and two bytes for its position. The paper also quantises the sent entries to two bits. This class does not.
    """

    keep: int
    """k"""
    chunk: int
    decay: float
    """β"""

    def __post_init__(self) -> None:
        checks.whole("compression.chunk", self.chunk, most=MAX_CHUNK)
        checks.whole("compression.keep", self.keep, most=self.chunk)
        if checks.number("compression.decay", self.decay, zero=True) > 1:
            raise ValueError(f"compression.decay must be at most 1, not {checks.shown(self.decay)}")

    def initial(self, weights: Vector) -> TopKState:
        return TopKState(zeros_like(weights))

    def pack(self, state: TopKState, gradient: Vector, num_parameters: int | None) -> tuple[TopKState, Vector]:
        wanted = with_tail(self.decay * state.residual + gradient, gradient, num_parameters)
        payload = pack_largest(wanted, self.keep, self.chunk, num_parameters)
        return TopKState(wanted - self.unpack(payload, wanted, num_parameters)), payload

    def unpack(self, payload: Vector, like: Vector, num_parameters: int | None) -> Vector:
        return unpack_largest(payload, self.keep, self.chunk, like, num_parameters)
