"""Hosts of which one has a GPU and the other none; the GPU is the CPU by another name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from running import family, free_port
from torch import nn
from worlds import experiment

from hetsim.distributed.membership.faults import survives_losses
from hetsim.distributed.rank.run import check_same_task, warm_up
from hetsim.effects import Batch
from hetsim.runtime.preparation import prepare
from hetsim.runtime.profiling import Profile
from hetsim.workloads.device import CPU
from hetsim.workloads.models.registry import OWN

pytestmark = pytest.mark.real_start
FAKE = """
import importlib.abc, importlib.machinery, sys

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "hetsim.workloads.device":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        load = spec.loader.exec_module

        def loading(module):
            load(module)
            module.num_cuda_devices = lambda: 1

            class OneGPU(module.CPU):
                gpu = 7.0

                def __init__(self, index, autocast=None):
                    super().__init__(index, autocast)
                    self.name = f"cuda:{index}"

            module.KINDS["cuda"] = OneGPU

        spec.loader.exec_module = loading
        return spec

sys.meta_path.insert(0, Finder())
"""
"""A sitecustomize by which a process finds one GPU."""


@pytest.fixture
def with_gpu(tmp_path: Path) -> dict[str, str]:
    """The environment of such a process."""
    (tmp_path / "gpu").mkdir()
    (tmp_path / "gpu" / "sitecustomize.py").write_text(FAKE)
    return {**os.environ, "PYTHONPATH": f"{tmp_path / 'gpu'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}


def summary(folder: Path) -> dict[str, Any]:
    """What a run has left."""
    read: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return read


@pytest.mark.slow
@pytest.mark.long
def test_a_laptop_with_a_gpu_and_one_without_train_together(with_gpu: dict[str, str], tmp_path: Path) -> None:
    """device=auto is another one on each; both ranks meet in the same way, and the summary says which device each had."""
    nodes = "cluster.nodes=[{count: 2, seconds_per_sample: 1e-5, overhead_seconds: 0}]"
    words = [
        "method=ssgd",
        "backend=dist",
        "workload=quadratic",
        nodes,
        "budget.epochs=1",
        "pictures=false",
        f"hydra.run.dir={tmp_path / 'run'}",
    ]
    call = [sys.executable, "-m", "hetsim.cli.launch", "--nodes", "2", "--master", f"127.0.0.1:{free_port()}"]
    launchers = [
        subprocess.Popen(
            [*call, "--node-rank", str(k), "--", *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for k, environment in enumerate((dict(os.environ), with_gpu))
    ]
    try:
        outputs = [launcher.communicate(timeout=180)[0] for launcher in launchers]
    finally:
        for launcher in launchers:
            for process in [*family(launcher.pid), launcher.pid] if launcher.poll() is None else []:
                os.kill(process, 9)

    assert [launcher.returncode for launcher in launchers] == [0, 0], outputs
    assert summary(tmp_path / "run")["devices"] == ["cpu", "cuda:0"]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["asgd", "ssgd"])
@pytest.mark.sampled(1)
def test_ranks_that_share_a_gpu_are_reported_whether_or_not_the_run_goes_on_after_a_loss(
    method: str, with_gpu: dict[str, str], tmp_path: Path
) -> None:
    """With a server, and without one."""
    nodes = "cluster.nodes=[{count: 2, seconds_per_sample: 1e-5, overhead_seconds: 0}]"
    words = [f"method={method}", "backend=dist", "backend.emulate=none", "device=cuda", "workload=quadratic", nodes, "budget.epochs=1"]

    subprocess.run([sys.executable, "-m", "hetsim", *words, f"hydra.run.dir={tmp_path}/run"], env=with_gpu, check=True, timeout=180)

    ranks = {"asgd": "0, 1 and 2", "ssgd": "0 and 1"}[method]
    assert summary(tmp_path / "run")["warnings"] == [f"ranks {ranks} share a GPU: the steps of one take longer while another computes"]


def test_whether_a_run_goes_on_after_a_loss_depends_on_the_devices_of_all_hosts() -> None:
    """All form a new group, but with a server: with a GPU among them they cannot."""
    alone, served = experiment("method=ssgd", device="cpu"), experiment("method=asgd", device="cpu")

    assert survives_losses(alone)
    assert not survives_losses(alone, ["cpu", "cpu", "cuda", "cpu"])
    assert survives_losses(served, ["cpu", "cpu", "cuda", "cpu", "cpu"])


class DrawsOtherwise(CPU):
    """Its generator makes other numbers of a seed than the CPU's does."""

    def seed(self, number: int) -> None:
        torch.default_generator.manual_seed(number + 1)


def dropped(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """A layer of which half of the inputs are dropped."""
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(int(torch.Size(shape).numel()), num_classes))


def test_devices_that_draw_other_numbers_have_the_same_workload(monkeypatch: pytest.MonkeyPatch) -> None:
    """What dropout draws is the device's own, so ranks are compared without it; another model, or other data, is another workload."""
    monkeypatch.setitem(OWN, "dropped", dropped)
    made = experiment("method=ssgd", "workload=digits", workload={"model": "dropped"})
    begins, gradients = [], []
    for device in (CPU(), DrawsOtherwise()):
        task, optimizers = made.load()
        task.device = task.flat.device = device  # type: ignore[attr-defined]
        prepared = prepare(made, task, optimizers, profile=Profile)
        begins.append([warm_up(prepared, samples=64), 0.0])
        gradients.append(task.gradient(prepared.start.weights, Batch(0, 64))[0])

    check_same_task(begins, "digits")

    assert not torch.equal(*gradients)
    with pytest.raises(ValueError, match=r"^workload=digits differs by rank"):
        check_same_task([begins[0], [1.01 * begins[0][0], 0.0]], "digits")
