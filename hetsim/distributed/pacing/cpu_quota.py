"""CPU quotas of real processes: while it computes, a worker or the server is in a cgroup that limits it to its share of a core.

Only computing threads are capped: the program's thread, and the thread of its started effects. Threads that only move messages are not
capped, because described messages do not depend on the node's speed. A group is named after its process, so that later runs can
recognise the groups of dead runs.

Version 1 of cgroups places single threads with `tasks`. Version 2 does so with `cgroup.threads` in threaded groups. Only these groups may
have a CPU limit below a cgroup with its own processes. Sources: Linux, Documentation/scheduler/sched-bwc.rst,
admin-guide/cgroup-v1/cgroups.rst and admin-guide/cgroup-v2.rst.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hetsim.distributed.environment import launched
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
        shares = []
        for group in (self.path, *self.path.parents):
            try:
                quota, period = map(float, self.limit(group))
            except (OSError, ValueError):  # the files are missing at the top, and no limit is "max"
                continue
            if quota > 0 and period > 0:
                shares.append((quota / period, period / 1e6))
        return min(shares, default=None)

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
            top, point = (_unescape(field) for field in place.split()[3:5])
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


def _unescape(field: str) -> str:
    """A path from mountinfo, with its octal numbers for spaces, tabs, newlines and backslashes replaced."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


if TYPE_CHECKING:
    from hetsim.distributed.environment import Settings
    from hetsim.runtime.experiment import Experiment

PREFIX = "hetsim-"
"""The prefix of a group's name, before the process id."""


class CpuCap:
    """A worker or a server without a cap."""

    report: dict[str, Any] | None = None
    """The quota and its effect for the summary, known after the block; None without a quota."""

    def __enter__(self) -> CpuCap:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    @contextlib.contextmanager
    def lifted(self) -> Iterator[None]:
        """A block in which the calling thread, and threads that it starts, are not capped."""
        yield

    def remove(self) -> None:
        """Remove the cap permanently. Any thread may call it, also several times."""


class CgroupCap(CpuCap):
    """A process with a share of one core. In the block, the calling thread and threads that it starts are capped together."""

    def __init__(self, share: float, root: Path = Path("/"), *, period_seconds: float | None = None) -> None:
        self.share = share
        from hetsim.cluster.hosts import default_period

        self.period_us = ceil((default_period(share) if period_seconds is None else period_seconds) * 1e6 - 1e-6)
        self._root = root
        self._cgroup: CpuCgroup | None = None

    def __enter__(self) -> CgroupCap:
        self._cgroup = own_cgroup(self._root)
        try:
            self._cgroup.create(self.group, quota_us=round(self.share * self.period_us), period_us=self.period_us)
            self._cgroup.enter(self.group)
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._cgroup is not None
        try:
            with contextlib.suppress(OSError):  # this process is being ended, and its group was removed
                throttling = asdict(self._cgroup.throttling(self.group))
                self.report = {"cpu_quota": self.share, "period_seconds": self.period_us / 1e6, **throttling}
        finally:
            self.remove()

    @property
    def group(self) -> Path:
        """The folder of this process's group."""
        assert self._cgroup is not None
        return self._cgroup.path / f"{PREFIX}{os.getpid()}"

    @contextlib.contextmanager
    def lifted(self) -> Iterator[None]:
        assert self._cgroup is not None
        self._cgroup.enter(self._cgroup.path)
        try:
            yield
        finally:
            self._cgroup.enter(self.group)

    def remove(self) -> None:
        if self._cgroup is not None:
            self._cgroup.empty(self.group)
            self._cgroup.remove(self.group)


def cap_of(experiment: Experiment, settings: Settings, rank: int) -> CpuCap:
    """The cap of this rank, from the `cpu_quota` of its node or of the server."""
    cluster = experiment.cluster
    end = cluster.end(rank)
    if settings.emulate != "quota" or end.cpu_quota is None:
        return CpuCap()
    return CgroupCap(end.cpu_quota, period_seconds=end.cpu_quota_period_seconds)


def check_quotas(experiment: Experiment, root: Path = Path("/")) -> None:
    """Raise ValueError if no rank has a quota, or a trial shows that none can be capped. Ended runs' groups are removed first."""
    cluster = experiment.cluster
    ends = [cluster.end(rank) for rank in range(experiment.num_ranks)]
    shares = [end.cpu_quota for end in ends if end.cpu_quota is not None]
    if not shares:
        raise ValueError(
            f"backend.emulate=quota caps nodes that have a cpu_quota, and cluster={cluster.name} has none: give a row of "
            "cluster.nodes one, such as cpu_quota: 0.5, or take backend.emulate=pad"
        )
    if cluster.server.cpu_quota_covers_messages or any(node.cpu_quota_covers_messages for node in cluster.nodes):
        raise ValueError(
            "cpu_quota_covers_messages describes processes that are capped as a whole, by a container for example, and "
            "backend.emulate=quota caps what computes: leave it out, or take backend.emulate=none"
        )
    if experiment.threads > 1:
        raise ValueError(
            f"threads={experiment.threads} does not go with backend.emulate=quota: a cpu_quota is a share of one core; set threads=1"
        )
    try:
        remove_leftovers(root)
        with CgroupCap(max(shares), root):
            pass
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        raise ValueError(
            f"backend.emulate=quota needs cgroups of the CPU controller, and cannot make one ({reason}): run it as root, with cgroup v2 by "
            "'systemd-run --user --scope --property=Delegate=yes hetsim …', or take backend.emulate=pad"
        ) from None


def remove_leftovers(root: Path = Path("/")) -> None:
    """Remove the groups of ended processes below this process's cgroup."""
    cgroup = own_cgroup(root)
    for group in cgroup.path.glob(f"{PREFIX}*"):
        process = group.name.removeprefix(PREFIX)
        if process.isdecimal() and _has_ended(root, process):
            cgroup.remove(group)


def remove_own(root: Path = Path("/")) -> None:
    """Remove the cap of this process, if it has one, from an uncapped thread."""
    with contextlib.suppress(OSError):
        cgroup = own_cgroup(root)
        group = cgroup.path / f"{PREFIX}{os.getpid()}"
        cgroup.empty(group)
        cgroup.remove(group)


def _has_ended(root: Path, process: str) -> bool:
    """Whether the process is gone, or only waits for its parent to read its exit status."""
    try:
        return (root / "proc" / process / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def quota_warnings(experiment: Experiment, workers: Sequence[Mapping[str, Any]]) -> list[str]:
    """Warnings about quotas that cannot have been kept, or had no effect, from the reports of capped workers."""
    warnings = []
    shares = sum(1.0 if node.cpu_quota is None else node.cpu_quota for node in experiment.cluster.nodes)
    cores = len(os.sched_getaffinity(0))
    process = launched()
    if shares > cores and (process is None or process.one_host):
        warnings.append(
            f"the workers' shares add up to {shares:.3g} cores, and this machine has {cores}: they may have had less than their cpu_quota"
        )
    unused = sum(worker["cpu_quota"] < 1 and not worker["num_throttled"] for worker in workers)
    if unused:
        warnings.append(
            f"{unused} of {len(workers)} capped workers never used up the quota of a period, and computed as fast as without: "
            "take larger batches"
        )
    return warnings
