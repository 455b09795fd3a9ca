"""The keeper of a run on several hosts: a thread of the first launcher, which has the store.

`hetsim.distributed.membership.keeper` decides. Here it reads the losses from the store, and tells each launcher which processes to end.

A launcher that is not heard of is lost with all of its ranks: they end with it, and if they do not, nobody listens to them any more.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import Any

from hetsim.distributed.launch.announcement import LOST, Announced, on_leaders_clock
from hetsim.distributed.launch.host_losses import end_key, lost_key
from hetsim.distributed.launch.supervision import after_effect
from hetsim.distributed.membership.keeper import BEGAN, SUSPECT, Keeper
from hetsim.distributed.pacing.padding import clock

POLL_SECONDS = 0.05
JOIN_SECONDS = 1.0
MIN_SILENT_SECONDS = 3.0
"""A launcher says every half second that it is there, by a thread that may have to wait for a processor."""


class HostKeeper:
    """Keeps the views of each run that is announced. `counts` are the numbers of processes, by node rank."""

    def __init__(self, counts: Sequence[int], connect: Callable[[], Any]) -> None:
        self._node_of = [node for node, count in enumerate(counts) for _ in range(count)]
        self._connect = connect
        self._stopped = Event()
        self._run: Announced | None = None
        self._keeper: Keeper | None = None
        self._began: float | None = None
        self._num_heard = [0] * len(counts)
        self._to_end: dict[int, str] = {}
        """The sentence for a run that is lost with it, by rank."""
        self._num_named = 0
        self._silent: SimpleQueue[tuple[Announced, int, float]] = SimpleQueue()

    @contextlib.contextmanager
    def keeping(self) -> Iterator[HostKeeper]:
        """While this lasts, a thread keeps the views."""
        thread = Thread(target=self._keep, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._stopped.set()
            thread.join(JOIN_SECONDS)  # Python's own end would stop it in the store's code, which answers by an abort

    @property
    def silent_seconds(self) -> float | None:
        """After which a launcher that was not heard of is lost with its processes; None if no run under way can go on without them."""
        run = self._run
        return None if run is None or self._began is None else max(run.lost_after, MIN_SILENT_SECONDS)

    def lose_host(self, node: int, silent: float) -> bool:
        """Whether the run goes on without this host, which was not heard of for so many seconds: then its ranks are lost."""
        run = self._run
        if run is None or self._began is None or any(run.needs(rank) for rank in self._ranks_of(node)):
            return False
        self._silent.put((run, node, clock() - silent))
        return True

    def _keep(self) -> None:
        with contextlib.suppress(RuntimeError):  # the launcher ends, and its store
            store = self._connect()
            while not self._stopped.wait(POLL_SECONDS):
                self._follow_runs(store)
                if self._run is not None and self._keeper is not None:
                    self._look(store, self._run, self._keeper)

    def _follow_runs(self, store: Any) -> None:
        run = Announced.read(store)
        if run == self._run:
            return
        if self._keeper is not None:
            self._keeper.end()
        self._run, self._began, self._keeper = run, None, None
        if run is not None:
            members = dict.fromkeys(range(run.num_ranks), 0)
            self._keeper = Keeper(run.store(store), self._told, members, lost_after=run.lost_after)

    def _look(self, store: Any, run: Announced, keeper: Keeper) -> None:
        for node in range(len(self._num_heard)):
            while store.check([lost_key(node, self._num_heard[node])]):
                number, rank, at = json.loads(store.get(lost_key(node, self._num_heard[node])))
                self._num_heard[node] += 1
                if number == run.number:
                    keeper.hear("lost", rank, 0, at)
        with contextlib.suppress(Empty):
            while True:
                its_run, node, since = self._silent.get_nowait()
                ranks = self._ranks_of(node)
                store.set(LOST, str(ranks[0]))
                if its_run != run:  # whose processes do not begin without these
                    self._to_end.setdefault(run.leader, f"nothing was heard of node rank {node} before the run: the run is lost")
                    continue
                at = on_leaders_clock(run.store(store), self._ranks_of(0), since)
                for rank in ranks:
                    keeper.hear("lost", rank, 0, at)
        keeper.look(clock())
        members = keeper.view.members
        if self._began is not None and members and not keeper.view.over and min(members) >= run.num_workers:
            seconds = on_leaders_clock(run.store(store), self._ranks_of(0), clock()) - self._began
            self._to_end.setdefault(
                run.leader, f"every node of the cluster is gone at {seconds:.3g} s and none comes back: the run is lost"
            )
        if len(self._to_end) > self._num_named:
            self._num_named = len(self._to_end)
            for node in {self._node_of[rank] for rank in self._to_end}:
                named = [(rank, sentence) for rank, sentence in self._to_end.items() if self._node_of[rank] == node]
                store.set(end_key(node), json.dumps(named))

    def _ranks_of(self, node: int) -> list[int]:
        return [rank for rank, its in enumerate(self._node_of) if its == node]

    def _told(self, report: tuple[Any, ...]) -> None:
        """By the keeper."""
        assert self._run is not None
        what, *about = report
        if what == BEGAN:
            (self._began,) = about
        elif what == SUSPECT:
            rank, _, last = about
            why = f"gave no sign of life for {self._run.lost_after:g} s{after_effect(last)} and was ended"
            self._to_end.setdefault(rank, f"{self._run.named(rank)} {why}: the run is lost")
