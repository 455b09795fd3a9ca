"""The transport between the processes of a run: point-to-point messages and collectives.

A subclass is a transport: `gloo.py` has that of runs, `fake.py` one between threads, for tests. NCCL is none: it has no receive from any
source, and its sends wait for a matching receive. It only adds up vectors (`reduction.py`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch

from hetsim.distributed.communication.sums import Sums
from hetsim.vector import Phantom

T = TypeVar("T")
LOOK_SECONDS = 0.25
"""Between two looks, of whoever waits for a peer, whether that is lost, where gloo does not say so."""


class Transport(Sums):
    """Blocking operations of one rank with the others, on flat CPU tensors. They raise PeerLost if a peer is lost.

    All ranks have to enter the same collectives in the same order. One thread uses a transport's collectives, and a second one
    those of its `background`. Messages may be sent and received by one thread for each peer and direction.
    """

    rank: int
    background: Transport
    """The same ranks, for the collectives of a second thread."""
    members: Sequence[int]
    """The ranks that take part, in the order of a collective's values."""
    control: Transport
    """The same ranks, for collectives outside the programs: a program that enters one which others do not cannot mix with them."""

    def __init__(self) -> None:
        self._tags: Counter[int] = Counter()

    @abstractmethod
    def begin_send(self, tensor: torch.Tensor, to: int, tag: int = 0) -> Callable[[], object]:
        """Begin to send a tensor, which nobody changes from now on. The function that is returned waits until the receiver has it.

        Those of one tag arrive in order.
        """

    @abstractmethod
    def begin_receive(self, tensor: torch.Tensor, source: int, tag: int = 0) -> Callable[[], object]:
        """The next message from `source` with this tag, of the same size and type, will fill the tensor.

        The function that is returned waits for it.
        """

    def own_tag(self, peer: int) -> int:
        """A tag that nobody else has, if the peer asks for one as often."""
        self._tags[peer] += 1
        return self._tags[peer]

    def send(self, tensor: torch.Tensor, to: int) -> None:
        """Send a tensor; returns when the receiver has it."""
        self.begin_send(tensor, to)()

    def receive(self, tensor: torch.Tensor, source: int) -> None:
        """Fill the tensor with the next message from `source`, which has the same size and type."""
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
        """This peer is lost: do not wait for it any more, where a loss is not noticed by itself."""

    def unless_lost(self, exchange: Callable[[], T], peer: int) -> T:
        """What an exchange with this peer returns. PeerLost if that is lost, also where a loss is not noticed by itself."""
        return exchange()

    def gather_numbers(self, *numbers: float) -> list[list[float]]:
        """These numbers of each rank, in rank order."""
        mine = torch.tensor(numbers, dtype=torch.float64)
        everything = torch.empty(self.size * len(numbers), dtype=torch.float64)
        self.all_gather(everything, mine)
        rows: list[list[float]] = everything.view(self.size, -1).tolist()
        return rows

    def send_bytes(self, pieces: Iterable[bytes], to: int) -> None:
        """Send pieces of bytes, each after its length, and at the end a length of 0."""
        for piece in pieces:
            if piece:
                self.send(torch.tensor([len(piece)]), to)
                self.send(torch.frombuffer(bytearray(piece), dtype=torch.uint8), to)
        self.send(torch.tensor([0]), to)

    def receive_bytes(self, source: int) -> Iterator[bytes]:
        """The pieces that `source` sends by `send_bytes`."""
        while piece := self.receive_piece(source):
            yield piece

    def receive_piece(self, source: int) -> bytes:
        """The next of them; empty at the end."""
        length = torch.empty(1, dtype=torch.int64)
        self.receive(length, source)
        piece = torch.empty(int(length.item()), dtype=torch.uint8)
        if length.item():
            self.receive(piece, source)
        return piece.numpy().tobytes()


def as_tensor(payload: Any) -> torch.Tensor:
    """The tensor that is sent for a payload: for a phantom, as many bytes of zeros."""
    return torch.zeros(payload.nbytes, dtype=torch.uint8) if isinstance(payload, Phantom) else payload
