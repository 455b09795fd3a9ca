"""The CPU controller of Linux's cgroups, versions 1 and 2: the cgroup of this thread, and groups below it that cap single threads.

Version 1 places single threads with `tasks`. Version 2 does so with `cgroup.threads` in threaded groups. Only these groups may have a
CPU limit below a cgroup with its own processes. Sources: Linux, Documentation/scheduler/sched-bwc.rst,
admin-guide/cgroup-v1/cgroups.rst and admin-guide/cgroup-v2.rst.
"""

from __future__ import annotations

import contextlib
import errno
import re
import threading
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from hetsim.files.writing import named_in_errors

REMOVE_ATTEMPTS, REMOVE_SECONDS = 50, 0.02
"""The number of attempts, and the pause between them, to remove a group whose threads are just ending."""


@dataclass(frozen=True, kw_only=True)
class Throttling:
    """The number of periods in which a group had work, those in which it used up its quota, and how long it then waited."""

    num_periods: int = 0
    num_throttled: int = 0
    throttled_seconds: float = 0.0


@dataclass(frozen=True)
class CpuCgroup(ABC):
    """A cgroup of the CPU controller in this folder. Its methods raise OSError if the system does not permit them."""

    path: Path
    threads: ClassVar[str]
    """The file that lists a group's threads. Writing a thread's id moves it to the group."""
    throttled: ClassVar[tuple[str, float]]
    """The name of the throttled time in `cpu.stat`, and its unit in seconds."""

    @abstractmethod
    def create(self, group: Path, *, quota_us: int, period_us: int) -> None:
        """Make a group below this one. Its threads together run for at most `quota_us` microseconds in each period."""

    @abstractmethod
    def limit(self, group: Path) -> tuple[str, str]:
        """The quota and the period in a group's files, in microseconds. Raises OSError if the group has none."""

    @property
    def share(self) -> tuple[float, float] | None:
        """The smallest share of a core that limits this group or a parent, and its period in seconds; None without a limit."""
        found = []
        for group in (self.path, *self.path.parents):
            try:
                quota, period = map(float, self.limit(group))
            except (OSError, ValueError):  # the files are missing at the top, and no limit is "max"
                continue
            if quota > 0 and period > 0:
                found.append((quota / period, period / 1e6))
        return min(found, default=None)

    def enter(self, group: Path) -> None:
        """Move the calling thread to this group. Threads that it starts later are in it, too."""
        _write(group / self.threads, str(threading.get_native_id()))

    def throttling(self, group: Path) -> Throttling:
        """The effect of the group's limit so far."""
        counts = dict(line.split()[:2] for line in (group / "cpu.stat").read_text().splitlines())
        name, unit = self.throttled
        return Throttling(
            num_periods=int(counts["nr_periods"]), num_throttled=int(counts["nr_throttled"]), throttled_seconds=int(counts[name]) * unit
        )

    def empty(self, group: Path) -> None:
        """Move all threads of a group back to this one. The group may not exist any more."""
        with contextlib.suppress(OSError):
            for thread in (group / self.threads).read_text().split():
                with contextlib.suppress(OSError):  # it has ended
                    _write(self.path / self.threads, thread)

    def remove(self, group: Path) -> None:
        """Remove a group if it exists. It stays if its threads do not end or the system does not permit its removal."""
        for _ in range(REMOVE_ATTEMPTS):
            try:
                group.rmdir()
            except OSError as error:
                if error.errno == errno.EBUSY:
                    time.sleep(REMOVE_SECONDS)
                    continue
            return


class CpuCgroupV1(CpuCgroup):
    """The CPU controller of version 1."""

    threads = "tasks"
    throttled = ("throttled_time", 1e-9)

    def create(self, group: Path, *, quota_us: int, period_us: int) -> None:
        group.mkdir(exist_ok=True)
        _write(group / "cpu.cfs_period_us", str(period_us))
        _write(group / "cpu.cfs_quota_us", str(quota_us))

    def limit(self, group: Path) -> tuple[str, str]:
        return (group / "cpu.cfs_quota_us").read_text(), (group / "cpu.cfs_period_us").read_text()


class CpuCgroupV2(CpuCgroup):
    """The CPU controller of version 2. It stays enabled for the groups below, because other runs there may need it."""

    threads = "cgroup.threads"
    throttled = ("throttled_usec", 1e-6)

    def create(self, group: Path, *, quota_us: int, period_us: int) -> None:
        group.mkdir(exist_ok=True)
        _write(group / "cgroup.type", "threaded")  # first: below a cgroup with processes, only that lets the controller be enabled
        _write(self.path / "cgroup.subtree_control", "+cpu")
        _write(group / "cpu.max", f"{quota_us} {period_us}")

    def limit(self, group: Path) -> tuple[str, str]:
        quota, period = (group / "cpu.max").read_text().split()
        return quota, period


def own_cgroup(root: Path = Path("/")) -> CpuCgroup:
    """The calling thread's cgroup of the CPU controller. `root` is the root of all paths. Raises OSError with a phrase if there is none."""
    try:
        memberships = (root / "proc/thread-self/cgroup").read_text().splitlines()
        mounts = (root / "proc/self/mountinfo").read_text().splitlines()
    except FileNotFoundError:
        raise OSError("this system has no cgroups, which Linux has") from None
    paths = {controllers: path for _, controllers, path in (line.split(":", 2) for line in memberships)}
    versions: list[tuple[str, type[CpuCgroup]]] = [
        *((names, CpuCgroupV1) for names in paths if "cpu" in names.split(",")),  # if version 1 has the controller, version 2 lacks it
        *(("", CpuCgroupV2) for names in paths if not names),
    ]
    for controllers, version in versions[:1]:
        for mount in mounts:
            place, _, kind = mount.partition(" - ")
            top, point = (_unescaped(field) for field in place.split()[3:5])
            fstype, _, options = kind.split()[:3]
            of_it = fstype == "cgroup" and "cpu" in options.split(",") if controllers else fstype == "cgroup2"
            path = Path(paths[controllers])
            if of_it and path.is_relative_to(top) and ".." not in path.parts:
                return version(root / point.lstrip("/") / path.relative_to(top))
    raise OSError("the CPU controller's cgroup of this process is not mounted")


def own_quota() -> tuple[float, float]:
    """The quota of the calling thread's cgroup as a share of one core, and its period in seconds; zeros if there is none."""
    try:
        return own_cgroup().share or (0.0, 0.0)
    except OSError:
        return 0.0, 0.0


def _write(path: Path, text: str) -> None:
    """Write to a cgroup's file. The kernel refuses at the write, whose error names no file."""
    with named_in_errors(path):
        path.write_text(text)


def _unescaped(field: str) -> str:
    """A path from mountinfo, with its octal numbers for spaces, tabs, newlines and backslashes replaced."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), field)
