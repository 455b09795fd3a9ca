"""SIGTERM and SIGUSR1 let a run save a checkpoint and end with a status of their own; and a saved run in processes goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from multiprocessing import active_children
from pathlib import Path

import pytest
import torch
from running import free_port, wait_for
from safetensors.torch import load_file

import hetsim
from hetsim.checkpoints.folder import newest
from hetsim.errors import RunFailed
from hetsim.runtime.checkpointing import STOPPED, StopRequest

pytestmark = pytest.mark.slow
TWO = "cluster.nodes=[{count: 2, seconds_per_sample: 1e-4, overhead_seconds: 1e-3}]"
LONG = ("workload=quadratic", "workload.num_parameters=20", "budget.epochs=1e6", "pictures=false", "checkpoint.every_seconds=0.2")


def stopped(folder: Path, number: signal.Signals, module: tuple[str, ...], *words: str) -> subprocess.CompletedProcess[str]:
    """The command, which is sent a signal once it has written a checkpoint."""
    command = [sys.executable, "-m", *module, *LONG, f"hydra.run.dir={folder}", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 120
        while not list(folder.glob("checkpoints/*.safetensors")):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
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


def tasks(*words: str) -> list[subprocess.Popen[str]]:
    """Two processes with the variables of a step of SLURM's."""
    step = {
        "SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_NODEID": "0", "SLURM_STEP_NODELIST": "localhost",
        "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2", "MASTER_PORT": str(free_port()),
    }  # fmt: skip
    command = [sys.executable, "-m", "hetsim", *words]
    return [
        subprocess.Popen(command, env={**os.environ, **step, "SLURM_PROCID": str(rank)}, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]


def ended(processes: list[subprocess.Popen[str]]) -> list[int]:
    """Their exit statuses."""
    for process in processes:
        process.communicate(timeout=180)
    return [process.returncode for process in processes]


def test_tasks_of_slurm_that_get_its_signal_end_with_75_and_the_next_ones_go_on(tmp_path: Path) -> None:
    """As `#SBATCH --signal=USR1@120` sends it, to each of them; in the same folder, as a script that queues itself again."""
    folder = tmp_path / "run"
    processes = tasks(*LONG, "method=ssgd", "backend=dist", TWO, f"hydra.run.dir={folder}")
    wait_for(lambda: list(folder.glob("checkpoints/*.safetensors")), 60)
    for process in processes:
        process.send_signal(signal.SIGUSR1)
    assert ended(processes) == [75, 75]
    version = int(newest(folder).name[:12])

    assert ended(tasks(f"resume={folder}", "backend=dist", f"budget.updates={version + 20}", f"hydra.run.dir={folder}")) == [0, 0]

    assert json.loads((folder / "summary.json").read_text())["num_updates"] == version + 20


@pytest.mark.long
def test_what_torchrun_stops_goes_on_under_torchrun(tmp_path: Path) -> None:
    """Its own status is 1; the checkpoint is there."""
    folder = tmp_path / "run"
    torchrun = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "hetsim")

    first = stopped(folder, signal.SIGTERM, torchrun, "method=ssgd", "backend=dist", TWO)
    version = int(newest(folder).name[:12])
    again = [f"resume={folder}", "backend=dist", f"budget.updates={version + 20}", f"hydra.run.dir={folder}"]
    second = subprocess.run([sys.executable, "-m", *torchrun, *again], capture_output=True, text=True, timeout=120, check=False)

    assert first.returncode == 1
    assert second.returncode == 0, second.stderr
    assert json.loads((folder / "summary.json").read_text())["num_updates"] == version + 20


SYNCHRONOUS = {
    "all-reduce": ("method=ssgd", "optimizer.momentum=0.9"),
    "local steps": ("method=diloco", "coordination.period=2"),
    "server": ("method=ssgd", "coordination=parameter_server", "compression=two_bit", "compression.threshold=0.05"),
}


@pytest.mark.parametrize("words", SYNCHRONOUS.values(), ids=SYNCHRONOUS)
@pytest.mark.sampled(1)
def test_a_real_run_goes_on_bit_equal(words: tuple[str, ...], tmp_path: Path) -> None:
    """Real ranks, stopped by a budget and gone on with: the weights and losses of the simulated run that never stopped."""
    words = (*words, "workload=quadratic", "workload.num_parameters=20", TWO)
    more = ("batch_size=32", "pictures=false", "budget.epochs=null", "checkpoint.every_updates=3", "save_weights=final")
    hetsim.run(*words, *more, "backend=dist", "backend.emulate=none", "budget.updates=5", folder=tmp_path / "half")
    rest = hetsim.run(f"resume={tmp_path / 'half'}", "budget.updates=9", folder=tmp_path / "rest")
    whole = hetsim.run(*words, *more, "budget.updates=9", folder=tmp_path / "whole")

    one, other = (load_file(tmp_path / name / "weights.safetensors") for name in ("rest", "whole"))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    losses = [[(row["version"], row["train_loss"]) for row in run.curve().to_pylist()] for run in (rest, whole)]
    assert losses[0] == losses[1]
    assert (rest.summary["backend"], rest.summary["num_updates"]) == ("dist", 9)


@pytest.mark.parametrize("method", ["ssgd", "asgd", "diloco"])
@pytest.mark.sampled(1)
def test_a_real_run_goes_on_with_another_number_of_workers(method: str, tmp_path: Path) -> None:
    """The samples of its epochs are counted once, as applied or discarded."""
    words = ("workload=quadratic", "workload.num_parameters=20", "workload.num_samples=512", f"method={method}", TWO)
    more = ("batch_size=32", "pictures=false", "checkpoint.every_updates=3", "backend=dist", "backend.emulate=none")
    hetsim.run(*words, *more, "budget.epochs=1", folder=tmp_path / "half")

    rest = hetsim.run(f"resume={tmp_path / 'half'}", "budget.epochs=3", TWO.replace("count: 2", "count: 3"), folder=tmp_path / "rest")

    assert len(rest.summary["per_worker"]) == 3
    assert rest.summary["num_samples"] + rest.summary["num_samples_discarded"] == 3 * 512
    assert all(worker["iterations"] for worker in rest.summary["per_worker"])


def test_a_real_run_fails_at_a_gradient_that_is_not_finite_if_it_is_to(tmp_path: Path) -> None:
    """With one sentence, and no process or file is left."""
    words = ("workload=quadratic", "workload.num_parameters=20", "method=ssgd", "learning_rate=1e30", "budget.epochs=9", TWO)
    others = active_children()

    with pytest.raises(RunFailed, match=r"rank \d.* not finite"):
        hetsim.run(*words, "backend=dist", "backend.emulate=none", "nonfinite=fail", folder=tmp_path / "run")

    assert not (tmp_path / "run").exists()
    assert set(active_children()) <= set(others)


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
