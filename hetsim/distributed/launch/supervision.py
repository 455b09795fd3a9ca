"""The launcher's part while a run goes on: it injects faults, learns of ends, and tells the keeper; it kills whom the keeper suspects."""

from __future__ import annotations

import contextlib
import math
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from hetsim.distributed.membership.faults import Schedule
from hetsim.distributed.membership.keeper import BEGAN, GONE, NO_RECORD, OVER, SUSPECT
from hetsim.distributed.pacing.padding import clock
from hetsim.errors import RunFailed, RunStopped
from hetsim.runtime.experiment import Experiment

GRACE_SECONDS = 3.0
"""Seconds that other processes have to report their errors after the first one, and that a process has to end."""
BEGIN_SECONDS = 1.0
"""In which it is heard that a run has begun, of which a process is lost."""
MAX_WAIT = 3600.0
"""Seconds of one wait: it cannot last for ever."""
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "continue": signal.SIGCONT}
LOST_CONNECTION = 3
"""The number of the error of a process that has lost others, see `hetsim.distributed.launch.process.child`."""


@dataclass
class Child:
    """A process of the run, and the end of a pipe by which it reports its result or its error."""

    rank: int
    incarnation: int
    process: Any
    pipe: Connection
    hurt_at: float | None = None
    """When a fault was injected into it, by the host's clock."""
    back_at: float = math.inf
    """When a new process of its rank is to join after that, in seconds of the run."""
    joins_at: float = 0.0
    """When it takes part, in seconds of the run; infinite: never."""
    why: str = ""
    """Why it was ended by the launcher."""


class Supervision:
    """Follows the processes of a run to its end. `start(rank, incarnation, joins_at)` starts one more."""

    def __init__(
        self, experiment: Experiment, children: list[Child], keeper: Child, *,
        start: Callable[[int, int, float | None], Child], elastic: bool, schedule: Schedule, lost_after: float,
    ) -> None:  # fmt: skip
        self.experiment = experiment
        self.children = children
        """All that were started; the last one of each rank is its present one."""
        self.keeper = keeper
        self.began: float | None = None
        self._start = start
        self._elastic = elastic
        self._succession = elastic and not experiment.coordination.needs_server
        """Whether another rank leads when the leader is lost."""
        self._needed = frozenset() if self._succession else frozenset({experiment.leader, *experiment.servers})
        """The ranks without which the run does not go on."""
        self._schedule = schedule
        self._lost_after = lost_after
        self._running = {child.pipe: child for child in children}
        self._keeps = True
        self._reasons: list[tuple[int, Exception]] = []
        self._over = False
        """Whether the leader's program has ended, or it has let workers go: then the run is not lost with the others."""
        self._summary: dict[str, Any] | RunStopped | None = None
        """What the leader has reported at the end of the run."""

    def outcome(self) -> dict[str, Any]:
        """The summary. Raises the error of a process that is nearest to the cause: the one of the lowest number.

        RunStopped if the run was asked to stop, and is saved.
        """
        deadline = math.inf
        for rank in self._schedule.joins:
            self._tell("started", rank, 0)
        while self._running:
            if self._reasons or self._summary is not None:
                deadline = min(deadline, clock() + GRACE_SECONDS)
            ready = wait([*self._running, *([self.keeper.pipe] if self._keeps else [])], min(self._pause(), deadline - clock(), MAX_WAIT))
            for pipe in ready:
                assert isinstance(pipe, Connection)
                if pipe is self.keeper.pipe:
                    if self._keeps and pipe.poll():  # it was not heard already
                        self._hear()
                elif pipe in self._running:
                    self._receive(self._running.pop(pipe))
            if not ready and clock() >= deadline:
                break
            if self._summary is None and not self._reasons:
                self._inject()
        nobody = self._summary is None and not self._reasons
        while self._keeps and self.keeper.pipe.poll(BEGIN_SECONDS if nobody and not self._reasons else 0):
            self._hear()  # what the last loss means
        if self._summary is None and not self._reasons:
            self._reasons.append((2, RunFailed("all processes of the run have ended, and none has reported its results: the run is lost")))
        if self._reasons:
            raise min(self._reasons, key=lambda reason: reason[0])[1]
        if isinstance(self._summary, RunStopped):
            raise self._summary
        assert self._summary is not None
        return self._summary

    def pass_on(self) -> None:
        """Pass the signal that asks the run to stop on to the leader, or to all: whichever rank gets it tells the leader."""
        for child in self._running.values():
            leads = self._succession or child.rank == self.experiment.leader
            if leads and child.process.pid is not None:  # which is being started otherwise
                with contextlib.suppress(ProcessLookupError):  # it has just ended
                    os.kill(child.process.pid, signal.SIGUSR1)

    def _pause(self) -> float:
        if self.began is None or self._summary is not None or self._reasons:
            return math.inf
        return max(0.0, self.began + self._schedule.next_seconds - clock())

    def _inject(self) -> None:
        if self.began is None:
            return
        for fault in self._schedule.due(clock() - self.began):
            for child in self._running.values():
                if child.rank == fault.rank:
                    with contextlib.suppress(ProcessLookupError):  # it has just ended, which is heard by its pipe
                        os.kill(child.process.pid, SIGNALS[fault.kind])
                    child.hurt_at, child.back_at = None if fault.kind == "continue" else clock(), fault.until

    def _start_again(self, rank: int, incarnation: int, joins_at: float) -> None:
        child = self._start(rank, incarnation, joins_at)
        self.children.append(child)
        self._running[child.pipe] = child
        self._tell("started", rank, incarnation)

    def _tell(self, what: str, rank: int, incarnation: int, at: float = 0.0) -> None:
        with contextlib.suppress(OSError):  # it is gone, which is heard by its pipe
            self.keeper.pipe.send((what, rank, incarnation, at))

    def _hear(self) -> None:
        """A report of the keeper."""
        try:
            what, *about = self.keeper.pipe.recv()
        except (EOFError, OSError):
            self._reasons.append((1, RunFailed("the process that keeps the run's store ended by itself: the run is lost")))
            self._keeps = False
            return
        if what == BEGAN:
            (self.began,) = about
        elif what == OVER:
            self._over = True
        elif what == GONE:
            self._reasons.append(
                (2, RunFailed(f"every node of the cluster is gone at {self._seconds(*about)}, and the weights are: the run is lost"))
            )
        elif what == NO_RECORD:
            self._reasons.append(
                (
                    1,
                    self._without(
                        [child for child in self.children if child.rank == about[0]][-1], role=", which keeps the record of the run,"
                    ),
                )
            )
        elif what == SUSPECT:
            rank, incarnation, last = about
            for child in self._running.values():
                if (child.rank, child.incarnation) == (rank, incarnation):
                    child.why = f"gave no sign of life for {self._lost_after:g} s{after_effect(last)} and was ended"
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(child.process.pid, signal.SIGKILL)

    def _receive(self, child: Child) -> None:
        """A process has reported, or ended without."""
        now = clock()
        try:
            order, answer = child.pipe.recv()
        except (EOFError, OSError):
            self._ended(child, now)
            return
        if order == LOST_CONNECTION and not self._reasons and self._goes_on_without(child):
            child.why = f"lost its connections ({answer})"
            self._ended(child, now)
        elif isinstance(answer, Exception):
            self._reasons.append((order, answer))
        elif answer is not None:
            self._summary = answer
        else:  # it has ended well, as it was let go
            self._over = True

    def _goes_on_without(self, child: Child) -> bool:
        """Whether the run can: it has begun, of which the keeper may tell a little after the process has ended."""
        if not self._elastic or child.rank in self._needed:
            return False
        deadline = clock() + BEGIN_SECONDS
        while self.began is None and self._keeps and self.keeper.pipe.poll(max(0.0, deadline - clock())):
            self._hear()
        return self.began is not None

    def _ended(self, child: Child, now: float) -> None:
        """A process ended without a word: it is lost, and the run with it unless that can go on."""
        if self._summary is not None:
            return
        if self._reasons or not self._goes_on_without(child):
            self._reasons.append((1, self._without(child)))
            return
        assert self.began is not None
        now = max(now, self.began)
        self._tell("lost", child.rank, child.incarnation, now if child.hurt_at is None else child.hurt_at)
        if child.back_at < math.inf:
            self._start_again(child.rank, child.incarnation + 1, child.back_at)
        others = {each.rank for each in self._running.values() if each.joins_at < math.inf}.difference(self.experiment.servers)
        if not others and not self._over:
            self._reasons.append(  # if the leader is gone, too, that is nearer to the cause
                (2, RunFailed(f"every node of the cluster is gone at {self._seconds(now)} and none comes back: the run is lost"))
            )

    def _without(self, child: Child, role: str = "") -> RunFailed:
        """What ends a run that cannot go on without this process, in this role."""
        child.process.join(GRACE_SECONDS)
        why = child.why or f"ended by itself (exit status {child.process.exitcode})"
        if self._elastic and self.began is not None and child.rank in self._needed:
            role = ", the server," if child.rank == self.experiment.leader else ", a local server,"
        return RunFailed(f"the process of rank {child.rank}{role} {why}: the run is lost")

    def _seconds(self, moment: float) -> str:
        assert self.began is not None
        return f"{moment - self.began:.3g} s"


def after_effect(beat: str) -> str:
    """What the last heartbeat said."""
    _, _, step = beat.partition(" ")
    return f" after its effect {step}" if step else ""
