"""What the launchers of several hosts tell each other, by a store that the launcher of node rank 0 has: hetsim-launch.

The store is not that of a rank, so that it outlives each of them. Every launcher says how many processes it starts, and for what; then,
twice a second, that it is there; at the end, how its processes ended.
"""

from __future__ import annotations

import contextlib
import json
import math
import platform
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist

from hetsim.dist.rendezvous import RENDEZVOUS_TIMEOUT
from hetsim.dist.torchrun import CAUSE
from hetsim.errors import RunFailed

POLL_SECONDS = 0.1
BEAT_SECONDS = 0.5
SILENT_SECONDS, SILENT_AFTER_FAILURE_SECONDS = 30.0, 5.0
"""After which a launcher that was not heard of counts as lost; the latter if a failure is known, which its loss may have caused."""
GAP_SECONDS = 2.0
"""Between two exchanges, from which on this launcher itself was not let run: then nor were the others, perhaps."""
LEAVE_SECONDS = 10.0
"""For which the launcher with the store stays at the end, until all others have read how it ended."""
OWN_KEYS = ("data_root", "backend.interface")
"""Of the words that were typed, those that may differ from host to host."""

REMEDIES = {
    "nodes": "give the same number on all hosts",
    "versions": "install the same on all hosts",
    "words": f"type the same on all hosts, but for {' and '.join(OWN_KEYS)}",
}
"""What has to be equal on all hosts, and what to do if it is not."""


STOPPED = "stopped"
"""How a launcher's processes ended that have saved the run because they were asked to."""


class Failure(NamedTuple):
    """Why processes failed. The lower the order, the nearer to the cause."""

    order: int
    sentence: str


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call of hetsim-launch on one host."""

    nodes: int
    node: int
    processes: int
    address: str
    port: int
    words: Sequence[str]
    version: str
    """Of hetsim."""

    def __post_init__(self) -> None:
        for name, value in (("nodes", self.nodes), ("processes", self.processes)):
            if value < 1:
                raise ValueError(f"--{name} must be at least 1, not {value}")
        if not 0 <= self.node < self.nodes:
            raise ValueError(f"--node-rank must be from 0 to {self.nodes - 1} with --nodes {self.nodes}, not {self.node}")
        if not 0 <= self.port <= 65535 or (self.nodes > 1 and not self.port):
            raise ValueError(f"the port of --master must be from 1 to 65535, not {self.port}")

    def told(self) -> dict[str, Any]:
        """What the other launchers have to know, or what has to be equal on all hosts."""
        words = [word for word in self.words if word.lstrip("+").partition("=")[0] not in OWN_KEYS]
        versions = {"hetsim": self.version, "torch": str(torch.__version__), "Python": platform.python_version().rpartition(".")[0]}
        return {"processes": self.processes, "nodes": self.nodes, "words": words, "versions": versions}


def open_store(call: Call) -> tuple[Any, int]:
    """The launchers' store, and its port. ValueError if node rank 0 cannot listen, RunFailed if the others do not find it."""
    if call.node == 0:
        listening = listen(call.address, call.port)
        port = int(listening.getsockname()[1])
        options: dict[str, Any] = {"is_master": True, "master_listen_fd": listening.detach(), "wait_for_workers": False}
        return dist.TCPStore(call.address, port, timeout=RENDEZVOUS_TIMEOUT, **options), port  # type: ignore[attr-defined]
    wait_until(
        lambda: _answers(call.address, call.port),
        f"hetsim-launch --node-rank 0 does not answer at {call.address}:{call.port}: start it on the host that has this address",
    )
    return _connected(call), call.port


def _connected(call: Call) -> Any:
    """A client of the launchers' store. It is made in a thread: torch waits without end for a service that accepts and stays silent."""
    answer: SimpleQueue[Any] = SimpleQueue()

    def connect() -> None:
        try:
            answer.put(dist.TCPStore(call.address, call.port, is_master=False, timeout=RENDEZVOUS_TIMEOUT))  # type: ignore[attr-defined]
        except dist.DistError:
            answer.put(None)

    Thread(target=connect, daemon=True).start()
    other = (
        f"what answers at --master {call.address}:{call.port} is not hetsim-launch --node-rank 0: "
        "give the address of its host, and a port there that no other program has"
    )
    wait_until(lambda: not answer.empty(), other)
    store = answer.get()
    if store is None:
        raise RunFailed(other)
    return store


@contextlib.contextmanager
def needing_the_store(call: Call) -> Iterator[None]:
    """A block in which an error of the launchers' store is RunFailed with one sentence, in place of torch's stack of C++."""
    try:
        yield
    except dist.DistError:
        first = f"hetsim-launch --node-rank 0 at {call.address}:{call.port}"
        raise RunFailed(f"{first} does not answer any more: call hetsim-launch again on all hosts") from None


def listen(address: str, port: int) -> socket.socket:
    """A socket that listens on this address alone. ValueError with one sentence if it cannot."""
    listening = None
    try:
        family, kind, _, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(place)
        listening.listen(1024)
    except OSError as error:
        if listening is not None:
            listening.close()
        raise ValueError(
            f"--master {address}:{port} cannot be listened on ({error.strerror}): "
            f"give an address of the host of --node-rank 0, and a free port there"
        ) from None
    return listening


def _answers(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=2).close()
    except socket.gaierror as error:
        raise ValueError(f"--master {address}:{port} is no address ({error.strerror}): correct it") from None
    except OSError:
        return False
    return True


def wait_until(condition: Callable[[], bool], sentence: str) -> None:
    """Until it holds; RunFailed with this sentence after the time in which all have to connect. Ctrl-C ends it at once."""
    deadline = time.monotonic() + RENDEZVOUS_TIMEOUT.total_seconds()
    while not condition():
        if time.monotonic() > deadline:
            raise RunFailed(f"{sentence} (waited for {RENDEZVOUS_TIMEOUT.total_seconds():.0f} s)")
        time.sleep(POLL_SECONDS)


def agree(store: Any, call: Call) -> list[int]:
    """The number of processes of each host, by node rank. ValueError with one sentence, the same on all, if their calls do not fit."""
    if store.add(f"called/{call.node}", 1) > 1:
        raise ValueError(f"--node-rank {call.node} was given twice: give each host its own, from 0 to {call.nodes - 1}")
    own = call.told()
    store.set(f"node/{call.node}", json.dumps(own))
    for node in range(call.nodes):
        wait_until(partial(_told, store, f"node/{node}"), f"hetsim-launch --node-rank {node} was not called: call it on that host")
        other = json.loads(store.get(f"node/{node}"))
        for what, remedy in REMEDIES.items():
            if other[what] != own[what]:
                (low, first), (high, second) = sorted([(node, other), (call.node, own)], key=lambda each: each[0])
                misfit = f"{_named(what, first)} on node rank {low}, and {_named(what, second)} on node rank {high}: {remedy}"
                store.set("misfit", misfit)
                raise ValueError(misfit)
    return [int(json.loads(store.get(f"node/{node}"))["processes"]) for node in range(call.nodes)]


def _told(store: Any, key: str) -> bool:
    """Whether this has been written. ValueError with the sentence of another host that has found a misfit."""
    if store.check(["misfit"]):
        raise ValueError(store.get("misfit").decode())
    return bool(store.check([key]))


def _named(what: str, told: dict[str, Any]) -> str:
    if what == "nodes":
        return f"--nodes is {told[what]}"
    if what == "versions":
        return "there is " + ", ".join(f"{name} {version}" for name, version in told[what].items())
    return f"{' '.join(told[what]) or 'nothing'!r} was typed"


class Spares(Protocol):
    """Who knows whether the run under way goes on without a host (`hetsim.dist.host_keeper`)."""

    @property
    def silent_seconds(self) -> float | None:
        """After which it does so; None if it does not."""

    def lose_host(self, node: int, silent: float) -> bool:
        """Go on without this one, which was not heard of for so many seconds; False if that cannot be."""


def gone_key(node: int) -> str:
    """Where a launcher reads that it was not heard of, for how long, and that the run goes on without its processes."""
    return f"gone/{node}"


class Hosts:
    """The other hosts while the processes run. Only its thread uses its store, which may block where a host is gone.

    On node rank 0, `spares` decides whether the run goes on without a host that is not heard of.
    """

    def __init__(self, store: Any, call: Call, spares: Spares | None = None) -> None:
        self._store = store
        self._call = call
        self._spares = spares
        self.stopped = False
        """Whether the run was asked to stop, on any host, and is saved."""
        self._own: Failure | None = None
        self._ended = False
        self._silent: set[int] = set()
        self._heard = {node: (b"", time.monotonic()) for node in range(call.nodes)}
        self._beat = self._looked = time.monotonic()
        self._exchanged = math.inf
        self._stopped = Event()
        self._thread = Thread(target=self._talk, daemon=True)
        self._broken = False
        self.outcomes: dict[int, Failure | None] = {}
        """How the processes of each host ended, by node rank, where it is known: None is success."""

    @contextlib.contextmanager
    def talking(self) -> Iterator[Hosts]:
        """While this lasts, tell the others that this host is there; afterwards, on node rank 0, wait until they need the store no more."""
        self._thread.start()
        try:
            yield self
        finally:
            self._stopped.set()
            self._thread.join(2 * BEAT_SECONDS)
            if self._call.node == 0 and not self._broken:
                deadline = time.monotonic() + LEAVE_SECONDS
                others = [f"left/{node}" for node in range(1, self._call.nodes) if node not in self._silent]
                while others and not self._store.check(others) and time.monotonic() < deadline:
                    time.sleep(POLL_SECONDS)

    def end(self, failure: Failure | None, *, stopped: bool = False) -> None:
        """Tell the others how this host's processes have ended."""
        self.stopped |= stopped
        self._own, self._ended = failure, True

    @property
    def failure(self) -> Failure | None:
        """The failure nearest to the cause of those that are known; of equal ones, that of the lowest node rank.

        What a process refuses names its host, unless all hosts refuse the same.
        """
        if self.lost:
            master = f"{self._call.address}:{self._call.port}"
            self.outcomes.setdefault(0, Failure(2, f"hetsim-launch --node-rank 0 at {master} is gone: the run is lost"))
        outcomes = dict(sorted(self.outcomes.items()))
        failures = [(failure, node) for node, failure in outcomes.items() if failure is not None]
        if not failures:
            return None
        failure, node = min(failures, key=lambda each: (each[0].order, each[1]))
        if failure.order == CAUSE and list(outcomes.values()) != [failure] * self._call.nodes:  # it may say nothing of its place
            return failure._replace(sentence=f"on node rank {node}: {failure.sentence}")
        return failure

    @property
    def complete(self) -> bool:
        """Whether nothing further will be known of any host."""
        return len(self.outcomes) == self._call.nodes or self.lost

    @property
    def lost(self) -> bool:
        """Whether the store is gone, and the launcher of node rank 0 with it."""
        now = time.monotonic()
        if now - self._looked > GAP_SECONDS:
            self._beat = now
        self._looked = now
        return self._broken or now - self._beat > SILENT_SECONDS

    def _talk(self) -> None:
        number = 0
        try:
            while not self._stopped.wait(BEAT_SECONDS if number else 0):
                number += 1
                self._exchange(number)
            self._exchange(number)
            self._store.set(f"left/{self._call.node}", "")
        except dist.DistError:
            self._broken = True

    def _exchange(self, number: int) -> None:
        store, own = self._store, self._call.node
        now = time.monotonic()
        if now - self._exchanged > GAP_SECONDS:
            self._heard = {node: (beat, now) for node, (beat, _) in self._heard.items()}
        self._exchanged = now
        store.set(f"beat/{own}", str(number))
        if self._ended and own not in self.outcomes:
            if not store.check([f"ended/{own}"]):  # unless this host counts as lost, and all know it
                store.set(f"ended/{own}", json.dumps(STOPPED if self.stopped and self._own is None else self._own))
            self.outcomes[own] = self._own
        for node in range(self._call.nodes):
            if node in self.outcomes or node == own:
                continue
            if store.check([f"ended/{node}"]):
                told = json.loads(store.get(f"ended/{node}"))
                self.stopped |= told == STOPPED
                self.outcomes[node] = None if told in (None, STOPPED) else Failure(int(told[0]), str(told[1]))
            elif own == 0:
                self._listen_to(node)
        if len(self.outcomes) == self._call.nodes or self.outcomes.get(0) is not None:
            store.set(f"left/{own}", "")
        self._beat = time.monotonic()

    def _listen_to(self, node: int) -> None:
        """On node rank 0: a launcher that has not been heard of for long is lost, and all are told."""
        beat = self._store.get(f"beat/{node}") if self._store.check([f"beat/{node}"]) else b""
        last, since = self._heard[node]
        if beat != last:
            self._heard[node] = (beat, time.monotonic())
            return
        failed = self._own is not None or any(self.outcomes.values())
        limit = SILENT_AFTER_FAILURE_SECONDS if failed else SILENT_SECONDS
        spares = None if failed else self._spares
        if spares is not None and spares.silent_seconds is not None:
            limit = spares.silent_seconds
        silent = time.monotonic() - since
        if silent > limit and spares is not None and spares.lose_host(node, silent):
            self._store.set(gone_key(node), str(silent))
            self.outcomes[node] = None
            self._silent.add(node)
            self._store.set(f"ended/{node}", json.dumps(None))
        elif silent > limit:
            lost = Failure(1, f"nothing was heard of node rank {node} for {limit:.0f} s: the run is lost")
            self.outcomes[node] = lost
            self._silent.add(node)
            self._store.set(f"ended/{node}", json.dumps(lost))
