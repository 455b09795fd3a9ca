"""When a step of this rank began, and when its gradients were computed, on the CPU or on the GPU that computes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch

from hetsim.distributed.pacing.padding import clock

ANCHOR_SECONDS = 10.0
"""The maximum age of an anchor. CUDA's single-precision milliseconds resolve 1 µs of 10 s, and 16 ms of three days."""


class Clock(ABC):
    """Makes marks now, and returns their times later. No mark waits for the device."""

    @abstractmethod
    def mark(self) -> Any:
        """A mark for this moment in the calling thread's computation."""

    @abstractmethod
    def seconds(self, mark: Any) -> float:
        """The time of a mark, in seconds of the host's clock. Waits until the mark is reached."""


class HostClock(Clock):
    """The clock for computation on the CPU."""

    def mark(self) -> float:
        """The host's time."""
        return clock()

    def seconds(self, mark: float) -> float:
        """The mark itself."""
        return mark


class CudaClock(Clock):
    """The clock for computation on a CUDA device. A mark is an event on the current stream, reached when all earlier work is done.

    Times of marks are relative to an anchor, an earlier mark that moves forward with them. So differences of near marks are exact to about
    a microsecond in runs of any length.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._anchor = self.mark()
        self._anchor.synchronize()
        self._anchored = clock()

    def mark(self) -> torch.cuda.Event:
        """An event on the current stream of the device."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def seconds(self, mark: torch.cuda.Event) -> float:
        """The time of the event. Waits for the event."""
        mark.synchronize()
        since = float(self._anchor.elapsed_time(mark)) / 1e3
        moment = self._anchored + since
        if since > ANCHOR_SECONDS:
            self._anchor, self._anchored = mark, moment
        return moment


def clock_of(device: torch.device) -> Clock:
    """The clock for a model on this device."""
    return CudaClock(device) if device.type == "cuda" else HostClock()
