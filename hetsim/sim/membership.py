"""Who takes part: nodes go and come back as the cluster's faults say, and the programs learn of it as real ones would.

What a node was computing, and every message to and from it, is lost with it. `detection_seconds` later the others learn of it.
Where a coordination goes on without a worker, its server gets PeerLost where it receives; otherwise all ranks do, where they
communicate or when they next do, and then a `Regroup` among all who are there.
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
from hetsim.runtime.recorder import DOWN, Recorder, RecordInterval, Row, ignore, interval_recorder
from hetsim.sim.clock import Callback, Clock
from hetsim.sim.collective_ops import PendingCollectives
from hetsim.sim.messages import Messaging
from hetsim.sim.rank_process import ACTIVE, BY_ITSELF, CHANGED, LOST, OUTDATED, RankProcess
from hetsim.vector import nbytes

MAX_CRASHES = 1000
"""How often each node may go on average before another version is made."""


class Members(Protocol):
    """What a membership needs of the world whose nodes go and come."""

    env: Clock
    processes: list[RankProcess]
    """By rank, the process of its present life."""
    messaging: Messaging
    collectives: PendingCollectives

    @property
    def last(self) -> State:
        """The state of the last commit."""

    def spawn(self, rank: int) -> RankProcess:
        """A process that joins others, at the last commit."""

    def restart(self, process: RankProcess) -> None:
        """Let a process begin afresh at the last commit."""

    def computes_from(self, rank: int, now: float) -> None:
        """What a node was computing is lost."""

    def forget_decisions(self) -> None:
        """Nobody waits for the leader's decision on going on any more."""


class Membership:
    """Makes nodes go and come back, and knows who is there, who leads, and which generation of the group this is."""

    def __init__(self, experiment: Experiment, recorders: Sequence[Recorder]) -> None:
        self.cluster = experiment.cluster
        self.coordination = experiment.coordination
        self.faults = self.cluster.faults
        self.num_workers = experiment.num_workers
        self.leader = experiment.leader
        """The rank whose commits count."""
        self.generation = 0
        """How often the group has changed."""
        self._coming: dict[int, Iterator[tuple[float, float]]] = {}
        self._next: dict[int, tuple[float, float]] = {}
        for rank in self.faults.nodes:
            self._coming[rank] = outages(self.cluster, rank, seed=experiment.seed)
            self._draw(rank)
        self.absent = frozenset(rank for rank, (start, _) in self._next.items() if start == 0)
        """Workers that are not there when the run begins."""
        self.down: dict[int, float] = {}
        """Workers that are not there now, and since when."""
        self._newcomers: set[int] = set()
        self._last_version = -1
        self._num_gone = 0  # since that version
        self._under_way: dict[int, dict[Row, RecordInterval]] = {rank: {} for rank in self.faults.nodes}
        self._recorders = recorders
        self._taking_back = [recorder for recorder in recorders if recorder.takes_back]
        self._record_down = interval_recorder(recorders, DOWN)
        self._world: Members | None = None

    @property
    def world(self) -> Members:
        """The world whose nodes go and come, once it has begun."""
        assert self._world is not None
        return self._world

    def over(self, world: Members) -> bool:
        """Whether the run has come to its end, rather than to a standstill."""
        processes = world.processes
        return processes[self.leader].done and (bool(self.faults.nodes) or all(process.done for process in processes))

    def begin(self, world: Members) -> None:
        """At 0 seconds."""
        self._world = world
        world.collectives.join(set(range(self.num_workers)) - self.absent)
        for rank in self._next:
            start, until = self._next[rank]
            if rank in self.absent:
                world.processes[rank].status = LOST
                self.down[rank] = 0.0
                self._return_at(rank, until)
            else:
                world.env.after(start, self._go, rank)

    def end(self, seconds: float) -> None:
        """The run is over, and this was its last commit: whoever is down now was down until then."""
        for rank in list(self.down):
            self._was_down(rank, seconds)

    def died(self, num_updates: int) -> str | None:
        """What happened, if nobody is left who could go on."""
        if len(self.down) < self.num_workers:
            return None
        last = max(self.down.values())
        return (
            f"every node of the cluster is gone at {last:g} s and none comes back, after {num_updates} updates: "
            "give cluster.faults a repair, or the run a smaller budget"
        )

    def recorders(self, kind: int) -> tuple[RecordInterval, Callable[[Row, Callback], Callback]]:
        """For intervals on nodes that may crash: what to call when one begins, and how to report it when it is over.

        Recorders that can take an interval back get it at its beginning; the others when it is over, cut where its node crashes.
        """
        at_once = interval_recorder(self._taking_back, kind) or ignore
        later = interval_recorder([recorder for recorder in self._recorders if not recorder.takes_back], kind)

        def record_when_done(row: Row, callback: Callback) -> Callback:
            if later is None:
                return callback
            rows = self._under_way[row[2]]
            rows[row] = later

            def done(answer: Any) -> None:
                if row in rows:
                    del rows[row]
                    later(row)
                callback(answer)

            return done

        return at_once, record_when_done

    def regroup(self, process: RankProcess, effect: fx.Regroup, callback: Callback) -> Any:
        """From the last entry, regroup_seconds, and where somebody comes back, the time that the weights take to it."""
        present = self._present()
        least = 1 + self.coordination.needs_server  # a server alone waits for the first worker
        seconds = self.faults.regroup_seconds + max([self._weights_take(rank) for rank in self._newcomers], default=0.0)
        return self.world.collectives.regroup(
            process,
            callback,
            num_processes=max(least, len(present)),
            seconds=seconds,
            answer=self._regrouped,
        )

    def _present(self) -> list[RankProcess]:
        return [process for process in self.world.processes if process.status != LOST and not process.done]

    def _regrouped(self) -> fx.Regrouped:
        """All who are there stand at the last commit."""
        world, present = self.world, self._present()
        members = {process.rank for process in present if process.rank < self.num_workers}
        world.collectives.join(members)
        if not self.coordination.needs_server:
            self.leader = min(members)
        self._newcomers.clear()
        for process in present:
            world.restart(process)
            process.status = ACTIVE
        return fx.Regrouped(frozenset(range(self.num_workers)) - members, world.last)

    def _weights_take(self, newcomer: int) -> float:
        """From the server, or from the lowest rank that stayed."""
        world = self.world
        if self.coordination.needs_server:
            source = self.leader
        else:
            source = min(world.collectives.members - self._newcomers - self.down.keys(), default=newcomer)
        if source == newcomer:
            return 0.0
        return self.cluster.message_seconds(source, newcomer, nbytes(world.last.weights))

    def _draw(self, rank: int) -> None:
        self._next[rank] = next(self._coming[rank], (math.inf, math.inf))

    def _go(self, rank: int) -> None:
        """A node goes, with all that it was doing."""
        world, until = self.world, self._next[rank][1]
        process, now = world.processes[rank], world.env.now
        if self.over(world):
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
        world.env.after(self.faults.detection_seconds, self._noticed, process)
        self._return_at(rank, until)

    def _check_progress(self, now: float) -> None:
        """Nodes may come and go too fast for any version to be made: then they would do so for ever."""
        version = self.world.last.version
        if version != self._last_version:
            self._last_version, self._num_gone = version, 0
        self._num_gone += 1
        if self._num_gone > MAX_CRASHES * len(self.faults.nodes):
            raise RunFailed(
                f"nodes went {self._num_gone - 1} times since version {version} and no other version was made until {now:g} s: "
                "let cluster.faults crash them less often, or give them smaller steps"
            )

    def _return_at(self, rank: int, until: float) -> None:
        if until < math.inf:
            self.world.env.after(until - self.world.env.now, self._come, rank)

    def _noticed(self, gone: RankProcess) -> None:
        """The others learn of a loss, unless the node came back before, a regroup has told them already, or it had done its part."""
        world = self.world
        if self.over(world) or gone.done or world.processes[gone.rank] is not gone:
            return
        if self.coordination.regroups:
            if gone.rank in world.collectives.members or world.collectives.is_regrouping:
                self._change()
        else:
            world.messaging.report_loss(world.processes[self.leader], gone.rank)

    def _come(self, rank: int) -> None:
        """A node is there again, or for the first time, and begins."""
        world = self.world
        if self.over(world):
            return
        now = world.env.now
        self._was_down(rank, now)
        self._draw(rank)
        if self._next[rank][0] < math.inf:
            world.env.after(self._next[rank][0] - now, self._go, rank)
        world.computes_from(rank, now)
        process = world.processes[rank] = world.spawn(rank)
        if self.coordination.regroups:
            self._newcomers.add(rank)
            process.status = OUTDATED
            self._change()
        process.go()

    def _was_down(self, rank: int, until: float) -> None:
        start = self.down.pop(rank)
        if until > start and self._record_down is not None:
            self._record_down((start, until, rank, DOWN, 0, 0, 0, 0))

    def _change(self) -> None:
        """A new generation: what was under way among the others is void, and each learns it when it communicates."""
        world = self.world
        self.generation += 1
        world.collectives.dissolve()
        world.messaging.dissolve()
        world.forget_decisions()
        for rank, process in enumerate(list(world.processes)):
            if process.status == LOST or process.waits_for is None:
                continue
            if process.done:  # it is needed again
                world.processes[rank] = again = world.spawn(rank)
                again.status = OUTDATED
                again.go()
                continue
            process.status = OUTDATED
            if not isinstance(process.waits_for, BY_ITSELF):
                process.fail(fx.PeerLost(CHANGED))
