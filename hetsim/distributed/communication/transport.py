"""The transport between the processes of a run: point-to-point messages and collectives.

`gloo.py` implements it. NCCL cannot implement it, because it cannot receive from any
source, and its sends wait for a matching receive. NCCL only adds vectors (`reduction.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch

from hetsim.vector import Phantom


class Sums(ABC):
    """Collectives on flat tensors of equal size and type. All ranks enter them in the same order. They raise PeerLost if a rank is lost."""

    size: int
    """The number of ranks."""

    @abstractmethod
    def all_to_all(self, received: torch.Tensor, sent: torch.Tensor) -> None:
        """Send the k-th of `size` equal parts of `sent` to rank k. Put the part from rank k at the k-th place of `received`."""

    @abstractmethod
    def all_gather(self, everything: torch.Tensor, mine: torch.Tensor) -> None:
        """Put the tensor of rank k at the k-th of `size` equal places of `everything`."""

    @abstractmethod
    def add_up(self, flat: torch.Tensor) -> None:
        """Replace `flat` by the sum over all ranks in the library's order, with the same bits on all ranks."""

    def sum(self, flat: torch.Tensor, *, in_place: bool = False) -> torch.Tensor:
        """The same sum as a new tensor, or `in_place`."""
        total = flat if in_place else flat.clone()
        self.add_up(total)
        return total

    def sum_in_rank_order(self, flat: torch.Tensor, *, in_place: bool = False) -> torch.Tensor:
        """The sum over all ranks in rank order, so that it equals the simulator's to the last bit. A new tensor, or `in_place`.

        Each rank adds one part, and all ranks gather the parts. Each sends 2(N−1)/N of the vector, as in a ring all-reduce.
        """
        missing = -len(flat) % self.size
        padded = torch.nn.functional.pad(flat, (0, missing)) if missing else flat.contiguous()
        terms = torch.empty_like(padded)
        self.all_to_all(terms, padded)
        first, *other_terms = terms.view(self.size, -1)
        for term in other_terms:
            first += term
        total = padded if in_place or padded is not flat else torch.empty_like(padded)
        self.all_gather(total, first)
        if in_place:
            return flat if total is flat else flat.copy_(total[: len(flat)])
        return total[: len(flat)]


T = TypeVar("T")
LOOK_SECONDS = 0.25
"""The interval at which a waiting caller checks for a lost peer, if gloo does not report the loss."""


class Transport(Sums):
    """Blocking operations of one rank with the others, on flat CPU tensors. They raise PeerLost if a peer is lost.

    All ranks have to enter the same collectives in the same order. One thread uses a transport's collectives, and a second
    thread those of its `background`. Messages may be sent and received by one thread for each peer and direction.
    """

    rank: int
    background: Transport
    """The same ranks, for a second thread's collectives."""
    members: Sequence[int]
    """The ranks that take part, in the order of a collective's values."""
    control: Transport
    """The same ranks, for collectives outside the programs. So a program that enters one alone cannot mix with them."""

    def __init__(self) -> None:
        self._tags: Counter[int] = Counter()

    @abstractmethod
    def begin_send(self, tensor: torch.Tensor, to: int, tag: int = 0) -> Callable[[], object]:
        """Begin to send a tensor, which must not change from now on. The returned function waits until the receiver has it.

        Messages with one tag arrive in order.
        """

    @abstractmethod
    def begin_receive(self, tensor: torch.Tensor, source: int, tag: int = 0) -> Callable[[], object]:
        """Receive the next message from `source` with this tag, of the same size and type, into the tensor.

        The returned function waits for it.
        """

    def own_tag(self, peer: int) -> int:
        """A unique tag for this peer, if both ranks ask equally often."""
        self._tags[peer] += 1
        return self._tags[peer]

    def send(self, tensor: torch.Tensor, to: int) -> None:
        """Send a tensor; returns when the receiver has it."""
        self.begin_send(tensor, to)()

    def receive(self, tensor: torch.Tensor, source: int) -> None:
        """Fill the tensor with the next message from `source`, of the same size and type."""
        self.begin_receive(tensor, source)()

    @abstractmethod
    def maximum(self, number: float) -> float:
        """The largest number of all ranks."""

    @abstractmethod
    def broadcast(self, number: float, source: int) -> float:
        """The number of rank `source`."""

    @abstractmethod
    def barrier(self) -> None:
        """Wait until all ranks have entered."""

    def lose(self, peer: int) -> None:
        """Do not wait for this lost peer any more, if the transport does not notice the loss."""

    def unless_lost(self, exchange: Callable[[], T], peer: int) -> T:
        """The result of an exchange with this peer. Raises PeerLost if the peer is lost, even if the transport does not notice it."""
        return exchange()

    def gather_numbers(self, *numbers: float) -> list[list[float]]:
        """The numbers of each rank, in rank order."""
        mine = torch.tensor(numbers, dtype=torch.float64)
        everything = torch.empty(self.size * len(numbers), dtype=torch.float64)
        self.all_gather(everything, mine)
        rows: list[list[float]] = everything.view(self.size, -1).tolist()
        return rows

    def send_bytes(self, pieces: Iterable[bytes], to: int) -> None:
        """Send pieces of bytes, each after its length, and finally a length of 0."""
        for piece in pieces:
            if piece:
                self.send(torch.tensor([len(piece)]), to)
                self.send(torch.frombuffer(bytearray(piece), dtype=torch.uint8), to)
        self.send(torch.tensor([0]), to)

    def receive_bytes(self, source: int) -> Iterator[bytes]:
        """The pieces that `source` sends with `send_bytes`."""
        while piece := self.receive_piece(source):
            yield piece

    def receive_piece(self, source: int) -> bytes:
        """The next piece; empty at the end."""
        length = torch.empty(1, dtype=torch.int64)
        self.receive(length, source)
        piece = torch.empty(int(length.item()), dtype=torch.uint8)
        if length.item():
            self.receive(piece, source)
        return piece.numpy().tobytes()


def as_tensor(payload: Any) -> torch.Tensor:
    """The tensor to send for a payload. For a phantom, it contains as many zero bytes."""
    return torch.zeros(payload.nbytes, dtype=torch.uint8) if isinstance(payload, Phantom) else payload
