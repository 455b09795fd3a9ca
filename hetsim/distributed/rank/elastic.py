"""One rank's run under hetsim's own launchers, which continues when other ranks are lost, return or join late.

Two classes differ in their reaction to a loss. With `ServedRun`, the servers continue by themselves. With `RegroupingRun`, all present
ranks form a new group after each change of the membership.
"""

from __future__ import annotations

import contextlib
import gc
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from hetsim.coordination.state import State
from hetsim.distributed.communication.gloo import GlooTransport, Group
from hetsim.distributed.communication.mailbox import Mailbox
from hetsim.distributed.communication.reduction import Reduction
from hetsim.distributed.communication.transport import Transport
from hetsim.distributed.membership.keeper import View
from hetsim.distributed.membership.membership import Membership, failed_elsewhere
from hetsim.distributed.rank.run import RankRun, check_same_task, warm_up
from hetsim.distributed.rank.standstill import StandstillWatch, Store
from hetsim.distributed.rank.succession import Rows, Succession
from hetsim.distributed.rank.world import ProcessWorld
from hetsim.effects import Node, Program
from hetsim.errors import RunFailed, RunOver
from hetsim.runtime.preparation import Preparation
from hetsim.runtime.recording.metrics import RankActivity
from hetsim.runtime.recording.recorder import DOWN, interval_recorder
from hetsim.runtime.recording.trace import Trace

MAX_SECONDS = 1e6
"""The maximum seconds that a rank waits for its time to join, because a condition cannot wait forever."""


class ElasticRun(RankRun):
    """A rank's run among changing members. `everyone` is a group of all ranks before the run; None if it was started later.

    `absent` are the ranks that are absent at first, and the begins of their absences in seconds of the run. `joins_at` is the time at which
    this rank joins, if it is one of them. After `run`, `sources` bring the results to the leader, and `hands_in` is whether this rank has
    any. With `take_over`, this rank may lead after the leader's loss. It is then called to get the run's files.
    """

    def __init__(
        self, prepared: Preparation, trace: Trace, *, everyone: Group | None, membership: Membership, absent: dict[int, float],
        joins_at: float | None, order: str, take_over: Callable[[Succession], None] | None = None, **options: Any,
    ) -> None:  # fmt: skip
        self.membership = membership
        self.began = 0.0
        self.absent = absent
        self.recorded_absences: dict[int, float] = {}
        """The time until which each rank's absences are in the trace, in seconds of the run."""
        rows = [] if take_over is None else [Rows(prepared.experiment.trace)]
        self.alone = GlooTransport(None, membership.rank, [membership.rank])
        """The transport of a rank without a group. It is never used."""
        super().__init__(
            prepared, trace, leader=membership.leader, transport=everyone or self.alone, joined=everyone is None,
            copied_to=rows, **options,
        )  # fmt: skip
        self.succession: Succession | None = None
        if take_over is not None:
            self.succession = Succession(self, rows[0], absent=absent, ledger=membership.ledger, take_over=take_over)
        self._everyone = everyone
        self._joins_at = joins_at
        self._order = order
        self.hands_in = True
        self._num_asked: Callable[[], int] = lambda: 0

    def run(self, store: Store | None = None, report: Callable[[RunFailed], None] | None = None) -> None:
        """Run this rank's program to the end of the run, again after each change of the membership."""
        self.membership.beat(lambda: self._num_asked())
        with contextlib.suppress(RunOver):
            self._take_part(self._begin(), store, report)

    def _begin(self) -> Group | None:
        """Prepare with all ranks, and wait for the beginning, or until this rank joins. Returns its group if it is in the first one."""
        experiment, everyone, membership = self.experiment, self._everyone, self.membership
        loss = warm_up(self.prepared, samples=experiment.first_samples)
        group: Group | None = None
        if everyone is None:
            self.began = membership.began()
        else:
            check_same_task(everyone.control.gather_numbers(loss, float(self.prepared.start.version)), experiment.workload.name)
            group = everyone
            if self.absent:
                members = sorted(membership.view.members)
                group = None if self._joins_at is not None else Group.form(membership.connect(), "gen0", rank=self.rank, members=members)
            self.began = self.clocks.begin(everyone, self.pace.clock) - self.prepared.checkpoint.began
            if group is not everyone:
                everyone.close()
            membership.tell_began(self.began, leads=self.rank == experiment.leader)
        if self._joins_at is not None and membership.ends_within(min(self.began + self._joins_at - self.pace.clock(), MAX_SECONDS)):
            self.hands_in = False
            raise RunOver
        return group

    def _take_part(self, group: Group | None, store: Store | None, report: Callable[[RunFailed], None] | None) -> None:
        joins = group is None
        if joins:
            self.hands_in = False
            self.membership.join()
            self.hands_in = True
        world = self._world(group)
        self._num_asked = lambda: world.num_asked
        self.membership.listen(lambda view: self._follow(world, view))
        watch: Any = contextlib.nullcontext()
        if store is not None:
            watch = StandstillWatch(store, self.rank, self._present, world.waiting, report, leads=lambda: self.record.leads)
        with watch:
            self.pace.sleep_until(self.began + self.prepared.checkpoint.began)
            gc.freeze()
            try:
                self._run(world, None if joins else self.prepared.start)
            finally:
                gc.unfreeze()
                self.last, self.transport = world.last, world.transport
        self.saving.end(world.mailbox.states)
        self._meet_after_end(world)
        self.parts.leader = self.membership.leader
        self.clocks.led_by(self.membership.leader)

    @abstractmethod
    def _world(self, group: Group | None) -> ProcessWorld:
        """The world of this rank in this group. Without a group, the world of a rank that joins."""

    @abstractmethod
    def _run(self, world: Any, state: State | None) -> None:
        """Run the program from this state until the run is over. A rank that joins takes the others' state."""

    @abstractmethod
    def _changed(self, world: Any, view: View) -> None:
        """The members have changed. Called in the membership thread."""

    def _meet_after_end(self, world: Any) -> None:
        """Make a transport to the leader for the results."""

    def _program(self, state: State | None) -> Program[State | None]:
        node = Node(self.rank, self.experiment.num_workers, self.parts.state.own)
        return self.experiment.coordination.with_recovery(node, self.prepared.plan, state, self.prepared.start)

    def _shared(self, transport: Transport, **options: Any) -> dict[str, Any]:
        """The parts of a world with which the rank communicates."""
        reduction = Reduction.by_gloo(transport, self.prepared.task.device, self._order)
        return {"transport": transport, "mailbox": self._new_mailbox(transport, **options), "reduction": reduction, "began": self.began}

    def _new_mailbox(self, transport: Transport, **options: Any) -> Mailbox:
        return self.mailbox(transport, began=self.began, on_loss=self.survives, **options)

    def survives(self, rank: int) -> bool:
        self.membership.ledger.lost_connection(rank, self.pace.clock())
        return True

    def finish_clocks(self, transport: Transport, rank: int, peer: int) -> None:
        transport.unless_lost(partial(self.clocks.finish_with, transport, self.pace.clock, rank), peer)

    def have_saved(self, version: int) -> None:
        self.membership.tell_saved(version)

    def _present(self) -> list[int]:
        """The ranks that may stand still. All ranks if only servers are left, because the launcher knows whether a worker will come."""
        members = self.membership.view.members
        return sorted(members) if len(members) > len(self.experiment.servers) else list(range(self.experiment.num_ranks))

    def _follow(self, world: ProcessWorld, view: View) -> None:
        """Follow a newer view. Called in the membership thread."""
        if view.members:
            self._changed(world, view)
            return
        world.mailbox.fail(failed_elsewhere())
        if isinstance(world.transport, Group):
            world.transport.interrupt()  # who is failing does not close its connections

    def have_seen_lost(self, lost: Sequence[tuple[int, float]], rate: float, shift: float) -> None:
        for rank, seconds in lost:
            self.membership.ledger.lost_connection(rank, self.began + shift + rate * seconds)

    def absences_over(self, seconds: float) -> list[tuple[int, float, float]]:
        """As in the base class. The trace then contains these absences. A current absence is recorded at its end, as in simulation."""
        over = [absence for absence in self._absences(seconds) if absence[2] < seconds]
        record = interval_recorder([self.trace], DOWN)
        for rank, start, end in over:
            if record is not None and start >= self.recorded_absences.get(rank, start):
                record((start, end, rank, DOWN, 0, 0, 0, 0))
            self.recorded_absences[rank] = end
        return over

    def have_recorded(self, seconds: float) -> None:
        """On a new leader: the trace contains the absences that ended by this second of the run."""
        for rank, start, end in self._absences(seconds):
            if start < end < seconds:
                self.recorded_absences[rank] = end

    def record_absences(self) -> list[RankActivity]:
        """On the leader, after all ranks' results: record each rank's absences.

        Returns each worker's activity without its current absence, for a checkpoint.
        """
        seconds, activity = self.metrics.applied.seconds, self.metrics.activity
        present = self.membership.view.members.keys() - self.membership.ledger.untold.keys()
        self.absent_at_end = frozenset(range(self.experiment.num_workers)) - present
        over = self.absences_over(seconds)
        for rank, start, end in over:
            activity[rank].add_absence(start, end)
        copies = [RankActivity.of_numbers(its.as_numbers(), its.num_ahead) for its in activity]
        record = interval_recorder(self.recorders, DOWN)
        for rank, start, end in self._absences(seconds):
            if record is not None and (rank, start, end) not in over:
                record((start, end, rank, DOWN, 0, 0, 0, 0))
        return copies

    def _absences(self, seconds: float) -> list[tuple[int, float, float]]:
        found = self.membership.ledger.absences(self.absent, self.began, self.began + seconds)
        return [(rank, start, end) for rank, start, end in found if start < end]
