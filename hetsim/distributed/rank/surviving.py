"""The memberships of a run that survives losses: what they share, and that of a method whose servers continue without a lost worker.

A server has a connection to each of its workers, including joining ones. For the results, the leader has such connections, too. With local
servers, the leader is another rank.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Collection, Mapping
from threading import Lock, Thread
from typing import Any, NoReturn

from hetsim.coordination.state import State
from hetsim.distributed.communication.gloo import GlooGroup, GlooTransport
from hetsim.distributed.communication.mailbox import Mailbox
from hetsim.distributed.communication.reduction import Reduction
from hetsim.distributed.communication.transport import Transport
from hetsim.distributed.membership.keeper import View
from hetsim.distributed.membership.keeper_client import KeeperClient, early_end, failure_elsewhere
from hetsim.distributed.pacing.padding import clock
from hetsim.distributed.rank.run import GroupMembership, RankRun
from hetsim.distributed.rank.world import ProcessWorld
from hetsim.effects import PeerLost, Program
from hetsim.errors import RunOver
from hetsim.runtime.experiment import Experiment

MAX_SECONDS = 1e6
"""The maximum seconds that a rank waits for its time to join, because a condition cannot wait forever."""
MEETING_SECONDS = 5.0
"""The time within which a joining process must be reached."""
QUIET_SECONDS = 5.0
"""The time within which a finished run tells this to a rank whose connection was refused."""


class SurvivingMembership(GroupMembership):
    """The members by the keeper's views.

    `everyone` is a group of all ranks before the run; None if this rank was started later. `joins_at` is the time at which it joins; None
    if it takes part from the beginning. `order` is the order of sums.
    """

    def __init__(
        self, client: KeeperClient, experiment: Experiment, *, everyone: GlooGroup | None, joins_at: float | None, order: str
    ) -> None:  # fmt: skip
        self.client = client
        self.experiment = experiment
        self.rank = client.rank
        self.joined = everyone is None
        self.ledger = client.ledger
        self.alone = GlooTransport(None, client.rank, [client.rank])
        """The transport of a rank without a group. It is never used."""
        self._first_group = everyone
        self._joins_at = joins_at
        self._order = order
        self._world: ProcessWorld | None = None

    @property
    def leader(self) -> int:  # type: ignore[override]
        """The leader of the generation in which this rank takes part."""
        return self.client.leader

    @property
    def members(self) -> Collection[int]:
        return self.client.view.members

    def ranks_at_a_standstill(self) -> Collection[int]:
        """The members. All ranks if only servers are left, because the launcher knows whether a worker will come."""
        members = self.client.view.members
        return sorted(members) if len(members) > len(self.experiment.servers) else range(self.experiment.num_ranks)

    def begin(self, run: RankRun, loss: float) -> float:
        client, everyone = self.client, self._first_group
        client.beat(lambda: 0 if self._world is None else self._world.num_asked)
        if everyone is None:
            began = client.began()
        else:
            run.check_same_task(everyone, loss)
            if self.ledger.absent:
                group = None
                if self._joins_at is None:
                    group = GlooGroup.form(client.connect(), "gen0", rank=self.rank, members=client.view.members)
                self._first_group = group
            began = run.agree_on_begin(everyone)
            if self._first_group is not everyone:
                everyone.close()
            client.tell_began(began, processes=run.begun, leads=self.rank == self.experiment.leader)
        if self._joins_at is not None and client.ends_within(min(began + self._joins_at - clock(), MAX_SECONDS)):
            self.has_results = False
            raise RunOver
        return began

    def enter(self, run: RankRun) -> ProcessWorld:
        if self._first_group is None:
            self.has_results = False
            self.client.join()
            self.has_results = True
        world = self._world = self._world_in(self._first_group, run)
        self.client.listen(lambda view: self._follow(view, run, world))
        return world

    def lose(self, rank: int) -> bool:
        self.ledger.lost_connection(rank, clock())
        return True

    def have_saved(self, version: int) -> None:
        self.client.tell_saved(version)

    @abstractmethod
    def _world_in(self, group: GlooGroup | None, run: RankRun) -> ProcessWorld:
        """The world of this rank in this group. Without a group, the world of a rank that joins."""

    @abstractmethod
    def _change(self, view: View, run: RankRun, world: Any) -> None:
        """The members have changed. Called in the membership thread."""

    def _follow(self, view: View, run: RankRun, world: ProcessWorld) -> None:
        """Follow a newer view. Called in the membership thread."""
        if not view.ended:
            self._change(view, run, world)
            return
        world.mailbox.fail(failure_elsewhere())
        if isinstance(world.transport, GlooGroup):
            world.transport.interrupt()  # who is failing does not close its connections

    def _first_state(self, run: RankRun) -> State | None:
        """The state in which this rank begins; None: it takes the others' state."""
        return None if self._first_group is None else run.prepared.start

    def _program(self, run: RankRun, state: State | None) -> Program[State | None]:
        return self.experiment.coordination.with_recovery(run.node, run.prepared.plan, state, run.prepared.start)

    def _connections_of(self, transport: Transport, run: RankRun, **options: Any) -> dict[str, Any]:
        """The parts of a world with which the rank communicates."""
        reduction = Reduction.by_gloo(transport, run.prepared.task.device, self._order)
        return {"transport": transport, "mailbox": run.mailbox(transport, **options), "reduction": reduction, "began": run.began}


class Connections:
    """One rank's connections. A joining process connects to its server and, if that is local, also to the leader for its results."""

    def __init__(self, experiment: Experiment, client: KeeperClient) -> None:
        self.served = experiment.workers_of(client.rank)
        """The workers that exchange messages with this rank. Empty for a worker."""
        self._experiment = experiment
        self._client = client
        self._members = dict(client.view.members)
        self._generation = 0
        self._following = Lock()
        self._for_results: dict[int, Transport] = {}
        """On the leader: the transport to each joined process that another server serves."""
        self._meetings: list[Thread] = []

    def meet(self, rank: int, incarnation: int) -> GlooGroup:
        """Connect a joining process with its peers. Each of them calls this."""
        key, members = f"pair/{rank}/{incarnation}", {rank, *self._peers_of(rank)}
        return GlooGroup.form(
            self._client.connect(), key, rank=self._client.rank, members=members, lanes=("program",), interruptible=False
        )  # fmt: skip

    def _peers_of(self, rank: int) -> set[int]:
        return {self._experiment.server_of(rank), self._experiment.leader}

    def follow(self, view: View, mailbox: Mailbox, transport: Transport) -> None:
        """On a server and on the leader: follow a newer view."""
        with self._following:
            if view.generation < self._generation:  # another thread has told of a newer one
                return
            self._generation = view.generation
            earlier, self._members = self._members, dict(view.members)
            for rank in earlier.keys() - view.members.keys():
                if rank in self.served:
                    mailbox.lose(rank)
                else:  # nothing of it comes but its results
                    self._for_results.get(rank, transport).lose(rank)
            for rank, incarnation in view.members.items():
                if earlier.get(rank) != incarnation and self._client.rank in self._peers_of(rank):
                    self._meetings.append(Thread(target=self._reach, args=(mailbox, rank, incarnation), daemon=True))
                    self._meetings[-1].start()

    def _reach(self, mailbox: Mailbox, rank: int, incarnation: int) -> None:
        with contextlib.suppress(PeerLost):  # it is lost already, which the keeper says
            link = self.meet(rank, incarnation)
            if rank not in self.served:
                self._for_results[rank] = link
            elif not mailbox.connect(rank, link):
                link.close()

    def links_to_ranks(self, mailbox: Mailbox, transport: Transport) -> dict[int, Transport]:
        """On the leader, at the end: the transport for the results of each rank that is not lost."""
        for meeting in self._meetings if self._experiment.regions is not None else ():
            meeting.join(MEETING_SECONDS)
        links = {**dict.fromkeys(transport.members, transport), **mailbox.links, **self._for_results}
        lost = mailbox.links.keys() - set(mailbox.present)
        return {rank: link for rank, link in links.items() if rank in self._members and rank not in lost}


class ServedMembership(SurvivingMembership):
    """The members of a method with servers. Each rank keeps its connections, except to lost ranks."""

    def __init__(self, client: KeeperClient, experiment: Experiment, **options: Any) -> None:
        super().__init__(client, experiment, **options)
        self._connections = Connections(experiment, client)

    def _world_in(self, group: GlooGroup | None, run: RankRun) -> ProcessWorld:
        try:
            transport = group or self._connections.meet(self.rank, self.client.incarnation)
        except PeerLost:
            self._end_quietly()
        survives_peers = bool(self._connections.served)
        return ProcessWorld(run.parts, **self._connections_of(transport, run, goes_on=survives_peers, joins=group is None))

    def run(self, run: RankRun, world: ProcessWorld) -> None:
        state = self._first_state(run)
        try:
            run.record_end(world.run(self._program(run, state), now=state is None))
            world.mailbox.close()
            if run.record.leads:
                self.client.tell_over()
        except RunOver:
            world.mailbox.close()
        except PeerLost:
            if state is not None:
                raise
            self._end_quietly()

    def _change(self, view: View, run: RankRun, world: ProcessWorld) -> None:
        if view.over and run.record.leads and not self.client.has_told_over:
            world.mailbox.fail(early_end())
        if self._connections.served or self.rank == self.leader:
            self._connections.follow(view, world.mailbox, world.transport)

    def leave(self, run: RankRun, world: ProcessWorld) -> Mapping[int, Transport]:
        if run.record.leads:
            return self._connections.links_to_ranks(world.mailbox, world.transport)
        return {self.leader: world.transport}

    def _end_quietly(self) -> NoReturn:
        """The server does not answer a joining rank: raise RunOver if the run has ended, and PeerLost otherwise."""
        self.has_results = False
        if self.client.ends_within(QUIET_SECONDS):
            raise RunOver
        raise PeerLost.of(self.experiment.server_of(self.rank))
