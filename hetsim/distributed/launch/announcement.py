"""What the ranks of a run tell the launchers of hetsim-launch, by the store of the first one: that the run continues when a worker is lost.

A launcher reads no config. So the leader announces each run before it begins; as long as none is announced, or it has not begun, the end of
a process ends it.
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
    """The run under way; None if its end is that of any process."""
    return of_peer(store, ANNOUNCED, SurvivingRun.of_entries) if store.check([ANNOUNCED]) and store.get(ANNOUNCED) else None


def announce(store: Any, run: SurvivingRun | None, *, leads: bool) -> None:
    """On each rank, before a run: the leader announces it. RunFailed if one of the processes was lost in an earlier run."""
    if leads:
        store.set(ANNOUNCED, "" if run is None else json.dumps(asdict(run)))
    if store.check([LOST]):
        raise RunFailed(f"rank {of_peer(store, LOST, rank_number)} was lost in an earlier run of these processes: call hetsim-launch again")


def ask_to_stop(store: Any) -> bool:
    """Ask the run under way to save itself and stop; False if none is saved."""
    run = announced(store)
    if run is None or not run.saves:
        return False
    run_store(store, run.number).set(STOP, "1")
    return True


def client(address: str, port: int) -> Any:
    """A further client of the launchers' store. Calls of one client wait for each other."""
    return dist.TCPStore(address, port, is_master=False, timeout=RENDEZVOUS_TIMEOUT)  # type: ignore[attr-defined]


def client_of_run(here: Launched, number: int) -> Any:
    """A further client of the part of the launchers' store that the ranks of this run use."""
    return run_store(client(here.address, here.port), number)


def run_store(store: Any, number: int) -> Any:
    """The part of the launchers' store that the ranks of this run use."""
    return dist.PrefixStore(f"hetsim elastic run {number}", store)  # type: ignore[attr-defined]


def on_leaders_clock(store: Any, ranks: Iterable[int], now: float) -> float:
    """This moment of the clock of these ranks' host as the leader's clock has it, by when the run began on both."""
    own = next((of_peer(store, began_key(rank), moment) for rank in ranks if store.check([began_key(rank)])), now)
    return of_peer(store, BEGAN, moment) + now - own
