"""Which nodes are there: they go and come back as the cluster's faults say, and the programs learn of it as real ones would.

What a node was computing, and every message to and from it, is lost with it. `detection_seconds` later the others know. Where a
coordination goes on without a worker, its server is told (PeerLost where it receives); otherwise everyone is: PeerLost where
it communicates, or when it next does, and then a `Regroup` among all who are there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hetsim import effects as fx
from hetsim.cluster.outages import outages
from hetsim.errors import RunFailed
from hetsim.runtime.trace import DOWN
from hetsim.sim.clock import Callback
from hetsim.sim.rank_process import Handlers, RankProcess
from hetsim.vector import nbytes

if TYPE_CHECKING:
    from hetsim.sim.world import EventWorld


PATIENCE = 1000
"""How often each node may go on average before another version is made."""


BY_ITSELF = (fx.Gradient, fx.Update, fx.LocalUpdate)
"""What a rank does without the others, and ends before it learns of a loss."""


class Membership:
    """Makes a simulation's nodes go and come back."""

    def __init__(self, simulation: EventWorld) -> None:
        self.simulation = simulation
        self.faults = simulation.cluster.faults
        self.env = simulation.env
        seed = simulation.experiment.seed
        self._coming: dict[int, Iterator[tuple[float, float]]] = {}
        self._next: dict[int, tuple[float, float]] = {}
        for rank in self.faults.nodes:
            self._coming[rank] = outages(simulation.cluster, rank, seed=seed)
            self._draw(rank)
        self.absent = frozenset(rank for rank, (start, _) in self._next.items() if start == 0)
        """Workers that are not there when the run begins."""
        self.down: dict[int, float] = {}
        """Workers that are not there now, and since when."""
        self._newcomers: set[int] = set()
        self._last_version = -1
        self._num_gone = 0  # since that version
        self._under_way: dict[int, dict[tuple[float, ...], None]] = {rank: {} for rank in self.faults.nodes}

    @property
    def over(self) -> bool:
        """Whether the run has come to its end, rather than to a standstill."""
        processes = self.simulation.processes
        return processes[self.simulation.leader].done and (bool(self.faults.nodes) or all(process.done for process in processes))

    def begin(self) -> None:
        """At 0 seconds."""
        for rank in self._next:
            start, until = self._next[rank]
            if rank in self.absent:
                self.simulation.processes[rank].lost = True
                self.down[rank] = 0.0
                self._return_at(rank, until)
            else:
                self.env.after(start, self._go, rank)

    def end(self) -> None:
        """The run is over: who is away now was so until its last commit."""
        for rank in list(self.down):
            self._was_down(rank, self.simulation.history.applied.seconds)

    def died(self) -> str | None:
        """What happened, if nobody is left who could go on."""
        if len(self.down) < self.simulation.experiment.num_workers:
            return None
        last, updates = max(self.down.values()), self.simulation.history.applied.num_updates
        return (
            f"every node of the cluster is gone at {last:g} s and none comes back, after {updates} updates: "
            "give cluster.faults a repair, or the run a smaller budget"
        )

    def record_when_done(self, row: tuple[float, ...], callback: Callback) -> Callback:
        """Let a row be written when `callback` is called, or up to where its rank goes, if that comes before."""
        rows = self._under_way[int(row[2])]
        rows[row] = None

        def done(answer: Any) -> None:
            if row in rows:
                del rows[row]
                self.simulation.trace.record(row)
            callback(answer)

        return done

    def handlers(self, lost: bool) -> Handlers:
        """What a rank is answered; once somebody is lost or has come back, it can only compute, and regroup."""
        handlers = self.simulation.handlers
        if not lost:
            return handlers
        alone = (*BY_ITSELF, fx.Commit, fx.Now, fx.Regroup)
        return Handlers({kind: handler if kind in alone else self._refuse for kind, handler in handlers.items()})

    def regroup(self, process: RankProcess, effect: fx.Regroup, callback: Callback) -> Any:
        """From the last entry, regroup_seconds, and where somebody comes back, the time that the weights take to it."""
        simulation = self.simulation
        there = [process for process in simulation.processes if not process.lost and not process.done]
        least = 1 + simulation.experiment.coordination.needs_server  # a server alone waits for the first worker
        seconds = self.faults.regroup_seconds + max([self._weights_take(rank) for rank in self._newcomers], default=0.0)
        return simulation.collective_ops.regroup(
            process, callback, num_players=max(least, len(there)), seconds=seconds, answer=self._regrouped
        )

    def _regrouped(self) -> fx.Regrouped:
        """Everyone who is there stands at the last commit."""
        simulation = self.simulation
        there = [process for process in simulation.processes if not process.lost and not process.done]
        members = {process.rank for process in there if process.rank < simulation.experiment.num_workers}
        simulation.collective_ops.join(members)
        if not simulation.experiment.coordination.needs_server:
            simulation.leader = simulation.history.leader = min(members)
        self._newcomers.clear()
        state = simulation.history.last
        for process in there:
            simulation.stand_at(process, state)
            process.handlers = self.handlers(lost=False)
        return fx.Regrouped(frozenset(range(simulation.experiment.num_workers)) - members, state)

    def _weights_take(self, newcomer: int) -> float:
        """From the server, or from the lowest rank that stayed."""
        simulation = self.simulation
        if simulation.experiment.coordination.needs_server:
            source = simulation.leader
        else:
            source = min(simulation.collective_ops.members - self._newcomers - self.down.keys(), default=newcomer)
        if source == newcomer:
            return 0.0
        return simulation.cluster.message_seconds(source, newcomer, nbytes(simulation.history.last.weights))

    def _draw(self, rank: int) -> None:
        self._next[rank] = next(self._coming[rank], (math.inf, math.inf))

    def _go(self, rank: int) -> None:
        """A node goes, with all that it was doing."""
        simulation, process, until = self.simulation, self.simulation.processes[rank], self._next[rank][1]
        if self.over:
            return
        self._check_progress()
        process.lost = True
        process.program.close()
        self.down[rank] = self.env.now
        simulation.busy[rank].cut(self.env.now)
        for start, _, *row in self._under_way[rank]:
            if start < self.env.now:
                simulation.trace.record((start, self.env.now, *row))
        self._under_way[rank].clear()
        simulation.messaging.lose(rank)
        simulation.collective_ops.leave(rank)
        self.env.after(self.faults.detection_seconds, self._noticed, process)
        self._return_at(rank, until)

    def _check_progress(self) -> None:
        """Nodes may come and go too fast for any version to be made: then they would do so for ever."""
        version = self.simulation.history.last.version
        if version != self._last_version:
            self._last_version, self._num_gone = version, 0
        self._num_gone += 1
        if self._num_gone > PATIENCE * len(self.faults.nodes):
            raise RunFailed(
                f"nodes went {self._num_gone - 1} times since version {version} and no other version was made until {self.env.now:g} s: "
                "let cluster.faults crash them less often, or give them smaller steps"
            )

    def _return_at(self, rank: int, until: float) -> None:
        if until < math.inf:
            self.env.after(until - self.env.now, self._come, rank)

    def _noticed(self, gone: RankProcess) -> None:
        """The others know, unless it has come back before, they know it from a regroup already, or it had done its part."""
        simulation = self.simulation
        if self.over or gone.done or simulation.processes[gone.rank] is not gone:
            return
        if simulation.experiment.coordination.regroups:
            if gone.rank in simulation.collective_ops.members or simulation.collective_ops.is_regrouping:
                self._anew()
        else:
            simulation.messaging.tell(simulation.processes[simulation.leader], gone.rank)

    def _come(self, rank: int) -> None:
        """A node is there again, or for the first time, and begins."""
        simulation = self.simulation
        if self.over:
            return
        self._was_down(rank, self.env.now)
        self._draw(rank)
        if self._next[rank][0] < math.inf:
            self.env.after(self._next[rank][0] - self.env.now, self._go, rank)
        simulation.computes_from(rank, self.env.now)
        process = simulation.processes[rank] = simulation.process(rank, None)
        if simulation.experiment.coordination.regroups:
            self._newcomers.add(rank)
            process.handlers = self.handlers(lost=True)
            self._anew()
        process.go()

    def _was_down(self, rank: int, until: float) -> None:
        start = self.down.pop(rank)
        if until > start:
            self.simulation.busy[rank].down(start, until)
            if self.simulation.trace.full:
                self.simulation.trace.add(start, until, rank, DOWN)

    def _anew(self) -> None:
        """What was under way among the others is void; each learns it where it waits for another, or when it next asks for one."""
        simulation = self.simulation
        simulation.collective_ops.dissolve()
        simulation.messaging.dissolve()
        simulation.begin_anew()
        for rank, process in enumerate(list(simulation.processes)):
            if process.lost or process.waits_for is None:
                continue
            if process.done:  # it is needed again
                simulation.processes[rank] = again = simulation.process(rank, None)
                again.handlers = self.handlers(lost=True)
                again.go()
                continue
            process.handlers = self.handlers(lost=True)
            if not isinstance(process.waits_for, BY_ITSELF):
                process.fail(fx.PeerLost("who takes part has changed"))

    def _refuse(self, process: RankProcess, effect: fx.Effect[Any], callback: Callback) -> Any:
        return process.refuse(effect, fx.PeerLost("who takes part has changed"), self.env)
