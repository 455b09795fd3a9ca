"""The run and the world of a rank whose method restarts all present ranks from the last commit, after each change of the membership.

The ranks of a new group continue from the leader's last commit. Ranks without this commit receive it from the leader.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from hetsim import effects as fx
from hetsim.checkpoints.file import classes_of, packed, unpacked
from hetsim.cluster.network.collectives import Collectives
from hetsim.coordination.state import State
from hetsim.distributed.communication.gloo import Group
from hetsim.distributed.communication.mailbox import Mailbox
from hetsim.distributed.communication.reduction import Reduction
from hetsim.distributed.communication.transport import Transport
from hetsim.distributed.membership.keeper import Loss, View
from hetsim.distributed.membership.membership import MEMBERSHIP_CHANGED, Membership, over_too_early
from hetsim.distributed.rank.elastic import ElasticRun
from hetsim.distributed.rank.parts import RankParts
from hetsim.distributed.rank.succession import LAG, Succession, Told
from hetsim.distributed.rank.turn import Answered, Turn
from hetsim.distributed.rank.world import ProcessWorld
from hetsim.errors import RunFailed, RunOver
from hetsim.plain import reachable
from hetsim.runtime.rank import RankState
from hetsim.runtime.recording.recorder import REGROUP, ignore, interval_recorder

KEPT_COMMITS = LAG + 1
"""The number of a rank's commits to keep, so that they include any leader's last commit."""
NO_VERSION = -1.0


class LastCommit(NamedTuple):
    """A state that this rank committed, with the optimizer's memory at that commit."""

    state: State
    optimizer: Any


class Agreed(NamedTuple):
    """The commit from which to continue, and the time of the last rank's entry, in seconds of the run."""

    commit: LastCommit
    last_entry: float
    record: Any = None
    """The part of the run's record that this rank lacks; None if it lacks nothing, or keeps no record."""
    saved: float = NO_VERSION
    """The version of the newest checkpoint that the leader knows."""
    ended: bool = False
    """Whether this commit is the last of the run."""


def agreed(
    control: Transport,
    kept: Sequence[LastCommit],
    *,
    leader: int,
    classes: Mapping[str, type],
    entered: float,
    ended: bool = False,
    succession: Succession | None = None,
) -> Agreed:
    """The leader's last commit, which `kept` may contain. A collective of all members. Values from other ranks are in the CPU's memory.

    A rank without the commit receives it from the leader in a checkpoint's form, with objects only of these classes. Each rank sends its
    first and last commit and, with a succession, its record's last versions, its checkpoint, and whether it has `ended`.
    """
    versions = [float(commit.state.version) for commit in kept] or [NO_VERSION]
    of_record = () if succession is None else (*succession.known, float(ended))
    ranks = control.gather_numbers(versions[0], versions[-1], *of_record, entered)
    by_rank = dict(zip(control.members, ranks, strict=True))
    wanted = by_rank[leader][1]
    if wanted == NO_VERSION:
        raise RunFailed("every node of the cluster that had the weights is gone: the run is lost")
    lacks_commit = {rank for rank, its in by_rank.items() if not its[0] <= wanted <= its[1]}
    lacks_record = {rank for rank, its in by_rank.items() if succession is not None and not its[2] <= wanted <= its[3]}
    lacking = lacks_commit | lacks_record
    last_entry = max(its[-1] for its in ranks)
    if control.rank == leader:
        for rank in sorted(lacking):
            record = succession.record_for(by_rank[rank][2:4]) if succession is not None and rank in lacks_record else None
            control.send_bytes([packed((kept[-1] if rank in lacks_commit else None, record))], rank)
    sent, record = unpacked(b"".join(control.receive_bytes(leader)), classes) if control.rank in lacking else (None, None)
    commit = sent or next(commit for commit in kept if commit.state.version == wanted)
    if succession is None:
        return Agreed(commit, last_entry)
    return Agreed(commit, last_entry, record, saved=by_rank[leader][4], ended=bool(by_rank[leader][5]))


class RegroupingWorld(ProcessWorld):
    """The same as its base class, among the members of a newly formed group. `joins` is whether this rank joins a running run.

    `mailbox_in` makes the mailbox in each new group. With a `succession`, the senior member leads.
    """

    restarts: ClassVar[bool] = True

    def __init__(
        self, parts: RankParts, *, membership: Membership, mailbox_in: Callable[[Group], Mailbox], joins: bool,
        succession: Succession | None = None, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(parts, **options)
        self.membership = membership
        self._mailbox_in = mailbox_in
        self.succession = succession
        self._has_group = not joins
        self._classes = classes_of(self.experiment) | reachable(LastCommit, Loss, Told)
        self._commits = deque([] if joins else [LastCommit(parts.prepared.start, parts.state.optimizer)], maxlen=KEPT_COMMITS)
        self._has_ended = False
        """Whether the last commit was the last of the run."""
        self.record[REGROUP] = interval_recorder(parts.recorders, REGROUP) or ignore

    def answer_effect(self, effect: fx.Effect[Any], turn: Turn) -> Answered:
        """The same as in the base class. Raises PeerLost for effects with other ranks if the membership has changed."""
        if effect.communicates and not isinstance(effect, fx.Commit | fx.Regroup):
            self.membership.check()
        return super().answer_effect(effect, turn)

    def commit(self, state: RankState, effect: fx.Commit, turn: Turn) -> Answered:
        """The same as in the base class. The last commits are kept."""
        self._commits.append(LastCommit(effect.state, state.optimizer))
        if self.succession is not None:
            self.succession.commits(Told(turn.at - self.began, effect.state, effect.applied))
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
        if self._has_group and not self.membership.changed:  # a connection broke
            self.membership.wait_for_newer(self.membership.formed)
        while True:
            try:
                group = self.membership.form(least=1 + experiment.coordination.needs_server)
                self.parts.leader = leader = self.membership.leader
                if not self._commits and self.membership.is_first:  # of a run that began without any rank
                    self._commits.append(LastCommit(self.prepared.start, state.optimizer))
                if succession is not None and leader == self.rank and not self.parts.record.leads:
                    succession.lead()
                    self._has_ended |= not succession.goes_on
                found = agreed(
                    group.control,
                    self._commits,
                    leader=leader,
                    classes=self._classes,
                    entered=entered - self.began,
                    ended=self._has_ended,
                    succession=succession,
                )
                break
            except fx.PeerLost:
                self.membership.wait_for_newer(self.membership.formed)
        if succession is not None:
            succession.go_on_from(found.commit.state.version, found.saved)
            if found.record is not None:
                succession.catch_up(found.commit.state, found.record)
        self._has_group, self._has_ended = True, found.ended
        self._commits = deque([found.commit], maxlen=KEPT_COMMITS)
        self.last, optimizer = found.commit
        self.prepared.restart(state, self.last, optimizer=optimizer)
        workers = [rank for rank in group.members if rank < experiment.num_workers]
        self.transport, self.collectives = group, Collectives(experiment.cluster, workers, seed=experiment.seed)
        self.reduction = Reduction.by_gloo(group, self.task.device, self.reduction.order)
        self._num_collectives = [0, 0]
        self.parts.saving.forget()
        self.mailbox = self._mailbox_in(group)
        end = self.pace.clock()
        self.membership.ledger.regrouped(self.began + found.last_entry, end)
        self.record[REGROUP]((turn.at - self.began, end - self.began, self.rank, REGROUP, self.last.version, 0, 0, 0))
        if found.ended:  # the leader that is lost had made the last version
            raise RunOver
        return fx.Regrouped(frozenset(range(experiment.num_workers)) - set(workers), self.last), end

    def interrupt(self) -> None:
        """The membership has changed: a program that waits for a message gets PeerLost."""
        self.mailbox.fail(fx.PeerLost(MEMBERSHIP_CHANGED))

    def leave_group(self) -> None:
        """Release the group when nothing uses it any more."""
        if isinstance(self.transport, Group):
            self.transport.interrupt()
        self.mailbox.abandon(fx.PeerLost(MEMBERSHIP_CHANGED))
        if isinstance(self.transport, Group):
            self.second.shutdown()  # what is under way there raises PeerLost, which nobody waits for
            self.second = self._second_thread()
            self.transport.close()


class RegroupingRun(ElasticRun):
    """A rank's run in a sequence of groups."""

    def _world(self, group: Group | None) -> RegroupingWorld:
        if group is not None:
            self.membership.enter(group)
        return RegroupingWorld(
            self.parts, membership=self.membership, mailbox_in=self._new_mailbox, joins=group is None, succession=self.succession,
            **self._shared(group or self.alone),
        )  # fmt: skip

    def _run(self, world: RegroupingWorld, state: State | None) -> None:
        membership = self.membership
        while True:
            result: State | None = None
            try:
                result = world.run(self._program(state), now=state is None)
            except RunOver:
                if membership.view.over:
                    if self.record.leads:  # who else may say it?
                        raise over_too_early() from None
                    return
                # otherwise the last version is made, though nobody has told yet
            if self.record.leads:
                self.history.record_discarded(result)
            try:
                if not membership.changed:
                    world.mailbox.close()
                world.transport.control.barrier()
            except fx.PeerLost:
                if not membership.changed:  # a connection broke, and others may wait in the barrier until they are told
                    membership.wait_for_newer(membership.formed)
            if not self.record.leads:
                if membership.wait_until_over():
                    return
                if self.succession is None or not membership.leads_next:
                    state = None
                    continue
                self.succession.lead()
                self.history.record_discarded(result)
            membership.tell_over()
            membership.ends_within(membership.patience)
            return

    def _changed(self, world: RegroupingWorld, view: View) -> None:
        if self.membership.changed and not self.membership.ended_quietly:
            world.interrupt()

    def _meet_after_end(self, world: RegroupingWorld) -> None:
        if self.membership.ended_quietly:
            return
        world.leave_group()
        while True:
            try:
                self.transport = self.membership.form(least=1, after_end=True)
                return
            except fx.PeerLost:
                self.membership.wait_for_newer(self.membership.formed)
