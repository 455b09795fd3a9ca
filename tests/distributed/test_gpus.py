"""Ranks on GPUs: what is copied to and fro is right, NCCL adds up where it can, and who shares a GPU is told. Skipped without one."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from running import family, hetsim, started, wait_for

from hetsim import run
from hetsim.distributed.communication.gloo import GlooTransport
from hetsim.distributed.communication.reduction import Reduction, open_reduction
from hetsim.workloads.device import Device, device, num_cuda_devices

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not num_cuda_devices(), reason="this machine has no CUDA device")]

several = pytest.mark.skipif(num_cuda_devices() < 2, reason="this machine has no two CUDA devices")
SIZES = (1, 3, 1000, 1_000_003)
LONG_CYCLES = 500_000_000
"""Of a kernel that only waits: some tenths of a second."""


@pytest.fixture(scope="module")
def gpu() -> Device:
    """The first one."""
    return device("cuda")


@pytest.fixture(scope="module")
def alone() -> Iterator[GlooTransport]:
    """The transport of a rank that is the only one."""
    with GlooTransport.connect(0, 1, dist.HashStore()) as transport:
        yield transport


# Copies


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8])
def test_what_is_fetched_is_what_was_there(gpu: Device, dtype: torch.dtype) -> None:
    """Though it is computed after the copy was asked for, and nobody on the device refers to it any more."""
    for size in SIZES:
        expected = [torch.arange(size).mul(number).to(dtype) for number in range(20)]
        there = [gpu.place(value) for value in expected]
        torch.cuda._sleep(LONG_CYCLES // 10)

        fetched = [gpu.begin_fetch(value + 0) for value in there]
        for value in there:
            value.zero_()
        [torch.full((size,), 3, dtype=dtype, device=gpu.name) for _ in range(20)]

        for copy, value in zip(fetched, expected, strict=True):
            assert copy().is_pinned()
            assert torch.equal(copy(), value)


def test_what_is_placed_is_what_was_received(gpu: Device) -> None:
    """Though the memory that received it is received into again as soon as nobody refers to it."""
    for size in SIZES:
        torch.cuda._sleep(LONG_CYCLES // 10)
        placed = []
        for number in range(50):
            received = gpu.empty(size, dtype=torch.float32).fill_(number)
            assert received.is_pinned()
            placed.append(gpu.place(received))
            del received

        gpu.synchronise()
        assert all(torch.equal(value, torch.full_like(value, number)) for number, value in enumerate(placed))


def test_a_thread_waits_for_its_own_queue_alone(gpu: Device) -> None:
    """So a step's seconds do not have the all-reduce in them that runs beside it, and that waits for the slowest rank."""
    with ThreadPoolExecutor(max_workers=1, initializer=gpu.own_queue) as second:
        small = gpu.place(torch.ones(3))
        small.sum()  # loads the kernel
        gpu.synchronise()
        long = second.submit(_queue_long, gpu).result()

        small.sum()
        gpu.synchronise()
        assert not long.query()
        second.submit(gpu.synchronise).result()

        assert long.query()


def _queue_long(gpu: Device) -> Any:
    torch.cuda._sleep(LONG_CYCLES)
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(gpu.name))
    return event


def test_a_gpu_has_one_number(gpu: Device) -> None:
    """By which ranks know whether they share it."""
    numbers = {device(f"cuda:{index}").gpu for index in range(num_cuda_devices())}

    assert len(numbers) == num_cuda_devices()
    assert gpu.gpu in numbers
    assert 0 not in numbers


# Sums


@pytest.mark.parametrize("order", ["ordered", "native"])
def test_nccl_has_the_sums_of_gloo(order: str, gpu: Device, alone: GlooTransport) -> None:
    """In both threads at the same time, on the device; of one rank each is its own vector, to the last bit."""
    through_cpu = Reduction.by_gloo(alone, gpu, order)
    vectors = [torch.randn(size, device=gpu.name, dtype=dtype) for size in SIZES for dtype in (torch.float32, torch.float64)]
    gpu.synchronise()

    with (
        open_reduction("nccl", alone, gpu, order, interface="lo", report=pytest.fail) as reduction,
        ThreadPoolExecutor(max_workers=1, initializer=gpu.own_queue) as second,
    ):
        for vector in vectors:
            started = second.submit(_added, reduction, gpu, vector)
            total = reduction.main(vector)
            assert total.is_cuda
            assert torch.equal(total, vector)
            assert torch.equal(started.result(), vector)
            assert torch.equal(through_cpu.main(vector), vector)


def _added(reduction: Reduction, gpu: Device, vector: torch.Tensor) -> torch.Tensor:
    total = reduction.second(vector)
    gpu.synchronise()
    return total


# Runs


def nodes(*names: str) -> str:
    """The word for a cluster of a node on each of these devices."""
    rows = ", ".join(f"{{count: 1, seconds_per_sample: 1e-5, overhead_seconds: 0, device: {name}}}" for name in names)
    return f"cluster.nodes=[{rows}]"


def trained(folder: Path, *words: str) -> tuple[dict[str, Any], list[str]]:
    """The summary, and the losses as they are written."""
    always = ("workload=quadratic", "budget.epochs=4", "pictures=false", "cluster.server.seconds_per_update=0")
    summary = run(*always, *words, folder=folder).summary
    return summary, [line.split(",")[3] for line in (folder / "curve.csv").read_text().splitlines()]


@pytest.mark.parametrize("method", ["ssgd", "pipe_sgd", "local_sgd"])
@pytest.mark.parametrize("order", ["ordered", "native"])
def test_a_rank_alone_on_a_gpu_adds_up_by_nccl(method: str, order: str, tmp_path: Path) -> None:
    """And has the losses of the simulator, which adds up on its own device."""
    _, simulated = trained(tmp_path / "sim", f"method={method}", nodes("cuda"), "backend=sim", "device=cuda")
    words = (f"method={method}", nodes("cuda"), "backend=dist", "backend.emulate=none", f"backend.reduction={order}")
    summary, losses = trained(tmp_path / "dist", *words)

    assert summary["emulation"] == {"emulate": "none", "reduction": order, "library": "nccl"}
    assert summary["warnings"] == []
    assert losses == simulated


@several
@pytest.mark.parametrize("method", ["ssgd", "pipe_sgd", "local_sgd"])
def test_sums_by_nccl_in_rank_order_are_the_simulators(method: str, tmp_path: Path) -> None:
    """To the last bit, on as many GPUs as there are."""
    cluster = nodes(*(f"cuda:{index}" for index in range(num_cuda_devices())))
    _, simulated = trained(tmp_path / "sim", f"method={method}", cluster, "backend=sim", "device=cuda")
    summary, losses = trained(tmp_path / "dist", f"method={method}", cluster, "backend=dist", "backend.emulate=none")

    assert summary["emulation"]["library"] == "nccl"
    assert losses == simulated


@pytest.mark.parametrize("method", ["ssgd", "pipe_sgd"])
def test_ranks_that_share_a_gpu_add_up_by_gloo_and_are_told(method: str, tmp_path: Path) -> None:
    """With the simulator's losses: an addition on the CPU has the bits of one on a GPU."""
    cluster = nodes("cuda:0", "cuda:0")
    _, simulated = trained(tmp_path / "sim", f"method={method}", cluster, "backend=sim", "device=cuda:0")
    summary, losses = trained(tmp_path / "dist", f"method={method}", cluster, "backend=dist", "backend.emulate=none")

    assert summary["devices"] == ["cuda:0", "cuda:0"]
    assert summary["emulation"]["library"] == "gloo"
    assert summary["warnings"] == ["ranks 0 and 1 share a GPU: the steps of one take longer while another computes"]
    assert losses == simulated


@pytest.mark.parametrize("server", ["cpu", "cuda:0"])
@pytest.mark.parametrize("method", ["asgd", "od_sgd"])
def test_workers_on_a_gpu_push_to_a_server_on_either(method: str, server: str, tmp_path: Path) -> None:
    """One worker's updates have one order, so the losses are the simulator's: to the last bit where all compute on the GPU."""
    words = (f"method={method}", nodes("cuda:0"), f"+cluster.server.device={server}")
    _, simulated = trained(tmp_path / "sim", f"method={method}", nodes("cuda:0"), "backend=sim", "device=cuda:0")
    summary, losses = trained(tmp_path / "dist", *words, "backend=dist", "backend.emulate=none")

    assert summary["devices"] == ["cuda:0", server]
    assert len(summary["warnings"]) == (server != "cpu")
    if server == "cpu":
        assert [float(loss) for loss in losses[1:]] == pytest.approx([float(loss) for loss in simulated[1:]], rel=1e-3)
    else:
        assert losses == simulated


@pytest.mark.parametrize("server", ["cpu", "cuda:0"])
def test_many_workers_of_a_gpu_push_at_once(server: str, tmp_path: Path) -> None:
    """In any order: the run ends where a run on the CPU does, nearly."""
    words = ("method=asgd", "backend=dist", "backend.emulate=none", f"+cluster.server.device={server}")
    summary, _ = trained(tmp_path / "there", *words, nodes(*["cuda:0"] * 4), "workload.num_parameters=100000")
    alone, _ = trained(tmp_path / "cpu", "method=asgd", "backend=sim", nodes(*["cpu"] * 4), "workload.num_parameters=100000")

    assert summary["num_updates"] == alone["num_updates"]
    assert summary["final"]["train_loss"] == pytest.approx(alone["final"]["train_loss"], rel=0.5)


# Losses of ranks


@several
def test_a_run_on_gpus_ends_when_a_rank_is_killed(tmp_path: Path) -> None:
    """NCCL would wait for it; no process is left, and the reason is one sentence."""
    words = ("-m", "hetsim", "backend=dist", "method=ssgd", "workload=quadratic", "budget.epochs=100000", "pictures=false", "trace=none")
    command = hetsim(*words, nodes("cuda:0", "cuda:1"), folder=tmp_path)
    running = started(command, tmp_path)

    os.kill(running[-1], signal.SIGKILL)
    _, told = command.communicate(timeout=180)

    wait_for(lambda: not family(command.pid))
    assert command.returncode == 1
    assert told.splitlines()[-1].startswith("hetsim: error: the process of rank ")
