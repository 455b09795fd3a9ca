"""The keeper of a run: a process of the launcher that hosts the ranks' store. It alone decides which ranks take part.

The launcher reports the processes that have ended. Each rank sends heartbeats through the store. A stopped process sends none. A rank
without a heartbeat for `lost_after` seconds is suspected, and the launcher kills it. So a rank is either a member or gone, and never
returns unexpectedly. Only the keeper writes views, its decisions, to the store, one after another. It also detects that a run has lost
its last worker, and waits if one is to return.

Entries of other processes in the store are checked like input, because any process that reaches the store can write.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import math
import os
import signal
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from hetsim import checks
from hetsim.distributed.environment import wait_less_for_names
from hetsim.distributed.pacing.padding import clock
from hetsim.errors import RunFailed
from hetsim.runtime.checkpointing import StopRequest

T = TypeVar("T")
MAX_RANKS = 10**6
"""The maximum number of processes of a run on all hosts."""
WRONG = (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError)


class Store(Protocol):
    """The key-value store that the processes share (torch.distributed's Store)."""

    def set(self, key: str, value: str) -> Any:
        """Write a value."""

    def get(self, key: str) -> Any:
        """Read a value as bytes."""

    def check(self, keys: list[str]) -> bool:
        """Whether all of these keys have been written."""


def read_entry(store: Store, key: str, convert: Callable[[Any], T]) -> T:
    """The value of a key in JSON, converted by `convert`. Raises RunFailed for an invalid value."""
    text = store.get(key)
    try:
        return convert(json.loads(text))
    except WRONG:
        shown = checks.one_line(text.decode(errors="replace")[: checks.MAX_SHOWN])
        raise RunFailed(
            f"the run's store has {shown!r} at {key!r}, which hetsim does not write: "
            "give --master an address that no other program reaches, and call hetsim-launch again"
        ) from None


def finite_seconds(value: Any) -> float:
    """A finite number of seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("no moment")
    return float(value)


def seconds_or_never(value: Any) -> float:
    """A number of seconds, or infinity for never."""
    return math.inf if value == math.inf else finite_seconds(value)


def rank_number(value: Any) -> int:
    """The number of a rank, or its number of earlier starts."""
    return checks.whole("a rank", value, least=0, most=MAX_RANKS)


def text(value: Any) -> str:
    """A text."""
    if not isinstance(value, str):
        raise ValueError("no text")
    return value


def checked_list(value: Any) -> list[Any]:
    """A list."""
    if not isinstance(value, list):
        raise ValueError("no list")
    return value


STOP = "stop"
"""The key that asks the leader to stop the run."""
POLL_SECONDS = 0.02
"""The interval at which the keeper reads the store."""
GAP_SECONDS = 1.0
"""A gap between readings after which the keeper itself did not run."""
VOID = "void"
Kind = Literal["kill", "stop", "continue"]


class Loss(NamedTuple):
    """A lost rank, and the time at which its process ended or was hurt, by the host's clock."""

    rank: int
    incarnation: int
    at: float


class Fault(NamedTuple):
    """A fault of a rank's process, in seconds of the run."""

    seconds: float
    rank: int
    kind: Kind
    until: float = math.inf
    """The time at which a new process of the rank joins; infinite if none does."""


class Upcoming:
    """Faults in the order of their times."""

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        self._upcoming = sorted(faults)

    @property
    def next_seconds(self) -> float:
        """The time of the next fault, in seconds of the run; infinite if there is none."""
        return self._upcoming[0].seconds if self._upcoming else math.inf

    def due(self, seconds: float) -> Sequence[Fault]:
        """Remove and return the faults that are due by now."""
        faults = []
        while self._upcoming and self.next_seconds <= seconds:
            faults.append(self._next())
        return faults

    def _next(self) -> Fault:
        return heapq.heappop(self._upcoming)


@dataclass(frozen=True, kw_only=True)
class SurvivingRun:
    """A run that survives the loss of a worker: data for its launchers and its keeper."""

    number: int = 0
    """The number of this run among the runs of its processes."""
    num_workers: int
    num_ranks: int
    leader: int
    succession: bool = False
    """Whether the senior member leads. Otherwise the run ends with its leader."""
    lost_after: float
    """The seconds without a heartbeat after which a rank counts as lost."""
    saves: bool = False
    """Whether the run saves checkpoints, and can be asked to stop."""
    joins: Sequence[tuple[int, float]] = ()
    """The ranks that are absent at the beginning, and their times of joining in seconds of the run; infinite: never."""
    faults: Sequence[tuple[Any, ...]] = ()
    """The faults that launchers of several hosts inject, as `Fault`."""

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
        joins = [(rank_number(rank), seconds_or_never(seconds)) for rank, seconds in checked_list(run.joins)]
        faults = [
            (seconds_or_never(seconds), rank_number(rank), text(kind), *map(seconds_or_never, until))
            for seconds, rank, kind, *until in checked_list(run.faults)
        ]
        return replace(run, joins=joins, faults=faults)

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks that take part at the beginning."""
        absent = {rank for rank, _ in self.joins}
        return tuple(rank for rank in range(self.num_ranks) if rank not in absent)

    def needs(self, rank: int) -> bool:
        """Whether the run ends without this rank: a leader without a successor, or a local server."""
        return rank > self.num_workers or (rank == self.leader and not self.succession)

    def role(self, rank: int) -> str:
        """The role of a rank that the run needs, for a sentence."""
        return RECORD if rank < self.num_workers else ", the server," if rank == self.num_workers else ", a local server,"


def loss_sentence(rank: int, why: str, role: str = "") -> str:
    """The error of a run that ends with this rank's process."""
    return f"the process of rank {rank}{role} {why}: the run is lost"


@dataclass(frozen=True)
class View:
    """The members of a generation, each with its number of earlier starts, and the ranks lost since the previous generation."""

    generation: int
    members: Mapping[int, int]
    """The members in the order of joining. Empty after the keeper has ended the run; ranks that are still running then fail."""
    lost: tuple[Loss, ...] = ()
    over: bool = False
    """Whether the leader's program has ended, and with it the run."""
    waits: bool = False
    """Whether all members are lost, and the run continues with the next rank that joins."""
    at: float = 0.0
    """The time of this decision, by the keeper's clock."""

    @property
    def ended(self) -> bool:
        """Whether the keeper has ended the run."""
        return not self.members and not self.waits

    @property
    def senior(self) -> int | None:
        """The member of the longest standing. Of the first members, the lowest rank."""
        return next(iter(self.members), None)

    def as_json(self) -> str:
        """As JSON."""
        return json.dumps([self.generation, list(self.members.items()), self.lost, self.over, self.waits, self.at])

    @classmethod
    def of_entries(cls, entries: Any) -> View:
        """From JSON, checked."""
        generation, members, lost, over, waits, at = entries
        return cls(
            checks.whole("generation", generation),
            {rank_number(rank): rank_number(incarnation) for rank, incarnation in checked_list(members)},
            tuple(Loss(rank_number(rank), rank_number(incarnation), finite_seconds(at)) for rank, incarnation, at in checked_list(lost)),
            checks.flag("over", over),
            checks.flag("waits", waits),
            finite_seconds(at),
        )


def view_key(generation: int) -> str:
    """The key of a generation's view."""
    return f"view/{generation}"


def go_key(generation: int) -> str:
    """The key that the last member to enter a regroup of this generation sets, or the keeper that ends it."""
    return f"go/{generation}"


def here_key(generation: int, rank: int) -> str:
    """The key that this member of a generation sets when it waits for the others."""
    return f"here/{generation}/{rank}"


def beat_key(rank: int, incarnation: int) -> str:
    """The key of a rank's heartbeats."""
    return f"beat/{rank}/{incarnation}"


def began_key(rank: int) -> str:
    """The key of the run's beginning, by the clock of a rank's host."""
    return f"began/{rank}"


def join_key(rank: int, incarnation: int) -> str:
    """The key that a process sets when it can take part."""
    return f"join/{rank}/{incarnation}"


def left_key(rank: int) -> str:
    """The key that a rank sets when the run has ended well for it."""
    return f"left/{rank}"


def failed_key(rank: int) -> str:
    """The key that a rank sets when it has failed, and with it the run if the rank is still a member."""
    return f"failed/{rank}"


def again_key(generation: int) -> str:
    """The key that a member of a generation sets when one of its connections broke although no rank is lost."""
    return f"again/{generation}"


BEGAN, OVER, SUSPECT, FAILED = "began", "over", "suspect", "failed"
RECORD = ", which keeps the record of the run,"


class Keeper:
    """Decides on views. `store` is the ranks' store. `tell` reports to the launcher.

    It reports (BEGAN, moment), (SUSPECT, rank, incarnation, why) for a process to end, and (FAILED, order, sentence) for a lost run.
    """

    def __init__(self, store: Any, tell: Any, run: SurvivingRun) -> None:
        self.store = store
        self.tell = tell
        self.run = run
        self.view = View(0, dict.fromkeys(run.members, 0))
        self.began: float | None = None
        """The beginning of the run, by the clock of its first leader's host."""
        self._looked = -math.inf
        self._awaited = {(rank, 0) for rank, seconds in run.joins if seconds < math.inf}
        self._beats: dict[tuple[int, int], tuple[bytes, float]] = {}

    def hear(self, event: str, rank: int, incarnation: int, at: float = 0.0, why: str = "") -> None:
        """Handle a launcher's report: a process was started and will join, or has ended, at this time and for this reason."""
        if event == "started":
            self._awaited.add((rank, incarnation))
            return
        self._awaited.discard((rank, incarnation))
        self._look_for_end()  # which the rank may have told before
        if self.view.members.get(rank) != incarnation:
            self._check_lost(self.view.members, rank, at, why)
            return
        members = {member: starts for member, starts in self.view.members.items() if member != rank}
        self._check_lost(members, rank, at, why)
        waits = self.run.succession and not members and not self.view.over and bool(self._awaited)
        self._publish(members, lost=(Loss(rank, incarnation, at),), waits=waits)

    def _check_lost(self, members: Mapping[int, int], rank: int, at: float, why: str) -> None:
        """Report if the run is lost with this rank, so that only these members are left."""
        run, seconds = self.run, 0.0 if self.began is None else at - self.began
        if run.succession and self.view.over and rank == self.view.senior:
            self.tell((FAILED, 1, loss_sentence(rank, why, RECORD)))
        elif not self.view.over and not any(peer < run.num_workers for peer in (*members, *(awaited for awaited, _ in self._awaited))):
            self.tell((FAILED, 2, f"every node of the cluster is gone at {seconds:.3g} s and none comes back: the run is lost"))

    def look(self, now: float) -> None:
        """Read the store: the beginning and the end of the run, joining ranks, and heartbeats."""
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
        joining = {member for member in self._awaited if self.store.check([join_key(*member)])}
        if joining and not self.view.over:
            self._awaited -= joining
            self._publish({**self.view.members, **dict(sorted(joining))})
        for member in self.view.members.items():
            self._listen(member, now)

    def _has_begun(self) -> bool:
        if self.began is None and self.store.check([BEGAN]):
            self.began = read_entry(self.store, BEGAN, finite_seconds)
            self.tell((BEGAN, self.began))
        return self.began is not None

    def _look_for_end(self) -> None:
        if self._has_begun() and not self.view.over and self.store.check([OVER]):
            self._publish(self.view.members, over=True)

    def end(self) -> None:
        """End the run, after its end or its failure. No rank takes part in it any more."""
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

    def _publish(self, members: Mapping[int, int], *, lost: tuple[Loss, ...] = (), over: bool = False, waits: bool = False) -> None:
        self.view = View(self.view.generation + 1, dict(members), lost, over or self.view.over, waits, clock())
        self.store.set(view_key(self.view.generation), self.view.as_json())
        self.store.compare_set(go_key(self.view.generation - 1), "", VOID)  # unless all its members are here, and connect


def keep(listening: socket.socket, pipe: Connection, run: SurvivingRun) -> None:
    """In a separate process: host the store on this socket until the launcher closes the pipe or ends.

    If the run saves checkpoints, this process passes on stop signals that it receives.
    """
    import torch.distributed as dist

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher gets Ctrl-C, too, and ends this process
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # torch's store complains of each client that is killed; errors go by the pipe
    wait_less_for_names()
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
