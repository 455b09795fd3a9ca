"""The keeper of a run: a process of the launcher that hosts the ranks' store. It alone decides who takes part.

The launcher reports the processes that have ended. Each rank sends heartbeats by the store; a stopped process sends none. A rank that
sends none for `lost_after` seconds is suspected, and the launcher kills it. So a rank is either a member or gone, and never comes back as
a surprise. The keeper writes its decisions to the store as views, one after another; nobody else does. It also knows when a run is lost
with the last of its workers, or with the last that has the weights.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from hetsim import checks
from hetsim.distributed.membership.peers import MAX_RANKS, later, listed, moment, of_peer, rank_number, text
from hetsim.distributed.pacing.padding import clock
from hetsim.runtime.checkpointing import StopRequest

STOP = "stop"
"""The key of the store that asks the leader to stop the run."""
POLL_SECONDS = 0.02
"""Between two looks into the store."""
GAP_SECONDS = 1.0
"""Between two looks, from which on the keeper itself was not let run."""
VOID = "void"


class Loss(NamedTuple):
    """A rank that is lost, and when its process ended or was hurt, by the host's clock."""

    rank: int
    incarnation: int
    at: float


@dataclass(frozen=True, kw_only=True)
class SurvivingRun:
    """A run that continues when a worker is lost: what its launchers and its keeper have to know of it."""

    number: int = 0
    """Of this run among those of its processes."""
    num_workers: int
    num_ranks: int
    leader: int
    succession: bool = False
    """Whether the senior member leads; otherwise a run whose leader is lost has ended."""
    lost_after: float
    """Seconds without a sign of life after which a rank counts as lost."""
    saves: bool = False
    """Whether it is saved, and can be asked to stop."""
    joins: Sequence[tuple[int, float]] = ()
    """The ranks that are absent when the run begins, and when they join, in seconds of the run; infinite: never."""
    faults: Sequence[tuple[Any, ...]] = ()
    """What the launchers of several hosts do to processes, see `hetsim.distributed.membership.faults.Fault`."""

    @classmethod
    def of_entries(cls, entries: Mapping[str, Any]) -> SurvivingRun:
        """From JSON, checked."""
        run = cls(**entries)
        rank_number(run.number)
        checks.whole("num_ranks", run.num_ranks, least=run.num_workers, most=MAX_RANKS)
        checks.whole("num_workers", run.num_workers)
        checks.whole("leader", run.leader, least=0, most=run.num_ranks - 1)
        checks.seconds("lost_after", run.lost_after)
        checks.flag("succession", run.succession)
        checks.flag("saves", run.saves)
        joins = [(rank_number(rank), later(seconds)) for rank, seconds in listed(run.joins)]
        faults = [(later(seconds), rank_number(rank), text(kind), *map(later, until)) for seconds, rank, kind, *until in listed(run.faults)]
        return replace(run, joins=joins, faults=faults)

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks that take part when it begins."""
        absent = {rank for rank, _ in self.joins}
        return tuple(rank for rank in range(self.num_ranks) if rank not in absent)

    def needs(self, rank: int) -> bool:
        """Whether the run ends without this rank: a leader that has no successor, and each local server."""
        return rank > self.num_workers or (rank == self.leader and not self.succession)

    def role(self, rank: int) -> str:
        """What a sentence says of a rank that the run needs."""
        return RECORD if rank < self.num_workers else ", the server," if rank == self.num_workers else ", a local server,"


def lost_with(rank: int, why: str, role: str = "") -> str:
    """The sentence for a run that ends with the process of this rank."""
    return f"the process of rank {rank}{role} {why}: the run is lost"


@dataclass(frozen=True)
class View:
    """Who takes part in a generation: each member, with how often its rank was started before; and who was lost since the last one."""

    generation: int
    members: Mapping[int, int]
    """In the order in which they have become members. None once the keeper has ended the run: who still takes part in it fails."""
    lost: tuple[Loss, ...] = ()
    over: bool = False
    """Whether the program of the leader has ended, and with it the run."""

    @property
    def senior(self) -> int | None:
        """Who has been a member for longest, the lowest of those of the beginning."""
        return next(iter(self.members), None)

    def encoded(self) -> str:
        """As JSON."""
        return json.dumps([self.generation, list(self.members.items()), self.lost, self.over])

    @classmethod
    def of_entries(cls, entries: Any) -> View:
        """From JSON, checked."""
        generation, members, lost, over = entries
        return cls(
            checks.whole("generation", generation),
            {rank_number(rank): rank_number(incarnation) for rank, incarnation in listed(members)},
            tuple(Loss(rank_number(rank), rank_number(incarnation), moment(at)) for rank, incarnation, at in listed(lost)),
            checks.flag("over", over),
        )


def view_key(generation: int) -> str:
    """Where the view of a generation stands."""
    return f"view/{generation}"


def go_key(generation: int) -> str:
    """Where the last member that enters a regroup of this generation, or the keeper that ends it, says so."""
    return f"go/{generation}"


def here_key(generation: int, rank: int) -> str:
    """What this member of a generation sets once it waits for the others."""
    return f"here/{generation}/{rank}"


def beat_key(rank: int, incarnation: int) -> str:
    """Where a rank's heartbeats stand."""
    return f"beat/{rank}/{incarnation}"


def began_key(rank: int) -> str:
    """Where a rank says when the run began by the clock of its host."""
    return f"began/{rank}"


def join_key(rank: int, incarnation: int) -> str:
    """Where a process says that it can take part."""
    return f"join/{rank}/{incarnation}"


def left_key(rank: int) -> str:
    """Where a rank says that the run has ended well for it."""
    return f"left/{rank}"


def failed_key(rank: int) -> str:
    """Where a rank says that it has failed, and the run with it, if it is a member yet."""
    return f"failed/{rank}"


def again_key(generation: int) -> str:
    """Where a member of a generation says that a connection of it broke though nobody is lost."""
    return f"again/{generation}"


BEGAN, OVER, SUSPECT, FAILED = "began", "over", "suspect", "failed"
RECORD = ", which keeps the record of the run,"


class Keeper:
    """Decides on views. `store` is the ranks' store; `tell` reports to the launcher.

    It tells (BEGAN, moment), (SUSPECT, rank, incarnation, why) of a process to end, and (FAILED, order, sentence) of a run that is lost.
    """

    def __init__(self, store: Any, tell: Any, run: SurvivingRun) -> None:
        self.store = store
        self.tell = tell
        self.run = run
        self.view = View(0, dict.fromkeys(run.members, 0))
        self.began: float | None = None
        """When the run began, by the clock of the host of its leader at that time."""
        self._looked = -math.inf
        self._awaited = {(rank, 0) for rank, seconds in run.joins if seconds < math.inf}
        self._beats: dict[tuple[int, int], tuple[bytes, float]] = {}

    def hear(self, what: str, rank: int, incarnation: int, at: float = 0.0, why: str = "") -> None:
        """A report of a launcher: a process was started and will join, or has ended, at this moment and for this reason."""
        if what == "started":
            self._awaited.add((rank, incarnation))
            return
        self._awaited.discard((rank, incarnation))
        self._look_for_end()  # which the rank may have told before
        if self.view.members.get(rank) != incarnation:
            self._check_lost(self.view.members, rank, at, why)
            return
        members = {other: its for other, its in self.view.members.items() if other != rank}
        self._check_lost(members, rank, at, why)
        self._publish(members, lost=(Loss(rank, incarnation, at),))

    def _check_lost(self, members: Mapping[int, int], rank: int, at: float, why: str) -> None:
        """Tell if the run is lost with this rank, and these members are left."""
        run, seconds = self.run, 0.0 if self.began is None else at - self.began
        if run.succession and self.view.over and rank == self.view.senior:
            self.tell((FAILED, 1, lost_with(rank, why, RECORD)))
        elif not self.view.over and not any(other < run.num_workers for other in (*members, *(each for each, _ in self._awaited))):
            self.tell((FAILED, 2, f"every node of the cluster is gone at {seconds:.3g} s and none comes back: the run is lost"))
        elif run.succession and not members:
            self.tell((FAILED, 2, f"every node of the cluster is gone at {seconds:.3g} s, and the weights are: the run is lost"))

    def look(self, now: float) -> None:
        """Look into the store: for the beginning and the end of the run, for who joins, and for heartbeats."""
        if not self._has_begun():
            return
        if now - self._looked > GAP_SECONDS:  # nor did this process get to run: suspended, as the ranks were, it knows nothing of them
            self._beats = {member: (beat, now) for member, (beat, _) in self._beats.items()}
        self._looked = now
        self._look_for_end()
        if not self.view.over and any(self.store.check([failed_key(rank)]) for rank in self.view.members):
            self.end()
        if self.store.check([again_key(self.view.generation)]):
            self._publish(self.view.members)
        joining = {each for each in self._awaited if self.store.check([join_key(*each)])}
        if joining and not self.view.over:
            self._awaited -= joining
            self._publish({**self.view.members, **dict(sorted(joining))})
        for member in self.view.members.items():
            self._listen(member, now)

    def _has_begun(self) -> bool:
        if self.began is None and self.store.check([BEGAN]):
            self.began = of_peer(self.store, BEGAN, moment)
            self.tell((BEGAN, self.began))
        return self.began is not None

    def _look_for_end(self) -> None:
        if self._has_begun() and not self.view.over and self.store.check([OVER]):
            self._publish(self.view.members, over=True)

    def end(self) -> None:
        """This run is over, or has failed: nobody takes part in it any more."""
        self._publish({})

    def _listen(self, member: tuple[int, int], now: float) -> None:
        key = beat_key(*member)
        beat = self.store.get(key) if self.store.check([key]) else b""
        last, since = self._beats.get(member, (None, now))
        if beat != last:
            self._beats[member] = beat, now
        elif now - since > self.run.lost_after:
            _, _, step = beat.decode(errors="replace").partition(" ")
            after = f" after its effect {step}" if step else ""
            self.tell((SUSPECT, *member, f"gave no sign of life for {self.run.lost_after:g} s{after} and was ended"))
            self._beats[member] = beat, now  # once is enough for each time

    def _publish(self, members: Mapping[int, int], *, lost: tuple[Loss, ...] = (), over: bool = False) -> None:
        self.view = View(self.view.generation + 1, dict(members), lost, over or self.view.over)
        self.store.set(view_key(self.view.generation), self.view.encoded())
        self.store.compare_set(go_key(self.view.generation - 1), "", VOID)  # unless all its members are here, and connect


def keep(listening: socket.socket, pipe: Connection, run: SurvivingRun) -> None:
    """In a process of its own: host the store on this socket, until the launcher closes the pipe or ends.

    Where the run is saved, a signal that asks it to stop may reach this process, too, which passes it on.
    """
    import torch.distributed as dist

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher gets Ctrl-C, too, and ends this process
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # torch's store complains of each client that is killed; errors go by the pipe
    port = listening.getsockname()[1]
    store = dist.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
    )
    keeper = Keeper(store, pipe.send, run)
    passed_on = StopRequest().by_signals(partial(store.set, STOP, "1"), again=True)
    with contextlib.suppress(EOFError, OSError), passed_on if run.saves else contextlib.nullcontext():
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})  # as in a rank's process
        while True:
            while pipe.poll(POLL_SECONDS):
                keeper.hear(*pipe.recv())
            keeper.look(clock())
