"""Messages from a run's ranks to the launchers of hetsim-launch, in the first launcher's store: whether the run survives a worker's loss.

A launcher reads no config. So the leader announces each run before it begins. Without an announcement, or before the begin, the end of a
process ends the run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import torch.distributed as dist

from hetsim.distributed.environment import Launched
from hetsim.distributed.launch.rendezvous import RENDEZVOUS_TIMEOUT
from hetsim.distributed.membership.keeper import BEGAN, STOP, SurvivingRun, began_key
from hetsim.distributed.membership.peers import moment, of_peer, rank_number
from hetsim.errors import RunFailed

ANNOUNCED, LOST = "announced", "a rank is lost"


def announced(store: Any) -> SurvivingRun | None:
    """The current run; None if it ends with any process."""
    return of_peer(store, ANNOUNCED, SurvivingRun.of_entries) if store.check([ANNOUNCED]) and store.get(ANNOUNCED) else None


def announce(store: Any, run: SurvivingRun | None, *, leads: bool) -> None:
    """On each rank, before a run: let the leader announce it. Raises RunFailed if a process was lost in an earlier run."""
    if leads:
        store.set(ANNOUNCED, "" if run is None else json.dumps(asdict(run)))
    if store.check([LOST]):
        raise RunFailed(f"rank {of_peer(store, LOST, rank_number)} was lost in an earlier run of these processes: call hetsim-launch again")


def ask_to_stop(store: Any) -> bool:
    """Ask the current run to save a checkpoint and stop. Returns False if it saves none."""
    run = announced(store)
    if run is None or not run.saves:
        return False
    run_store(store, run.number).set(STOP, "1")
    return True


def client(address: str, port: int) -> Any:
    """Another client of the launchers' store, because calls of one client wait for each other."""
    return dist.TCPStore(address, port, is_master=False, timeout=RENDEZVOUS_TIMEOUT)  # type: ignore[attr-defined]


def client_of_run(here: Launched, number: int) -> Any:
    """Another client for the part of the launchers' store that this run's ranks use."""
    return run_store(client(here.address, here.port), number)


def run_store(store: Any, number: int) -> Any:
    """The part of the launchers' store that this run's ranks use."""
    return dist.PrefixStore(f"hetsim elastic run {number}", store)  # type: ignore[attr-defined]


def on_leaders_clock(store: Any, ranks: Iterable[int], now: float) -> float:
    """Convert this time of these ranks' host to the leader's clock, from the run's beginning by both clocks."""
    own = next((of_peer(store, began_key(rank), moment) for rank in ranks if store.check([began_key(rank)])), now)
    return of_peer(store, BEGAN, moment) + now - own
