"""The simulator's world if processes share cores of hosts. The time of work depends on other work there."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Sequence
from functools import cached_property, partial
from typing import Any

from hetsim import effects as fx
from hetsim.cluster.compute_times import sizes_of_passes
from hetsim.runtime.profiling import Profile
from hetsim.runtime.recording.recorder import GRADIENT, UPDATE, Recorder, Row
from hetsim.sim.clock import SUSPENDED, Callback
from hetsim.sim.collective_ops import PendingCollectives
from hetsim.sim.gradient_sums import Mark
from hetsim.sim.hosts.attempts import HostAttempts
from hetsim.sim.hosts.communication import HostCollectives, HostMessaging
from hetsim.sim.hosts.processors import Processors
from hetsim.sim.hosts.profiling import profile_on_hosts
from hetsim.sim.messages import Messaging
from hetsim.sim.rank_process import PendingAnswer, RankProcess
from hetsim.sim.world import EventWorld
from hetsim.vector import Vector


class HostWorld(EventWorld):
    """EventWorld, in which gradients, updates and messages are work on shared cores."""

    @cached_property
    def processors(self) -> Processors:
        """The cores of this run's ranks."""
        experiment = self.experiment
        return Processors(self.env, experiment.cluster, seed=experiment.seed, widths=experiment.widths)

    @cached_property
    def _gradients(self) -> list[deque[tuple[RankProcess, fx.Gradient, Callback, Sequence[Mark]]]]:
        """The gradients of each rank: the current one, followed by waiting ones."""
        return [deque() for _ in self.experiment.cluster.nodes]

    @cached_property
    def _last_ends(self) -> list[float]:
        """The end of each rank's last gradient."""
        return [-math.inf for _ in self.experiment.cluster.nodes]

    @cached_property
    def _sizes(self) -> list[set[int]]:
        """For each rank, the batch sizes for which it has computed a gradient, and so has kernels."""
        return [set() for _ in self.experiment.cluster.nodes]

    def gradient(self, process: RankProcess, effect: fx.Gradient, callback: Callback, marks: Sequence[Mark] = ()) -> Any:
        """Takes the time of the node's model on the available cores. Several gradients run one by one."""
        process.state.version = effect.version
        waiting = self._gradients[process.rank]
        waiting.append((process, effect, callback, marks))
        if len(waiting) == 1:
            self._begin_gradient(process.rank)
        return SUSPENDED

    def _begin_gradient(self, rank: int) -> None:
        _, effect, _, marks = self._gradients[rank][0]
        self._compute(rank, self._seconds(rank, effect.batch.samples), deque(marks), self.env.now)

    def _seconds(self, rank: int, samples: int) -> float:
        """The time of a gradient without other work, if it begins now."""
        now, node = self.env.now, self.experiment.cluster.nodes[rank]
        new = sizes_of_passes(node, samples) - self._sizes[rank]
        self._sizes[rank] |= new
        return self.times[rank].seconds(samples, now) + node.cold(now - self._last_ends[rank]) + len(new) * node.first_seconds

    def _compute(self, rank: int, seconds: float, marks: deque[Mark], start: float, computed: float = 0.0) -> None:
        """Compute a gradient from a share of its seconds on, up to the next mark or to its end."""
        if not marks:
            self.processors.compute(rank, (1 - computed) * seconds, self._end_gradient_of, (rank, start))
            return
        share, mark = marks.popleft()

        def pass_mark(_: Any) -> None:
            mark(None)
            self._compute(rank, seconds, marks, start, share)

        self.processors.compute(rank, (share - computed) * seconds, pass_mark)

    def _end_gradient_of(self, job: tuple[int, float]) -> None:
        rank, start = job
        _, effect, callback, _ = self._gradients[rank].popleft()
        self._last_ends[rank] = self.env.now
        if self._gradients[rank]:
            self._begin_gradient(rank)
        now = self.env.now
        self._record_gradient((start, now, rank, GRADIENT, effect.version, effect.batch.samples, 0, 0))
        gradient, loss = self.compute_at(rank, effect)
        callback(fx.Computed(gradient, loss, effect.batch.samples, now - start))

    def _end_update(self, rank: int, seconds: float, version: int, weights: Vector, callback: Callback) -> Any:
        if not seconds:
            return weights
        start, record = self.env.now, self._record_update if rank < self._num_workers else self._record_service

        def end(weights: Vector) -> None:
            record((start, self.env.now, rank, UPDATE, version, 0, 0, 0))
            callback(weights)

        return self.processors.compute(rank, seconds, end, weights)

    def start(self, process: RankProcess, effect: fx.Start[Any], callback: Callback) -> PendingAnswer:
        """As in EventWorld. A communication costs CPU work beside the program's."""
        if effect.effect.communicates:
            self.processors.overlap(process.rank)
        return super().start(process, effect, callback)

    def commit(self, process: RankProcess, effect: fx.Commit, callback: Callback) -> Any:
        """As in EventWorld. Without a server, a commit also costs each rank CPU work."""
        if self.experiment.coordination.needs_server:
            return super().commit(process, effect, callback)
        work = partial(self.processors.commit, process.rank, callback, agrees=self._stop.waits)

        def finish_commit(going: Any) -> None:
            if (answer := work(going)) is not SUSPENDED:
                callback(answer)

        going = super().commit(process, effect, finish_commit)
        return SUSPENDED if going is SUSPENDED else work(going)

    def _attempts(self) -> HostAttempts:
        return HostAttempts(self.env, self.compute_at, self.processors, self._seconds, self._record_attempt)

    def _record_attempt(self, row: Row) -> None:
        start, end, rank, *_ = row
        self._last_ends[rank] = end
        if start < end:
            self._record_gradient(row)

    def _profile(self) -> Profile:
        return profile_on_hosts(self.experiment)

    def _communication(self, observers: Collection[Recorder]) -> tuple[PendingCollectives, Messaging]:
        collectives = HostCollectives(self.env, self.experiment.cluster, observers, self.processors, seed=self.experiment.seed)
        return collectives, HostMessaging(
            self.env, self.experiment.cluster, self.processes, observers, self.processors, seed=self.experiment.seed
        )
