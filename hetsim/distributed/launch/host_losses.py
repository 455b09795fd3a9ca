"""One launcher's part in a run of hetsim-launch that survives lost workers. `supervision.py` is its twin on one host.

A thread with a client of its own of the launchers' store judges each process that has failed: either the run has failed with it, or it is
lost, and the keeper at the first launcher (`host_keeper.py`) is told. It ends the processes that the keeper suspects.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

from hetsim.distributed.launch.announcement import LOST, Announced, on_leaders_clock
from hetsim.distributed.launch.failure_report import CONSEQUENCE
from hetsim.distributed.launch.host_exchange import Failure, gone_key
from hetsim.distributed.launch.supervision import BEGIN_SECONDS
from hetsim.distributed.membership.keeper import BEGAN, left_key
from hetsim.distributed.pacing.padding import clock
from hetsim.runtime.checkpointing import STOPPED, StopRequest

POLL_SECONDS = 0.05
JUDGE_SECONDS = 3.0
"""In which a failed process is judged; otherwise the store does not answer, and the run has failed with it."""


ERROR = 1
"""The exit status of a process that has printed an error of its own: the run has failed with it, as another rank would have it, too."""


@dataclass(frozen=True)
class Started:
    """One process that this launcher started."""

    rank: int
    process: subprocess.Popen[bytes]
    reason: Path
    """Where it writes why it failed."""

    def reported(self) -> Failure | None:
        """Why it failed, as it has written itself."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            message = json.loads(self.reason.read_text(encoding="utf-8"))["message"]
            return Failure(int(message["extraInfo"]["order"]), str(message["message"]))
        return None

    def failure(self) -> Failure | None:
        """Why it failed; None if it did not, or runs."""
        status = self.process.poll()
        if (reported := self.reported()) is not None:
            return reported
        if status in (None, 0, STOPPED):
            return None
        return Failure(1 if status < 0 else 2, f"the process of rank {self.rank} {ended_by_itself(status)}: the run is lost")


def ended_by_itself(status: int | None) -> str:
    """What a sentence says of a process that ended without a word."""
    return f"ended by itself (exit status {status})"


def lost_key(node: int, number: int) -> str:
    """Where a launcher reports the loss of one of its processes."""
    return f"lost/{node}/{number}"


def end_key(node: int) -> str:
    """Where the keeper names the processes that a launcher has to end, each with the sentence for a run that is lost with it."""
    return f"end/{node}"


class HostLosses:
    """The processes of one launcher, as far as they fail. `connect` makes a client of the launchers' store."""

    def __init__(self, node: int, processes: Sequence[Started], connect: Callable[[], Any], stop: StopRequest) -> None:
        self._node = node
        self._processes = processes
        self._connect = connect
        self._stop = stop
        self._stopped = Event()
        self._judged: dict[int, Failure | None] = {}
        """By rank: None of one that the run goes on without."""
        self._seen: dict[int, float] = {}
        """When each end was first seen."""
        self._ended: dict[int, Failure] = {}
        """The processes that were ended for the keeper."""
        self._num_lost = 0
        self._given_up: Failure | None = None

    @contextlib.contextmanager
    def watching(self) -> Iterator[HostLosses]:
        """While this lasts, a thread judges, and ends processes."""
        Thread(target=self._watch, daemon=True).start()
        try:
            yield self
        finally:
            self._stopped.set()

    def failures(self) -> list[Failure]:
        """The failures with which the run has failed."""
        found = [self._given_up] if self._given_up is not None else []
        for each in self._processes:
            if each.rank in self._judged:
                failure = self._judged[each.rank]
            else:
                failure = each.failure()
                if failure is not None and not self._has_waited(each):
                    continue
            found += [failure] if failure is not None else []
        return found

    @property
    def undecided(self) -> bool:
        """Whether a process has ended, and it is not known yet whether the run goes on."""
        return any(
            each.rank not in self._judged and each.process.poll() is not None and not self._has_waited(each) for each in self._processes
        )

    def _has_waited(self, each: Started, seconds: float = JUDGE_SECONDS) -> bool:
        return time.monotonic() - self._seen.setdefault(each.rank, time.monotonic()) >= seconds

    def _watch(self) -> None:
        with contextlib.suppress(RuntimeError):  # the store is gone, and the first launcher with it, which `Hosts` notices
            store = self._connect()
            while not self._stopped.wait(POLL_SECONDS):
                self._obey(store)
                for each in self._processes:
                    if each.rank in self._judged:
                        continue
                    if (failure := each.failure() or self._left_early(store, each)) is not None:
                        self._judge(store, each, failure)
                    elif each.process.poll() is not None:
                        self._judged[each.rank] = None

    @staticmethod
    def _left_early(store: Any, each: Started) -> Failure | None:
        """Why a process has failed that ended without a failure: it left a run that had not ended for it."""
        status = each.process.poll()
        if status is None or (run := Announced.read(store)) is None or run.store(store).check([left_key(each.rank)]):
            return None
        return Failure(2, f"the process of rank {each.rank} {ended_by_itself(status)}: the run is lost")

    def _obey(self, store: Any) -> None:
        """End the processes that the keeper names."""
        if store.check([end_key(self._node)]):
            named = {int(rank): str(sentence) for rank, sentence in json.loads(store.get(end_key(self._node)))}
            for each in self._processes:
                if each.rank in named and each.rank not in self._ended and each.process.poll() is None:
                    self._ended[each.rank] = Failure(1, named[each.rank])
                    each.process.kill()
        if self._given_up is None and store.check([gone_key(self._node)]):
            seconds = float(store.get(gone_key(self._node)))
            self._given_up = Failure(1, f"node rank 0 had not heard of this host for {seconds:.0f} s: the run goes on without it")

    def _judge(self, store: Any, each: Started, failure: Failure) -> None:
        reported = each.reported()
        failure = self._ended.get(each.rank, failure)
        loses = each.process.poll() != ERROR if reported is None else reported.order == CONSEQUENCE
        if loses and reported is not None and each.process.poll() is None:
            return  # it is about to end
        if loses and not self._stop.asked:
            store.set(LOST, str(each.rank))  # before it is asked whether the next run is being prepared, see `announce`
            run = Announced.read(store)
            begun = run is not None and run.store(store).check([BEGAN])
            if run is not None and not begun and not self._has_waited(each, BEGIN_SECONDS):
                return
            if run is not None and begun:
                if run.needs(each.rank) and reported is None and each.rank not in self._ended:
                    failure = failure._replace(sentence=f"{run.named(each.rank)} {ended_by_itself(each.process.poll())}: the run is lost")
                if not run.needs(each.rank):
                    self._tell(store, run, each.rank)
                    self._judged[each.rank] = None
                    return
        self._judged[each.rank] = failure

    def _tell(self, store: Any, run: Announced, rank: int) -> None:
        began = float(run.store(store).get(BEGAN))
        at = max(began, on_leaders_clock(run.store(store), (each.rank for each in self._processes), clock()))
        store.set(lost_key(self._node, self._num_lost), json.dumps([run.number, rank, at]))
        self._num_lost += 1
