"""Profiler files of torch, one for each rank: who is slow is the one that waits least, and a file that is none is one sentence."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from worlds import exit_status

import hetsim
from hetsim.cli.stragglers import main
from hetsim.straggling import kineto
from hetsim.straggling.findings import read_job

GENERATOR = Path(__file__).parents[2] / "benchmarks" / "profiles.py"
OWN = (10_000, 15_000)
"""Microseconds of each rank's own work before the all-reduce of a step, which takes 1,000 after the last rank has entered."""


def event(name: str, ts: float, dur: float, cat: str = "cpu_op", **more: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, **more}


def cpu_step(number: int, start: float, own: float, longest: float) -> list[dict[str, Any]]:
    """A gap such as of a loader, operations, and the all-reduce, which begins before the last operation ends; then an update."""
    end = start + longest + 1_000
    return [
        event(f"ProfilerStep#{number}", start, end + 500 - start, "user_annotation"),
        event("aten::addmm", start + own / 2, own / 2),
        event("c10d::allreduce_", start + own - 100, 50, args={"Input Dims": [[1000]]}),
        event("gloo:all_reduce", start + own - 50, end - start - own + 50, "user_annotation"),
        event("aten::add_", end, 500),
    ]


def gpu_step(number: int, start: float, own: float, longest: float) -> list[dict[str, Any]]:
    """The same in kernels; the calls on the CPU are long over."""
    end = start + longest + 1_000
    return [
        event(f"ProfilerStep#{number}", start, end + 500 - start, "user_annotation"),
        event("nccl:all_reduce", start + 10, 20, "user_annotation"),
        event("gemm", start + own / 2, own / 2, "kernel"),
        event("ncclDevKernel_AllReduce_Sum_f32_RING_LL", start + own - 100, end - start - own + 100, "kernel"),
        event("adam", end, 500, "kernel"),
    ]


Step = Callable[[int, float, float, float], list[dict[str, Any]]]


def profile(rank: int, *, step: Step = cpu_step, num_ranks: int = 2, own: tuple[int, ...] = OWN, start: float = 0.0) -> dict[str, Any]:
    """What torch.profiler writes, as far as it is read."""
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": 1}]
    for number in range(20):
        events += step(number, start, own[rank], max(own))
        start += max(own) + 1_500
    return {"distributedInfo": {"backend": "gloo", "rank": rank, "world_size": num_ranks}, "traceEvents": events, "baseTimeNanoseconds": 0}


def written(folder: Path, *profiles: Any) -> Path:
    folder.mkdir()
    for place, its in enumerate(profiles):
        text = its if isinstance(its, str) else json.dumps(its)
        if place % 2:
            (folder / f"{place}.pt.trace.json.gz").write_bytes(gzip.compress(text.encode()))
        else:
            (folder / f"{place}.pt.trace.json").write_text(text)
    return folder


@pytest.mark.parametrize("step", [cpu_step, gpu_step])
def test_the_slow_rank_is_the_one_that_waits_least(step: Step, tmp_path: Path) -> None:
    """Steps last equally long on both ranks; what is left of the all-reduce when the last one enters is its own time."""
    job = read_job([written(tmp_path / "profiles", *(profile(rank, step=step) for rank in range(2)))])

    assert job.gradients == pytest.approx(1e-6 * np.array([[10_500.0] * 20, [15_500.0] * 20]))
    assert job.collectives == pytest.approx([1e-3] * 20)


KERNELS = (
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)",
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "ncclKernel_AllReduce_RING_LL_Sum_half(ncclWorkElem)",
    "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
    "mscclKernel_Sum_hip_bfloat16_Simple_false",
    "hcom_allReduce__503_0_1",
    "oneccl_allreduce_pcie",
    "void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(vllm::RankData*)",
    "two_shot_all_reduce_kernel_inplace",
)
OTHER_KERNELS = (
    "__amd_rocclr_copyBuffer",
    "sm80_xmma_gemm_f16f16",
    "void at::native::reduce_kernel<512, 1>",
    "Memcpy DtoD",
    "reduce_1Block",
)


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_of_collectives_are_recognised(name: str, tmp_path: Path) -> None:
    """By the names of all libraries in published traces, and otherwise by what PyTorch writes beside the name."""

    def renamed(rank: int, kernel: str, **more: Any) -> dict[str, Any]:
        text = json.dumps(profile(rank, step=gpu_step)).replace("ncclDevKernel_AllReduce_Sum_f32_RING_LL", kernel)
        of_rank: dict[str, Any] = json.loads(text)
        for event in of_rank["traceEvents"]:
            event |= more if event["name"] == kernel else {}
        return of_rank

    job = read_job([written(tmp_path / "named", *(renamed(rank, name) for rank in range(2)))])
    noted = {"args": {"Collective name": "allreduce"}}
    unnamed = read_job([written(tmp_path / "noted", *(renamed(rank, "_a_kernel", **noted) for rank in range(2)))])

    assert job.collectives == pytest.approx([1e-3] * 20)
    assert unnamed.collectives == pytest.approx([1e-3] * 20)


@pytest.mark.parametrize(
    ("loading", "words"), [(6_000, " (in loading data), which costs"), (100, "as long as the fastest rank's, which costs")]
)
def test_a_rank_that_waits_for_its_loader_is_said_to(loading: float, words: str, tmp_path: Path) -> None:
    """The profiler marks the calls for a batch. Rank 1 is slower by 5,000 microseconds a step."""
    profiles = [profile(rank) for rank in range(2)]
    steps = [each["ts"] for each in profiles[1]["traceEvents"] if each["name"].startswith("ProfilerStep")]
    name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    profiles[1]["traceEvents"] += [event(name, ts, loading, "user_annotation") for ts in steps]

    assert words in hetsim.stragglers(written(tmp_path / "profiles", *profiles), replay=False).data["verdict"]


def test_kernels_of_work_are_not_taken_for_collectives() -> None:
    assert [name for name in OTHER_KERNELS if kineto.KERNEL.search(name)] == []


@pytest.mark.parametrize("seconds", [60.0, -0.001, 1e6])
def test_clocks_that_differ_by_a_constant_change_nothing(seconds: float, tmp_path: Path) -> None:
    """The same steps are compared, and a remark names a large difference."""
    aligned = read_job([written(tmp_path / "aligned", profile(0), profile(1))])
    shifted = read_job([written(tmp_path / "shifted", profile(0), profile(1, start=1e6 * seconds))])

    assert shifted.gradients == pytest.approx(aligned.gradients)
    assert shifted.collectives == pytest.approx(aligned.collectives)
    assert bool(shifted.remarks) == (seconds > 1)


def test_a_slow_rank_of_profiler_files_is_found_and_replayed(tmp_path: Path) -> None:
    """Also if each file is given by itself."""
    folder = written(tmp_path / "profiles", *(profile(rank) for rank in range(2)))
    its = hetsim.stragglers(folder)

    assert [(each["rank"], each["kinds"]) for each in its.data["stragglers"]] == [(1, ["chronic"])]
    assert its.data["cost"] == pytest.approx(5_000 / 16_500, abs=0.001)
    assert its.data["replay"]["saved"]["rank 1 at the median"] == pytest.approx(5_000 / 16_500, abs=0.001)
    assert hetsim.stragglers(*sorted(folder.iterdir()), replay=False).data["cost"] == its.data["cost"]


def changed(**keys: Any) -> dict[str, Any]:
    return {**profile(1), **keys}


def without_collectives(rank: int) -> dict[str, Any]:
    events = profile(rank)["traceEvents"]
    return {**profile(rank), "traceEvents": [each for each in events if "reduce" not in each["name"]]}


REFUSED = {
    "one rank": ((profile(0),), "has the file of one rank"),
    "truncated": ((profile(0), json.dumps(profile(1))[:-5000]), "is no JSON"),
    "deep": ((profile(0), "[" * 100_000), "nested too deeply"),
    "a list": ((profile(0), []), "has no traceEvents"),
    "no rank": ((profile(0), changed(distributedInfo={"rank": "1"})), "does not say its rank"),
    "a rank that is none": ((profile(0), changed(distributedInfo={"rank": 7, "world_size": 2})), "does not say its rank"),
    "a rank without a file": (
        (profile(0, num_ranks=3), profile(1, num_ranks=3)),
        "is of 3 ranks and has no file of rank 2: give",
    ),
    "many ranks without a file": ((profile(0, num_ranks=50), profile(1, num_ranks=50)), "no file of rank 2, 3, 4, 5, 6, 7, 8, 9, …: give"),
    "twice the same rank": ((profile(0), profile(0)), "are both of rank 0"),
    "other sizes": ((profile(0), profile(1, num_ranks=3)), "give the files of one job"),
    "other steps": ((profile(0, own=(10_000, 15_000)), profile(1, own=(10_000, 2_000))), "have steps that do not coincide"),
    "no collective": ((without_collectives(0), without_collectives(1)), "has no collective in its steps"),
    "no steps": ((profile(0), changed(traceEvents=[])), "has no ProfilerStep#"),
    "a time that is none": ((profile(0), changed(traceEvents=[event("ProfilerStep#1", float("nan"), 1)])), "is none of torch.profiler"),
    "a text for a time": ((profile(0), changed(traceEvents=[event("x", "\x1b[2J", 1)])), "is none of torch.profiler"),  # type: ignore[arg-type]
    "a long number": ((profile(0), '{"traceEvents": ' + "9" * 10_000 + "}"), "is no JSON"),
}


@pytest.mark.parametrize(("profiles", "words"), REFUSED.values(), ids=REFUSED)
def test_files_that_are_no_job_are_one_sentence(
    profiles: tuple[Any, ...], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = written(tmp_path / "profiles", *profiles)

    assert exit_status(monkeypatch, "hetsim-stragglers", main, folder) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert words in printed.err
    assert printed.err.count("\n") == 1
    assert "\x1b" not in printed.err


def test_a_packed_file_is_not_unpacked_beyond_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that is cut off, or not packed at all, is a sentence too."""
    monkeypatch.setattr(kineto, "MAX_BYTES", 1000)
    for content, words in (
        (gzip.compress(b" " * 10**6), "unpacks to over 1000 bytes"),
        (gzip.compress(b"{}" * 100)[:-12], "cannot be read or unpacked"),
        (b"{}", "cannot be read or unpacked"),
        (gzip.compress(b"\xff"), "is not text"),
    ):
        paths = [tmp_path / "0.json.gz", tmp_path / "1.json.gz"]
        for path in paths:
            path.write_bytes(content)
        with pytest.raises(ValueError, match=words):
            read_job(paths)


@pytest.mark.long
def test_files_of_torch_profiler_show_the_rank_that_sleeps(tmp_path: Path) -> None:
    """Two processes of DistributedDataParallel over gloo, of which one sleeps for 20 ms in each step."""
    subprocess.run([sys.executable, GENERATOR, tmp_path / "profiles"], check=True, capture_output=True, cwd=tmp_path)
    first, *_ = hetsim.stragglers(tmp_path / "profiles", replay=False).data["stragglers"]

    assert first["rank"] == 1
    assert "chronic" in first["kinds"]


def test_its_own_output_is_no_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """So the same command works again with its output in the folder that it reads, or among the files. A profile is not replaced."""
    folder = written(tmp_path / "profiles", profile(0), profile(1))
    profiles = sorted(folder.iterdir())
    output = f"--json={folder / 'out.json'}"
    for words in ((folder, output), (folder, output), (folder / "out.json", *profiles, output)):
        assert exit_status(monkeypatch, "hetsim-stragglers", main, *words) == 0
    before = profiles[1].read_bytes()

    assert exit_status(monkeypatch, "hetsim-stragglers", main, folder, f"--json={profiles[1]}") == 1
    assert "would replace a file" in capsys.readouterr().err
    assert profiles[1].read_bytes() == before
