"""The calls of hetsim-launch on several hosts: the store through which they meet, and the values that must be equal on all hosts.

The launcher of node rank 0 hosts the store, and not a rank, so that the store outlives all ranks.
"""

from __future__ import annotations

import contextlib
import json
import platform
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any

import torch
import torch.distributed as dist

from hetsim import checks
from hetsim.distributed.communication.gloo import RENDEZVOUS_TIMEOUT
from hetsim.distributed.membership.keeper import checked_list, read_entry, text
from hetsim.errors import RunFailed

POLL_SECONDS = 0.1
MAX_PROCESSES = 10_000
"""The maximum number of processes of a host, and of hosts of a run."""
OWN_KEYS = ("data_root", "backend.interface")
"""Typed keys that may differ between hosts."""

REMEDIES = {
    "nodes": "give the same number on all hosts",
    "versions": "install the same on all hosts",
    "words": f"type the same on all hosts, but for {' and '.join(OWN_KEYS)}",
}
"""The values that must be equal on all hosts, and the remedy if they are not."""


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
    """The version of hetsim."""

    def __post_init__(self) -> None:
        for name, value in (("nodes", self.nodes), ("processes", self.processes)):
            checks.whole(f"--{name}", value, most=MAX_PROCESSES)
        if not 0 <= self.node < self.nodes:
            raise ValueError(f"--node-rank must be from 0 to {self.nodes - 1} with --nodes {self.nodes}, not {self.node}")
        if not 0 <= self.port <= 65535 or (self.nodes > 1 and not self.port):
            raise ValueError(f"the port of --master must be from 1 to 65535, not {self.port}")

    def shared_values(self) -> dict[str, Any]:
        """The values for other launchers, which must be equal on all hosts or which they need."""
        words = [word for word in self.words if word.lstrip("+").partition("=")[0] not in OWN_KEYS]
        versions = {"hetsim": self.version, "torch": str(torch.__version__), "Python": platform.python_version().rpartition(".")[0]}
        return {"processes": self.processes, "nodes": self.nodes, "words": words, "versions": versions}


def open_store(call: Call) -> tuple[Any, int]:
    """The launchers' store, and its port. Raises ValueError if node rank 0 cannot listen, and RunFailed if other hosts do not find it."""
    if call.node == 0:
        listening = listen(call.address, call.port)
        port = int(listening.getsockname()[1])
        options: dict[str, Any] = {"is_master": True, "master_listen_fd": listening.detach(), "wait_for_workers": False}
        return dist.TCPStore(call.address, port, timeout=RENDEZVOUS_TIMEOUT, **options), port  # type: ignore[attr-defined]
    wait_until(
        lambda: _answers(call.address, call.port),
        f"hetsim-launch --node-rank 0 does not answer at {call.address}:{call.port}: start it on the host that has this address",
    )
    return _client_of_store(call), call.port


def _client_of_store(call: Call) -> Any:
    """A client of the launchers' store, made in a thread, because torch waits forever for a service that accepts and stays silent."""
    answer: SimpleQueue[Any] = SimpleQueue()

    def connect() -> None:
        try:
            answer.put(dist.TCPStore(call.address, call.port, is_master=False, timeout=RENDEZVOUS_TIMEOUT))  # type: ignore[attr-defined]
        except dist.DistError:
            answer.put(None)

    Thread(target=connect, daemon=True).start()
    wrong_service = (
        f"what answers at --master {call.address}:{call.port} is not hetsim-launch --node-rank 0: "
        "give the address of its host, and a port there that no other program has"
    )
    wait_until(lambda: not answer.empty(), wrong_service)
    store = answer.get()
    if store is None:
        raise RunFailed(wrong_service)
    return store


@contextlib.contextmanager
def needing_the_store(call: Call) -> Iterator[None]:
    """Within this context, an error of the launchers' store becomes RunFailed with one sentence, without torch's C++ stack."""
    try:
        yield
    except dist.DistError:
        first = f"hetsim-launch --node-rank 0 at {call.address}:{call.port}"
        raise RunFailed(f"{first} does not answer any more: call hetsim-launch again on all hosts") from None


def listen(address: str, port: int) -> socket.socket:
    """A socket that listens only on this address. Raises ValueError if that is impossible."""
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
        raise ValueError(f"--master {address}:{port} is not an address ({error.strerror}): correct it") from None
    except OSError:
        return False
    return True


def wait_until(condition: Callable[[], bool], sentence: str) -> None:
    """Wait until the condition holds. Raises RunFailed after the timeout for connections. Ctrl-C ends the wait at once."""
    deadline = time.monotonic() + RENDEZVOUS_TIMEOUT.total_seconds()
    while not condition():
        if time.monotonic() > deadline:
            raise RunFailed(f"{sentence} (waited for {RENDEZVOUS_TIMEOUT.total_seconds():.0f} s)")
        time.sleep(POLL_SECONDS)


def agree(store: Any, call: Call) -> list[int]:
    """The number of processes of each host, by node rank. Raises the same ValueError on all hosts if their calls differ."""
    if store.add(f"called/{call.node}", 1) > 1:
        raise ValueError(f"--node-rank {call.node} was given twice: give each host its own, from 0 to {call.nodes - 1}")
    own_values = call.shared_values()
    store.set(f"node/{call.node}", json.dumps(own_values))
    hosts = []
    for node in range(call.nodes):
        wait_until(partial(_is_written, store, f"node/{node}"), f"hetsim-launch --node-rank {node} was not called: call it on that host")
        hosts.append(values := read_entry(store, f"node/{node}", _checked_values))
        for name, remedy in REMEDIES.items():
            if values[name] != own_values[name]:
                (low, first), (high, second) = sorted([(node, values), (call.node, own_values)], key=lambda host: host[0])
                misfit = f"{_describe(name, first)} on node rank {low}, and {_describe(name, second)} on node rank {high}: {remedy}"
                store.set("misfit", misfit)
                raise ValueError(misfit)
    return [values["processes"] for values in hosts]


def _checked_values(entry: Any) -> dict[str, Any]:
    """Another launcher's values."""
    checks.whole("nodes", entry["nodes"])
    return {
        "processes": checks.whole("processes", entry["processes"], most=MAX_PROCESSES),
        "nodes": entry["nodes"],
        "words": [text(word) for word in checked_list(entry["words"])],
        "versions": {text(name): text(version) for name, version in entry["versions"].items()},
    }


def _is_written(store: Any, key: str) -> bool:
    """Whether this key is written. Raises ValueError if another host has reported a difference."""
    if store.check(["misfit"]):
        raise ValueError(store.get("misfit").decode(errors="replace"))
    return bool(store.check([key]))


def _describe(name: str, values: dict[str, Any]) -> str:
    if name == "nodes":
        return f"--nodes is {values[name]}"
    if name == "versions":
        return "there is " + ", ".join(f"{package} {version}" for package, version in values[name].items())
    return f"{' '.join(values[name]) or 'nothing'!r} was typed"
