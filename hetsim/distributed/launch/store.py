"""The store of a launcher's processes: how they meet in it, and what a run's ranks tell the launchers of hetsim-launch there.

A launcher of hetsim-launch reads no config. So the leader announces each run before it begins, and whether the run survives a worker's
loss. Without an announcement, or before the begin, the end of a process ends the run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from functools import cache
from typing import Any

import torch.distributed as dist

from hetsim.distributed.communication.gloo import RENDEZVOUS_TIMEOUT
from hetsim.distributed.environment import LOOPBACK, Launched
from hetsim.distributed.membership.keeper import BEGAN, STOP, SurvivingRun, began_key, finite_seconds, rank_number, read_entry
from hetsim.errors import RunFailed


@cache
def launchers_store(process: Launched) -> Any:
    """The processes' store. The launcher hosts it if it sets the variable that torch reads, and otherwise rank 0."""
    try:
        if process.by == "SLURM":
            return dist.TCPStore(process.address, process.port, process.size, process.rank == 0, RENDEZVOUS_TIMEOUT)  # type: ignore[attr-defined]
        store, _, _ = next(dist.rendezvous("env://", timeout=RENDEZVOUS_TIMEOUT))  # type: ignore[attr-defined]
    except dist.DistError as error:
        seconds, reason = f"{RENDEZVOUS_TIMEOUT.total_seconds():.0f} s", str(error).splitlines()[0]
        raise RunFailed(
            f"rank {process.rank} did not find the others at {process.address}:{process.port} ({reason}): "
            f"start all processes within {seconds}, and set MASTER_ADDR and MASTER_PORT to an address and a free port of the host of rank 0"
        ) from None
    return store


def gather_texts(store: Any, process: Launched, name: str, own_text: str) -> list[str]:
    """Each rank's own text, in rank order. Waits until all have written theirs."""
    store.set(f"{name}/{process.rank}", own_text)
    return [store.get(f"{name}/{rank}").decode() for rank in range(process.size)]


def check_interfaces(store: Any, process: Launched, interface: str) -> None:
    """Raise ValueError on each rank if some ranks would use the loopback interface, where others cannot reach them."""
    names = gather_texts(store, process, "interface", interface)
    if LOOPBACK in names and set(names) != {LOOPBACK}:
        raise ValueError(
            f"rank {names.index(LOOPBACK)} would use its loopback interface, by which no other host reaches it: set MASTER_ADDR to an "
            f"address that is no loopback address on any host, or backend.interface to the name of an interface"
        )


ANNOUNCED, LOST = "announced", "a rank is lost"


def announced_run(store: Any) -> SurvivingRun | None:
    """The current run; None if it ends with any process."""
    return read_entry(store, ANNOUNCED, SurvivingRun.of_entries) if store.check([ANNOUNCED]) and store.get(ANNOUNCED) else None


def announce(store: Any, run: SurvivingRun | None, *, leads: bool) -> None:
    """On each rank, before a run: let the leader announce it. Raises RunFailed if a process was lost in an earlier run."""
    if leads:
        store.set(ANNOUNCED, "" if run is None else json.dumps(asdict(run)))
    if store.check([LOST]):
        raise RunFailed(
            f"rank {read_entry(store, LOST, rank_number)} was lost in an earlier run of these processes: call hetsim-launch again"
        )


def ask_to_stop(store: Any) -> bool:
    """Ask the current run to save a checkpoint and stop. Returns False if it saves none."""
    run = announced_run(store)
    if run is None or not run.saves:
        return False
    run_store(store, run.number).set(STOP, "1")
    return True


def client(address: str, port: int) -> Any:
    """Another client of the launchers' store, because calls of one client wait for each other."""
    return dist.TCPStore(address, port, is_master=False, timeout=RENDEZVOUS_TIMEOUT)  # type: ignore[attr-defined]


def client_of_run(process: Launched, number: int) -> Any:
    """Another client for the part of the launchers' store that this run's ranks use."""
    return run_store(client(process.address, process.port), number)


def run_store(store: Any, number: int) -> Any:
    """The part of the launchers' store that this run's ranks use."""
    return dist.PrefixStore(f"hetsim elastic run {number}", store)  # type: ignore[attr-defined]


def leaders_time(store: Any, ranks: Iterable[int], now: float) -> float:
    """Convert this time of these ranks' host to the leader's clock, from the run's beginning by both clocks."""
    hosts_begin = next((read_entry(store, began_key(rank), finite_seconds) for rank in ranks if store.check([began_key(rank)])), now)
    return read_entry(store, BEGAN, finite_seconds) + now - hosts_begin
