"""Messages between hetsim-launch's launchers on several hosts, in a store of the launcher of node rank 0.

No rank hosts the store, so that it outlives all ranks. Every launcher writes the number and purpose of its processes, then a heartbeat
twice a second, and finally how its processes ended.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Iterator
from threading import Event, Thread
from typing import Any

import torch.distributed as dist

from hetsim.distributed.launch.call import POLL_SECONDS, Call
from hetsim.distributed.launch.failure_report import CAUSE, Failure
from hetsim.distributed.launch.host_keeper import HostKeeper
from hetsim.distributed.launch.host_losses import gone_key
from hetsim.distributed.membership.keeper import rank_number, read_entry, text
from hetsim.errors import RunFailed

BEAT_SECONDS = 0.5
SILENT_SECONDS, SILENT_AFTER_FAILURE_SECONDS = 30.0, 5.0
"""The silence after which a launcher counts as lost: in general, and after a failure, which its loss may have caused."""
GAP_SECONDS = 2.0
"""A gap between exchanges after which this launcher itself did not run. Then the others may not have run either."""
LEAVE_SECONDS = 10.0
"""The maximum time that the launcher with the store waits at its end, until all others have read how it ended."""
STOPPED = "stopped"
"""The end of processes that were asked to stop and have saved the run."""


class Hosts:
    """The other hosts while the processes run. Only its thread uses its store, which may block after a host's loss.

    On node rank 0, `spares` decides whether the run continues without a silent host.
    """

    def __init__(self, store: Any, call: Call, spares: HostKeeper | None = None) -> None:
        self._store = store
        self._call = call
        self._spares = spares
        self.stopped = False
        """Whether the run was asked to stop, on any host, and has saved a checkpoint."""
        self._own: Failure | None = None
        self._ended = False
        self._silent: set[int] = set()
        self._heard = {node: (b"", time.monotonic()) for node in range(call.nodes)}
        self._beat = self._looked = time.monotonic()
        self._exchanged = math.inf
        self._stopped = Event()
        self._thread = Thread(target=self._talk, daemon=True)
        self._broken = False
        self.outcomes: dict[int, Failure | None] = {}
        """The known ends of each host's processes, by node rank. None means success."""

    @contextlib.contextmanager
    def talking(self) -> Iterator[Hosts]:
        """Within this context, send heartbeats to the others. Afterwards, node rank 0 waits until they do not need the store any more."""
        self._thread.start()
        try:
            yield self
        finally:
            self._stopped.set()
            self._thread.join(2 * BEAT_SECONDS)
            if self._call.node == 0 and not self._broken:
                deadline = time.monotonic() + LEAVE_SECONDS
                others = [f"left/{node}" for node in range(1, self._call.nodes) if node not in self._silent]
                while others and not self._store.check(others) and time.monotonic() < deadline:
                    time.sleep(POLL_SECONDS)

    def end(self, failure: Failure | None, *, stopped: bool = False) -> None:
        """Report to the others how this host's processes have ended."""
        self.stopped |= stopped
        self._own, self._ended = failure, True

    @property
    def failure(self) -> Failure | None:
        """The known failure nearest to the cause. Of equal failures, the one of the lowest node rank.

        A refusal names its host, unless all hosts refuse with the same sentence.
        """
        if self.lost:
            master = f"{self._call.address}:{self._call.port}"
            self.outcomes.setdefault(0, Failure(2, f"hetsim-launch --node-rank 0 at {master} is gone: the run is lost"))
        outcomes = dict(sorted(self.outcomes.items()))
        failures = [(failure, node) for node, failure in outcomes.items() if failure is not None]
        if not failures:
            return None
        failure, node = min(failures, key=lambda entry: (entry[0].order, entry[1]))
        if failure.order == CAUSE and list(outcomes.values()) != [failure] * self._call.nodes:  # it may say nothing of its place
            return failure._replace(sentence=f"on node rank {node}: {failure.sentence}")
        return failure

    @property
    def complete(self) -> bool:
        """Whether everything is known about all hosts."""
        return len(self.outcomes) == self._call.nodes or self.lost

    @property
    def others_complete(self) -> bool:
        """Whether the ends of all other hosts' processes are known."""
        return len(self.outcomes.keys() - {self._call.node}) == self._call.nodes - 1 or self.lost

    @property
    def lost(self) -> bool:
        """Whether the store is lost, and with it the launcher of node rank 0."""
        now = time.monotonic()
        if now - self._looked > GAP_SECONDS:
            self._beat = now
        self._looked = now
        return self._broken or now - self._beat > SILENT_SECONDS

    def _talk(self) -> None:
        number = 0
        try:
            while not self._stopped.wait(BEAT_SECONDS if number else 0):
                number += 1
                self._exchange(number)
            self._exchange(number)
            self._store.set(f"left/{self._call.node}", "")
        except dist.DistError:
            self._broken = True

    def _exchange(self, number: int) -> None:
        store, own_node = self._store, self._call.node
        now = time.monotonic()
        if now - self._exchanged > GAP_SECONDS:
            self._heard = {node: (beat, now) for node, (beat, _) in self._heard.items()}
        self._exchanged = now
        store.set(f"beat/{own_node}", str(number))
        if self._ended and own_node not in self.outcomes:
            if not store.check([f"ended/{own_node}"]):  # unless this host counts as lost, and all know it
                store.set(f"ended/{own_node}", json.dumps(STOPPED if self.stopped and self._own is None else self._own))
            self.outcomes[own_node] = self._own
        for node in range(self._call.nodes):
            if node in self.outcomes or node == own_node:
                continue
            if store.check([f"ended/{node}"]):
                self.outcomes[node], stopped = self._outcome(node)
                self.stopped |= stopped
            elif own_node == 0:
                self._listen_to(node)
        if len(self.outcomes) == self._call.nodes or self.outcomes.get(0) is not None:
            store.set(f"left/{own_node}", "")
        self._beat = time.monotonic()

    def _outcome(self, node: int) -> tuple[Failure | None, bool]:
        """The end of a host's processes, and whether they were stopped and have saved the run."""

        def read(entry: Any) -> tuple[Failure | None, bool]:
            if entry in (None, STOPPED):
                return None, entry == STOPPED
            order, sentence = entry
            return Failure(rank_number(order), text(sentence)), False

        try:
            return read_entry(self._store, f"ended/{node}", read)
        except RunFailed as error:
            return Failure(1, str(error)), False

    def _listen_to(self, node: int) -> None:
        """On node rank 0: declare a launcher lost that was silent for too long, and announce this to all launchers."""
        beat = self._store.get(f"beat/{node}") if self._store.check([f"beat/{node}"]) else b""
        last, since = self._heard[node]
        if beat != last:
            self._heard[node] = (beat, time.monotonic())
            return
        failed = self._own is not None or any(self.outcomes.values())
        limit = SILENT_AFTER_FAILURE_SECONDS if failed else SILENT_SECONDS
        spares = None if failed else self._spares
        if spares is not None and spares.silent_seconds is not None:
            limit = spares.silent_seconds
        silent = time.monotonic() - since
        if silent > limit and spares is not None and spares.lose_host(node, silent):
            self._store.set(gone_key(node), str(silent))
            self.outcomes[node] = None
            self._silent.add(node)
            self._store.set(f"ended/{node}", json.dumps(None))
        elif silent > limit:
            lost = Failure(1, f"nothing was heard of node rank {node} for {limit:.0f} s: the run is lost")
            self.outcomes[node] = lost
            self._silent.add(node)
            self._store.set(f"ended/{node}", json.dumps(lost))
