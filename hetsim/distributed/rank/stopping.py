"""Pass a request to stop from any rank to the leader, which decides for all. A signal may reach any process of a run."""

from __future__ import annotations

import sys
from threading import Event, Thread

from hetsim.distributed.membership.keeper import STOP
from hetsim.distributed.rank.standstill import Store
from hetsim.runtime.checkpointing import StopRequest

ENDED = 143
"""The exit status after SIGTERM of a launcher whose run saves no checkpoints."""
POLL_SECONDS = 0.25
"""The interval at which the store is read."""


class LauncherStop(StopRequest):
    """A stop request to a launcher. It is passed to the launcher's processes, or ends the launcher if there are none yet."""

    running = False

    def ask(self) -> None:
        """Request a stop, as a signal's handler does."""
        super().ask()
        if not self.running:
            sys.exit(ENDED)


class StopWatch:
    """Within this context, a stop request to any rank is passed to the leader through the processes' store.

    This includes a request to the leader, because another rank may lead at the next version.
    """

    def __init__(self, store: Store, stop: StopRequest, *, leads: bool) -> None:
        self._store = store
        self._stop = stop
        self.leads = leads
        """Whether this rank leads, from now on."""
        self._ended = Event()
        self._thread = Thread(target=self._watch, daemon=True)

    def __enter__(self) -> StopWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(2 * POLL_SECONDS)

    def _watch(self) -> None:
        while not self._ended.wait(POLL_SECONDS):
            try:
                if self._stop.asked:
                    self._store.set(STOP, "1")
                    return
                if self.leads and self._store.check([STOP]):
                    self._stop.ask()
                    return
            except Exception:  # the run has ended, and the store with it
                return
