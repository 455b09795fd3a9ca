"""Judges how the processes of one launcher end, for a launcher that forks all ranks and for each call of hetsim-launch.

A process is lost if it is killed, ends without a report, or has lost its connections. The run continues without it if possible. Any
other error fails the run. Launchers differ in how they start processes and detect their ends (`SupervisedProcess`), and in the place of the
keeper (`ToKeeper`).
"""

from __future__ import annotations

import math
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from hetsim.checkpoints.resume import clock_of
from hetsim.distributed.launch.failure_report import CAUSE, CONSEQUENCE
from hetsim.distributed.membership.keeper import FAILED, SUSPECT, SurvivingRun, Upcoming, loss_sentence
from hetsim.errors import RunFailed
from hetsim.runtime.experiment import Experiment

GRACE_SECONDS = 3.0
"""The time for other processes to report their errors after the first one, and for a process to end."""
BEGIN_SECONDS = 1.0
"""The time for the news that a run has begun, if a process of it is lost."""
POLL_SECONDS = 0.05
"""The interval of checks while the meaning of an end is unknown."""
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "continue": signal.SIGCONT}


class End(NamedTuple):
    """The end of a process, with or without a report."""

    order: int | None = None
    """The order: the lower, the nearer to the cause of the run's end. None: no report."""
    answer: Any = None
    """The process's error, or its report at the end of the run."""

    @property
    def is_loss(self) -> bool:
        """Whether the run may continue: the process was killed, ended without a report, or has lost its connections."""
        return self.order in (None, CONSEQUENCE)

    @property
    def is_well(self) -> bool:
        """Whether the process reached the end of its program."""
        return self.order is not None and not isinstance(self.answer, Exception)


@dataclass(kw_only=True, eq=False)
class SupervisedProcess(ABC):
    """The process of a rank."""

    rank: int
    incarnation: int = 0
    """The number of earlier starts of this rank."""
    hurt_at: float | None = None
    """The time at which a fault was injected into it, by the host's clock."""
    back_at: float = math.inf
    """The time at which a new process of its rank then joins, in seconds of the run."""
    why: str = ""
    """The reason why the launcher ended it, or why it is lost although it has reported."""

    @abstractmethod
    def end(self) -> End | None:
        """Its end; None while it runs."""

    @abstractmethod
    def status(self) -> int | None:
        """Its exit status."""

    @abstractmethod
    def signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""

    @property
    def reason(self) -> str:
        """The reason of its end, as a sentence."""
        return self.why or f"ended by itself (exit status {self.status()})"

    def failure(self, end: End, role: str = "") -> tuple[int, Exception]:
        """The order and the error of a run that ends with this process. `role` describes its rank."""
        if end.order is None:
            return 1, RunFailed(loss_sentence(self.rank, self.reason, role))
        return end.order, end.answer


class ToKeeper(Protocol):
    """The launcher's exchange with the keeper."""

    @property
    def began(self) -> float | None:
        """The beginning of the run by this host's clock; None before it is known."""

    @property
    def faults(self) -> Upcoming:
        """The faults of the run."""

    def reports(self) -> Iterator[tuple[Any, ...]]:
        """The keeper's reports since the last call: (SUSPECT, rank, incarnation, why), (FAILED, order, sentence)."""

    def tell(self, event: str, rank: int, incarnation: int, at: float = 0.0, why: str = "") -> None:
        """Report that a process was "started", or "lost" at this time of this host's clock."""

    def run_without(self, rank: int) -> SurvivingRun | None:
        """The current run if it may survive the loss of this rank; None if it ends with any rank."""

    def has_left(self, rank: int) -> bool:
        """Whether the run has ended well for this rank, so that its process's end counts as normal."""


class Supervision:
    """The processes of a launcher. `start(rank, incarnation, joins_at)` starts another one."""

    def __init__(
        self, processes: Sequence[SupervisedProcess], keeper: ToKeeper, *,
        start: Callable[[int, int, float], SupervisedProcess],
    ) -> None:  # fmt: skip
        self.running = list(processes)
        self.failures: list[tuple[int, Exception]] = []
        """The failures of the run, each with its order."""
        self.summary: Any = None
        """The leader's report at the end of the run."""
        self._keeper = keeper
        self._start = start
        self._ended: list[tuple[SupervisedProcess, End, float]] = []
        """The ended processes that are not judged yet, and the times of their ends."""

    @property
    def complete(self) -> bool:
        """Whether all processes have ended and been judged."""
        return not self.unjudged

    @property
    def unjudged(self) -> list[SupervisedProcess]:
        """The running processes, and ended ones that are not judged yet."""
        return self.running + [process for process, _, _ in self._ended]

    @property
    def undecided(self) -> bool:
        """Whether the run has neither a summary nor a failure yet."""
        return self.summary is None and not self.failures

    def look(self, now: float) -> None:
        """Follow the keeper's reports, judge ended processes, and inject faults that are due at this time."""
        for kind, *details in self._keeper.reports():
            if kind == FAILED:
                order, sentence = details
                self.failures.append((order, RunFailed(sentence)))
            elif kind == SUSPECT:
                self._kill(*details)
        for process in list(self.running):
            if (end := process.end()) is not None:
                self.running.remove(process)
                self._ended.append((process, end, now))
        self._ended = [entry for entry in self._ended if not self._judge(*entry, now)]
        if self.undecided:
            self._inject(now)

    def pause(self, now: float) -> float:
        """The seconds until the next check, if nothing arrives before."""
        if self._ended:
            return POLL_SECONDS
        if self._keeper.began is None or not self.undecided:
            return math.inf
        return max(0.0, self._keeper.began + self._keeper.faults.next_seconds - now)

    def _judge(self, process: SupervisedProcess, end: End, ended_at: float, now: float) -> bool:
        """Judge the end of a process. Returns whether that is possible yet, because a process may end before the run's begin is known."""
        if end == End(CAUSE) and not self._keeper.has_left(process.rank):
            end = End()
        if end.is_well:
            self.summary = end.answer or self.summary
            return True
        role = ""
        if end.is_loss:
            if self.summary is not None:
                return True
            run, began = self._keeper.run_without(process.rank), self._keeper.began
            if run is not None and not run.needs(process.rank):
                if began is not None:
                    self._lose(process, end, max(ended_at, began))
                    return True
                if now - ended_at < BEGIN_SECONDS:
                    return False
            elif run is not None:
                role = run.role(process.rank)
        self.failures.append(process.failure(end, role))
        return True

    def _lose(self, process: SupervisedProcess, end: End, ended_at: float) -> None:
        """Report the loss of a process that the run survives. If a new process of its rank is to join, start it first."""
        if end.order is not None:
            process.why = f"lost its connections ({end.answer})"
        if process.back_at < math.inf and not self.failures:
            again = self._start(process.rank, process.incarnation + 1, process.back_at)
            self.running.append(again)
            self._keeper.tell("started", again.rank, again.incarnation)
        at = ended_at if process.hurt_at is None else process.hurt_at
        self._keeper.tell("lost", process.rank, process.incarnation, at, process.reason)

    def _kill(self, rank: int, incarnation: int, why: str) -> None:
        for process in self.running:
            if (process.rank, process.incarnation) == (rank, incarnation):
                process.why = why
                process.signal(signal.SIGKILL)

    def _inject(self, now: float) -> None:
        if self._keeper.faults.next_seconds == math.inf or self._keeper.began is None:
            return
        for fault in self._keeper.faults.due(now - self._keeper.began):
            for process in self.running:
                if process.rank == fault.rank:
                    process.signal(SIGNALS[fault.kind])
                    process.hurt_at, process.back_at = None if fault.kind == "continue" else now, fault.until


def seconds_at_begin(experiment: Experiment) -> float:
    """The run's clock at the beginning of a run with faults: that of its checkpoint, or 0."""
    faults = experiment.cluster.faults
    return clock_of(experiment.resume) if experiment.resume is not None and (faults.nodes or faults.pauses) else 0.0
