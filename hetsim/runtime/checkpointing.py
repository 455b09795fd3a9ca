"""When a run saves a checkpoint, and whether it was asked to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from hetsim import checks

MAX_KEPT = 1000
"""The maximum number of checkpoints to keep."""
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
"""The signals that ask a run to save a checkpoint and stop."""
STOPPED = 75
"""The exit status of a run that was asked to stop, has saved a checkpoint and can be resumed: EX_TEMPFAIL of sysexits.h."""


@dataclass(frozen=True, kw_only=True)
class Checkpointing:
    """How often a run saves a checkpoint: every `every_seconds` of wall time, or every `every_updates` updates. Without either, never."""

    every_seconds: float | None = None
    every_updates: int | None = None
    keep: int = 2
    """The number of newest checkpoints to keep."""

    def __post_init__(self) -> None:
        if self.every_seconds is not None:
            checks.seconds("checkpoint.every_seconds", self.every_seconds)
        if self.every_updates is not None:
            checks.whole("checkpoint.every_updates", self.every_updates)
        checks.whole("checkpoint.keep", self.keep, most=MAX_KEPT)

    def at_least_every(self, seconds: float) -> Checkpointing:
        """The same, with an interval of at most this number of seconds."""
        return replace(self, every_seconds=min(seconds, self.every_seconds or seconds))

    @property
    def enabled(self) -> bool:
        """Whether the run saves any checkpoints."""
        return self.every_seconds is not None or self.every_updates is not None


class StopRequest:
    """Whether the run was asked to stop. One thread or a signal's handler sets it, and others read it."""

    def __init__(self) -> None:
        self.asked = False

    def ask(self) -> None:
        """Ask the run to stop at its next checkpoint."""
        self.asked = True

    @contextmanager
    def by_signals(self, then: Callable[[], object] = bool, *, again: bool = False) -> Iterator[None]:
        """Within this context, the first of `SIGNALS` asks the run to stop and calls `then`. Only for the main thread.

        A second signal has its earlier effect. With `again`, it has none, because several senders may signal this process.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handlers = {number: signal.getsignal(number) for number in SIGNALS}

        def restore() -> None:
            for number, handler in handlers.items():
                signal.signal(number, handler)

        def handle(*_: object) -> None:
            if not again:
                restore()
            if not self.asked:
                self.ask()
                then()

        for number in SIGNALS:
            signal.signal(number, handle)
        try:
            yield
        finally:
            restore()


class Due:
    """Whether a checkpoint is due at a version. The first rank that asks decides it, and all later ones get the same answer."""

    def __init__(self, settings: Checkpointing, clock: Callable[[], float], stop: StopRequest) -> None:
        self.settings = settings
        self.stop = stop
        self._clock = clock
        self._saved_at = clock()
        self._newest = -1
        self._wanted: set[int] = set()

    def __call__(self, version: int) -> bool:
        """Whether the ranks have to send their states at this version."""
        if version > self._newest:
            self._newest = version
            if self._decide(version):
                self._wanted.add(version)
        return version in self._wanted

    def begin(self) -> None:
        """The run begins or restarts, or a checkpoint is complete: the next interval begins now."""
        self._saved_at = self._clock()

    def mark_saved(self, version: int) -> None:
        """The checkpoint at this version has been written."""
        self.begin()
        self._wanted = {wanted for wanted in self._wanted if wanted > version}

    def _decide(self, version: int) -> bool:
        settings = self.settings
        if settings.every_updates is not None and version % settings.every_updates == 0:
            return True
        return self.stop.asked or (settings.every_seconds is not None and self._clock() - self._saved_at >= settings.every_seconds)
