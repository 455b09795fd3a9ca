"""The world of a rank whose method restarts from the last commit, among all ranks that are present, whenever the membership changes.

The ranks of a new group go on from the leader's last commit. Who does not have it gets it from the leader.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hetsim import effects as fx
from hetsim.cluster.collectives import Collectives
from hetsim.coordination.state import State
from hetsim.dist import packing
from hetsim.dist.group import Group
from hetsim.dist.membership import MEMBERSHIP_CHANGED, Membership
from hetsim.dist.messages import Mailbox
from hetsim.dist.reduction import Reduction
from hetsim.dist.transport import Transport
from hetsim.dist.world import Answered, ProcessWorld, Turn
from hetsim.runtime.preparation import Preparation
from hetsim.runtime.rank import RankState
from hetsim.runtime.recorder import REGROUP, Recorder, ignore, interval_recorder

KEPT_COMMITS = 2
"""A rank is at most one commit before or after the leader, as an all-reduce of all lies between two."""
NO_VERSION = -1.0


class LastCommit(NamedTuple):
    """A state that this rank committed, with the optimizer's memory at that commit."""

    state: State
    optimizer: Any


class Agreed(NamedTuple):
    """The commit to go on from, and when the last rank asked for it, in seconds of the run."""

    commit: LastCommit
    last_entry: float


def agreed(control: Transport, kept: Sequence[LastCommit], *, leader: int, entered: float) -> Agreed:
    """The leader's last commit, which `kept` may have. A collective of all members; what comes from another is in the CPU's memory."""
    versions = [float(commit.state.version) for commit in kept] or [NO_VERSION]
    ranks = control.gather_numbers(versions[0], versions[-1], entered)
    by_rank = dict(zip(control.members, ranks, strict=True))
    wanted = by_rank[leader][1]
    lacking = [rank for rank in control.members if wanted not in by_rank[rank][:2]]
    last_entry = max(when for _, _, when in ranks)
    if control.rank == leader:
        for rank in lacking:
            packing.send(kept[-1], control, rank)
    if control.rank not in lacking:
        return Agreed(next(commit for commit in kept if commit.state.version == wanted), last_entry)
    return Agreed(packing.receive(control, leader), last_entry)


class RegroupingWorld(ProcessWorld):
    """As its base, among the members of a group that is formed anew; `joins` says whether this rank joins a run under way.

    With a server, `mailbox_in` makes the mailbox in each new group.
    """

    def __init__(
        self, prepared: Preparation, state: RankState, *, membership: Membership, mailbox_in: Callable[[Group], Mailbox] | None,
        joins: bool, recorders: list[Recorder], **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(prepared, state, recorders=recorders, **options)
        self.membership = membership
        self._mailbox_in = mailbox_in
        self._has_group = not joins
        self._commits = deque([] if joins else [LastCommit(prepared.start, state.optimizer)], maxlen=KEPT_COMMITS)
        self._record[REGROUP] = interval_recorder(recorders, REGROUP) or ignore

    def answer_effect(self, effect: fx.Effect[Any], turn: Turn) -> Answered:
        """As in the base; PeerLost for what other ranks take part in, if the membership has changed."""
        if effect.communicates and not isinstance(effect, fx.Commit | fx.Regroup):
            self.membership.check()
        return super().answer_effect(effect, turn)

    def commit(self, state: RankState, effect: fx.Commit, turn: Turn) -> Answered:
        """As in the base; the last commits are kept."""
        self._commits.append(LastCommit(effect.state, state.optimizer))
        return super().commit(state, effect, turn)

    def regroup(self, state: RankState, effect: fx.Regroup, turn: Turn) -> Answered:
        """A new group of all ranks that are present, which restart from the leader's last commit; takes what it takes."""
        experiment, entered = self.experiment, self.pace.clock()
        self.leave_group()
        if self._has_group and not self.membership.changed:  # a connection broke
            self.membership.wait_for_newer(self.membership.formed)
        while True:
            try:
                group = self.membership.form(least=1 + experiment.coordination.needs_server)
                found = agreed(group.control, self._commits, leader=experiment.leader, entered=entered - self.began)
                break
            except fx.PeerLost:
                self.membership.wait_for_newer(self.membership.formed)
        self._has_group = True
        self._commits = deque([found.commit], maxlen=KEPT_COMMITS)
        self.last, optimizer = found.commit
        self.prepared.restart(state, self.last, optimizer=optimizer)
        workers = [rank for rank in group.members if rank < experiment.num_workers]
        self.transport, self.collectives = group, Collectives(experiment.cluster, workers)
        self.reduction = Reduction.by_gloo(group, self.task.device, self.reduction.order)
        self._num_collectives = [0, 0]
        if self.saving is not None:
            self.saving.forget()
        if self._mailbox_in is not None:
            self.mailbox = self._mailbox_in(group)
            self._answer_asks()
        end = self.pace.clock()
        self.membership.ledger.regrouped(self.began + found.last_entry, end)
        self._record[REGROUP]((turn.at - self.began, end - self.began, self.rank, REGROUP, self.last.version, 0, 0, 0))
        return fx.Regrouped(frozenset(range(experiment.num_workers)) - set(workers), self.last), end

    def interrupt(self) -> None:
        """The membership has changed: let a program that waits for a message get PeerLost."""
        if self.mailbox is not None:
            self.mailbox.fail(fx.PeerLost(MEMBERSHIP_CHANGED))

    def leave_group(self) -> None:
        """Let go of the group, once nothing uses it any more."""
        if isinstance(self.transport, Group):
            self.transport.interrupt()
        if self.mailbox is not None:
            self.mailbox.abandon(fx.PeerLost(MEMBERSHIP_CHANGED))
        if isinstance(self.transport, Group):
            self._second.shutdown()  # what is under way there raises PeerLost, which nobody waits for
            self._second = self._second_thread()
            self.transport.close()
