"""How much memory there is to take: what Linux's files say, and the sentence for what would not fit."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import pytest

from hetsim import memory
from hetsim.memory import available_bytes, check_fits, gigabytes

GIB = 2**30


def system(root: Path, files: dict[str, object]) -> Path:
    """A folder with these files of proc and sys."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


MACHINE = {"proc/meminfo": f"MemTotal: {16 * 2**20} kB\nMemFree: 1 kB\nMemAvailable:    {8 * 2**20} kB"}
VERSION_1 = {
    "proc/self/cgroup": "5:devices:/\n4:cpu,memory:/job/7\n1:name=systemd:/\n0::/",
    "sys/fs/cgroup/memory/job/7/memory.limit_in_bytes": 4 * GIB,
    "sys/fs/cgroup/memory/job/7/memory.usage_in_bytes": 3 * GIB,
    "sys/fs/cgroup/memory/job/7/memory.stat": f"inactive_file 5\ntotal_inactive_file {GIB // 2}",
}
VERSION_2 = {
    "proc/self/cgroup": "0::/job/7",
    "sys/fs/cgroup/job/7/memory.max": 4 * GIB,
    "sys/fs/cgroup/job/7/memory.current": 3 * GIB,
    "sys/fs/cgroup/job/7/memory.stat": f"anon 7\ninactive_file {GIB // 4}\nfile 9",
}
PARENT = {"sys/fs/cgroup/job/memory.max": 6 * GIB, "sys/fs/cgroup/job/memory.current": 6 * GIB - 1000}
CONTAINER = {"sys/fs/cgroup/memory/memory.limit_in_bytes": 2 * GIB, "sys/fs/cgroup/memory/memory.usage_in_bytes": GIB}
AVAILABLE: dict[str, tuple[dict[str, object], int | None]] = {
    "nothing is told": ({}, None),
    "a machine": (MACHINE, 8 * GIB),
    "a group of version 1": (MACHINE | VERSION_1, GIB + GIB // 2),
    "a group of version 2": (MACHINE | VERSION_2, GIB + GIB // 4),
    "a group without a limit": (MACHINE | VERSION_2 | {"sys/fs/cgroup/job/7/memory.max": "max"}, 8 * GIB),
    "a group that is less than the machine's rest": (MACHINE | VERSION_2 | {"sys/fs/cgroup/job/7/memory.max": 40 * GIB}, 8 * GIB),
    "a group within a fuller one": (MACHINE | VERSION_2 | PARENT, 1000),
    "a group that a container shows as the whole": (MACHINE | {"proc/self/cgroup": "4:memory:/elsewhere"} | CONTAINER, GIB),
    "a group beyond its limit": (MACHINE | VERSION_2 | {"sys/fs/cgroup/job/7/memory.current": 5 * GIB}, 0),
}


@pytest.mark.parametrize(("files", "expected"), AVAILABLE.values(), ids=AVAILABLE)
def test_the_tightest_limit_counts(tmp_path: Path, files: dict[str, object], expected: int | None) -> None:
    """Of the machine and of each control group around the process; page cache that can be dropped counts as free."""
    assert available_bytes(system(tmp_path, files)) == expected


def test_the_process_own_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`ulimit -v`, less the pages of address space in use."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (3 * GIB, resource.RLIM_INFINITY))
    root = system(tmp_path, MACHINE | {"proc/self/statm": "1000 9 8 7 0 6 0"})

    assert available_bytes(root) == 3 * GIB - 1000 * resource.getpagesize()


def test_what_fits_exactly_passes_and_a_byte_more_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """With both figures in GB, and what to do."""
    monkeypatch.setattr(memory, "available_bytes", lambda: 2_500_000_000)

    check_fits("workload.size=9", 2_500_000_000, "lower it")
    with pytest.raises(ValueError, match=r"^workload\.size=9 would take 2\.5 GB of memory, and 2\.5 GB are available: lower it$"):
        check_fits("workload.size=9", 2_500_000_001, "lower it")


def test_what_no_process_can_address_is_refused_where_the_system_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers beyond any float included."""
    monkeypatch.setattr(memory, "available_bytes", lambda: None)

    check_fits("it", sys.maxsize, "lower it")
    with pytest.raises(ValueError, match=r"^it would take 1\.0e\+391 GB of memory, and 9\.2e\+9 GB can be addressed: lower it$"):
        check_fits("it", 10**400, "lower it")


@pytest.mark.parametrize(
    ("nbytes", "said"),
    [(0, "0.0"), (1, "1e-9"), (90_000_000, "0.09"), (10**8, "0.1"), (3_049_999_999, "3.0"), (10**14, "100000.0"), (10**15, "1.0e+6")],
)
def test_gigabytes_are_readable_at_any_size(nbytes: int, said: str) -> None:
    """One decimal place; two digits of what is very small or very large."""
    assert gigabytes(nbytes) == said
