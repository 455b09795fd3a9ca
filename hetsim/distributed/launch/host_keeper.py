"""The keeper of a run on several hosts: a thread of the first launcher, which has the store.

`hetsim.distributed.membership.keeper` decides. This thread reads the losses from the store, and names the processes to end to each
launcher.

A silent launcher is lost with all its ranks. They end with it, or are ignored from then on.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import Any

from hetsim.distributed.launch.failure_report import Failure
from hetsim.distributed.launch.host_losses import end_key, report_key
from hetsim.distributed.launch.store import LOST, announced_run, leaders_time, run_store
from hetsim.distributed.membership.keeper import FAILED, SUSPECT, Keeper, SurvivingRun, finite_seconds, rank_number, read_entry, text
from hetsim.distributed.pacing.padding import clock
from hetsim.errors import RunFailed

POLL_SECONDS = 0.05
JOIN_SECONDS = 1.0
MIN_SILENT_SECONDS = 3.0
"""The minimum silence of a lost launcher. It sends a heartbeat every half second, in a thread that may have to wait for a core."""


class HostKeeper:
    """Keeps the views of each announced run. `counts` are the numbers of processes, by node rank."""

    def __init__(self, counts: Sequence[int], connect: Callable[[], Any]) -> None:
        self._node_of = [node for node, count in enumerate(counts) for _ in range(count)]
        self._connect = connect
        self._stopped = Event()
        self._run: SurvivingRun | None = None
        self._keeper: Keeper | None = None
        self._num_heard = [0] * len(counts)
        self._to_end: dict[int, list[tuple[int, int, str]]] = {node: [] for node in range(len(counts))}
        """The processes to end, as (rank, incarnation, why), by node rank."""
        self._silent: SimpleQueue[tuple[SurvivingRun, int, float]] = SimpleQueue()
        self.failures: list[Failure] = []
        """The failures that end a run."""
        self._num_looks = 0

    @contextlib.contextmanager
    def keeping(self) -> Iterator[HostKeeper]:
        """Within this context, a thread keeps the views."""
        thread = Thread(target=self._keep, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._stopped.set()
            thread.join(JOIN_SECONDS)  # Python's own end would stop it in the store's code, which answers by an abort

    @property
    def silent_seconds(self) -> float | None:
        """The silence after which a launcher is lost with its processes; None if no current run can continue without them."""
        run = self._current_run
        return None if run is None else max(run.lost_after, MIN_SILENT_SECONDS)

    def lose_host(self, node: int, silent: float) -> bool:
        """Whether the run continues without this host, which has been silent for `silent` seconds. If so, its ranks are lost."""
        run = self._current_run
        if run is None or any(run.needs(rank) for rank in self._ranks_of(node)):
            return False
        self._silent.put((run, node, clock() - silent))
        return True

    def settle(self) -> None:
        """Wait until all current entries of the store are read, if the store answers."""
        deadline, looks = clock() + JOIN_SECONDS, self._num_looks
        while self._num_looks < looks + 2 and clock() < deadline:
            time.sleep(POLL_SECONDS)

    @property
    def _current_run(self) -> SurvivingRun | None:
        return None if self._keeper is None or self._keeper.began is None else self._keeper.run

    def _keep(self) -> None:
        with contextlib.suppress(RuntimeError):  # the launcher ends, and its store
            store = self._connect()
            try:
                while not self._stopped.wait(POLL_SECONDS):
                    self._look(store)
                    self._num_looks += 1
            except RunFailed as error:
                self.failures.append(Failure(1, str(error)))

    def _look(self, store: Any) -> None:
        run = announced_run(store)
        if run != self._run:
            if self._keeper is not None:
                self._keeper.end()
            self._run, self._keeper = run, None
            if run is not None:
                self._keeper = Keeper(run_store(store, run.number), partial(self._handle_report, store), run)
        if run is None or self._keeper is None:
            return
        for node in range(len(self._num_heard)):
            while store.check([report_key(node, self._num_heard[node])]):
                number, event, rank, incarnation, at, why = read_entry(store, report_key(node, self._num_heard[node]), _report)
                self._num_heard[node] += 1
                if number == run.number:
                    self._keeper.hear(event, rank, incarnation, at, why)
        with contextlib.suppress(Empty):
            while True:
                self._lose(store, self._keeper, *self._silent.get_nowait())
        self._keeper.look(clock())

    def _lose(self, store: Any, keeper: Keeper, run: SurvivingRun, node: int, since: float) -> None:
        """A launcher has been silent since this time."""
        ranks = self._ranks_of(node)
        store.set(LOST, str(ranks[0]))
        if run != keeper.run:  # whose processes do not begin without these
            self.failures.append(Failure(1, f"nothing was heard of node rank {node} before the run: the run is lost"))
            return
        at = leaders_time(keeper.store, self._ranks_of(0), since)
        for rank, incarnation in [member for member in keeper.view.members.items() if member[0] in ranks]:
            keeper.hear("lost", rank, incarnation, at, f"was lost with node rank {node}, which was not heard of")

    def _ranks_of(self, node: int) -> list[int]:
        return [rank for rank, host in enumerate(self._node_of) if host == node]

    def _handle_report(self, store: Any, report: tuple[Any, ...]) -> None:
        """Handle a report of the keeper."""
        kind, *details = report
        if kind == FAILED:
            self.failures.append(Failure(*details))
        elif kind == SUSPECT:
            node = self._node_of[details[0]]
            self._to_end[node].append(tuple(details))
            store.set(end_key(node), json.dumps(self._to_end[node]))


def _report(entries: Any) -> tuple[int, str, int, int, float, str]:
    """A launcher's report: the run's number, the event, the process, the time and the reason."""
    number, event, rank, incarnation, at, why = entries
    return rank_number(number), text(event), rank_number(rank), rank_number(incarnation), finite_seconds(at), text(why)
