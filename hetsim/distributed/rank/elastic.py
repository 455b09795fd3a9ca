"""One rank's run that goes on when others are lost, come back or join late: under hetsim's own launchers.

A server that goes on by itself has a connection to each of its workers, and gets a new one to each process that joins; so does the leader,
which is another one where servers are local, for the results. All others form a new group of all that are present
(`ProcessWorld.regroup`), as often as the membership changes.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from hetsim.coordination.state import State
from hetsim.distributed.communication.gloo import Group, Lane
from hetsim.distributed.communication.mailbox import Mailbox
from hetsim.distributed.communication.reduction import Reduction
from hetsim.distributed.communication.transport import Transport
from hetsim.distributed.membership.keeper import View
from hetsim.distributed.membership.membership import Membership, failed_elsewhere
from hetsim.distributed.rank.joining import Connections
from hetsim.distributed.rank.regrouping import RegroupingWorld
from hetsim.distributed.rank.run import RankRun, check_same_task, warm_up
from hetsim.distributed.rank.standstill import StandstillWatch, Store
from hetsim.distributed.rank.succession import Rows, Succession
from hetsim.distributed.rank.world import ProcessWorld
from hetsim.effects import Node, PeerLost, Program
from hetsim.errors import RunFailed, RunOver
from hetsim.runtime.experiment import Experiment, Optimizers
from hetsim.runtime.metrics import RankActivity
from hetsim.runtime.nonfinite import NonfiniteGradients
from hetsim.runtime.recorder import DOWN, interval_recorder
from hetsim.runtime.trace import Trace
from hetsim.workloads.task import Task

MAX_SECONDS = 1e6
"""That a rank waits for its time to join: a condition cannot wait for ever."""
QUIET_SECONDS = 5.0
"""In which a run that has ended says so to a rank whose connection was refused."""


class ElasticRun(RankRun):
    """A rank's run among members that may change. Its `transport` is a group of all ranks before the run; None: it was started later.

    `absent` are the ranks that are absent at first, and since which second of the run; `joins_at` is when this one takes part, if it is
    one of them. After `run`, `transport` or the mailbox's links bring the results to the leader, and `hands_in` says whether this rank has
    any. With `take_over` this rank may lead when the leader is lost; it is called then, to have the files of the run.
    """

    def __init__(
        self, experiment: Experiment, task: Task, optimizers: Optimizers, trace: Trace, *,
        membership: Membership, absent: dict[int, float], joins_at: float | None, order: str,
        take_over: Callable[[Succession], None] | None = None, **options: Any,
    ) -> None:  # fmt: skip
        rows = None if take_over is None else Rows(experiment.trace)
        super().__init__(
            experiment, task, optimizers, trace,
            absent=sorted(absent), leader=membership.leader, copied_to=[] if rows is None else [rows], **options,
        )  # fmt: skip
        self.membership = membership
        self.succession: Succession | None = None
        if take_over is not None and rows is not None:
            take_over = partial(self._take_over, take_over)
            self.succession = Succession(self, rows, absent=absent, ledger=membership.ledger, take_over=take_over)
        self.absent = absent
        self.joins_at = joins_at
        self.hands_in = True
        self.began = 0.0
        self._order = order
        self.recorded_absences: dict[int, float] = {}
        """Until when the absences of each rank are in the trace, in seconds of the run."""
        if self.saving is not None:
            self.saving.absences = self.absences_over
            self.saving.on_saved = membership.tell_saved
        self._regroups = experiment.coordination.regroups
        self._mailbox: Mailbox | None = None
        self._world: ProcessWorld | None = None
        self._watch: StandstillWatch | None = None
        self._report: Callable[[RunFailed], None] | None = None
        self._connections = Connections(experiment, membership)

    def run(self, store: Store | None = None, report: Callable[[RunFailed], None] | None = None) -> None:
        """Run this rank's program, again after each change of the membership, to the end of the run."""
        self.membership.beat(lambda: 0 if self._world is None else self._world.num_asked)
        with contextlib.suppress(RunOver):
            group = self._begin()
            self._take_part(group, store, report)

    def _begin(self) -> Transport | None:
        """Prepare with all others, and wait for the beginning, or until this rank joins. Returns what it communicates by, if it knows."""
        experiment, everyone, membership = self.experiment, self.transport, self.membership
        loss = warm_up(self.prepared, samples=-(-experiment.batch_size // experiment.num_workers))
        group: Transport | None = None
        if everyone is None:
            self.began = membership.began()
        else:
            assert isinstance(everyone, Group)
            check_same_task(everyone.control.gather_numbers(loss, float(self.prepared.start.version)), experiment.workload.name)
            group = everyone
            if self.absent:
                members = sorted(membership.view.members)
                group = None if self.joins_at is not None else Group.form(membership.connect(), "gen0", rank=self.rank, members=members)
            self.began = self.clocks.begin(everyone, self.pace.clock) - self.prepared.checkpoint.began
            if group is not everyone:
                everyone.close()
            membership.tell_began(self.began, leads=self.rank == experiment.leader)
        if self.joins_at is not None and membership.ends_within(min(self.began + self.joins_at - self.pace.clock(), MAX_SECONDS)):
            self.hands_in = False
            raise RunOver
        return group

    def _take_part(self, group: Transport | None, store: Store | None, report: Callable[[RunFailed], None] | None) -> None:
        experiment, membership = self.experiment, self.membership
        joins, needs_server = group is None, experiment.coordination.needs_server
        transport: Transport = Lane(None, self.rank, [self.rank]) if group is None else group  # the first nobody uses
        if joins:
            self.hands_in = False
            membership.join()
            self.hands_in = True
            if not self._regroups:
                try:
                    transport = self._connections.meet(self.rank, membership.incarnation)
                except PeerLost:
                    self._end_quietly()
        elif self._regroups:
            assert isinstance(transport, Group)
            membership.enter(transport)
        mailbox = None
        if needs_server and not (joins and self._regroups):
            mailbox = self._new_mailbox(transport, joins=joins)
        self.state = state = self.prepared.rank_state(self.rank)
        parts: dict[str, Any] = {
            "transport": transport, "mailbox": mailbox, "pace": self.pace, "recorders": self.recorders, "record": self.record,
            "reduction": Reduction.by_gloo(transport, self.prepared.task.device, self._order), "keep": self._keep, "began": self.began,
            "micro_batch": self._micro_batch, "nonfinite": NonfiniteGradients(self.experiment.nonfinite, self.metrics.activity),
            "saving": self.saving, "leader": self.leader,
        }  # fmt: skip
        if self._regroups:
            mailbox_in = self._new_mailbox if needs_server else None
            world: ProcessWorld = RegroupingWorld(
                self.prepared, state, membership=membership, mailbox_in=mailbox_in, joins=joins, succession=self.succession, **parts
            )
        else:
            world = ProcessWorld(self.prepared, state, **parts)
        self._world = world
        membership.listen(lambda view: self._seen(world, view))
        if store is not None:
            self._watch = StandstillWatch(store, self.rank, self._present, world.waiting, report if self.record.leads else None)
        self._report = report
        with self._watch or contextlib.nullcontext():
            self.pace.sleep_until(self.began + self.prepared.checkpoint.began)
            gc.freeze()
            try:
                self._run(world, None if joins else self.prepared.start)
            except PeerLost:
                if not (joins and not self._regroups):
                    raise
                self._end_quietly()
            finally:
                gc.unfreeze()
                self.last, self.transport, self._mailbox = world.last, world.transport, world.mailbox
        if self.saving is not None and self.record.leads:
            self.saving.write_answered()
            self.progress_at_end = self.record.progress()
        if isinstance(world, RegroupingWorld) and not membership.ended_quietly:
            self.transport = self._group_after_end(world)
        self.leader = membership.leader

    def _run(self, world: ProcessWorld, state: State | None) -> None:
        """The program, from this state or, if it joins, from that of the others, until the run is over."""
        membership, now = self.membership, state is None
        while True:
            node = Node(self.rank, self.experiment.num_workers, world.state.own)
            program: Program[State | None] = self.experiment.coordination.with_recovery(
                node, self.prepared.plan, state, self.prepared.start
            )
            try:
                result = world.run(program, now=now)
            except RunOver:
                if world.mailbox is not None and not self._regroups:
                    world.mailbox.close()
                if membership.view.over or not self._regroups:
                    return
                result = None  # the last version is made, though nobody has told yet
            if self.record.leads:
                self.history.record_discarded(result)
            if not self._regroups:
                assert world.mailbox is not None
                world.mailbox.close()
                if self.record.leads:
                    membership.tell_over()
                return
            try:
                if world.mailbox is not None and not membership.changed:
                    world.mailbox.close()
                world.transport.control.barrier()
            except PeerLost:
                if not membership.changed:  # a connection broke, and others may wait in the barrier until they are told
                    membership.wait_for_newer(membership.formed)
            if not self.record.leads:
                if membership.wait_until_over():
                    return
                if self.succession is None or not membership.leads_next:
                    state, now = None, True
                    continue
                self.succession.lead()
                self.history.record_discarded(result)
            self._end()
            return

    def _end(self) -> None:
        """On the leader of a group: the run is over."""
        self.membership.tell_over()
        self.membership.ends_within(self.membership.patience)

    def _take_over(self, have_files: Callable[[Succession], None], succession: Succession) -> None:
        """This rank leads from now on."""
        have_files(succession)
        if self._watch is not None:
            self._watch.report = self._report

    def _group_after_end(self, world: RegroupingWorld) -> Transport:
        """A group of those that are present at the end, for their results."""
        world.leave_group()
        while True:
            try:
                return self.membership.form(least=1, after_end=True)
            except PeerLost:
                self.membership.wait_for_newer(self.membership.formed)

    def _end_quietly(self) -> None:
        """The server does not answer a rank that joins: RunOver if the run has ended; otherwise PeerLost."""
        self.hands_in = False
        if self.membership.ends_within(QUIET_SECONDS):
            raise RunOver
        raise PeerLost.of(self.experiment.server_of(self.rank))

    def _new_mailbox(self, transport: Transport, *, joins: bool = False) -> Mailbox:
        goes_on = bool(self._connections.served) and not self._regroups
        mailbox = self.mailbox(transport, began=self.began, goes_on=goes_on, joins=joins and not self._regroups)
        mailbox.on_loss = lambda rank: self.membership.ledger.lost_connection(rank, self.pace.clock())
        return mailbox

    def _present(self) -> list[int]:
        """The ranks that may stand still. All, if only servers are left: the launcher knows whether a worker will come."""
        members = self.membership.view.members
        return sorted(members) if len(members) > len(self.experiment.servers) else list(range(self.experiment.num_ranks))

    def _seen(self, world: ProcessWorld, view: View) -> None:
        """In the thread that follows the views: a newer one has come."""
        if not view.members:
            if world.mailbox is not None:
                world.mailbox.fail(failed_elsewhere())
            if isinstance(world.transport, Group):
                world.transport.interrupt()  # who is failing does not close its connections
        elif isinstance(world, RegroupingWorld):
            if self.membership.changed and not self.membership.ended_quietly:
                world.interrupt()
        elif self._connections.served or self.rank == self.experiment.leader:
            assert world.mailbox is not None
            self._connections.follow(view, world.mailbox, world.transport)

    @property
    def way_to_leader(self) -> Transport:
        """By which this rank hands in its results."""
        assert self.transport is not None
        return self.transport

    @property
    def sources(self) -> dict[int, Transport]:
        """On the leader: by which transport each rank's results come."""
        assert self.transport is not None
        if not self._regroups:
            assert self._mailbox is not None
            return self._connections.sources(self._mailbox, self.transport)
        return {rank: self.transport for rank in self.transport.members if rank != self.rank}

    def seen_lost(self) -> list[tuple[int, float]]:
        """On a local server: (rank, second of the run) of each worker whose connection broke before anybody was told that it is lost."""
        return [(rank, at - self.began) for rank, at in self.membership.ledger.untold.items()] if self._connections.served else []

    def have_seen_lost(self, lost: Sequence[tuple[int, float]], rate: float, shift: float) -> None:
        """On the leader: these are lost, at what becomes these seconds by this clock."""
        for rank, seconds in lost:
            self.membership.ledger.lost_connection(rank, self.began + shift + rate * seconds)

    def absences_over(self, seconds: float) -> list[tuple[int, float, float]]:
        """On the leader: (rank, from, until) of each absence that is over at this second of the run, and from now on in the trace.

        One that goes on is recorded when it is over, as in simulation.
        """
        over = [absence for absence in self._absences(seconds) if absence[2] < seconds]
        record = interval_recorder([self.trace], DOWN)
        for rank, start, end in over:
            if record is not None and start >= self.recorded_absences.get(rank, start):
                record((start, end, rank, DOWN, 0, 0, 0, 0))
            self.recorded_absences[rank] = end
        return over

    def have_recorded(self, seconds: float) -> None:
        """On a rank that leads from now on: the absences that were over at this second of the run are in the trace."""
        for rank, start, end in self._absences(seconds):
            if start < end < seconds:
                self.recorded_absences[rank] = end

    def record_absences(self) -> list[RankActivity]:
        """On the leader, when the results of all ranks are there: when each rank was not.

        Returns what each worker has done without the absences that go on, for a checkpoint.
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
