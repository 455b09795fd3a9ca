"""A transport between the threads of one process, for tests: all ranks of a run without any other process."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Condition

import torch

from hetsim.distributed.communication.transport import Transport
from hetsim.effects import PeerLost


class FakeNetwork:
    """Carries the messages and collectives of `size` threads, and simulates the loss of a rank."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.lost: set[int] = set()
        self.changed = Condition()
        self._queues: dict[tuple[int, int, int, int], SimpleQueue[torch.Tensor | None]] = {}
        self._entered: dict[tuple[int, int], dict[int, torch.Tensor]] = {}

    def transport(self, rank: int) -> FakeTransport:
        """The transport of one rank, including its second thread's transport and the control transport."""
        transport = FakeTransport(self, rank, lane=0)
        transport.background, transport.control = FakeTransport(self, rank, lane=1), FakeTransport(self, rank, lane=2)
        return transport

    def lose(self, rank: int) -> None:
        """Lose this rank. Ranks that wait for it, now or later, get PeerLost."""
        with self.changed:
            self.lost.add(rank)
            self.changed.notify_all()
            for (_, sender, _, _), queue in self._queues.items():
                if sender == rank:
                    queue.put(None)

    def queue(self, lane: int, sender: int, receiver: int, tag: int) -> SimpleQueue[torch.Tensor | None]:
        """The queue of messages from one rank to another."""
        with self.changed:
            its = self._queues.setdefault((lane, sender, receiver, tag), SimpleQueue())
            if sender in self.lost:
                its.put(None)
            return its

    def exchange(self, lane: int, serial: int, rank: int, tensor: torch.Tensor) -> list[torch.Tensor]:
        """The tensors of all ranks in the collective with this number, in rank order. Waits until all have entered."""
        with self.changed:
            entered = self._entered.setdefault((lane, serial), {})
            entered[rank] = tensor.clone()
            self.changed.notify_all()
            self.changed.wait_for(lambda: len(entered) == self.size or self.lost - entered.keys())
            if len(entered) < self.size:
                raise PeerLost(f"rank {min(self.lost - entered.keys())} is gone")
            self._entered.pop((lane, serial), None)
            return [entered[rank] for rank in range(self.size)]


class FakeTransport(Transport):
    """One rank's side of a `FakeNetwork`."""

    def __init__(self, network: FakeNetwork, rank: int, *, lane: int) -> None:
        super().__init__()
        self.network = network
        self.rank = rank
        self.size = network.size
        self.members = range(network.size)
        self.background: Transport = self
        self.control: Transport = self
        self._lane = lane
        self._num_collectives = 0

    def begin_send(self, tensor: torch.Tensor, to: int, tag: int = 0) -> Callable[[], object]:
        if to in self.network.lost:
            raise PeerLost(f"rank {to} is gone")
        self.network.queue(self._lane, self.rank, to, tag).put(tensor.clone())
        return bool

    def begin_receive(self, tensor: torch.Tensor, source: int, tag: int = 0) -> Callable[[], object]:
        def wait() -> None:
            message = self.network.queue(self._lane, source, self.rank, tag).get()
            if message is None:
                raise PeerLost(f"rank {source} is gone")
            tensor.view(torch.uint8).copy_(message.view(torch.uint8))  # bytes, as gloo

        return wait

    def all_to_all(self, parts: torch.Tensor, mine: torch.Tensor) -> None:
        of_ranks = self._exchange(mine)
        size = len(mine) // self.size
        parts.copy_(torch.cat([values[self.rank * size : (self.rank + 1) * size] for values in of_ranks]))

    def all_gather(self, everything: torch.Tensor, mine: torch.Tensor) -> None:
        everything.copy_(torch.cat(self._exchange(mine)))

    def add_up(self, flat: torch.Tensor) -> None:
        """Add from the last rank to the first, because a library's order differs from the rank order."""
        last, *others = reversed(self._exchange(flat))
        flat.copy_(sum(others, start=last))

    def maximum(self, number: float) -> float:
        return max(float(value.item()) for value in self._exchange(torch.tensor([number], dtype=torch.float64)))

    def broadcast(self, number: float, source: int) -> float:
        return float(self._exchange(torch.tensor([number], dtype=torch.float64))[source].item())

    def barrier(self) -> None:
        self._exchange(torch.zeros(1))

    def _exchange(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        self._num_collectives += 1
        return self.network.exchange(self._lane, self._num_collectives, self.rank, tensor)
