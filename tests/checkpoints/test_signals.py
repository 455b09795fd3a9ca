"""SIGTERM and SIGUSR1 let a run save a checkpoint and end with a status of their own; and a saved run in processes goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import hetsim
from hetsim.checkpoints.file import read
from hetsim.checkpoints.folder import newest
from hetsim.runtime.checkpointing import STOPPED, StopRequest

pytestmark = pytest.mark.slow
TWO = "cluster.nodes=[{count: 2, seconds_per_sample: 1e-4, overhead_seconds: 1e-3}]"
LONG = ("workload=quadratic", "workload.num_parameters=20", "budget.epochs=1e6", "pictures=false", "checkpoint.every_seconds=0.2")


def stopped(folder: Path, number: signal.Signals, module: tuple[str, ...], *words: str) -> subprocess.CompletedProcess[str]:
    """The command, which is sent a signal once it has written a checkpoint."""
    command = [sys.executable, "-m", *module, *LONG, f"hydra.run.dir={folder}", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not list(folder.glob("checkpoints/*.safetensors")):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
        return subprocess.CompletedProcess(command, process.returncode, out, err)


@pytest.mark.parametrize(
    ("number", "module", "words"),
    [
        (signal.SIGTERM, ("hetsim",), ("method=asgd",)),
        (signal.SIGUSR1, ("hetsim",), ("method=ssgd", "backend=dist", TWO)),
        pytest.param(
            signal.SIGTERM, ("hetsim.cli.launch", "--processes", "3", "--"), ("method=asgd", "backend=dist", TWO), marks=pytest.mark.long
        ),
    ],
    ids=["sim", "dist", "hetsim-launch"],
)
def test_a_run_that_is_asked_to_stop_can_go_on(
    number: signal.Signals, module: tuple[str, ...], words: tuple[str, ...], tmp_path: Path
) -> None:
    """A status of its own, one line that says how it goes on, a checkpoint, nothing unfinished; and it goes on from there."""
    folder = tmp_path / "run"

    ended = stopped(folder, number, module, *words)

    assert ended.returncode == STOPPED == 75, ended.stderr
    assert ended.stderr.count("\n") == 1
    assert "stopped at version" in ended.stderr
    assert f"hetsim resume={folder}" in ended.stderr
    assert [path.name for path in folder.iterdir()] == ["checkpoints"]
    assert not list(folder.glob("checkpoints/.*"))
    version = int(newest(folder).name[:12])
    run = hetsim.run(f"resume={folder}", "backend=sim", f"budget.updates={version + 20}", folder=tmp_path / "rest")
    assert run.summary["num_updates"] == version + 20


def test_a_real_run_goes_on_bit_equal(tmp_path: Path) -> None:
    """Real ranks, stopped by a budget and gone on with: the weights and losses of the simulated run that never stopped."""
    words = ("workload=quadratic", "workload.num_parameters=20", "method=diloco", "coordination.period=2", TWO)
    more = ("batch_size=32", "pictures=false", "budget.epochs=null", "checkpoint.every_updates=3", "backend.emulate=none")
    hetsim.run(*words, *more, "backend=dist", "budget.updates=5", folder=tmp_path / "half")
    rest = hetsim.run(f"resume={tmp_path / 'half'}", "budget.updates=9", folder=tmp_path / "rest")
    whole = hetsim.run(*words, *more[:-1], "budget.updates=9", folder=tmp_path / "whole")

    (one, other) = (read(newest(tmp_path / name))[1] for name in ("rest", "whole"))
    assert [(row["version"], row["train_loss"]) for row in rest.curve().to_pylist()] == [
        (row["version"], row["train_loss"]) for row in whole.curve().to_pylist()
    ]
    assert rest.summary["num_updates"] == 9
    assert any(torch.equal(tensor, its) for tensor in one.values() for its in other.values())


def test_a_second_signal_does_what_it_did_before() -> None:
    """Only the first one asks."""
    seen: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: seen.append(number))
    try:
        stop = StopRequest()
        with stop.by_signals():
            os.kill(os.getpid(), signal.SIGUSR1)
            assert (stop.asked, seen) == (True, [])
            os.kill(os.getpid(), signal.SIGUSR1)
        assert seen == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)
