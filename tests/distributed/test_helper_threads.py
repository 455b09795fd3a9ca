"""Who computes with several threads: a rank's own thread alone, and what they use while they wait is no work."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from hetsim.calibration.program import PER_THREAD, Meter, clocks_of_working_threads, cpu_seconds
from hetsim.distributed.communication.gloo import GlooTransport
from hetsim.distributed.launch.participation import compute_here_alone

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="this system does not list threads as Linux does"),
    pytest.mark.usefixtures("two_threads"),
]
LARGE = 1_000_000
"""Enough numbers for several threads."""


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Of torch, for the thread of the test; one is working already."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.ones(LARGE).add(1)
    yield
    torch.set_num_threads(before)


def num_threads() -> int:
    """Of this process, Python's and others."""
    return len(os.listdir("/proc/self/task"))


def test_threads_of_gloo_compute_alone() -> None:
    """Each of them that copies a large tensor would otherwise have a pool of threads, too, and no pool of a crowded process spins."""
    compute_here_alone()
    with GlooTransport.connect(0, 1, dist.HashStore()) as transport:
        everything, mine = torch.empty(LARGE), torch.ones(LARGE)
        before = num_threads()
        for _ in range(20):
            transport.all_gather(everything, mine)

        assert num_threads() <= before  # one of an earlier test may end meanwhile
        assert torch.equal(everything, mine)
    found: list[int] = []
    other = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    other.start()
    other.join()

    assert found == [1]
    assert torch.get_num_threads() == 2


def test_working_threads_are_those_that_somebody_has_named() -> None:
    """Python's own, and this one; not those of OpenMP."""
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    threads = clocks_of_working_threads()

    assert {~thread.native_id << 3 | PER_THREAD for thread in (threading.current_thread(), other) if thread.native_id} <= set(threads)
    assert len(threads) < num_threads()
    done.set()
    other.join()


def test_what_helpers_use_is_no_work_of_the_process() -> None:
    """Beside the thread that computes nobody works here, so its CPU-seconds are the process's, also in short parts of the work.

    Now and then, pytest-xdist's thread does work for a message.
    """
    values = torch.ones(20 * LARGE)
    threads = clocks_of_working_threads()
    began, everything = Meter.read(threads), time.process_time()
    before, num_equal = began, 0
    for _ in range(20):
        values.add_(1)
        now = Meter.read(threads)
        took = now.since(before)
        num_equal += took.process == pytest.approx(took.thread, rel=0.2)
        before = now
    took = now.since(began)

    assert num_equal >= 15
    assert cpu_seconds(~1 << 3 | PER_THREAD) == 0.0  # no thread of this process has this number
    assert time.process_time() - everything > 1.1 * took.process


def test_a_forked_process_counts_its_main_thread() -> None:
    """Python gives it the number of its parent's main thread."""
    if not (child := os.fork()):
        status = 1
        try:
            threading.Thread(target=threading.Event().wait, daemon=True).start()
            threads = clocks_of_working_threads()
            status = int(bool(threads) and ~os.getpid() << 3 | PER_THREAD not in threads)
        finally:
            os._exit(status)

    assert os.waitpid(child, 0)[1] == 0
