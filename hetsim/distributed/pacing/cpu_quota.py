"""CPU quotas of real processes: while it computes, a worker or the server is in a cgroup that limits it to its share of a core.

Only computing threads are capped: the program's thread, and the thread of its started effects. Threads that only move messages are not
capped, because described messages do not depend on the node's speed. A group is named after its process, so that later runs can
recognise the groups of dead runs.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetsim.distributed.environment import launched
from hetsim.distributed.pacing.cgroups import CpuCgroup, own_cgroup

if TYPE_CHECKING:
    from hetsim.distributed.settings import Settings
    from hetsim.runtime.experiment import Experiment

PREFIX = "hetsim-"
"""The prefix of a group's name, before the process id."""


class Uncapped:
    """A worker or a server without a cap."""

    report: dict[str, Any] | None = None
    """The quota and its effect for the summary, known after the block; None without a quota."""

    def __enter__(self) -> Uncapped:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    @contextlib.contextmanager
    def lifted(self) -> Iterator[None]:
        """A block in which the calling thread, and threads that it starts, are not capped."""
        yield

    def remove(self) -> None:
        """Remove the cap permanently. Any thread may call it, also several times."""


class Capped(Uncapped):
    """A process with a share of one core. In the block, the calling thread and threads that it starts are capped together."""

    def __init__(self, share: float, root: Path = Path("/"), *, period_seconds: float | None = None) -> None:
        self.share = share
        from hetsim.cluster.hosts import default_period

        self.period_us = ceil((default_period(share) if period_seconds is None else period_seconds) * 1e6 - 1e-6)
        self._root = root
        self._cgroup: CpuCgroup | None = None

    def __enter__(self) -> Capped:
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
                done = asdict(self._cgroup.throttling(self.group))
                self.report = {"cpu_quota": self.share, "period_seconds": self.period_us / 1e6, **done}
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


def cap_of(experiment: Experiment, settings: Settings, rank: int) -> Uncapped:
    """The cap of this rank, from the `cpu_quota` of its node or of the server."""
    cluster = experiment.cluster
    end = cluster.end(rank)
    if settings.emulate != "quota" or end.cpu_quota is None:
        return Uncapped()
    return Capped(end.cpu_quota, period_seconds=end.cpu_quota_period_seconds)


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
        with Capped(max(shares), root):
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
    here = launched()
    if shares > cores and (here is None or here.one_host):
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
