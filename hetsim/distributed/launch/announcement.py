"""What the ranks of a run tell the launchers of hetsim-launch, by the store of the first one: that the run goes on when a worker is lost.

A launcher reads no config. So the leader announces each run before it begins; as long as none is announced, or it has not begun, the end of
a process ends it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch.distributed as dist

from hetsim.distributed.environment import Launched
from hetsim.distributed.launch.rendezvous import RENDEZVOUS_TIMEOUT
from hetsim.distributed.membership.keeper import BEGAN, STOP, began_key
from hetsim.errors import RunFailed

ANNOUNCED, LOST = "announced", "a rank is lost"


@dataclass(frozen=True, kw_only=True)
class Announced:
    """A run that goes on when a worker is lost."""

    number: int
    """Of this run among those of its processes."""
    num_workers: int
    num_ranks: int
    leader: int
    lost_after: float
    """Seconds without a sign of life after which a rank counts as lost."""
    saves: bool
    """Whether it is saved, and can be asked to stop."""

    @classmethod
    def read(cls, store: Any) -> Announced | None:
        """That of the run under way, from the launchers' store; None if its end is that of any process."""
        text = store.get(ANNOUNCED) if store.check([ANNOUNCED]) else b""
        return cls(**json.loads(text)) if text else None

    def needs(self, rank: int) -> bool:
        """Whether the run ends without this rank: the leader, and each local server."""
        return rank == self.leader or rank > self.num_workers

    def named(self, rank: int) -> str:
        """What a sentence about the end of this rank's process calls it."""
        role = ""
        if rank >= self.num_workers:
            role = ", the server," if rank == self.num_workers else ", a local server,"
        elif rank == self.leader:
            role = ", which keeps the record of the run,"
        return f"the process of rank {rank}{role}"

    def store(self, store: Any) -> Any:
        """The part of the launchers' store that the ranks use."""
        return run_store(store, self.number)


def announce(store: Any, run: Announced | None, *, leads: bool) -> None:
    """On each rank, before a run: the leader announces it. RunFailed if one of the processes was lost in an earlier run."""
    if leads:
        store.set(ANNOUNCED, "" if run is None else json.dumps(asdict(run)))
    if store.check([LOST]):
        raise RunFailed(f"rank {store.get(LOST).decode()} was lost in an earlier run of these processes: call hetsim-launch again")


def ask_to_stop(store: Any) -> bool:
    """Ask the run under way to save itself and stop; False if none is saved."""
    run = Announced.read(store)
    if run is None or not run.saves:
        return False
    run.store(store).set(STOP, "1")
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
    own = next((float(store.get(began_key(rank))) for rank in ranks if store.check([began_key(rank)])), now)
    return float(store.get(BEGAN)) + now - own
