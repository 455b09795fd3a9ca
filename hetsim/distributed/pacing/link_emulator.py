"""The thread that tells when transfers over shared links end: in the server's process, which is at one end of each."""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition, Thread

from hetsim.distributed.pacing.padding import Pace, realtime_priority, reduce_timer_slack
from hetsim.distributed.pacing.shared_links import SharedLinks, Transfer


class LinkEmulator:
    """Calls back at the end of each transfer over shared links, in the order of the ends; `error` is called if that fails."""

    def __init__(self, links: SharedLinks, pace: Pace, error: Callable[[Exception], None]) -> None:
        self.carries = links.carries
        self._links = links
        self._pace = pace
        self._error = error
        self._changed = Condition()
        self._num_under_way = 0
        self._broken: Exception | None = None
        self._stopped = False
        with realtime_priority():
            Thread(target=self._run, daemon=True).start()

    def begin(self, sender: int, receiver: int, nbytes: int, at: float, ended: Callable[[float], None]) -> None:
        """A transfer has begun at this moment; `ended(moment)` is called at its end, in the thread."""
        with self._changed:
            self._links.begin(sender, receiver, Transfer(at, nbytes, ended), now=self._pace.clock())
            self._num_under_way += 1
            self._changed.notify_all()

    def wait_for_all(self) -> None:
        """Wait until all transfers have ended; raises what broke the thread."""
        with self._changed:
            self._changed.wait_for(lambda: not self._num_under_way or self._broken)
            if self._broken is not None:
                raise self._broken

    def stop(self) -> None:
        """End the thread."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _run(self) -> None:
        reduce_timer_slack()
        try:
            while True:
                with self._changed:
                    while (remaining := self._links.next_end() - self._pace.clock()) > 0 and not self._stopped:
                        self._changed.wait(min(remaining, MAX_WAIT))
                    if self._stopped:
                        return
                    ended = self._links.ended(self._pace.clock())
                for transfer in ended:
                    transfer.about(transfer.ends)
                with self._changed:
                    self._num_under_way -= len(ended)
                    self._changed.notify_all()
        except Exception as error:
            with self._changed:
                self._broken = error
                self._changed.notify_all()
            self._error(error)


MAX_WAIT = 3600.0
"""In seconds: a condition cannot wait for an infinite time."""
