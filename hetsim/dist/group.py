"""Groups of processes that can be formed again without those that are lost: one generation after another.

A group is gloo's own object and not torch.distributed's default group, so that there may be several in a process, and that an old one
leaves nothing behind. Of a lost rank only its neighbours in a collective learn by themselves: the others wait until `interrupt` shuts
down the group's connections.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from hetsim.dist.pace import realtime_threads
from hetsim.dist.sums import peer_errors
from hetsim.dist.transport import TIMEOUT, Transport

FORM_TIMEOUT = timedelta(seconds=5)
"""Of the connections of a group: as long as those wait for a rank that is lost while they are made."""
LANES = ("program", "background", "control")
"""The collectives of the program's thread, of the effects that it starts, and of what is outside the programs."""
DESCRIPTORS = "/dev/fd"


class Lane(Transport):
    """One of gloo's groups of these members, which are ranks of the run, in ascending order. `size` is how many they are."""

    def __init__(self, gloo: Any, rank: int, members: Sequence[int]) -> None:
        self.rank = rank
        self.members = tuple(members)
        self.size = len(self.members)
        self.background = self.control = self
        self._gloo = gloo

    def send(self, tensor: torch.Tensor, to: int) -> None:
        with peer_errors(to):
            self._gloo.send([tensor], self.members.index(to), 0).wait(TIMEOUT)

    def receive(self, tensor: torch.Tensor, source: int) -> None:
        with peer_errors(source):
            self._gloo.recv([tensor], self.members.index(source), 0).wait(TIMEOUT)

    def all_to_all(self, parts: torch.Tensor, mine: torch.Tensor) -> None:
        with peer_errors():
            self._gloo.alltoall_base(parts, mine, [], []).wait()

    def all_gather(self, everything: torch.Tensor, mine: torch.Tensor) -> None:
        with peer_errors():
            self._gloo._allgather_base(everything, mine).wait()

    def sum(self, flat: torch.Tensor) -> torch.Tensor:
        total = flat.clone()
        with peer_errors():
            self._gloo.allreduce([total]).wait()
        return total

    def maximum(self, number: float) -> float:
        largest = torch.tensor([number], dtype=torch.float64)
        with peer_errors():
            self._gloo.allreduce(largest, dist.ReduceOp.MAX).wait()
        return float(largest.item())

    def broadcast(self, number: float, source: int) -> float:
        value = torch.tensor([number], dtype=torch.float64)
        with peer_errors(source):
            self._gloo.broadcast(value, self.members.index(source)).wait()
        return float(value.item())

    def barrier(self) -> None:
        with peer_errors():
            self._gloo.barrier().wait()


class Group(Lane):
    """A generation's lanes, and their connections. Any thread may `interrupt` it; only the program's thread closes it."""

    def __init__(self, lanes: Sequence[Any], rank: int, members: Sequence[int], connections: Sequence[socket.socket]) -> None:
        program, *others = lanes
        super().__init__(program, rank, members)
        if others:
            self.background, self.control = (Lane(gloo, rank, members) for gloo in others)
        self._connections = list(connections)

    @classmethod
    def form(
        cls, store: Any, name: str, *, rank: int, members: Sequence[int], lanes: Sequence[str] = LANES, interruptible: bool = True
    ) -> Group:
        """Connect to these members, each of which calls it with the same name. PeerLost if one of them does not come in time.

        While an interruptible one is formed, this process makes no other connections.
        """
        members = sorted(members)
        position, before = members.index(rank), set(_connections(store.port).values())
        with realtime_threads(), peer_errors():
            made = [
                dist.ProcessGroupGloo(dist.PrefixStore(f"{name}/{lane}", store), position, len(members), FORM_TIMEOUT)  # type: ignore[attr-defined]
                for lane in lanes
            ]
        for gloo in made:
            gloo._set_default_timeout(TIMEOUT)  # a slow step is no failure
        new = [os.dup(descriptor) for descriptor, its in _connections(store.port).items() if its not in before] if interruptible else []
        return cls(made, rank, members, [socket.socket(fileno=descriptor) for descriptor in new])

    def interrupt(self) -> None:
        """Let all that waits in this group, here and at its other members, raise PeerLost."""
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of the connections, which are closed once nothing uses the lanes."""
        connections, self._connections = self._connections, []
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()


def _connections(but_port: int) -> dict[int, int]:
    """This process's descriptors that are connected by TCP, except to this port: never a listening one, which gloo needs as it is.

    Each with the number of its socket, which no later socket has, as a descriptor may be used again.
    """
    found = {}
    for name in os.listdir(DESCRIPTORS):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as each:
            if each.family in (socket.AF_INET, socket.AF_INET6) and each.getpeername()[1] != but_port:
                found[int(name)] = os.fstat(each.fileno()).st_ino
    return found
