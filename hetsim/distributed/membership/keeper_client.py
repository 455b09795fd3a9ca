"""One process's view of the ranks that take part in a real run. `hetsim.sim.membership` is its twin in virtual time.

The keeper (`keeper.py`) decides, and writes one view after another. A process sends heartbeats and reads the views with separate clients
of the store, because calls of one client wait for each other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from statistics import fmean
from threading import Condition, Event, Lock, Thread
from typing import Any

from hetsim import checks
from hetsim.distributed.communication.gloo import GlooGroup
from hetsim.distributed.membership.keeper import (
    BEGAN,
    OVER,
    VOID,
    Loss,
    View,
    again_key,
    beat_key,
    began_key,
    finite_seconds,
    go_key,
    here_key,
    join_key,
    left_key,
    read_entry,
    view_key,
)
from hetsim.distributed.pacing.padding import clock
from hetsim.effects import PeerLost
from hetsim.errors import RunFailed, RunOver, RunStopped


class Ledger:
    """The losses of one run, by the host's clock. Threads that see a loss and the thread that regroups may write it at the same time.

    `absent` are the ranks that are absent at the run's begin or resume, and the begins of their absences in seconds of the run.
    """

    def __init__(self, members: Iterable[int], absent: Mapping[int, float] | None = None) -> None:
        self.absent = dict(absent or {})
        self._members = dict.fromkeys(members, 0)
        self._generation = 0
        self._lock = Lock()
        self._seen: dict[int, float] = {}
        """The time at which this process itself saw the loss of a rank, before the keeper announced it."""
        self._losses: list[tuple[Loss, float]] = []
        """The losses, and the times at which this process knew them."""
        self._returns: list[tuple[int, float]] = []
        self._regroups: list[tuple[float, float]] = []
        self.shift = 0.0
        """This host's clock minus the clock of the first leader's host."""
        self.counted_until = 0.0
        """The second of the run until which the activity of the workers includes their absences, after a restart from a checkpoint."""

    def lost_connection(self, rank: int, now: float) -> None:
        """Record that the connection to this rank broke."""
        with self._lock:
            self._seen[rank] = min(now, self._seen.get(rank, now))

    def see(self, view: View, now: float) -> None:
        """Record a newer view."""
        with self._lock:
            if view.generation <= self._generation:  # what the leader has seen is known from it
                return
            self._generation = view.generation
            for loss in view.lost:
                noticed = min(now, self._seen.pop(loss.rank, now))
                self._losses.append((loss._replace(at=min(loss.at, noticed)), noticed))  # a launcher may notice it later
            for rank, incarnation in view.members.items():
                if self._members.get(rank) != incarnation:
                    self._seen.pop(rank, None)
                    self._returns.append((rank, now))
            self._members = dict(view.members)

    def regrouped(self, last_entry: float, end: float) -> None:
        """Record the time of a regroup, from its last entry to its end."""
        with self._lock:
            self._regroups.append((last_entry, end))

    def saved(self) -> dict[str, Any]:
        """The leader's record by the first leader's clock, for a rank that joins and may lead later."""
        with self._lock:
            events = {"losses": self._losses, "returns": self._returns, "regroups": self._regroups}
            return {
                "generation": self._generation, "members": dict(self._members), "absent": self.absent,
                "counted_until": self.counted_until, **_shift_times(events, -self.shift),
            }  # fmt: skip

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Take over the leader's record, with its times. This process's later entries stay."""
        with self._lock:
            events = _shift_times(saved, self.shift)
            losses, returns = events["losses"], events["returns"]
            ahead = self._generation > saved["generation"]
            self._losses[: len(losses) if ahead else None] = losses
            self._returns[: len(returns) if ahead else None] = returns
            self._regroups = events["regroups"]
            self.absent = dict(saved["absent"])
            self.counted_until = saved["counted_until"]
            if not ahead:
                self._generation, self._members = saved["generation"], dict(saved["members"])

    @property
    def unannounced(self) -> dict[int, float]:
        """The ranks whose connections broke at the end of the run before the keeper announced their loss, and the times."""
        with self._lock:
            return {rank: at for rank, at in self._seen.items() if rank in self._members}

    def absences(self, began: float, end: float) -> Iterator[tuple[int, float, float]]:
        """(rank, from, until) in seconds of the run, for each absence until its end that the activity does not include."""
        since = {rank: began + seconds for rank, seconds in self.absent.items()}
        losses = [(loss.at, False, loss.rank) for loss, _ in self._losses] + [(at, False, rank) for rank, at in self.unannounced.items()]
        moves = sorted(losses + [(at, True, rank) for rank, at in self._returns])
        for at, returns, rank in moves:
            if not returns:
                since.setdefault(rank, at)
            elif rank in since:
                start = since.pop(rank)
                if at - began >= self.counted_until:
                    yield rank, start - began, at - began
        for rank, at in since.items():
            if at < end:
                yield rank, at - began, end - began

    def as_numbers(self, began: float) -> dict[str, Any] | None:
        """The numbers for the summary; None without any event."""
        unannounced = self.unannounced
        if not (self._losses or self._returns or self._regroups or unannounced):
            return None
        detections = [seen - loss.at for loss, seen in self._losses]
        regroups = [end - start for start, end in self._regroups]
        return {
            "detection_seconds": _mean(detections),
            "regroup_seconds": _mean(regroups),
            "regroups": [{"seconds": start - began, "took": end - start} for start, end in self._regroups],
            "lost": [{"rank": loss.rank, "seconds": loss.at - began, "detection_seconds": seen - loss.at} for loss, seen in self._losses]
            + [{"rank": rank, "seconds": at - began, "detection_seconds": None} for rank, at in unannounced.items()],
            "joined": [{"rank": rank, "seconds": at - began} for rank, at in self._returns],
        }


def _shift_times(events: Mapping[str, Any], seconds: float) -> dict[str, list[Any]]:
    """The same times, by a clock that is this many seconds ahead."""
    return {
        "losses": [(loss._replace(at=loss.at + seconds), noticed + seconds) for loss, noticed in events["losses"]],
        "returns": [(rank, at + seconds) for rank, at in events["returns"]],
        "regroups": [(start + seconds, end + seconds) for start, end in events["regroups"]],
    }


def _mean(numbers: list[float]) -> float | None:
    return fmean(numbers) if numbers else None


FOREVER = timedelta(days=7)
"""The maximum time until the keeper's next message."""
MEMBERSHIP_CHANGED = "the membership has changed"
SAVED = "saved"
"""The key under which the leader reports the newest complete checkpoint."""
PROCESSES_BEGAN = "processes began"
"""The key of the start of the run's processes, by the clock of the first leader's host."""
RESTARTS = "restarts"
"""The key under which the leader reports the number of complete restarts."""
NOBODY = -1
"""The leader of a run without members at its begin. A process that has not joined yet also assumes it."""
SETTLE_SECONDS = 1.0
"""The time after a broken connection until a loss is reported."""
PATIENCE_SECONDS = 15.0
"""The time for the keeper to answer, in addition to the time after which it suspects a rank."""


def failure_elsewhere() -> RunFailed:
    """The error that ends the run on a rank that has not failed itself."""
    error = RunFailed("the run has failed on another rank")
    error.__cause__ = PeerLost("the run has failed on another rank")  # which is nearer to the cause, and says it
    return error


def early_end() -> RunFailed:
    """The error that ends the run on the leader, because only the leader may declare the run over."""
    return RunFailed("another process said that the run is over before it was: the run is lost")


class KeeperClient:
    """One process's part: its rank, its number of earlier starts, and the newest view.

    `leader` is the rank that leads to the end. None: the senior member leads.
    """

    def __init__(
        self, connect: Callable[[], Any], *, rank: int, incarnation: int = 0, members: Iterable[int],
        absent: Mapping[int, float] | None = None, leader: int | None = None,
        beat_seconds: float, lost_after: float,
    ) -> None:  # fmt: skip
        self.connect = connect
        """A function that makes another client of the run's store."""
        self.rank = rank
        self.incarnation = incarnation
        self.beat_seconds = beat_seconds
        self.patience = PATIENCE_SECONDS + lost_after
        self.view = View(0, dict.fromkeys(members, 0))
        """The newest view."""
        self._first: dict[int, int] | None = dict(self.view.members) or None
        self._leader = leader
        self.leader = NOBODY if incarnation and leader is None else self._leader_of(self.view)
        """The leader of the generation in which this process takes part."""
        self.formed = 0
        """The generation in which this process takes part."""
        self.ended_quietly = False
        """Whether the run has ended in the generation in which this process takes part. Its group can then carry the results."""
        self._changed = Condition()
        self._closed, self._silent = Event(), Event()
        self._store, self._beats = connect(), connect()
        """Connecting may take seconds while other connections are made, so the heartbeats' client connects before the run can begin."""
        self._store.set_timeout(FOREVER)
        self._listener: Callable[[View], None] | None = None
        self.group: GlooGroup | None = None
        """The group of this process's generation, if it regroups. It is interrupted when a newer generation exists."""
        self.broken: Exception | None = None
        self.has_told_over = False
        self.ledger = Ledger(self.view.members, absent)
        self._born = clock()
        """The time of this process's start. It did not see earlier views when they were made."""
        Thread(target=self._follow, args=(connect(),), daemon=True).start()

    @property
    def takes_part(self) -> bool:
        """Whether this process is in the newest view."""
        return self.view.members.get(self.rank) == self.incarnation

    @property
    def is_first(self) -> bool:
        """Whether this process is one of the first members, and so knows the start of the run."""
        return self._first is not None and self._first.get(self.rank) == self.incarnation

    @property
    def leads_next(self) -> bool:
        """Whether this process leads in the newest generation."""
        return self.takes_part and self._leader_of(self.view) == self.rank

    def _leader_of(self, view: View) -> int:
        if self._leader is not None:
            return self._leader
        return NOBODY if view.senior is None else view.senior

    @property
    def changed(self) -> bool:
        """Whether a newer generation exists than the one in which this process takes part."""
        return self.view.generation != self.formed

    def check(self) -> None:
        """Raise PeerLost if the membership has changed."""
        if self.changed:
            raise PeerLost(MEMBERSHIP_CHANGED)

    def check_for(self, seconds: float) -> None:
        """The same for this number of seconds, unless it is negative."""
        if seconds > 0:
            with self._changed:
                self._changed.wait_for(lambda: self.changed or self.broken is not None, seconds)
            self.check()

    def beat(self, progress: Callable[[], int]) -> None:
        """Send a heartbeat with this process's progress: once now, and from now on while the interpreter lets a thread run."""

        def send_beat(count: int) -> bool:
            try:
                self._beats.set(beat_key(self.rank, self.incarnation), f"{count} {progress()}")
            except Exception:  # the run has ended, and the store with it
                return False
            return True

        def keep_beating() -> None:
            count = 2
            while not self._silent.wait(self.beat_seconds) and send_beat(count):
                count += 1

        if send_beat(1):
            Thread(target=keep_beating, daemon=True).start()

    def __enter__(self) -> KeeperClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End the run for this process. After a good end, heartbeats continue until the keeper ends the run, because it may still hang."""
        self._closed.set()
        if kind is None or issubclass(kind, RunStopped):
            with contextlib.suppress(RuntimeError):  # the store is gone, and the launcher with it
                self._store.set(left_key(self.rank), "")
        else:
            self._silent.set()

    def listen(self, listener: Callable[[View], None]) -> None:
        """Call this function with the newest view now, and with each newer view, in a separate thread."""
        with self._changed:
            self._listener = listener
        listener(self.view)

    def tell_began(self, moment: float, *, processes: float, leads: bool) -> None:
        """Report that the run begins at this time of this host's clock, and its `processes` began at that time."""
        self._store.set(began_key(self.rank), repr(moment))
        if leads:
            self._store.set(PROCESSES_BEGAN, repr(processes))
            self._store.set(BEGAN, repr(moment))

    def began(self) -> float:
        """The beginning of the run, by this host's clock. Waits until it is known."""
        return self._begins(self._store)[1]

    def processes_began(self) -> float:
        """The start of the run's processes, by this host's clock."""
        return read_entry(self._store, PROCESSES_BEGAN, finite_seconds) + self.ledger.shift

    def _begins(self, store: Any) -> tuple[float, float]:
        """The beginning of the run, by the keeper's clock and by this host's."""
        began = read_entry(store, BEGAN, finite_seconds)
        own_key = began_key(self.rank)
        self.ledger.shift = read_entry(store, own_key, finite_seconds) - began if store.check([own_key]) else 0.0
        return began, began + self.ledger.shift

    def join(self) -> None:
        """Report that this process can take part, and wait until it does. Raises RunOver if the run has ended."""
        self._store.set(join_key(self.rank, self.incarnation), "")
        with self._changed:
            self._changed.wait_for(lambda: self.takes_part or self.view.over or self.broken)
        if not self.takes_part:  # the others wait for one that does, also if the run has ended meanwhile
            self.check_over()

    def tell_saved(self, version: int) -> None:
        """On the leader: report that the checkpoint at this version is complete."""
        self._store.set(SAVED, str(version))

    def newest_saved(self) -> int | None:
        """The version of the newest complete checkpoint of this run; None if there is none."""
        return read_entry(self._store, SAVED, partial(checks.whole, "version", least=0)) if self._store.check([SAVED]) else None

    def num_restarts(self) -> int:
        """The number of restarts of this run from a checkpoint, or from its first version."""
        return read_entry(self._store, RESTARTS, partial(checks.whole, "restarts", least=0)) if self._store.check([RESTARTS]) else 0

    def tell_restarted(self, count: int) -> None:
        """On the leader: report that this restart is complete."""
        self._store.set(RESTARTS, str(count))

    def tell_over(self) -> None:
        """On the leader: report that its program has ended."""
        self.has_told_over = True
        self._store.set(OVER, "")

    def wait_until_over(self) -> bool:
        """Wait until the run is over (True) or the membership changes (False)."""
        with self._changed:
            self._changed.wait_for(lambda: self.changed or self.view.over or self.broken)
        if self.broken is not None:
            raise self.broken
        return self.view.over

    def ends_within(self, seconds: float) -> bool:
        """Wait at most these seconds. Returns whether the run has ended."""
        with self._changed:
            return self._changed.wait_for(lambda: self.view.over, seconds)

    def check_over(self) -> None:
        """Raise RunOver if the run has ended, or the error that stopped the membership thread."""
        if self.broken is not None:
            raise self.broken
        if self.view.over:
            raise RunOver

    def wait_for_newer(self, generation: int) -> None:
        """Wait for a newer generation after a connection broke in this one. If no rank is lost, request one with the same members."""
        if not self._newer_within(generation, SETTLE_SECONDS):
            self._store.set(again_key(generation), "")
            if not self._newer_within(generation, self.patience):
                raise RunFailed(f"rank {self.rank} lost a connection, and the launcher does not answer: the run is lost")
        if self.broken is not None:
            raise self.broken

    def _newer_within(self, generation: int, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.view.generation > generation or self.broken is not None, seconds)

    def enter(self, group: GlooGroup) -> None:
        """Communicate through this group from now on."""
        with self._changed:
            self.group = group
            changed = self.changed
        if changed:
            group.interrupt()

    def form(self, *, least: int, after_end: bool = False) -> GlooGroup:
        """Wait until all members of the newest view (at least `least`) are ready, and form a group with them.

        Raises PeerLost if one of them is lost in the meantime, and RunOver if the run has ended, unless the group forms `after_end`.
        """
        while True:
            with self._changed:
                self._changed.wait_for(lambda: len(self.view.members) >= least or self.view.ended or self.view.over or self.broken)
                view = self.view
            if self.broken is not None or not after_end:
                self.check_over()
            if view.ended:
                raise failure_elsewhere()
            if not self.takes_part:  # it was suspected, and is being ended
                reason = f"rank {self.rank} was suspected to be lost, and is not missed any more"
                raise RunFailed(reason) from PeerLost(reason)
            go = go_key(view.generation)
            self._store.set(here_key(view.generation, self.rank), "")  # no counter, which another program could keep from its end
            if self._store.check([here_key(view.generation, rank) for rank in view.members]):
                self._store.compare_set(go, "", "go")
            if self._store.get(go).decode() != VOID:
                with self._changed:
                    self.formed, self.leader, self.group = view.generation, self._leader_of(view), None
                group = GlooGroup.form(self._store, f"gen{view.generation}", rank=self.rank, members=sorted(view.members))
                self.enter(group)
                return group
            self.wait_for_newer(view.generation)

    def _follow(self, store: Any) -> None:
        store.set_timeout(FOREVER)
        generation = 0
        try:
            while True:
                generation += 1
                view = read_entry(store, view_key(generation), View.of_entries)
                if self._closed.is_set():
                    if view.ended:
                        break
                    continue
                if view.lost or store.check([BEGAN]):
                    began, own_began = self._begins(store)
                    lost = tuple(loss._replace(at=loss.at - began + own_began) for loss in view.lost)
                    view = replace(view, lost=lost, at=view.at - began + own_began)
                self.ledger.see(view, view.at if view.at < self._born else clock())
                self._first = self._first or dict(view.members)
                with self._changed:
                    if view.over and not self.view.over:
                        self.ended_quietly = view.generation == self.formed + 1
                    self.view = view
                    listener, group = self._listener, self.group
                    self._changed.notify_all()
                if group is not None and self.changed and not (self.ended_quietly and not view.ended):
                    group.interrupt()
                if listener is not None:
                    listener(view)
                if view.ended:
                    break
            self._silent.set()
        except Exception as error:
            with self._changed:
                self.broken = error
                if not isinstance(error, RunFailed):
                    self.broken = RunFailed(f"rank {self.rank} cannot reach the launcher's store any more ({error}): the run is lost")
                    self.broken.__cause__ = PeerLost("the launcher is gone")  # which is nearer to the cause, if anybody can say it
                self._changed.notify_all()
