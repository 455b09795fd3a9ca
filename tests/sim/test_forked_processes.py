"""What a forked process leaves: no line written twice, and no process after its program."""

from __future__ import annotations

import os
import select
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from test_every_core import answered, simulated, used
from worlds import UNEVEN, experiment

from hetsim.sim.parallel_gradients import ParallelGradients

__all__ = ["answered"]


def test_what_another_thread_prints_before_a_fork_is_written_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is in the buffer of both processes."""
    fork = os.fork

    def forking() -> int:
        sys.stdout.write("printed once")
        return fork()

    monkeypatch.setattr(os, "fork", forking)
    with (tmp_path / "printed").open("w") as stream, monkeypatch.context() as context, used(context) as taken:
        context.setattr(sys, "stdout", stream)
        simulated(experiment("method=asgd", "workload=quadratic", cluster=UNEVEN, budget={"updates": 300}), 2)

    assert taken
    assert (tmp_path / "printed").read_text() == "printed once"


def test_no_process_is_left_of_a_killed_run_whose_program_has_forked() -> None:
    """Another fork keeps open what the killed program had."""
    alive, ours = os.pipe()
    run = os.fork()
    if run == 0:
        made = experiment("method=asgd", "workload=quadratic", cluster=UNEVEN, budget={"updates": 300})
        parallel: Any = ParallelGradients(made.load()[0], lambda *_: None, 2)  # type: ignore[arg-type]
        parallel.begin()
        other = os.fork()
        if other == 0:
            signal.pause()
        os.write(ours, f"{parallel._on_trial[0].process.pid} {other}".encode())
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(run, 0)
    helper, other = map(int, os.read(alive, 100).split())
    ended = os.pidfd_open(helper)
    try:
        assert select.select([ended], [], [], 20)[0]
    finally:
        os.kill(other, signal.SIGKILL)
        for end in (alive, ours, ended):
            os.close(end)
