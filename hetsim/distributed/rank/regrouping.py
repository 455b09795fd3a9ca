"""The membership and the world of a rank whose method restarts all present ranks from the last commit after each change of the members.

The ranks of a new group continue from the leader's last commit. Ranks without this commit receive it from the leader.

Without a server, each rank copies the leader's record, and the senior remaining rank continues it (`Succession`). All ranks make the same
versions, so a copy needs no messages. A rank that does not lead records a version `LAG` commits later. By then every rank has it, and no
restart rolls it back. Values that only the leader has, such as times and losses, differ between records.

If the last rank with the weights is lost, the run waits for a rank that returns. The first one leads, and restarts the run from the newest
complete checkpoint, or from the first version.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from hetsim import effects as fx
from hetsim.checkpoints.file import classes_of, pack_state, unpack_state
from hetsim.cluster.network.collectives import Collectives
from hetsim.coordination.state import State
from hetsim.distributed.communication.gloo import GlooGroup
from hetsim.distributed.communication.mailbox import Mailbox
from hetsim.distributed.communication.reduction import Reduction
from hetsim.distributed.communication.transport import Transport
from hetsim.distributed.membership.keeper import Loss, View
from hetsim.distributed.membership.keeper_client import MEMBERSHIP_CHANGED, KeeperClient, Ledger, early_end
from hetsim.distributed.rank.run import RankRun
from hetsim.distributed.rank.surviving import SurvivingMembership
from hetsim.distributed.rank.world import Answered, ProcessWorld, RankParts, Turn
from hetsim.errors import RunFailed, RunOver
from hetsim.plain import reachable
from hetsim.runtime.rank import Checkpoint, RankState
from hetsim.runtime.recording.metrics import RankActivity
from hetsim.runtime.recording.progress import progress_bars
from hetsim.runtime.recording.recorder import REGROUP, Recorder, ignore, interval_recorder
from hetsim.runtime.recording.run_record import activity_of
from hetsim.runtime.recording.trace import Trace, TracePart, append_received

COMMITS, COPY = "commits", "copy"
"""What a rank receives of the leader's record: its last commits, or all of it."""
LAG = 2
"""The maximum distance of two ranks in versions. Between two commits an all-reduce ends, which may begin before the first commit."""
KEPT_COMMITS = LAG + 1
"""The number of a rank's commits to keep, so that they include any leader's last commit."""
EXACT_SECONDS = 0.01
"""The last part of a held collective, in which only its end is awaited, because a wait for two things at once ends late."""
NO_VERSION = -1.0


class RecordedCommit(NamedTuple):
    """A commit, as recorded."""

    seconds: float
    state: State
    applied: Sequence[fx.Contribution]


class VersionRows(Recorder):
    """The rows of versions, in a separate part until this rank leads."""

    def __init__(self, detail: str) -> None:
        self.part = TracePart(detail)
        self.trace: Trace = self.part
        self.bars: list[Recorder] = []

    def begin(self, start: State) -> None:
        self.trace.begin(start)

    def commit(self, seconds: float, rank: int, state: State, applied: Sequence[fx.Contribution]) -> None:
        for recorder in (self.trace, *self.bars):
            recorder.commit(seconds, rank, state, applied)

    def close(self, last: State) -> None:
        """Close the progress bars. The traces are closed with the files of the run."""
        for bar in self.bars:
            bar.close(last)


class Succession:
    """One rank's part: its copy of the record until it leads.

    `take_over(self, restarts)` is called when it begins to lead, and gives it the run's files. For a restart, it also calls `restore`.
    """

    def __init__(self, run: RankRun, rows: VersionRows, *, ledger: Ledger, take_over: Callable[[Succession, bool], None]) -> None:
        experiment = run.experiment
        self.run = run
        self.record = run.record
        self.ledger = ledger
        self.rows = rows
        self.saved: int | None = None
        """The version of the run's newest checkpoint, as far as a rank that does not lead knows."""
        self._recent: deque[RecordedCommit] = deque(maxlen=LAG + 1)
        """The last commits. A rank that does not lead has not recorded all of them."""
        self._take_over = take_over
        self._handed_in: int | None = None
        self._handed_to = run.parts.leader
        self.goes_on = True
        """Whether the run continues after the recorded commits if this rank leads."""
        self.restored: Checkpoint | None = None
        """On a leader that restarts the run, until the restart is complete: the checkpoint from which all ranks continue."""
        self.num_restarts = 0
        self._activity_before = activity_of(run.prepared.checkpoint, experiment.num_workers, experiment.coordination.num_ahead)
        """Each worker's activity before the run was resumed."""

    @property
    def last_versions(self) -> tuple[float, float, float]:
        """The record's last versions, without and with the last commit, and the newest checkpoint's version or -1."""
        recorded = self.record.history.last.version
        saved = self.run.saving.saver.newest if self.record.leads else self.saved
        newest = max([recorded, *(commit.state.version for commit in self._recent)])
        return float(recorded), float(newest), NO_VERSION if saved is None else float(saved)

    def commits(self, commit: RecordedCommit) -> None:
        """This rank commits a version."""
        if not self.record.leads:
            self._settle(commit.state.version - LAG, self.run.parts.leader)
        self._recent.append(commit)

    def _settle(self, version: float, leader: int) -> None:
        """Record the commits up to this version, which all ranks have."""
        for seconds, state, applied in self._recent:
            if self.record.history.last.version < state.version <= version:
                self.goes_on = self.record.history.commit(seconds, leader, state, applied)

    def hands_in(self, version: int) -> None:
        """This rank sends its state at this version, after the leader's decision."""
        self.decided(version)
        self._handed_in, self._handed_to = version, self.run.parts.leader

    def decided(self, version: int) -> None:
        """The leader has decided on this version. Data that were sent before are saved."""
        if self._handed_in is not None and self._handed_in < version:
            self.has_saved(self._handed_in)

    def has_saved(self, version: int) -> None:
        """The run has a checkpoint at this version that was unknown to this rank. It contains the data that were sent until then."""
        self._settle(version, self.run.parts.leader)
        self.rows.part.drain()
        self.saved = version
        if self._handed_in is not None and self._handed_in <= version:
            self._handed_in = None

    def go_on_from(self, version: int, saved: float) -> None:
        """All ranks continue from this version. The leader's newest known complete checkpoint is at version `saved`, or -1."""
        while self._recent and self._recent[-1].state.version > version:
            self._recent.pop()
        if not self.record.leads and saved not in (NO_VERSION, self.saved):
            self.has_saved(int(saved))
        self._take_back()

    def _take_back(self) -> None:
        """Append the unsaved rows again that this rank sent to a lost leader."""
        run, trace = self.run, self.run.trace
        if self._handed_in is not None and run.parts.leader != self._handed_to and isinstance(trace, TracePart):
            append_received(trace, iter(run.saving.sent_rows), rank=run.rank)
        self._handed_in = None

    def record_for(self, versions: Sequence[float]) -> tuple[str, Any]:
        """On the leader: the data for a rank whose record ends with these versions."""
        run, lacking = self.run, [commit for commit in self._recent if commit.state.version > versions[1]]
        if lacking and lacking[0].state.version == versions[1] + 1:
            return COMMITS, [commit._replace(applied=tuple(commit.applied)) for commit in lacking]
        return COPY, {
            **self.record.progress(), "num_gradients": self.record.num_gradients(), "ledger": self.ledger.saved(),
            "activity": [worker.as_numbers() for worker in self._activity_before], "begun": run.begun - self.ledger.shift,
        }  # fmt: skip

    def catch_up(self, state: State, record: tuple[str, Any]) -> None:
        """Update to the leader's record at this state, from the data that it has sent."""
        kind, content = record
        if kind == COMMITS:
            for commit in content:
                self.commits(commit)
            return
        self.record.restore(content, content["num_gradients"])
        self.record.history.last = state
        self.rows.part.drain()
        self.rows.begin(state)
        self._recent.clear()
        self.run.begun = content["begun"] + self.ledger.shift
        self.ledger.restore(content["ledger"])
        self._add_earlier_activity(content["activity"])

    def _add_earlier_activity(self, activity: Sequence[Mapping[str, Any]]) -> None:
        """Set each worker's activity before the resume, which a joining rank does not know."""
        run = self.run
        if run.joined:
            run.joined = False
            self._activity_before = [RankActivity.of_numbers(numbers, run.experiment.coordination.num_ahead) for numbers in activity]
            for worker, earlier in zip(run.metrics.activity, self._activity_before, strict=True):
                worker.add(earlier)
            run.saving.joined = False

    def restore(self, checkpoint: Checkpoint) -> None:
        """On a leader that begins to restart the run: continue the record of this checkpoint. Later activity is lost."""
        self.restored, experiment = checkpoint, self.run.experiment
        if not checkpoint.progress:
            return
        self.record.restore(checkpoint.progress, [rank.num_gradients for rank in checkpoint.ranks[: experiment.num_workers]])
        self.record.history.last = checkpoint.state
        self.ledger.counted_until = max(checkpoint.seconds)
        activity = activity_of(checkpoint, experiment.num_workers, experiment.coordination.num_ahead)
        self._add_earlier_activity([worker.as_numbers() for worker in activity])

    def lead(self, *, restarts: bool = False) -> None:
        """This rank leads from now on. If it `restarts` the run, `restored` is the checkpoint afterwards."""
        self.run.parts.leader = self.run.rank
        self._take_over(self, restarts)
        self._take_back()
        self.record.leads = True

    def writes(self, trace: Trace) -> None:
        """Write later rows to this trace of the run, after the unwritten ones."""
        self._settle(math.inf, self.run.rank)
        self.rows.part.close()
        trace.begin(self.record.history.last)
        self.rows.trace = trace
        self.rows.bars = progress_bars(self.run.experiment, self.run.prepared.plan.num_positions)


class LastCommit(NamedTuple):
    """A state that this rank committed, with the optimizer's memory at that commit."""

    state: State
    optimizer: Any


class Agreement(NamedTuple):
    """The commit from which to continue, and the time of the last rank's entry, in seconds of the run."""

    commit: LastCommit
    last_entry: float
    record: Any = None
    """The part of the run's record that this rank lacks; None if it lacks nothing, or keeps no record."""
    saved: float = NO_VERSION
    """The version of the newest checkpoint that the leader knows."""
    ended: bool = False
    """Whether this commit is the last of the run."""
    num_restarts: int = 0
    """The number of complete restarts of the run."""
    restarts: bool = False
    """Whether the ranks restart from a checkpoint, because no rank has the weights."""


def agree(
    control: Transport,
    kept: Sequence[LastCommit],
    *,
    leader: int,
    classes: Mapping[str, type],
    entered: float,
    ended: bool = False,
    succession: Succession | None = None,
) -> Agreement:
    """The leader's last commit, which `kept` may contain. A collective of all members. Values from other ranks are in the CPU's memory.

    A rank without the commit receives it from the leader in a checkpoint's form, with objects only of these classes. Each rank sends its
    first and last commit and, with a succession, its record's last versions, its checkpoint, whether it has `ended`, and restarts.
    """
    versions = [float(commit.state.version) for commit in kept] or [NO_VERSION]
    of_record: tuple[float, ...] = ()
    if succession is not None:
        of_record = (*succession.last_versions, ended, succession.num_restarts, succession.restored is not None)
    ranks = control.gather_numbers(versions[0], versions[-1], *of_record, entered)
    by_rank = dict(zip(control.members, ranks, strict=True))
    last_version = by_rank[leader][1]
    if last_version == NO_VERSION:
        raise RunFailed("every node of the cluster that had the weights is gone: the run is lost")
    lacks_commit = {rank for rank, numbers in by_rank.items() if not numbers[0] <= last_version <= numbers[1]}
    lacks_record = {rank for rank, numbers in by_rank.items() if succession is not None and not numbers[2] <= last_version <= numbers[3]}
    lacking = lacks_commit | lacks_record
    last_entry = max(numbers[-1] for numbers in ranks)
    if control.rank == leader:
        for rank in sorted(lacking):
            record = succession.record_for(by_rank[rank][2:4]) if succession is not None and rank in lacks_record else None
            control.send_bytes([pack_state((kept[-1] if rank in lacks_commit else None, record))], rank)
    sent_commit, record = unpack_state(b"".join(control.receive_bytes(leader)), classes) if control.rank in lacking else (None, None)
    commit = sent_commit or next(commit for commit in kept if commit.state.version == last_version)
    if succession is None:
        return Agreement(commit, last_entry)
    saved, has_ended, num_restarts, restarts = by_rank[leader][4:8]
    return Agreement(
        commit, last_entry, record, saved=saved, ended=bool(has_ended), num_restarts=int(num_restarts), restarts=bool(restarts)
    )  # fmt: skip


class RegroupingWorld(ProcessWorld):
    """The same as its base class, among the members of a newly formed group. `joins` is whether this rank joins a running run.

    `mailbox_in` makes the mailbox in each new group. With a `succession`, the senior member leads.
    """

    restarts: ClassVar[bool] = True

    def __init__(
        self, parts: RankParts, *, client: KeeperClient, mailbox_in: Callable[[GlooGroup], Mailbox], joins: bool,
        succession: Succession | None = None, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(parts, **options)
        self.client = client
        self._mailbox_in = mailbox_in
        self.succession = succession
        self._has_group = not joins
        self._classes = classes_of(self.experiment) | reachable(LastCommit, Loss, RecordedCommit)
        self._commits = deque([] if joins else [LastCommit(parts.prepared.start, parts.state.optimizer)], maxlen=KEPT_COMMITS)
        self._has_ended = False
        """Whether the last commit was the last of the run."""
        self.record[REGROUP] = interval_recorder(parts.recorders, REGROUP) or ignore

    def answer_effect(self, effect: fx.Effect[Any], turn: Turn) -> Any:
        """The same as in the base class. Raises PeerLost for effects with other ranks if the membership has changed."""
        if effect.communicates and not isinstance(effect, fx.Commit | fx.Regroup):
            self.client.check()
        return super().answer_effect(effect, turn)

    def _end_of_collective(self, kind: str, last: float, seconds: float) -> float:
        """The same as in the base class. Raises PeerLost if the membership changes before the end."""
        if self.pace.pad:
            self.client.check_for(last + seconds - self.pace.clock() - EXACT_SECONDS)
        return super()._end_of_collective(kind, last, seconds)

    def commit(self, state: RankState, effect: fx.Commit, turn: Turn) -> Answered:
        """The same as in the base class. The last commits are kept."""
        self._commits.append(LastCommit(effect.state, state.optimizer))
        if self.succession is not None:
            self.succession.commits(RecordedCommit(turn.at - self.began, effect.state, effect.applied))
        going, at = super().commit(state, effect, turn)
        self._has_ended = not going
        if self.succession is not None:
            self.succession.decided(effect.version)
        return going, at

    def _save(self, seconds: float) -> None:
        if self.succession is not None and not self.parts.record.leads:
            self.succession.hands_in(self.last.version)
        super()._save(seconds)

    def regroup(self, state: RankState, effect: fx.Regroup, turn: Turn) -> Answered:
        """Form a new group of all present ranks, which restart from the leader's last commit. Takes as long as this takes."""
        experiment, succession, entered = self.experiment, self.succession, self.pace.clock()
        self.leave_group()
        if self._has_group and not self.client.changed:  # a connection broke
            self.client.wait_for_newer(self.client.formed)
        while True:
            try:
                group = self.client.form(least=1 + experiment.coordination.needs_server)
                self.parts.leader = leader = self.client.leader
                if not self._commits and self.client.is_first:  # of a run that began without any rank
                    self._commits.append(LastCommit(self.prepared.start, state.optimizer))
                if succession is not None and leader == self.rank:
                    self._lead(succession)
                agreement = agree(
                    group.control, self._commits, leader=leader, classes=self._classes, entered=entered - self.began,
                    ended=self._has_ended, succession=succession,
                )  # fmt: skip
                if agreement.restarts:
                    self._end_of_restart(agreement.last_entry)
                break
            except fx.PeerLost:
                self.client.wait_for_newer(self.client.formed)
        if succession is not None:
            succession.num_restarts = agreement.num_restarts + agreement.restarts
            succession.go_on_from(agreement.commit.state.version, agreement.saved)
            if agreement.record is not None:
                succession.catch_up(agreement.commit.state, agreement.record)
        self._has_group, self._has_ended = True, agreement.ended
        self._commits = deque([agreement.commit], maxlen=KEPT_COMMITS)
        self.last, optimizer = agreement.commit
        self.prepared.restart(state, self.last, optimizer=optimizer)
        workers = [rank for rank in group.members if rank < experiment.num_workers]
        self.transport, self.collectives = group, Collectives(experiment.cluster, workers, seed=experiment.seed)
        self.reduction = Reduction.by_gloo(group, self.task.device, self.reduction.order)
        self._num_collectives = [0, 0]
        self.parts.saving.forget()
        self.mailbox = self._mailbox_in(group)
        end = self.pace.clock()
        self.client.ledger.regrouped(self.began + agreement.last_entry, end)
        self.record[REGROUP]((turn.at - self.began, end - self.began, self.rank, REGROUP, self.last.version, 0, 0, 0))
        if agreement.ended:  # the leader that is lost had made the last version
            raise RunOver
        return fx.Regrouped(frozenset(range(experiment.num_workers)) - set(workers), self.last), end

    def _lead(self, succession: Succession) -> None:
        """This rank leads the newest group. Without any commit, it restarts the run, because no rank has the weights."""
        if not self.parts.record.leads:
            succession.lead(restarts=not self._commits)
            self._has_ended |= not succession.goes_on
        if succession.restored is not None:
            succession.num_restarts = self.client.num_restarts()
            state = succession.restored.state
            ranks = succession.restored.ranks
            optimizer = ranks[0].optimizer if ranks else self.prepared.optimizer_of(self.rank).initial()
            self._commits = deque([LastCommit(state, optimizer)], maxlen=KEPT_COMMITS)

    def _end_of_restart(self, last_entry: float) -> None:
        """Hold a described restart until it is due. Raises PeerLost if the membership changes before."""
        described, succession = self.experiment.weight_checkpoints, self.succession
        assert succession is not None
        if described is not None:
            last = self.began + last_entry
            if self.pace.pad:
                self.client.check_for(last + described.restart_seconds - self.pace.clock() - EXACT_SECONDS)
            self.pace.due("restart", last, described.restart_seconds)
        if succession.restored is not None:
            succession.restored = None
            self.parts.saving.saver.begin()
            self.client.tell_restarted(succession.num_restarts + 1)

    def _end_of_checkpoint(self, since: float) -> float:
        """The same as in the base class. Raises PeerLost if the membership changes before the end; the leader completes it nevertheless."""
        described = self.experiment.weight_checkpoints
        try:
            if described is not None and self.pace.pad:
                self.client.check_for(since + described.seconds - self.pace.clock() - EXACT_SECONDS)
        except fx.PeerLost:
            self.parts.saving.complete()
            raise
        return super()._end_of_checkpoint(since)

    def interrupt(self) -> None:
        """The membership has changed: a program that waits for a message gets PeerLost."""
        self.mailbox.fail(fx.PeerLost(MEMBERSHIP_CHANGED))

    def leave_group(self) -> None:
        """Release the group when nothing uses it any more."""
        if isinstance(self.transport, GlooGroup):
            self.transport.interrupt()
        self.mailbox.abandon(fx.PeerLost(MEMBERSHIP_CHANGED))
        if isinstance(self.transport, GlooGroup):
            self.second.shutdown()  # what is under way there raises PeerLost, which nobody waits for
            self.second = self._second_thread()
            self.transport.close()


class RegroupingMembership(SurvivingMembership):
    """The members of a method whose ranks form a new group after each change. With a `succession`, the senior member leads."""

    succession: Succession | None = None

    @property
    def num_restarts(self) -> int:  # type: ignore[override]
        """As far as this rank knows."""
        return 0 if self.succession is None else self.succession.num_restarts

    def _world_in(self, group: GlooGroup | None, run: RankRun) -> RegroupingWorld:
        if group is not None:
            self.client.enter(group)
        return RegroupingWorld(
            run.parts, client=self.client, mailbox_in=run.mailbox, joins=group is None, succession=self.succession,
            **self._connections_of(group or self.alone, run),
        )  # fmt: skip

    def run(self, run: RankRun, world: Any) -> None:
        client, state = self.client, self._first_state(run)
        while True:
            result: State | None = None
            try:
                result = world.run(self._program(run, state), now=state is None)
            except RunOver:
                if client.view.over:
                    if run.record.leads:  # who else may say it?
                        raise early_end() from None
                    return
                # otherwise the last version is made, though nobody has told yet
            run.record_end(result)
            try:
                if not client.changed:
                    world.mailbox.close()
                world.transport.control.barrier()
            except fx.PeerLost:
                if not client.changed:  # a connection broke, and others may wait in the barrier until they are told
                    client.wait_for_newer(client.formed)
            if not run.record.leads:
                if client.wait_until_over():
                    return
                if self.succession is None or not client.leads_next:
                    state = None
                    continue
                self.succession.lead()
                run.record_end(result)
            client.tell_over()
            client.ends_within(client.patience)
            return

    def _change(self, view: View, run: RankRun, world: Any) -> None:
        if self.client.changed and not self.client.ended_quietly:
            world.interrupt()

    def leave(self, run: RankRun, world: Any) -> Mapping[int, Transport]:
        if self.client.ended_quietly:
            return dict.fromkeys(world.transport.members, world.transport)
        world.leave_group()
        while True:
            try:
                group = self.client.form(least=1, after_end=True)
                return dict.fromkeys(group.members, group)
            except fx.PeerLost:
                self.client.wait_for_newer(self.client.formed)
