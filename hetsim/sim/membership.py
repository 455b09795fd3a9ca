"""Membership: nodes crash, join and return according to the cluster's faults, and programs are notified as on real nodes.

In a crash, a node's current work is lost, and so are all messages to and from it. The other ranks detect the crash `detection_seconds`
later. If the coordination continues without a worker, its server gets PeerLost in a `Receive`. Otherwise all ranks get PeerLost when
they communicate, and restart after a `Regroup` of all active ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from hetsim import effects as fx
from hetsim.cluster.outages import outages
from hetsim.coordination.state import State
from hetsim.errors import RunFailed
from hetsim.runtime.experiment import Experiment
from hetsim.runtime.recording.recorder import DOWN, Recorder, RecordInterval, Row, ignore, interval_recorder
from hetsim.sim.clock import Callback, VirtualClock
from hetsim.sim.collective_ops import PendingCollectives
from hetsim.sim.messages import Messaging
from hetsim.sim.rank_process import ACTIVE, LOST, MEMBERSHIP_CHANGED, OUTDATED, RankProcess
from hetsim.sim.weight_checkpoints import SavedVersion, WeightStorage
from hetsim.vector import nbytes

MAX_CRASHES = 1000
"""The mean number of crashes per node without a new version after which the run fails."""


class MembershipWorld(Protocol):
    """The interface that a membership needs of its world."""

    env: VirtualClock
    processes: list[RankProcess]
    """The current process of each rank."""
    messaging: Messaging
    collectives: PendingCollectives

    @property
    def last(self) -> State:
        """The state of the last commit."""

    def restore(self, version: SavedVersion) -> None:
        """Continue from this version as the last commit."""

    def spawn(self, rank: int) -> RankProcess:
        """A new process that joins the run at the last commit."""

    def restart(self, process: RankProcess) -> None:
        """Restart the state of a process from the last commit."""

    def reset_compute(self, rank: int, now: float) -> None:
        """Drop a node's current work. Its next gradient starts at this time or later."""

    def forget_decisions(self) -> None:
        """Drop the leader's decisions for which ranks were waiting."""


class Membership:
    """Lets nodes crash and return. It has the absent workers, the leader, and the generation of the membership."""

    def __init__(self, world: MembershipWorld, experiment: Experiment, recorders: Sequence[Recorder], *, began: float = 0.0) -> None:
        self.world = world
        self.cluster = experiment.cluster
        self.coordination = experiment.coordination
        self.faults = self.cluster.faults
        self.num_workers = experiment.num_workers
        self.server_of = experiment.server_of
        self.leader = experiment.leader
        """The rank whose commits count."""
        self.generation = 0
        """The number of changes of the membership."""
        self._outages: dict[int, Iterator[tuple[float, float]]] = {}
        self._next_outage: dict[int, tuple[float, float]] = {}
        for rank in self.faults.nodes:
            self._outages[rank] = outages(self.cluster, rank, seed=experiment.seed)
            self._draw_outage(rank)
            while self._next_outage[rank][1] <= began:  # a run that continues has had it
                self._draw_outage(rank)
        self.absent = frozenset(rank for rank, (start, _) in self._next_outage.items() if start == 0 or start < began)
        """The workers that are absent at the run's begin or resume."""
        if self.absent and not self.coordination.needs_server:
            self.leader = min({*range(self.num_workers)} - self.absent, default=self.leader)
        self.absent_at_end: frozenset[int] = frozenset()
        """The workers that were absent at the end of the run."""
        self.down: dict[int, float] = {}
        """The currently absent workers, and the begin of each absence."""
        self._joining: set[int] = set()
        self._last_version = -1
        self._num_crashes = 0  # since that version
        self._under_way: dict[int, dict[Row, RecordInterval]] = {rank: {} for rank in self.faults.nodes}
        self._recorders = recorders
        self._taking_back = [recorder for recorder in recorders if recorder.takes_back]
        self._record_down = interval_recorder(recorders, DOWN)

    @property
    def next_change(self) -> float:
        """The next time at which a node crashes or returns."""
        times = (until if rank in self.down else start for rank, (start, until) in self._next_outage.items())
        return min(times, default=math.inf)

    def over(self) -> bool:
        """Whether the run has ended, and does not stand still."""
        processes = self.world.processes
        return processes[self.leader].done and (bool(self.faults.nodes) or all(process.done for process in processes))

    def begin(self, first: SavedVersion) -> None:
        """Schedule the first crashes and joins, at 0 seconds. Ranks that are present have the weights of the first version."""
        world, present = self.world, set(range(self.num_workers)) - self.absent
        world.collectives.join(present)
        self.storage = WeightStorage(self.faults.checkpoint, first, world.env.now)
        self.storage.hold({self.leader} if self.coordination.needs_server else present, world.env.now)
        for rank in self._next_outage:
            start, until = self._next_outage[rank]
            if rank in self.absent:
                world.processes[rank].status = LOST
                self.down[rank] = start
                self._schedule_return(rank, until)
            else:
                world.env.at(start, self._crash, rank)

    def end(self, seconds: float) -> None:
        """End the run at its last commit. Nodes that are down now were down until then."""
        self.absent_at_end = frozenset(self.down)
        for rank in list(self.down):
            self._end_absence(rank, seconds)

    def total_loss(self, num_updates: int) -> str | None:
        """The error if all nodes are down forever; otherwise None."""
        if len(self.down) < self.num_workers:
            return None
        last = max(self.down.values())
        return (
            f"every node of the cluster is gone at {last:g} s and none comes back, after {num_updates} updates: "
            "give cluster.faults a repair, or the run a smaller budget"
        )

    def recorders(self, kind: int) -> tuple[RecordInterval, Callable[[Row, Callback], Callback]]:
        """For intervals on nodes that may crash: a function to call at the start, and a function that wraps the callback at the end.

        Recorders that can take back an interval get it at its start. The others get it at its end, or cut at the node's crash.
        """
        at_once = interval_recorder(self._taking_back, kind) or ignore
        later = interval_recorder([recorder for recorder in self._recorders if not recorder.takes_back], kind)

        def record_when_done(row: Row, callback: Callback) -> Callback:
            if later is None:
                return callback
            rows = self._under_way[row[2]]
            rows[row] = later

            def end(answer: Any) -> None:
                if row in rows:
                    del rows[row]
                    later(row)
                callback(answer)

            return end

        return at_once, record_when_done

    def give_up(self, row: Row, now: float) -> None:
        """End an interval on a node that may crash, without a result. `recorders` has received its beginning."""
        for recorder in self._taking_back:
            recorder.take_back(row[2], now)
        record = self._under_way[row[2]].pop(row, None)
        if record is not None and row[0] < now:
            record((row[0], now, *row[2:5], 0, 0, 0))

    def regroup(self, process: RankProcess, effect: fx.Regroup, callback: Callback) -> Any:
        """Takes `regroup_seconds` from the last entry on and, if a node joins, the time of sending the weights to it."""
        present = self._present_processes()
        min_processes = 1 + self.coordination.needs_server  # a server on its own waits for the first worker
        transfer = 0.0 if self.storage.lost else max([self._transfer_seconds(rank) for rank in self._joining], default=0.0)
        seconds = self.faults.regroup_seconds + transfer + self.storage.restart_seconds
        return self.world.collectives.regroup(
            process,
            callback,
            num_processes=max(min_processes, len(present)),
            seconds=seconds,
            answer=self._finish_regroup,
            then=lambda: self._hold_weights(present),
        )

    def _hold_weights(self, present: Sequence[RankProcess]) -> None:
        """After a regroup, its members have the weights."""
        if not self.coordination.needs_server:
            self.storage.hold([process.rank for process in present], self.world.env.now)

    def _present_processes(self) -> list[RankProcess]:
        return [process for process in self.world.processes if process.status != LOST and not process.done]

    def _finish_regroup(self) -> fx.Regrouped:
        """Restart all current processes from the last commit."""
        world, present = self.world, self._present_processes()
        members = {process.rank for process in present if process.rank < self.num_workers}
        if self.storage.lost:
            world.restore(self.storage.restore(world.last, world.env.now))
        world.collectives.join(members)
        if not self.coordination.needs_server and self.leader not in members - self._joining:
            self.leader = min(members - self._joining or members)
        self._joining.clear()
        for process in present:
            world.restart(process)
            process.status = ACTIVE
        return fx.Regrouped(frozenset(range(self.num_workers)) - members, world.last)

    def _transfer_seconds(self, joining: int) -> float:
        """The seconds of sending the weights from the server, or from the lowest rank that was not restarted."""
        world = self.world
        if self.coordination.needs_server:
            source = self.leader
        else:
            source = min(world.collectives.members - self._joining - self.down.keys(), default=joining)
        if source == joining:
            return 0.0
        return self.cluster.message_seconds(source, joining, nbytes(world.last.weights))

    def _draw_outage(self, rank: int) -> None:
        self._next_outage[rank] = next(self._outages[rank], (math.inf, math.inf))

    def _crash(self, rank: int) -> None:
        """Crash a node, which loses all its work."""
        world, (since, until) = self.world, self._next_outage[rank]
        process, now = world.processes[rank], world.env.now
        if self.over():
            return
        self._check_progress(now)
        process.status = LOST
        process.program.close()
        self.down[rank] = now
        for recorder in self._taking_back:
            recorder.take_back(rank, now)
        for (start, _, *row), record in self._under_way[rank].items():
            if start < now:
                record((start, now, *row))  # type: ignore[arg-type]
        self._under_way[rank].clear()
        world.messaging.lose(rank)
        world.collectives.leave(rank)
        self.storage.lose(rank)
        world.env.after(self.faults.detection_of(rank, since), self._report_loss, process)
        self._schedule_return(rank, until)

    def _check_progress(self, now: float) -> None:
        """Raise RunFailed if nodes crash so often that no version is ever made."""
        version = self.world.last.version
        if version != self._last_version:
            self._last_version, self._num_crashes = version, 0
        self._num_crashes += 1
        if self._num_crashes > MAX_CRASHES * len(self.faults.nodes):
            raise RunFailed(
                f"nodes crashed {self._num_crashes - 1} times since version {version} and no new version was made until {now:g} s: "
                "let cluster.faults crash them less often, or give them smaller steps"
            )

    def _schedule_return(self, rank: int, until: float) -> None:
        if until < math.inf:
            self.world.env.after(until - self.world.env.now, self._return, rank)

    def _report_loss(self, lost: RankProcess) -> None:
        """Report a loss to the other ranks, unless the node has returned, its program had ended, or a regroup has handled it."""
        world = self.world
        if self.over() or lost.done or world.processes[lost.rank] is not lost:
            return
        if self.coordination.regroups:
            if lost.rank in world.collectives.members or world.collectives.is_regrouping:
                self._change_membership()
        else:
            world.messaging.report_loss(world.processes[self.server_of(lost.rank)], lost.rank)

    def _return(self, rank: int) -> None:
        """Return a node, or let it join for the first time. It starts its program."""
        world = self.world
        if self.over():
            return
        now = world.env.now
        self._end_absence(rank, now)
        self._draw_outage(rank)
        if self._next_outage[rank][0] < math.inf:
            world.env.after(self._next_outage[rank][0] - now, self._crash, rank)
        world.reset_compute(rank, now)
        process = world.processes[rank] = world.spawn(rank)
        if self.coordination.regroups:
            self._joining.add(rank)
            process.status = OUTDATED
            self._change_membership()
        process.resume()

    def _end_absence(self, rank: int, until: float) -> None:
        start = self.down.pop(rank)
        if until > start and self._record_down is not None:
            self._record_down((start, until, rank, DOWN, 0, 0, 0, 0))

    def _change_membership(self) -> None:
        """Start a new generation: drop all messages and collectives; each rank gets PeerLost when it communicates."""
        world = self.world
        self.generation += 1
        world.collectives.dissolve()
        world.messaging.dissolve()
        world.forget_decisions()
        for rank, process in enumerate(list(world.processes)):
            if process.status == LOST or process.waits_for is None:
                continue
            if process.done:  # it takes part in the regroup, too
                world.processes[rank] = restarted = world.spawn(rank)
                restarted.status = OUTDATED
                restarted.resume()
                continue
            process.status = OUTDATED
            if process.waits_for.communicates:
                process.fail(fx.PeerLost(MEMBERSHIP_CHANGED))
