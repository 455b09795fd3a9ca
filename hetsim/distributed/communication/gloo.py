"""The transport over gloo: a permanent group of a run's processes, or groups that can form again without lost members.

Such a group is gloo's own object and not torch.distributed's default group. So a process may have several groups, and an old one leaves
nothing behind. In a collective, only the neighbours of a lost rank notice the loss; the others wait until `interrupt` shuts down the
group's connections.

Even then gloo does not end a read or a write that it has begun: `gloo::transport::tcp::Pair::signalException` skips it. So the wait for a
large vector, or for a small one at an unlucky moment, never ends. Therefore each waiting caller checks from time to time whether the group
is interrupted. If it is, the caller abandons the operation to gloo, with its thread and its memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from threading import Thread
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from hetsim.distributed.communication.transport import LOOK_SECONDS, Transport
from hetsim.distributed.pacing.padding import realtime_priority
from hetsim.effects import PeerLost

TIMEOUT = timedelta(days=7)
"""The timeout of gloo's operations. It is long, because a slow step is no failure, and gloo notices a dead peer at once."""
RENDEZVOUS_TIMEOUT = timedelta(minutes=5)
"""The time within which all processes have to connect to the store, and to the first group."""
FORM_TIMEOUT = timedelta(seconds=5)
"""The timeout of a group's connections. They wait this long for a rank that is lost while they are made."""
LANES = ("program", "background", "control")
"""The collectives of the program's thread, of the started effects, and of control outside the programs."""
DESCRIPTORS = "/dev/fd"
T = TypeVar("T")


@dataclass
class Standing:
    """The common state of a group's lanes."""

    interrupted: bool = False
    lost: set[int] = field(default_factory=set)
    """Lost members of a group that continues."""


class GlooTransport(Transport):
    """One of gloo's groups of these members, which are ranks of the run, in ascending order. `size` is their number.

    A collective or an exchange of bytes raises PeerLost soon after the group is interrupted. `send` and `receive` may then never return.
    """

    def __init__(self, gloo: Any, rank: int, members: Sequence[int], standing: Standing | None = None) -> None:
        super().__init__()
        self.rank = rank
        self.members = members
        self.size = len(self.members)
        self.background = self.control = self
        self._gloo = gloo
        self._standing = standing or Standing()

    @classmethod
    @contextlib.contextmanager
    def connect(cls, rank: int, size: int, store: Any) -> Iterator[GlooTransport]:
        """Connect to the other ranks through a store. At the end of the block, wait for them and disconnect."""
        with realtime_priority(), peer_errors():
            dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=TIMEOUT)
            groups: list[Any] = [dist.group.WORLD, dist.new_group(), dist.new_group()]
        try:
            transport, transport.background, transport.control = (
                cls(group._get_backend(torch.device("cpu")), rank, range(size)) for group in groups
            )
            yield transport
            transport.control.barrier()
        finally:
            dist.destroy_process_group()

    def begin_send(self, tensor: torch.Tensor, to: int, tag: int = 0) -> Callable[[], None]:
        return self._begin(self._gloo.send, tensor, to, tag)

    def begin_receive(self, tensor: torch.Tensor, source: int, tag: int = 0) -> Callable[[], None]:
        return self._begin(self._gloo.recv, tensor, source, tag)

    def _begin(self, begin: Callable[..., Any], tensor: torch.Tensor, peer: int, tag: int) -> Callable[[], None]:
        with realtime_priority(), peer_errors(peer):
            work = begin([tensor], self.members.index(peer), tag)

        def wait() -> None:
            with realtime_priority(), peer_errors(peer):
                work.wait(TIMEOUT)

        return wait

    def lose(self, peer: int) -> None:
        self._standing.lost.add(peer)

    def send_bytes(self, pieces: Iterable[bytes], to: int) -> None:
        self.unless_lost(partial(super().send_bytes, pieces, to), to)

    def receive_piece(self, source: int) -> bytes:
        return self.unless_lost(partial(super().receive_piece, source), source)

    def unless_lost(self, exchange: Callable[[], T], peer: int) -> T:
        """The result of an exchange with a peer, in a separate thread. If the peer is lost, raises PeerLost and abandons the thread."""
        answer: Future[T] = Future()

        def run_exchange() -> None:
            try:
                answer.set_result(exchange())
            except BaseException as error:
                answer.set_exception(error)

        Thread(target=run_exchange, daemon=True).start()
        while True:
            given_up = self._standing.interrupted or peer in self._standing.lost
            wait_for([answer], LOOK_SECONDS)
            if answer.done():
                return answer.result()
            if given_up:
                self._keep()
                raise PeerLost.of(peer)

    def _collective(self, begin: Callable[..., Any], *arguments: Any) -> None:
        """Take part in a collective. Raises PeerLost if a member is lost, or the group is interrupted."""
        with peer_errors():
            work = begin(*arguments)
            while True:
                interrupted = self._standing.interrupted
                try:
                    work.wait(timedelta(seconds=LOOK_SECONDS))
                    return
                except RuntimeError:
                    if work.is_completed():  # it has failed, or has just ended
                        work.wait()
                        return
                if interrupted:
                    self._keep()
                    raise PeerLost(f"a rank was lost while rank {self.rank} waited for it")

    def _keep(self) -> None:
        """Never destroy gloo's group, because that would wait for operations in progress."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._gloo))

    def all_to_all(self, received: torch.Tensor, sent: torch.Tensor) -> None:
        self._collective(self._gloo.alltoall_base, received, sent, [], [])

    def all_gather(self, everything: torch.Tensor, mine: torch.Tensor) -> None:
        self._collective(self._gloo._allgather_base, everything, mine)

    def add_up(self, flat: torch.Tensor) -> None:
        self._collective(self._gloo.allreduce, [flat])

    def maximum(self, number: float) -> float:
        largest = torch.tensor([number], dtype=torch.float64)
        self._collective(self._gloo.allreduce, largest, dist.ReduceOp.MAX)
        return float(largest.item())

    def broadcast(self, number: float, source: int) -> float:
        value = torch.tensor([number], dtype=torch.float64)
        self._collective(self._gloo.broadcast, value, self.members.index(source))
        return float(value.item())

    def barrier(self) -> None:
        self._collective(self._gloo.barrier)


class GlooGroup(GlooTransport):
    """A generation's lanes, and their connections. Any thread may `interrupt` it. Only the program's thread closes it."""

    def __init__(self, lanes: Sequence[Any], rank: int, members: Sequence[int], connections: Sequence[socket.socket]) -> None:
        program, *others = lanes
        super().__init__(program, rank, members)
        if others:
            self.background, self.control = (GlooTransport(gloo, rank, members, self._standing) for gloo in others)
        self._connections = list(connections)

    @classmethod
    def form(
        cls, store: Any, name: str, *, rank: int, members: Iterable[int], lanes: Sequence[str] = LANES, interruptible: bool = True,
        within: timedelta = FORM_TIMEOUT,
    ) -> GlooGroup:  # fmt: skip
        """Connect to these members. Each member calls this with the same name. Raises PeerLost if one does not come `within` this time.

        While a group that can be interrupted forms, this process makes no other connections.
        """
        members = sorted(members)
        position = members.index(rank)
        earlier_sockets = set(_connections(_port(store)).values()) if interruptible else set()
        with realtime_priority(), peer_errors():
            lane_groups = [
                dist.ProcessGroupGloo(dist.PrefixStore(f"{name}/{lane}", store), position, len(members), within)  # type: ignore[attr-defined]
                for lane in lanes
            ]
        for gloo in lane_groups:
            gloo._set_default_timeout(TIMEOUT)  # a slow step is no failure
        new: list[int] = []
        if interruptible:
            new = [os.dup(descriptor) for descriptor, number in _connections(_port(store)).items() if number not in earlier_sockets]
        return cls(lane_groups, rank, members, [socket.socket(fileno=descriptor) for descriptor in new])

    def interrupt(self) -> None:
        """Let all operations that wait in this group raise PeerLost, here and at its other members."""
        self._standing.interrupted = True
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Release the connections, which are closed when nothing uses the lanes any more."""
        connections, self._connections = self._connections, []
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()


def _port(store: Any) -> int:
    """The port of the process that hosts the store."""
    while isinstance(store, dist.PrefixStore):  # type: ignore[attr-defined]
        store = store.underlying_store
    return int(store.port)


def _connections(but_port: int) -> dict[int, int]:
    """This process's descriptors with TCP connections, except to this port. Listening ones are excluded, because gloo needs them.

    Each descriptor comes with its socket's number, because a descriptor may be reused, and a socket's number is not.
    """
    connections = {}
    for name in os.listdir(DESCRIPTORS):
        with contextlib.suppress(OSError), contextlib.ExitStack() as copies:
            copy = os.dup(int(name))
            copies.callback(os.close, copy)
            connection = socket.socket(fileno=copy)  # fails if it is no socket
            copies.pop_all()
            with connection:
                if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.getpeername()[1] != but_port:
                    connections[int(name)] = os.fstat(connection.fileno()).st_ino
    return connections


@contextlib.contextmanager
def peer_errors(rank: int | None = None) -> Iterator[None]:
    """Raise PeerLost for gloo's errors: RuntimeError if a peer is lost, ValueError if this process is leaving the group."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        sender = "a rank" if rank is None else f"rank {rank}"
        raise PeerLost(f"{sender} is gone: its process ended or its connection broke") from error
