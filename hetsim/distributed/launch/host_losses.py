"""Judge the ended processes of one call of hetsim-launch, in a thread with its own client of the launchers' store.

The keeper is a thread of the first launcher (`host_keeper.py`). It and the launchers exchange messages through the store.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Event, Thread
from typing import Any

from hetsim.distributed.launch.failure_report import CONSEQUENCE, Failure
from hetsim.distributed.launch.store import LOST, announced_run, leaders_time, run_store
from hetsim.distributed.launch.supervision import POLL_SECONDS, End, SupervisedProcess, Supervision
from hetsim.distributed.membership.keeper import (
    BEGAN,
    FAILED,
    SUSPECT,
    Fault,
    SurvivingRun,
    Upcoming,
    began_key,
    checked_list,
    finite_seconds,
    left_key,
    rank_number,
    read_entry,
    text,
)
from hetsim.distributed.pacing.padding import clock
from hetsim.errors import RunFailed
from hetsim.runtime.checkpointing import STOPPED, StopRequest

MAX_ASKED = 30
"""The number of requests for failures, at ten a second, after which the launcher assumes that the store does not answer the thread."""
ERROR = 1
"""The exit status of a process that has printed its own error. The run has then failed, because other ranks would fail, too."""


def report_key(node: int, number: int) -> str:
    """The key of a launcher's report about one of its processes."""
    return f"told/{node}/{number}"


def end_key(node: int) -> str:
    """The key under which the keeper lists the processes that a launcher has to end, and the reasons."""
    return f"end/{node}"


def gone_key(node: int) -> str:
    """The key that tells a launcher that it was silent, for how long, and that the run continues without its processes."""
    return f"gone/{node}"


@dataclass(kw_only=True, eq=False)
class CommandRank(SupervisedProcess):
    """A process that runs the command, and the file for the reason of its failure."""

    process: subprocess.Popen[bytes]
    path: Path

    def end(self) -> End | None:
        status, reported = self.process.poll(), self.reported()
        if reported is not None and (status is not None or reported.order != CONSEQUENCE):  # otherwise it is about to end
            return End(reported.order, RunFailed(reported.sentence))
        if status == ERROR:
            return End(2, self.failure(End())[1])
        return None if status is None else End(0) if status in (0, STOPPED) else End()

    def reported(self) -> Failure | None:
        """The reason of its failure that it has written itself."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            message = json.loads(self.path.read_text(encoding="utf-8"))["message"]
            return Failure(int(message["extraInfo"]["order"]), str(message["message"]))
        return None

    def status(self) -> int | None:
        return self.process.poll()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)


class StoreToKeeper:
    """The exchange of this node rank's launcher, with these ranks, with the keeper. One thread uses it.

    `connect` makes a client of the launchers' store.
    """

    def __init__(self, node: int, ranks: Sequence[int], connect: Callable[[], Any], stop: StopRequest) -> None:
        self._node = node
        self._ranks = ranks
        self._connect = connect
        self._stop = stop
        self._num_told = self._num_ended = 0
        self._gone = False
        self._faults: tuple[SurvivingRun | None, Upcoming] = None, Upcoming()

    @cached_property
    def _store(self) -> Any:
        return self._connect()

    @property
    def began(self) -> float | None:
        run = announced_run(self._store)
        if run is None or not (store := run_store(self._store, run.number)).check([BEGAN]):
            return None
        own_keys = [began_key(rank) for rank in self._ranks if store.check([began_key(rank)])]
        return read_entry(store, own_keys[0] if own_keys else BEGAN, finite_seconds)

    @property
    def number(self) -> int:
        """The number of the current run."""
        return -1 if self._faults[0] is None else self._faults[0].number

    @property
    def faults(self) -> Upcoming:
        if (run := announced_run(self._store)) != self._faults[0]:
            self._faults = run, Upcoming(() if run is None else (Fault(*fault) for fault in run.faults))
        return self._faults[1]

    def reports(self) -> Iterator[tuple[Any, ...]]:
        if self._store.check([end_key(self._node)]):
            named = read_entry(self._store, end_key(self._node), _checked_ends)
            for rank, incarnation, why in named[self._num_ended :]:
                yield SUSPECT, rank, incarnation, why
            self._num_ended = len(named)
        if not self._gone and self._store.check([gone_key(self._node)]):
            self._gone, seconds = True, read_entry(self._store, gone_key(self._node), finite_seconds)
            yield FAILED, 1, f"node rank 0 had not heard of this host for {seconds:.0f} s: the run continues without it"

    def tell(self, event: str, rank: int, incarnation: int, at: float = 0.0, why: str = "") -> None:
        if (run := announced_run(self._store)) is not None:
            at = leaders_time(run_store(self._store, run.number), self._ranks, at) if event == "lost" else at
            self._store.set(report_key(self._node, self._num_told), json.dumps([run.number, event, rank, incarnation, at, why]))
            self._num_told += 1

    def run_without(self, rank: int) -> SurvivingRun | None:
        if self._stop.asked:
            return None
        self._store.set(LOST, str(rank))  # before it is asked whether the next run is being prepared, see `announce`
        return announced_run(self._store)

    def has_left(self, rank: int) -> bool:
        """Whether the current run, if there is one, has ended for this rank."""
        run = announced_run(self._store)
        return run is None or bool(run_store(self._store, run.number).check([left_key(rank)]))


def _checked_ends(entries: Any) -> list[tuple[int, int, str]]:
    """The processes in the keeper's list."""
    return [(rank_number(rank), rank_number(incarnation), text(why)) for rank, incarnation, why in checked_list(entries)]


class HostLosses:
    """The failed processes of one launcher."""

    def __init__(self, processes: Sequence[CommandRank], keeper: StoreToKeeper, start: Callable[[int, int, float], CommandRank]) -> None:
        self._supervision = Supervision(processes, keeper, start=start)
        self._num_asked = 0
        """The number of requests for failures since the thread's last check."""
        self._stopped = Event()

    @contextlib.contextmanager
    def watching(self) -> Iterator[HostLosses]:
        """Within this context, a thread judges processes and ends them."""
        Thread(target=self._watch, daemon=True).start()
        try:
            yield self
        finally:
            self._stopped.set()

    @property
    def complete(self) -> bool:
        """Whether all processes have ended and been judged."""
        return self._supervision.complete or (self._is_alone and all(process.end() is not None for process in self._supervision.unjudged))

    def failures(self) -> list[Failure]:
        """The failures of the run. Call it repeatedly while the run continues."""
        self._num_asked += 1
        ended = [(process, process.end()) for process in self._supervision.unjudged] if self._is_alone else []
        unjudged = [process.failure(end) for process, end in ended if end is not None and not end.is_well]
        return [Failure(order, str(error)) for order, error in self._supervision.failures + unjudged]

    @property
    def _is_alone(self) -> bool:
        """Whether the store does not answer the thread."""
        return self._num_asked > MAX_ASKED

    def _watch(self) -> None:
        with contextlib.suppress(RuntimeError):  # the store is gone, and the first launcher with it, which `Hosts` notices
            try:
                while not self._stopped.wait(POLL_SECONDS):
                    self._supervision.look(clock())
                    self._num_asked = 0
            except RunFailed as error:
                self._supervision.failures.append((1, error))
