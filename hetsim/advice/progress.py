"""The progress of an advice: a bar with the remaining time, and requests to end early."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hetsim.runtime.recording.progress import bar

LAYOUT = "{desc}: {percentage:3.0f} % |{bar}| {elapsed} < {remaining}"


class StoppedEarly(Exception):
    """The advice was asked to end with what it has found."""


class Progress:
    """A bar, if a terminal or notebook shows it. `stop` ends the advice with the best result so far, and gives the reason."""

    def __init__(self, *, shown: bool = True) -> None:
        self.reason: str | None = None
        self._on_stop: list[Callable[[], object]] = []
        self._bar: Any = None
        self._shown = shown

    def begin(self, name: str, units: float) -> None:
        """Start the bar of the next part, with `units` of expected work."""
        self.close()
        if self._shown:
            self._bar = bar(total=units, desc=name, bar_format=LAYOUT)

    def advance(self, units: float) -> None:
        """Advance the bar by `units`."""
        if self._bar is not None:
            self._bar.update(min(units, max(0.0, self._bar.total - self._bar.n)))

    def line_printer(self, tell: Callable[[str], object]) -> Callable[[str], None]:
        """A function that prints a line by `tell`, above the bar."""

        def told(line: str) -> None:
            if self._bar is not None:
                self._bar.clear()
            tell(line)
            if self._bar is not None:
                self._bar.refresh()

        return told

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()
        self._bar = None

    def stop(self, reason: str) -> None:
        """End the advice with the best so far."""
        if self.reason is None:
            self.reason = reason
            for call in self._on_stop:
                call()

    @property
    def too_early(self) -> str:
        """Why there is no result."""
        return f"stopped {self.reason}, before plain DDP was simulated: give it more time"

    def on_stop(self, call: Callable[[], object]) -> None:
        """Call this function when the advice is asked to end."""
        self._on_stop.append(call)

    def check(self) -> None:
        """Raise StoppedEarly if the advice was asked to end."""
        if self.reason is not None:
            raise StoppedEarly

    @contextmanager
    def time_limit(self, minutes: float | None) -> Iterator[None]:
        """Stop after `minutes`, and in the main thread at SIGTERM."""
        timer = None if minutes is None else threading.Timer(60 * minutes, self.stop, [f"after {minutes:g} minutes"])
        main = threading.current_thread() is threading.main_thread()
        previous_handler = signal.getsignal(signal.SIGTERM) if main else None
        if main:
            signal.signal(signal.SIGTERM, lambda *_: self.stop("by SIGTERM"))
        if timer is not None:
            timer.daemon = True
            timer.start()
        try:
            yield
        finally:
            self.close()
            if timer is not None:
                timer.cancel()
            if main:
                signal.signal(signal.SIGTERM, previous_handler)
