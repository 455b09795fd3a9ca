"""hetsim-launch where the system suspends the whole run, and lets it go on, host after host."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from typing import Any

import pytest
from running import wait_for
from test_launched_losses import SECONDS, Hosts, hosts  # noqa: F401
from threads import Board

from hetsim.distributed.launch import host_exchange as hosts_module
from hetsim.distributed.launch.call import Call
from hetsim.distributed.launch.failure_report import Failure
from hetsim.distributed.launch.host_exchange import SILENT_SECONDS
from hetsim.distributed.launch.host_exchange import Hosts as Talk


@pytest.mark.slow
@pytest.mark.long
def test_a_whole_run_that_is_suspended_and_goes_on_loses_nobody(hosts: Any) -> None:  # noqa: F811
    """Though the hosts go on one after the other, and for longer than a host may be silent."""
    started: Hosts = hosts("asgd", (1, 2), epochs=300, lost_after=3.0)
    applied = started.folder / "applied"
    wait_for(lambda: applied.exists() and applied.stat().st_size > 10_000, SECONDS)

    for call in reversed(started.calls):
        os.killpg(call.pid, signal.SIGSTOP)
        time.sleep(1)  # the first one knows the last beat of the other
    time.sleep(4)
    for call in started.calls:
        os.killpg(call.pid, signal.SIGCONT)
        time.sleep(1)
    run = started.survive()

    assert "losses" not in run.summary["emulation"]


def test_after_a_gap_of_its_own_the_first_launcher_loses_no_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does another one lose the first: the whole run was suspended."""
    now = [100.0]
    monkeypatch.setattr(hosts_module.time, "monotonic", lambda: now[0])
    call = Call(nodes=2, node=0, processes=1, address="127.0.0.1", port=29500, words=(), version="1.0")
    board = Board()
    first, second = Talk(board, call), Talk(board, replace(call, node=1))
    for each in (first, second):
        each._exchange(1)

    now[0] += 2 * SILENT_SECONDS
    lost = second.lost
    first._exchange(2)
    assert (lost, first.failure) == (False, None)

    for number in range(3, 9 + int(2 * SILENT_SECONDS)):
        now[0] += 1.0
        first._exchange(number)
        lost = second.lost
    assert lost
    assert first.failure == Failure(1, "nothing was heard of node rank 1 for 30 s: the run is lost")
