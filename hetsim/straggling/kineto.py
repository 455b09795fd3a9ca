"""Read a job from PyTorch profiler files (Kineto's chrome traces), one for each rank.

A step is a `ProfilerStep#`. A rank waits while a collective is in progress and none of its operations or GPU kernels runs. The rest of the
step is its own work. The rank that waits least is the slow one, and its waiting is the time of the collectives themselves.
"""

from __future__ import annotations

import gzip
import itertools
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hetsim.files.reading import brief, check_is_no_link, from_json, is_number, open_file, read_bytes, shown
from hetsim.memory import check_fits
from hetsim.results.writing.describe import duration
from hetsim.straggling.job import Floats, Job, check_size

ENDINGS = (".json", ".json.gz")
MAX_BYTES = 2**30
"""The maximum length of a file's text."""
MEMORY = {b"": 4, b"{": 240, b"[": 64}
"""The memory of JSON while it is read: for each byte, for each mapping and for each list, in bytes."""
MAX_FILES = 4096
STEP = re.compile(r"ProfilerStep#(\d{1,9})")
COLLECTIVE = re.compile(r"(gloo|nccl|rccl|mpi|ucc|xccl|ccl|oneccl|hccl|lccl|cncl|eccl):")
"""The operations of PyTorch's process groups: `nccl:all_reduce`, `gloo:broadcast`, `xccl:all_reduce` (github.com/intel/torch-xpu-ops)."""
KERNEL = re.compile(
    r"nccl|rccl|msccl|oneccl|hccl|hcom_|cross_device_reduce|(one|two)_?shot_|multimem_|deep_ep::"
    r"|all_?reduce|reduce_?scatter|all_?gather|all_?to_?all|send_?recv",
    re.IGNORECASE,
)
"""Kernels that communicate:

- NCCL, RCCL: `ncclDevKernel_AllReduce…`, `ncclDevKernel_Generic…`, `ncclDevKernel_SendRecv…` (github.com/NVIDIA/nccl, src/device)
- MSCCL: `mscclKernel_Sum_half_Simple_false` (github.com/ROCm/rccl)
- Ascend: `hcom_allReduce__428_0_1` (msprof's table COMMUNICATION_OP)
- vLLM: `cross_device_reduce_1stage` (github.com/vllm-project/vllm, csrc)
- PyTorch's symmetric memory: `two_shot_all_reduce_kernel` (github.com/pytorch/pytorch, torch/csrc/distributed/c10d/symm_mem)
"""
SHOWN = 8
"""The number of missing ranks that an error lists."""
REMEDY = "give the files that torch.profiler wrote, one for each rank"
MICRO = 1e-6
LOADING = "enumerate(DataLoader)"
"""How PyTorch begins the name of a call for the next batch."""
LEAST_SHIFT = 1.0
"""The difference of clocks in seconds that a remark reports."""
UNIT = 1024
"""The assumed samples of a rank's gradient, because the files do not contain them."""


@dataclass(frozen=True)
class _File:
    """A rank's steps: seconds of own work, of waiting and of loading, by the step's number."""

    path: Path
    rank: int
    num_ranks: int
    steps: dict[int, tuple[float, float, float]]
    ends: dict[int, float]
    """The end of the last collective in each step, or of a step without any, in seconds of the host's clock."""
    nbytes: int


def profile_files(place: Path) -> list[Path]:
    """The profiler files at this place: the file itself, or the files in this folder."""
    if place.is_dir():
        return sorted(path for path in place.iterdir() if path.name.endswith(ENDINGS) and path.name != "summary.json")
    return [place] if place.name.endswith(ENDINGS) else []


def read_profiles(paths: Sequence[Path], source: str) -> Job:
    """The job in these files. Raises ValueError if they do not belong to one job."""
    if len(paths) > MAX_FILES:
        raise ValueError(f"{source} has {len(paths)} files, and at most {MAX_FILES} are read: {REMEDY}")
    if len(paths) < 2:
        raise ValueError(f"{source} has the file of one rank, and a straggler is slower than others: {REMEDY}")
    files = sorted((_read(path) for path in paths), key=lambda file: file.rank)
    first = files[0]
    for earlier, later in itertools.pairwise(files):
        if earlier.rank == later.rank:
            raise ValueError(f"{earlier.path} and {later.path} are both of rank {earlier.rank}: {REMEDY}")
    for file in files[1:]:
        if file.num_ranks != first.num_ranks:
            raise ValueError(f"{first.path} is of {first.num_ranks} ranks and {file.path} of {file.num_ranks}: give the files of one job")
    if missing := sorted(set(range(first.num_ranks)) - {file.rank for file in files}):
        few = f"{', '.join(map(str, missing[:SHOWN]))}{', …' if len(missing) > SHOWN else ''}"
        raise ValueError(f"{source} is of {first.num_ranks} ranks and has no file of rank {few}: {REMEDY}")
    numbers = sorted(set.intersection(*(set(file.steps) for file in files)))
    check_size(source, len(files), len(numbers))
    shifts = _shifts(files, numbers)
    if not any(file.steps[number][1] for file in files for number in numbers):
        raise ValueError(
            f"{source} has no collective in its steps, so work cannot be told from waiting: profile the GPU, too, and {REMEDY}"
        )
    columns = np.array([[file.steps[number] for number in numbers] for file in files])
    working, waiting, loading = (columns[:, :, column] for column in range(3))
    if working.max() <= 0:
        raise ValueError(f"{source} has steps that take no time: {REMEDY}")
    return Job(
        source=source,
        gradients=working,
        updates=np.zeros_like(working),
        samples=np.full_like(working, UNIT),
        collectives=waiting.min(axis=0),
        seconds=float(np.mean(working + waiting, axis=0).sum()),
        nbytes=max(file.nbytes for file in files),
        loading=loading,
        has_samples=False,
        remarks=(f"clocks differ by up to {duration(shifts)}: steps were compared by their numbers",) if shifts > LEAST_SHIFT else (),
    )


def _shifts(files: Sequence[_File], numbers: Sequence[int]) -> float:
    """The largest difference between two clocks. Collectives end on all ranks together, so a clock's difference is constant.

    Raises ValueError for files whose steps do not coincide.
    """
    ends = np.array([[file.ends[number] for number in numbers] for file in files])
    shifts = np.median(ends - ends[0], axis=1)
    off = np.median(np.abs(ends - ends[0] - shifts[:, None]), axis=1)
    if off.max() > np.diff(ends[0]).mean():
        file = files[int(off.argmax())]
        raise ValueError(f"{files[0].path} and {file.path} have steps that do not coincide: give the files of one job")
    return float(np.ptp(shifts))


def _read(path: Path) -> _File:
    profile = from_json(str(path), _text(path))
    events = profile.get("traceEvents") if isinstance(profile, dict) else None
    about = profile.get("distributedInfo") if isinstance(profile, dict) else None
    if not isinstance(events, list):
        raise ValueError(f"{path} has no traceEvents, as each file of torch.profiler has: {REMEDY}")
    rank, num_ranks = (about.get(key) if isinstance(about, dict) else None for key in ("rank", "world_size"))
    if not (isinstance(rank, int) and isinstance(num_ranks, int) and 0 <= rank < num_ranks < 10**6):
        raise ValueError(f"{path} does not say its rank (distributedInfo): profile after init_process_group, and {REMEDY}")
    base = profile.get("baseTimeNanoseconds", 0)
    rows = [event for event in events if isinstance(event, dict) and event.get("ph") == "X"]
    for event in rows:
        if not (is_number(event.get("ts")) and is_number(event.get("dur")) and event["dur"] >= 0 and isinstance(event.get("name"), str)):
            raise ValueError(f"{path} has an event that is none of torch.profiler ({shown(event)}): {REMEDY}")
    steps = {int(name[1]): event for event in rows if (name := STEP.match(event["name"])) and event.get("cat") == "user_annotation"}
    if not steps:
        raise ValueError(f"{path} has no ProfilerStep#: give the profiler a schedule, and call its step() in each step")
    waiting = _waiting_intervals(rows)
    spans = {number: (event["ts"], event["ts"] + event["dur"]) for number, event in steps.items()}
    loading = _union(event for event in rows if event["name"].startswith(LOADING))
    split_steps = {number: (*_split(span, waiting), _split(span, loading)[1]) for number, span in spans.items()}
    shift = (base if is_number(base) else 0) * 1e-3
    ends = {number: MICRO * (_last_end(span, waiting) + shift) for number, span in spans.items()}
    nbytes = max((_nbytes(event) for event in rows if "allreduce" in event["name"].lower() or "all_reduce" in event["name"]), default=0)
    return _File(path, rank, num_ranks, split_steps, ends, nbytes or 8)


def _text(path: Path) -> str:
    """The text of a file, compressed or not."""
    check_is_no_link(path)
    try:
        if path.name.endswith(".gz"):
            with open_file(path) as packed, gzip.open(packed) as file:
                content = file.read(MAX_BYTES + 1)
            if len(content) > MAX_BYTES:
                raise ValueError(f"{path} unpacks to over {MAX_BYTES} bytes: profile fewer steps")
        else:
            content = read_bytes(path, max_bytes=MAX_BYTES)
        check_fits(str(path), sum(nbytes * content.count(part) for part, nbytes in MEMORY.items()), "profile fewer steps")
        return content.decode("utf-8")
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} cannot be read or unpacked ({brief(error)}): {REMEDY}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text ({error.reason} at byte {error.start}): {REMEDY}") from None


def _waiting_intervals(rows: Sequence[dict[str, Any]]) -> Floats:
    """Intervals (start, end) in which a collective is in progress and nothing else runs, in microseconds and in order."""
    kernels = [event for event in rows if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    communicates = [event for event in kernels if _communicates(event)]
    if communicates:
        return _difference(_union(communicates), _union(event for event in kernels if not _communicates(event)))
    communicates = [event for event in rows if event.get("cat") == "user_annotation" and COLLECTIVE.match(event["name"])]
    operations = [event for event in rows if event.get("cat") == "cpu_op"]
    calls = _union(event for event in operations if event["name"].startswith("c10d::"))
    works = [event for event in operations if not event["name"].startswith("c10d::")]
    return _difference(_union(communicates), _difference(_union(works), calls))


def _communicates(kernel: dict[str, Any]) -> bool:
    """Whether a kernel is a collective, by its name or by what PyTorch notes in its arguments."""
    arguments = kernel.get("args")
    return (isinstance(arguments, dict) and "Collective name" in arguments) or KERNEL.search(kernel["name"]) is not None


def _union(events: Iterable[dict[str, Any]]) -> Floats:
    """The intervals in which at least one of these events is in progress."""
    spans = np.array(sorted((event["ts"], event["ts"] + event["dur"]) for event in events), float).reshape(-1, 2)
    if not len(spans):
        return spans
    ends = np.maximum.accumulate(spans[:, 1])
    begins = np.flatnonzero(np.r_[True, spans[1:, 0] > ends[:-1]])
    return np.stack([spans[begins, 0], ends[np.r_[begins[1:] - 1, len(spans) - 1]]], axis=1)


def _difference(spans: Floats, others: Floats) -> Floats:
    """These non-overlapping intervals without the others."""
    edges = [(moment, 0, sign) for span in spans.tolist() for moment, sign in zip(span, (1, -1), strict=True)]
    edges += [(moment, 1, sign) for span in others.tolist() for moment, sign in zip(span, (1, -1), strict=True)]
    inside, remaining, begun = [0, 0], [], None
    for moment, which, sign in sorted(edges):
        inside[which] += sign
        if begun is not None:
            remaining.append((begun, moment))
        begun = moment if inside[0] and not inside[1] else None
    return np.array([span for span in remaining if span[1] > span[0]], float).reshape(-1, 2)


def _split(span: tuple[float, float], waiting: Floats) -> tuple[float, float]:
    """The seconds of own work and of waiting within a step."""
    first, last = span
    waits = float(np.maximum(0.0, np.minimum(waiting[:, 1], last) - np.maximum(waiting[:, 0], first)).sum())
    return MICRO * max(0.0, last - first - waits), MICRO * waits


def _last_end(span: tuple[float, float], waiting: Floats) -> float:
    """The end of the last wait that ends within a step; without any, the end of the step."""
    place = int(np.searchsorted(waiting[:, 1], span[1], side="right")) - 1
    return float(waiting[place, 1]) if place >= 0 and waiting[place, 1] > span[0] else span[1]


def _nbytes(event: dict[str, Any]) -> int:
    """The bytes of an all-reduce from its arguments; 0 if unknown."""
    arguments = event.get("args")
    return 4 * max(_numbers(arguments.get("Input Dims")), default=0) if isinstance(arguments, dict) else 0


def _numbers(nested: Any) -> Iterator[int]:
    for part in nested if isinstance(nested, list) else ():
        if isinstance(part, list):
            yield from _numbers(part)
        elif isinstance(part, int) and 0 < part < 2**40:
            yield part
