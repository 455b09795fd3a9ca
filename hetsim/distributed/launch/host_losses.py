"""The processes of one call of hetsim-launch: a thread with a client of its own of the launchers' store judges those that have ended.

The keeper is a thread of the first launcher (`host_keeper.py`); what it says to a launcher, and what that tells it, stands in the store.
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

from hetsim.distributed.launch.announcement import LOST, announced, on_leaders_clock, run_store
from hetsim.distributed.launch.failure_report import CONSEQUENCE, Failure
from hetsim.distributed.launch.supervision import POLL_SECONDS, End, RankProcess, Supervision
from hetsim.distributed.membership.faults import Fault, Upcoming
from hetsim.distributed.membership.keeper import BEGAN, FAILED, SUSPECT, SurvivingRun, began_key, left_key
from hetsim.distributed.membership.peers import listed, moment, of_peer, rank_number, text
from hetsim.distributed.pacing.padding import clock
from hetsim.errors import RunFailed
from hetsim.runtime.checkpointing import STOPPED, StopRequest

MAX_ASKED = 30
"""How often the launcher asks for failures, ten times a second, until it takes it that the store does not answer the thread."""
ERROR = 1
"""The exit status of a process that has printed an error of its own: the run has failed with it, as another rank would have it, too."""


def told_key(node: int, number: int) -> str:
    """Where a launcher tells the keeper of one of its processes."""
    return f"told/{node}/{number}"


def end_key(node: int) -> str:
    """Where the keeper names the processes that a launcher has to end, and why."""
    return f"end/{node}"


def gone_key(node: int) -> str:
    """Where a launcher reads that it was not heard of, for how long, and that the run continues without its processes."""
    return f"gone/{node}"


@dataclass(kw_only=True, eq=False)
class CommandRank(RankProcess):
    """A process that runs the command, and the file where it writes why it failed."""

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
        """Why it failed, as it has written itself."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            message = json.loads(self.path.read_text(encoding="utf-8"))["message"]
            return Failure(int(message["extraInfo"]["order"]), str(message["message"]))
        return None

    def status(self) -> int | None:
        return self.process.poll()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)


class StoreToKeeper:
    """What the launcher of this node rank, with these ranks, hears from the keeper and tells it. One thread uses it.

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
        run = announced(self._store)
        if run is None or not (store := run_store(self._store, run.number)).check([BEGAN]):
            return None
        own = [began_key(rank) for rank in self._ranks if store.check([began_key(rank)])]
        return of_peer(store, own[0] if own else BEGAN, moment)

    @property
    def number(self) -> int:
        """Of the run under way."""
        return -1 if self._faults[0] is None else self._faults[0].number

    @property
    def faults(self) -> Upcoming:
        if (run := announced(self._store)) != self._faults[0]:
            self._faults = run, Upcoming(() if run is None else (Fault(*each) for each in run.faults))
        return self._faults[1]

    def reports(self) -> Iterator[tuple[Any, ...]]:
        if self._store.check([end_key(self._node)]):
            named = of_peer(self._store, end_key(self._node), _named)
            for rank, incarnation, why in named[self._num_ended :]:
                yield SUSPECT, rank, incarnation, why
            self._num_ended = len(named)
        if not self._gone and self._store.check([gone_key(self._node)]):
            self._gone, seconds = True, of_peer(self._store, gone_key(self._node), moment)
            yield FAILED, 1, f"node rank 0 had not heard of this host for {seconds:.0f} s: the run continues without it"

    def tell(self, what: str, rank: int, incarnation: int, at: float = 0.0, why: str = "") -> None:
        if (run := announced(self._store)) is not None:
            at = on_leaders_clock(run_store(self._store, run.number), self._ranks, at) if what == "lost" else at
            self._store.set(told_key(self._node, self._num_told), json.dumps([run.number, what, rank, incarnation, at, why]))
            self._num_told += 1

    def run_without(self, rank: int) -> SurvivingRun | None:
        if self._stop.asked:
            return None
        self._store.set(LOST, str(rank))  # before it is asked whether the next run is being prepared, see `announce`
        return announced(self._store)

    def has_left(self, rank: int) -> bool:
        """Whether the run under way, if there is one, has ended for this rank."""
        run = announced(self._store)
        return run is None or bool(run_store(self._store, run.number).check([left_key(rank)]))


def _named(entries: Any) -> list[tuple[int, int, str]]:
    """The processes that the keeper names."""
    return [(rank_number(rank), rank_number(incarnation), text(why)) for rank, incarnation, why in listed(entries)]


class HostLosses:
    """The processes of one launcher, as far as they fail."""

    def __init__(self, processes: Sequence[CommandRank], keeper: StoreToKeeper, start: Callable[[int, int, float], CommandRank]) -> None:
        self._supervision = Supervision(processes, keeper, start=start)
        self._num_asked = 0
        """How often failures were asked for since the thread has looked."""
        self._stopped = Event()

    @contextlib.contextmanager
    def watching(self) -> Iterator[HostLosses]:
        """While this lasts, a thread judges, and ends processes."""
        Thread(target=self._watch, daemon=True).start()
        try:
            yield self
        finally:
            self._stopped.set()

    @property
    def complete(self) -> bool:
        """Whether all processes have ended, and it is known what that means."""
        return self._supervision.complete or (self._is_alone and all(each.end() is not None for each in self._supervision.unjudged))

    def failures(self) -> list[Failure]:
        """The failures with which the run has failed. To be asked for again and again while it continues."""
        self._num_asked += 1
        ended = [(each, each.end()) for each in self._supervision.unjudged] if self._is_alone else []
        unjudged = [each.failure(end) for each, end in ended if end is not None and not end.is_well]
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
