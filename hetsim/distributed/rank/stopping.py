"""A rank that was asked to stop tells the leader, which decides for all: a signal may reach any of the processes of a run."""

from __future__ import annotations

import sys
from threading import Event, Thread

from hetsim.distributed.membership.keeper import STOP
from hetsim.distributed.rank.standstill import Store
from hetsim.runtime.checkpointing import StopRequest

ENDED = 143
"""The exit status after SIGTERM of a launcher whose run is not saved."""
POLL_SECONDS = 0.25
"""Time between two looks at the store."""


class LauncherStop(StopRequest):
    """Asked of a launcher: it is passed on to its processes, or ends the launcher if there are none yet."""

    running = False

    def ask(self) -> None:
        """As a handler of a signal does."""
        super().ask()
        if not self.running:
            sys.exit(ENDED)


class StopWatch:
    """While the block lasts, a stop that any rank is asked for is asked of the leader, through the store that the processes share.

    Also one that the leader is asked for, as another may lead by the time of the next version.
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
