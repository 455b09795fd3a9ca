"""Where a task computes: the CPU, of which a backend may always ask to wait until everything is done."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from elsewhere import Elsewhere
from methods import SHIPPED
from threads import run_in_threads
from worlds import cluster, experiment, node, simulate

import hetsim
from hetsim.config.build import build_experiment
from hetsim.config.compose import composed
from hetsim.config.resolved import resolved
from hetsim.distributed import backend as real_backend
from hetsim.distributed.launch.participation import device_of
from hetsim.distributed.rank.run import RankRun
from hetsim.effects import Batch
from hetsim.workloads import device as devices
from hetsim.workloads.device import CPU, Device, device


def test_the_cpu_has_nothing_queued():
    """To synchronise returns at once: every result is computed when its function returns."""
    cpu = device("cpu")

    assert isinstance(cpu, CPU)
    assert cpu.name == "cpu"
    assert cpu.synchronise() is None


def test_an_unknown_device_is_refused():
    """With one sentence."""
    with pytest.raises(ValueError, match="device must be cpu, cuda, cuda:K or auto, not 'tpu'"):
        device("tpu")


@pytest.mark.parametrize("workload", ["phantom", "quadratic", "digits", "tiny_lm"])
def test_every_task_has_a_device(workload: str):
    """So a backend can wait for it before it reads a clock."""
    task, _ = experiment(f"workload={workload}").load()

    assert isinstance(task.device, Device)
    task.device.synchronise()


def test_a_task_keeps_the_device_that_it_was_loaded_on():
    """Vectors and gradients are computed there."""
    here = CPU()
    made = experiment("workload=quadratic")

    assert made.workload.load(seed=0, dtype="float32", device=here).device is here
    assert experiment("workload=digits").workload.load(seed=0, dtype="float32", device=here).device is here


LOCAL = ("diloco", "local_sgd", "muloco", "sparse_loco", "streaming_diloco", "decoupled_diloco")
"""Methods of which an update is of many steps of each worker."""
WORKLOADS: dict[str, dict[str, Any]] = {
    "quadratic": {},
    "digits": {},
    "tiny_lm": {"workload": {"width": 16, "num_samples": 64}, "optimizer": {"_target_": "hetsim.workloads.muon.Muon"}},
    "a convolution with batch norm, dropout and augmentation": {
        "workload": {"model": "resnet20", "resize": 8, "num_samples": 64, "augmentation": {"pad": 1, "mirror": True}}
    },
}


@pytest.mark.parametrize("kind", WORKLOADS)
def test_a_task_computes_on_its_device_alone(kind: str):
    """The same numbers as on the CPU, and no tensor is left behind there."""
    made = experiment(f"workload={kind if ' ' not in kind else 'digits'}", **WORKLOADS[kind])
    batch, there = Batch(0, 16), Elsewhere()
    task, optimizers = made.load()
    expected, loss = task.gradient(task.initial(), batch)
    _, moved = optimizers.main.step(optimizers.main.initial(), task.initial(), expected, 0)

    with there:
        task = made.workload.load(seed=made.seed, dtype=made.dtype, device=there)
        optimizer = task.optimizer(made.optimizer)
        gradient, same_loss = task.gradient(task.initial(), batch)
        _, weights = optimizer.step(optimizer.initial(), task.initial(), gradient, 0)
        evaluation = task.evaluate(weights)
        assert all(map(there.has, (task.initial(), gradient, weights)))

    assert there.num_checked
    assert torch.equal(gradient, expected)
    assert torch.equal(weights, moved)
    assert same_loss == loss
    assert evaluation == made.load()[0].evaluate(moved)


@pytest.mark.slow
@pytest.mark.parametrize("method", SHIPPED)
@pytest.mark.sampled(4)
def test_every_method_runs_on_a_device_alone(method: str, monkeypatch: pytest.MonkeyPatch):
    """In virtual time: the weights are those of the CPU, and no operation mixes tensors of both."""
    made = experiment(f"method={method}", "workload=quadratic", budget={"updates": 12 if method in LOCAL else 30})
    expected, there = simulate(made).weights, Elsewhere()
    monkeypatch.setattr(devices, "device", lambda *_, **__: there)

    with there:
        weights = simulate(made).weights

    assert there.has(weights)
    assert torch.equal(weights, expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [
        *("ssgd", "ssgd coordination=overlapped_all_reduce", "dbs_sgd", "dc_asgd", "od_sgd", "cd_sgd", "pipe_sgd", "local_sgd"),
        *("sparse_loco", "streaming_diloco", "hetgrad"),
    ],
)
@pytest.mark.sampled(4)
def test_ranks_on_several_devices_send_what_is_in_the_cpus_memory(method: str):
    """Rank 0 on the CPU, the others each on a device of its own."""
    made = experiment(*f"method={method}".split(), "workload=quadratic", budget={"updates": 12})
    kinds: list[Device] = [CPU(), *(Elsewhere() for _ in range(made.num_ranks - 1))]

    for run in run_in_threads(made, devices=kinds):
        assert isinstance(run, RankRun), run
        there = kinds[run.rank]
        assert not isinstance(there, Elsewhere) or there.num_checked


def test_the_device_of_a_rank_is_that_of_its_node_or_else_the_configs(monkeypatch: pytest.MonkeyPatch):
    """And the server has one of its own."""
    monkeypatch.setattr(devices, "num_cuda_devices", lambda: 4)
    nodes = {**cluster(node(1.0, device="cpu"), node(1.0), node(1.0)), "server": {"seconds_per_update": 0.0, "device": "cuda:3"}}
    made = experiment("method=asgd", "workload=quadratic", device="cuda", cluster=nodes)

    assert [made.device_of(rank) for rank in range(4)] == ["cpu", "cuda", "cuda", "cuda:3"]


@pytest.mark.parametrize(("count", "expected"), [(1, ["cuda:0", "cuda:0", "cpu", "cuda:0"]), (2, ["cuda:0", "cuda:1", "cpu", "cuda:0"])])
def test_ranks_take_the_devices_of_their_host_in_turn(count: int, expected: list[str], monkeypatch: pytest.MonkeyPatch):
    """And share them, where there are fewer."""
    monkeypatch.setattr(devices, "num_cuda_devices", lambda: count)
    rows = [node(1.0, device=name) for name in ("cuda", "cuda", "cpu", "cuda")]
    made = experiment("method=ssgd", "workload=quadratic", cluster=cluster(*rows))

    assert [device_of(made, rank, range(4)) for rank in range(4)] == expected
    assert device_of(made, 3, [2, 3]) == "cuda:0"


@pytest.mark.parametrize(
    ("backend", "count", "expected"),
    [
        ("hetsim.sim.Simulator", 2, "cpu"),
        *(("hetsim.distributed.Processes", 2, "cuda"), ("hetsim.distributed.Processes", 0, "cpu")),
    ],
)
def test_auto_is_a_gpu_for_real_where_there_is_one(backend: str, count: int, expected: str, monkeypatch: pytest.MonkeyPatch):
    """In the config that is written and in the run's identity."""
    monkeypatch.setattr(devices, "num_cuda_devices", lambda: count)
    entries = {
        "backend": {"_target_": backend},
        "cluster": {"nodes": [{"count": 1, "device": "auto"}, {"count": 1}], "server": {"device": "auto"}},
        "seed": 0,
    }

    found = resolved({**entries, "device": "auto"})

    assert found["device"] == expected
    assert found["cluster"] == {"nodes": [{"count": 1, "device": expected}, {"count": 1}], "server": {"device": expected}}
    assert resolved({**entries, "device": "cuda:1"})["device"] == "cuda:1"


def test_a_node_whose_device_is_missing_is_named_with_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of several nodes has the key, and the nodes after it are counted on."""
    monkeypatch.setattr(devices, "num_cuda_devices", lambda: 0)
    made = experiment("method=ssgd", "workload=quadratic", cluster=cluster(node(1.0), node(1.0, device="cuda")))

    with pytest.raises(ValueError, match=r"^node 1, in its row of cluster\.nodes: device=cuda: PyTorch finds .*: take device=cpu$"):
        real_backend.check_devices(made)


@pytest.mark.parametrize("where", ["device=cuda", "backend=dist device=cuda", "backend=dist cluster.server.device=cuda:7", "device=cuda:1"])
@pytest.mark.skipif(devices.num_cuda_devices() > 1, reason="this machine has the devices")
def test_a_device_that_is_not_there_is_refused(where: str):
    """Before anything is loaded."""
    words = [f"+{word}" if word.startswith("cluster") else word for word in where.split()]
    config = composed(["method=asgd", "workload=quadratic", *words], folder=".")
    with pytest.raises(ValueError, match=r"device=cuda.*: PyTorch finds .* on this machine: take .*=cpu"):
        build_experiment(config.entries)


def test_autocast_computes_products_in_bfloat16_and_gradients_in_the_weights_type():
    """On any device."""
    made, cast = (experiment("workload=digits", autocast=kind) for kind in (None, "bfloat16"))
    gradients = []
    for each in (made, cast):
        task, _ = each.load()
        gradients.append(task.gradient(task.initial(), Batch(0, 32))[0])

    assert gradients[1].dtype == torch.float32
    assert not torch.equal(*gradients)
    assert torch.linalg.vector_norm(gradients[0] - gradients[1]) < 0.02 * torch.linalg.vector_norm(gradients[0])


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"workload": "quadratic", "autocast": "bfloat16"}, "autocast=bfloat16 would do nothing, because workload=quadratic has no model"),
        ({"workload": "digits", "autocast": "float16"}, "autocast must be bfloat16, not 'float16'"),
        ({"workload": "digits", "autocast": "bfloat16", "dtype": "float64"}, "is for weights of dtype=float32, not float64"),
    ],
)
def test_an_autocast_without_effect_is_refused(keys: dict[str, str], reason: str):
    """With one sentence."""
    with pytest.raises(ValueError, match=re.escape(reason)):
        experiment(f"workload={keys.pop('workload')}", **keys)


@pytest.mark.gpu
@pytest.mark.skipif(not devices.num_cuda_devices(), reason="this machine has no CUDA device")
@pytest.mark.parametrize("method", ["ssgd", "ssgd coordination=overlapped_all_reduce", "dbs_sgd", "hetgrad", "od_sgd", "asgd", "local_sgd"])
def test_ranks_on_a_gpu_train_beside_ranks_on_the_cpu(method: str, tmp_path: Path):
    """The same losses as on the CPU alone, to what GPUs compute differently."""
    words = [*f"method={method}".split(), "backend=dist", "workload=digits", "workload.model=lenet", "budget.epochs=2", "pictures=false"]
    rows = "cluster.nodes=[{count: 2, seconds_per_sample: 1e-4, overhead_seconds: 0, device: cuda},"
    rows += "{count: 1, seconds_per_sample: 2e-4, overhead_seconds: 0, device: cpu}]"
    mixed = hetsim.run(*words, rows, folder=tmp_path / "mixed").summary
    alone = hetsim.run(*words, rows.replace("cuda", "cpu"), "device=cpu", folder=tmp_path / "alone").summary

    assert mixed["devices"][:3] == ["cuda:0", f"cuda:{1 % devices.num_cuda_devices()}", "cpu"]
    assert mixed["final"]["train_loss"] == pytest.approx(alone["final"]["train_loss"], rel=0.2)


@pytest.mark.gpu
@pytest.mark.skipif(not devices.num_cuda_devices(), reason="this machine has no CUDA device")
@pytest.mark.parametrize("model", ["mlp", "lenet", "resnet20"])
def test_virtual_time_on_a_gpu(model: str, tmp_path: Path):
    """The times are those of the CPU to the last bit, and the loss after the first update nearly."""
    words = ["method=ssgd", "workload=digits", f"workload.model={model}", "budget.updates=1", "pictures=false"]
    runs = [hetsim.run(*words, f"device={name}", folder=tmp_path / name).summary for name in ("cpu", "cuda")]

    assert runs[1]["devices"] == ["cuda:0"]
    assert runs[0]["seconds"] == runs[1]["seconds"]
    assert runs[1]["final"]["train_loss"] == pytest.approx(runs[0]["final"]["train_loss"], rel=0.01)
