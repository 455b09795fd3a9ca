"""Transfers in real time that share the described links max-min fairly, as the simulator's do.

A transfer becomes known some time after its begin, when others may have begun or ended. So when a transfer becomes known late, the last
`HORIZON` seconds are computed again from its begin.

Each process appends its new transfers to a file before it sends the message, and reads the others' transfers from it. So all processes
know the same transfers, and none has to wait for another's report that a transfer has ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import tempfile
import weakref
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from math import inf, nextafter
from operator import attrgetter
from pathlib import Path
from threading import Lock

from hetsim.cluster.compute_times import SharingWeights
from hetsim.cluster.model import Cluster
from hetsim.cluster.network.connections import ClusterLink, Connection, connection_of, fair_rates
from hetsim.runtime.experiment import Experiment

HORIZON = 0.1
"""The maximum delay in seconds after which a transfer becomes known, unless the machine is overloaded."""


@dataclass(eq=False, slots=True)
class Transfer:
    """A message in transit over links, and the currently known time at which its last byte leaves them, in seconds of the host's clock."""

    begins: float
    nbytes: float
    ends: float = inf
    weight: float = 1.0
    """Its weight. On a shared link, its rate is proportional to its weight."""


Queues = dict[Connection, deque[tuple[float, Transfer]]]
"""The unfinished transfers at a moment, in the order of each connection, with the remaining bytes of each."""


@dataclass(eq=False, slots=True)
class Begun:
    """A transfer that begins at a moment, and all transfers in progress then, including it. The first entry has no connection."""

    moment: float
    connection: Connection | None
    transfer: Transfer
    queues: Queues


class SharedLinks:
    """All transfers over a cluster's described links. Moments are in seconds of the host's clock, and may be reported out of order.

    Changes of links are relative to the run's begin at the moment `began`. The weights of transfers are the simulator's
    with this seed, in the order in which each connection's transfers begin.
    """

    def __init__(self, cluster: Cluster, *, seed: int, began: float = 0.0) -> None:
        self.cluster = cluster
        self._began = began
        self._seed = seed
        self._weights: dict[tuple[int, int], SharingWeights] = {}
        self._links: dict[tuple[str, int | str], ClusterLink] = {}
        self._connections: dict[tuple[int, int], Connection] = {}
        self._begun = [Begun(-inf, None, Transfer(-inf, 0), {})]
        """The transfers that began in the last HORIZON seconds, and the one before, in order of time."""
        self._projected = True

    def carries(self, sender: int, receiver: int) -> bool:
        """Whether a described link connects these ranks."""
        return bool(self.cluster.path(sender, receiver).links)

    def begin(self, sender: int, receiver: int, transfer: Transfer) -> None:
        """Begin a transfer after earlier ones between these ranks."""
        if self.cluster.network.sharing_noise is not None:
            ends = sender, receiver
            if ends not in self._weights:
                self._weights[ends] = SharingWeights(self.cluster, *ends, seed=self._seed)
            transfer.weight = self._weights[ends].next()
        begun = self._begun
        moment = max(transfer.begins, begun[0].moment)
        place = bisect_right(begun, moment, key=attrgetter("moment"))
        begun.insert(place, Begun(moment, self._connection(sender, receiver), transfer, {}))
        for earlier, later in pairwise(begun[place - 1 :]):
            assert later.connection is not None
            later.queues = queues_at(earlier, later.moment, self._began)
            later.queues.setdefault(later.connection, deque()).append((later.transfer.nbytes, later.transfer))
        while begun[1].moment < begun[-1].moment - HORIZON:
            begun.pop(0)
        self._projected = False

    def project(self) -> None:
        """Set the end of each transfer, assuming that no other transfer begins."""
        if not self._projected:
            queues_at(self._begun[-1], inf, self._began)
            self._projected = True

    def _connection(self, sender: int, receiver: int) -> Connection:
        if (sender, receiver) not in self._connections:
            self._connections[sender, receiver] = connection_of(self.cluster, sender, receiver, self._links)
        return self._connections[sender, receiver]


def queues_at(begun: Begun, until: float, began: float = 0.0) -> Queues:
    """The transfers that remain at this moment of those in progress at `begun`, if no other has begun since."""
    queues = {connection: deque(queue) for connection, queue in begun.queues.items() if queue}
    advance(queues, begun.moment, until, began)
    return queues


def set_rates(connections: Iterable[Connection], moment: float, began: float) -> float:
    """Set the rates of changing links to their rates at a moment. Returns the time until which they hold."""
    holds = inf
    for link in dict.fromkeys(link for connection in connections for link in connection.links):
        if link.slowdown is not None:
            factor, end = link.slowdown.at(moment - began)
            link.bytes_per_second, holds = link.described / factor, min(holds, began + end)
    return max(holds, nextafter(moment, inf))


def advance(queues: Queues, moment: float, until: float, began: float = 0.0) -> None:
    """Let the transfers in these queues flow from a moment on. Remove those that end, and set their `ends`."""
    while moment < until and any(queues.values()):
        heads = {connection: queue[0] for connection, queue in queues.items() if queue}
        for connection, (_, transfer) in heads.items():
            connection.weight = transfer.weight
        holds = set_rates(heads, moment, began)
        rates = fair_rates(list(heads))
        ends = {connection: moment + remaining / rates[connection] for connection, (remaining, _) in heads.items()}
        until_next = min([until, holds, *ends.values()])
        for connection, (remaining, transfer) in heads.items():
            queues[connection].popleft()
            if ends[connection] <= until_next:
                transfer.ends = until_next
            else:
                queues[connection].appendleft((remaining - rates[connection] * (until_next - moment), transfer))
        moment = until_next


RECORD = struct.Struct("<iidd")
"""A transfer: its sender, its receiver, its begin in seconds of the host's clock, and its bytes."""
MANY = 1024
"""The number of transfers to read at a time."""
PREFIX = "hetsim-transfers-"
"""The prefix of the files' names."""


class LinkEmulator:
    """Knows all transfers over shared links of the processes that have opened the same file."""

    def __init__(self, links: SharedLinks, path: Path, *, rank: int) -> None:
        self.rank = rank
        self.carries = links.carries
        self._links = links
        self._path = path
        self._file = open_locked(path)
        weakref.finalize(self, os.close, self._file)
        self._lock = Lock()
        self._num_read = 0
        self._transfers: dict[int, Transfer] = {}
        """The transfers to this rank that it has not requested yet, by number."""

    @classmethod
    def of_run(cls, experiment: Experiment, rank: int, *, began: float) -> LinkEmulator:
        """The emulator of a rank in the run that began at this time. All processes know the time, and no other run has it."""
        folder = Path(tempfile.gettempdir())
        remove_leftovers(folder)
        return cls(
            SharedLinks(experiment.cluster, seed=experiment.seed, began=began), folder / f"{PREFIX}{os.getuid()}-{began.hex()}", rank=rank
        )

    def begin(self, receiver: int, nbytes: int, at: float) -> int:
        """Record that a transfer from this rank begins at this time. Returns its number, which the receiver uses, too."""
        with self._lock:
            os.write(self._file, RECORD.pack(self.rank, receiver, at, nbytes))
            return os.lseek(self._file, 0, os.SEEK_CUR) // RECORD.size - 1

    def transfer(self, number: int) -> Transfer:
        """The transfer with this number. The receiver requests it once. Its end is known after `project`."""
        self._read()
        return self._transfers.pop(number)

    def project(self) -> None:
        """Set the end of each transfer, assuming that no other transfer begins."""
        self._read()
        self._links.project()

    def remove(self) -> None:
        """Remove the file after the run. Processes that have it open can still read it."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _read(self) -> None:
        while len(records := os.pread(self._file, RECORD.size * MANY, RECORD.size * self._num_read)) >= RECORD.size:
            complete = len(records) // RECORD.size * RECORD.size  # at the end of a page, part of a record may be there before the rest
            for sender, receiver, at, nbytes in RECORD.iter_unpack(records[:complete]):
                transfer = Transfer(at, nbytes)
                self._links.begin(sender, receiver, transfer)
                if receiver == self.rank:
                    self._transfers[self._num_read] = transfer
                self._num_read += 1


def open_locked(path: Path) -> int:
    """Open the file at this path, create it if missing, and lock it to mark it as used."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        fcntl.flock(file, fcntl.LOCK_SH)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file), path.stat()):
                return file
        os.close(file)  # it was removed before it was locked


def remove_leftovers(folder: Path) -> None:
    """Remove the files of runs whose processes have all been killed."""
    for path in folder.glob(f"{PREFIX}{os.getuid()}-*"):
        with contextlib.suppress(OSError), path.open() as file:  # OSError: a process has it open, or has just removed it
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):  # and not another process's, which was made before the lock
                path.unlink()
