"""A script that ends without destroy_process_group exits with status 0."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import torch.distributed as dist

from hetsim.ddp import hook

RELEASES = """
import sys, torch, torch.distributed as dist
import hetsim.ddp
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
sys.setswitchinterval(1000)
tensors = [torch.ones(10) for _ in range(2000)]
dist.all_reduce_coalesced(tensors)
del tensors
"""
"""The thread of gloo holds the last references to tensors, and does not get Python's lock before the exit."""


def test_an_exit_waits_until_threads_have_released_their_callbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that takes a callback's last reference while Python exits would abort the process."""
    released = threading.Event()

    class Callback:
        def __call__(self, _: object) -> None: ...

        def __del__(self) -> None:
            released.set()

    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    held = [Callback()]
    hook._callbacks.add(held[0])
    thread = threading.Timer(0.02, held.clear)
    thread.start()
    hook.wait_for_gloo()

    assert released.is_set()
    thread.join()


@pytest.mark.slow
@pytest.mark.long
def test_an_exit_waits_until_threads_have_released_their_tensors() -> None:
    """Without the wait, 4 of 6 such processes were aborted."""
    for _ in range(4):
        done = subprocess.run([sys.executable, "-W", "ignore", "-c", RELEASES], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
