"""The memory that this process may still use, as far as the system reports it, and an error for data that do not fit."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path, PurePosixPath

OUT_OF_MEMORY = re.compile(r"can't allocate memory|out of memory|not enough memory")
"""The messages of torch if memory is short."""
CONTROL_GROUPS = (
    # where they are mounted, by controller; the files with limit and usage; the entry of memory.stat with the page cache
    ("memory", "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ("", "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
)
"""Version 1 of Linux's control groups, and version 2."""


def out_of_memory(error: BaseException) -> str | None:
    """The sentence for an error of Python, NumPy or torch if memory is short; None for any other error."""
    text = " ".join(str(error).split())
    if not isinstance(error, MemoryError) and not (isinstance(error, RuntimeError) and OUT_OF_MEMORY.search(text)):
        return None
    request = re.search(r"Unable to allocate [\d.]+ \w+|tried to allocate [\d.]+ \w+", text)
    return f"there is not enough memory{f' ({request[0]})' if request else ''}: lower batch_size, or take a smaller workload or fewer nodes"


def check_fits(subject: str, nbytes: int, remedy: str, *, used: int = 0) -> None:
    """Raise ValueError if `subject` needs more memory than is available, or than a process can address.

    `used` of its bytes are already in use.
    """
    available = available_bytes()
    most, state = (sys.maxsize, "can be addressed") if available is None else (available + used, "are available")
    if nbytes > most:
        raise ValueError(f"{subject} would take {gigabytes(nbytes)} GB of memory, and {gigabytes(most)} GB {state}: {remedy}")


def gigabytes(nbytes: int) -> str:
    """The size in units of 10⁹ bytes with one decimal place, or with two digits if it is very small or very large."""
    value = Decimal(nbytes) / 10**9
    return f"{value:.1f}" if not value or Decimal("0.1") <= value < 10**6 else f"{value:.2g}"


def available_bytes(root: Path = Path("/")) -> int | None:
    """The smallest remaining memory of the machine, the process's control groups and its own limit; None if the system does not report it.

    `root` is the folder that contains proc and sys.
    """
    return max(0, min(limits)) if (limits := [*_machine(root), *_control_groups(root), *_address_space(root)]) else None


def _machine(root: Path) -> Iterator[int]:
    """The memory that is available without swapping."""
    if (kibibytes := _entry(root / "proc/meminfo", "MemAvailable:")) is not None:
        yield 1024 * kibibytes


def _control_groups(root: Path) -> Iterator[int]:
    """The remaining memory of the process's control group and each parent. Page cache that can be dropped counts as remaining."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, name = line.split(":", 2)
        for controller, mount, limit, usage, cache in CONTROL_GROUPS:
            if controller in controllers.split(","):
                group = PurePosixPath(name.lstrip("/"))
                for folder in (root / mount / part for part in (group, *group.parents)):
                    most, used = _number(_text(folder / limit)), _number(_text(folder / usage))
                    if most is not None and used is not None:
                        yield most - used + (_entry(folder / "memory.stat", cache) or 0)


def _address_space(root: Path) -> Iterator[int]:
    """The remaining memory under `ulimit -v`."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    pages = _number(_text(root / "proc/self/statm").partition(" ")[0])
    if most != resource.RLIM_INFINITY and pages is not None:
        yield most - pages * resource.getpagesize()


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""


def _entry(path: Path, name: str) -> int | None:
    """The number after this name at the beginning of a line."""
    rows = (line.split() for line in _text(path).splitlines())
    return next((_number(row[1]) for row in rows if row[:1] == [name] and len(row) > 1), None)


def _number(text: str) -> int | None:
    return int(text) if text.strip().isdecimal() else None
