"""The clock of a model on a GPU: marks are events on its stream. All tests but the last have events of their own."""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
import pytest
import torch

from hetsim.loop.clock import CudaClock, HostClock, clock_of


class Event:
    """An event of a GPU that does nothing but pass the time; as CUDA's, it tells milliseconds in single precision."""

    now = 0.0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, stream: object) -> None:
        self.moment = Event.now

    def synchronize(self) -> None:
        """It is reached."""

    def elapsed_time(self, end: Event) -> float:
        return float(np.float32((end.moment - self.moment) * 1e3))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> CudaClock:
    """Of a GPU of such events."""
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: device)
    monkeypatch.setattr(Event, "now", 0.0)
    return CudaClock(torch.device("cuda"))


def mark_at(clock: CudaClock, moment: float) -> Event:
    Event.now = moment
    return clock.mark()


@pytest.mark.parametrize("hours", [0, 1, 72, 1000])
@pytest.mark.parametrize("read_before", [True, False])
def test_a_pass_is_as_long_after_days_as_in_the_first_minute(clock: CudaClock, hours: float, read_before: bool):
    """50 ms of which 10 were spent waiting, to a few microseconds; also where no mark was read in the time before."""
    if read_before:
        for minute in range(hours * 60):
            clock.seconds(mark_at(clock, 60.0 * minute))
    began = 3600.0 * hours
    marks = [mark_at(clock, began + seconds) for seconds in (0.123, 0.133, 0.143, 0.173)]
    start, waiting, waited, end = map(clock.seconds, marks)

    assert end - start - (waited - waiting) == pytest.approx(0.04, abs=1e-5)


def test_steps_of_a_day_fill_it(clock: CudaClock):
    """Marks that move the anchor again and again drift by less than a millisecond."""
    moments = np.linspace(0, 86400, 20_001)
    seen = [clock.seconds(mark_at(clock, moment)) for moment in moments]

    assert seen[-1] - seen[0] == pytest.approx(86400, abs=1e-3)
    assert max(after - before for before, after in pairwise(seen)) == pytest.approx(4.32, abs=1e-5)


def test_a_clock_is_chosen_by_the_device() -> None:
    """On the CPU a mark is the host's time."""
    clock = clock_of(torch.device("cpu"))
    before = time.monotonic()

    assert isinstance(clock, HostClock)
    assert before <= clock.seconds(clock.mark()) <= time.monotonic()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")
def test_marks_of_a_gpu_are_when_it_has_done_what_was_queued() -> None:
    """Marking waits for nothing; between two marks lies what was queued between them, in seconds of the host's clock."""
    clock = CudaClock(torch.device("cuda"))
    matrix = torch.randn(8192, 8192, device="cuda")
    matrix @ matrix
    torch.cuda.synchronize()
    began = time.monotonic()
    first = clock.mark()
    for _ in range(20):
        matrix @ matrix
    last = clock.mark()
    marked = time.monotonic()
    torch.cuda.synchronize()
    ended = time.monotonic()

    assert marked - began < (ended - began) / 2
    assert clock.seconds(last) - clock.seconds(first) == pytest.approx(ended - began, rel=0.2)
    assert clock.seconds(first) == pytest.approx(began, abs=0.01)
