"""`cluster.faults` on real processes: whether a run can continue without a rank, and when the launcher kills and starts processes."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from hetsim.cluster.outages import outages
from hetsim.distributed.environment import launched
from hetsim.distributed.membership.keeper import Fault, SurvivingRun, Upcoming
from hetsim.runtime.experiment import Experiment

MAX_ANNOUNCED = 1000
"""The maximum number of faults that hetsim-launch injects into a run. Its launchers receive them, because they read no config."""


def survives_losses(experiment: Experiment, devices: Sequence[str] | None = None) -> bool:
    """Whether a run under hetsim's own launcher survives the loss of a rank. `devices` are as in `obstacle_to_survival`."""
    return obstacle_to_survival(experiment, devices) is None


def obstacle_to_survival(experiment: Experiment, devices: Sequence[str] | None = None) -> str | None:
    """Why a run under hetsim's own launcher ends after the loss of a rank, and what to change; None if it continues.

    NCCL's groups cannot form again in a process. So methods whose ranks form new groups need ranks on the CPU. `devices` are all ranks'
    devices, as their hosts have found them. Without it, this host's own result is used for all.
    """
    names = devices or [experiment.device_of(rank) for rank in range(experiment.num_ranks)]
    on_cpu = all(device.startswith("cpu") for device in names)
    if not on_cpu and experiment.coordination.regroups:
        return "with GPUs only a server continues without a worker, because NCCL cannot: take device=cpu"
    return None


def surviving_run(
    experiment: Experiment, schedule: FaultSchedule, *, survives: bool, lost_after: float, number: int = 0, announced: bool = False
) -> SurvivingRun:
    """The data about this run for the launchers and the keeper. If the run is `announced`, they include its faults."""
    return SurvivingRun(
        number=number, num_workers=experiment.num_workers, num_ranks=experiment.num_ranks, leader=experiment.leader,
        succession=survives and not experiment.coordination.needs_server, lost_after=lost_after,
        saves=experiment.checkpoint.enabled, joins=tuple(schedule.joins.items()),
        faults=schedule.first(MAX_ANNOUNCED) if announced else (),
    )  # fmt: skip


def check_faults(experiment: Experiment, *, lost_after: float) -> None:
    """Raise ValueError if these faults cannot be injected into real processes."""
    process, faults = launched(), experiment.cluster.faults
    stops = faults.pauses or any(outages.hangs for outages in faults.nodes.values())
    if process is not None and not process.goes_on:
        raise ValueError(
            f"cluster.faults are injected where hetsim backend=dist or hetsim-launch starts all processes, and {process.by} started these: "
            "start it with one of them, take backend=sim, or cluster.faults=null"
        )
    if (why := obstacle_to_survival(experiment)) is not None:
        raise ValueError(f"cluster.faults are injected into runs that survive them, and {why}, backend=sim or cluster.faults=null")
    if stops and faults.lost_after_seconds != lost_after:
        raise ValueError(
            f"cluster.faults stop nodes, which count as lost after lost_after_seconds={faults.lost_after_seconds:g} there and after "
            f"backend.lost_after_seconds={lost_after:g} here: make them the same"
        )


class FaultSchedule(Upcoming):
    """The faults of a run, in the order of their times.

    If the run continues from `seconds` of its clock, only its remaining faults.
    """

    def __init__(self, experiment: Experiment, *, began: float = 0.0) -> None:
        self.joins: dict[int, float] = {}
        """The ranks that are absent at the run's begin or resume, and their times of joining; infinite: never."""
        self.absent: dict[int, float] = {}
        """The same ranks, and the begins of their absences."""
        super().__init__()
        self._hangs = {rank: node_outages.hangs for rank, node_outages in experiment.cluster.faults.nodes.items()}
        for rank, pauses in experiment.cluster.faults.pauses.items():
            for start, until in pauses:
                if until > began:
                    self._upcoming += [Fault(max(start, began), rank, "stop", until), Fault(until, rank, "continue")]
        heapq.heapify(self._upcoming)
        self._outages = {rank: self._outages_after(began, outages(experiment.cluster, rank, seed=experiment.seed)) for rank in self._hangs}
        for rank, node_outages in self._outages.items():
            first = next(node_outages, None)
            if first is None:
                continue
            start, until = first
            if start == 0 or start < began:
                self.absent[rank], self.joins[rank] = first
                self._draw(rank)
            else:
                self._schedule(rank, start, until)

    @staticmethod
    def _outages_after(began: float, intervals: Iterator[tuple[float, float]]) -> Iterator[tuple[float, float]]:
        return ((start, until) for start, until in intervals if until > began)

    def first(self, count: int) -> list[Fault]:
        """Remove and return at most this number of faults."""
        return [self._next() for _ in range(count) if self._upcoming]

    def _next(self) -> Fault:
        fault = super()._next()
        if fault.rank in self._outages and fault.kind != "continue":
            self._draw(fault.rank)
        return fault

    def _draw(self, rank: int) -> None:
        for start, until in self._outages[rank]:
            self._schedule(rank, start, until)
            return

    def _schedule(self, rank: int, start: float, until: float) -> None:
        heapq.heappush(self._upcoming, Fault(start, rank, "stop" if start in self._hangs[rank] else "kill", until))
