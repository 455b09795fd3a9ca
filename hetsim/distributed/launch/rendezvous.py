"""Connect the processes that a launcher started."""

from __future__ import annotations

from datetime import timedelta
from functools import cache
from typing import Any

import torch.distributed as dist

from hetsim.distributed.environment import Launched
from hetsim.distributed.launch.interface import LOOPBACK
from hetsim.errors import RunFailed

RENDEZVOUS_TIMEOUT = timedelta(minutes=5)
"""The time within which all processes have to connect to the store."""


@cache
def launchers_store(here: Launched) -> Any:
    """The processes' store. The launcher hosts it if it sets the variable that torch reads, and otherwise rank 0."""
    try:
        if here.by == "SLURM":
            return dist.TCPStore(here.address, here.port, here.size, here.rank == 0, RENDEZVOUS_TIMEOUT)  # type: ignore[attr-defined]
        store, _, _ = next(dist.rendezvous("env://", timeout=RENDEZVOUS_TIMEOUT))  # type: ignore[attr-defined]
    except dist.DistError as error:
        seconds, reason = f"{RENDEZVOUS_TIMEOUT.total_seconds():.0f} s", str(error).splitlines()[0]
        raise RunFailed(
            f"rank {here.rank} did not find the others at {here.address}:{here.port} ({reason}): start all processes within {seconds}, "
            f"and set MASTER_ADDR and MASTER_PORT to an address and a free port of the host of rank 0"
        ) from None
    return store


def told(store: Any, here: Launched, what: str, mine: str) -> list[str]:
    """Each rank's own text, in rank order. Waits until all have written theirs."""
    store.set(f"{what}/{here.rank}", mine)
    return [store.get(f"{what}/{rank}").decode() for rank in range(here.size)]


def check_interfaces(store: Any, here: Launched, interface: str) -> None:
    """Raise ValueError on each rank if some ranks would use the loopback interface, where others cannot reach them."""
    names = told(store, here, "interface", interface)
    if LOOPBACK in names and set(names) != {LOOPBACK}:
        raise ValueError(
            f"rank {names.index(LOOPBACK)} would use its loopback interface, by which no other host reaches it: set MASTER_ADDR to an "
            f"address that is no loopback address on any host, or backend.interface to the name of an interface"
        )
