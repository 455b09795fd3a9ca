"""The clock of a model on a GPU: marks are events on its stream. No GPU has run this yet."""

from __future__ import annotations

import time

import pytest
import torch

from hetsim.ddp.clock import CudaClock, HostClock, clock_of


def test_a_clock_is_chosen_by_the_device() -> None:
    """On the CPU a mark is the host's time."""
    clock = clock_of(torch.device("cpu"))
    before = time.perf_counter()

    assert isinstance(clock, HostClock)
    assert before <= clock.seconds(clock.mark()) <= time.perf_counter()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")
def test_marks_of_a_gpu_are_when_it_has_done_what_was_queued() -> None:
    """Marking waits for nothing; between two marks lies what was queued between them, in seconds of the host's clock."""
    clock = CudaClock(torch.device("cuda"))
    matrix = torch.randn(8192, 8192, device="cuda")
    matrix @ matrix
    torch.cuda.synchronize()
    began = time.perf_counter()
    first = clock.mark()
    for _ in range(20):
        matrix @ matrix
    last = clock.mark()
    marked = time.perf_counter()
    torch.cuda.synchronize()
    ended = time.perf_counter()

    assert marked - began < (ended - began) / 2
    assert clock.seconds(last) - clock.seconds(first) == pytest.approx(ended - began, rel=0.2)
    assert clock.seconds(first) == pytest.approx(began, abs=0.01)
