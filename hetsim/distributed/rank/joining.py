"""The run of a rank whose servers continue after losses. A server has a connection to each of its workers, including joining ones.

For the results, the leader has such connections, too. With local servers, the leader is another rank.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from threading import Lock, Thread
from typing import Any, NoReturn

from hetsim.coordination.state import State
from hetsim.distributed.communication.gloo import Group
from hetsim.distributed.communication.mailbox import Mailbox
from hetsim.distributed.communication.transport import Transport
from hetsim.distributed.membership.keeper import View
from hetsim.distributed.membership.membership import Membership, over_too_early
from hetsim.distributed.rank.elastic import ElasticRun
from hetsim.distributed.rank.world import ProcessWorld
from hetsim.effects import PeerLost
from hetsim.errors import RunOver
from hetsim.runtime.experiment import Experiment

MEETING_SECONDS = 5.0
"""The time within which a joining process must be reached."""
QUIET_SECONDS = 5.0
"""The time within which a finished run tells this to a rank whose connection was refused."""


class Connections:
    """One rank's connections. A joining process connects to its server and, if that is local, also to the leader for its results."""

    def __init__(self, experiment: Experiment, membership: Membership) -> None:
        self.served = experiment.workers_of(membership.rank)
        """The workers that exchange messages with this rank. Empty for a worker."""
        self._experiment = experiment
        self._membership = membership
        self._known = dict(membership.view.members)
        self._generation = 0
        self._following = Lock()
        self._for_results: dict[int, Transport] = {}
        """On the leader: the transport to each joined process that another server serves."""
        self._meetings: list[Thread] = []

    def meet(self, rank: int, incarnation: int) -> Group:
        """Connect a joining process with its peers. Each of them calls this."""
        key, members = f"pair/{rank}/{incarnation}", sorted({rank, *self._whom(rank)})
        return Group.form(
            self._membership.connect(), key, rank=self._membership.rank, members=members, lanes=("program",), interruptible=False
        )

    def _whom(self, rank: int) -> set[int]:
        return {self._experiment.server_of(rank), self._experiment.leader}

    def follow(self, view: View, mailbox: Mailbox, transport: Transport) -> None:
        """On a server and on the leader: follow a newer view."""
        with self._following:
            if view.generation < self._generation:  # another thread has told of a newer one
                return
            self._generation = view.generation
            before, self._known = self._known, dict(view.members)
            for rank in before.keys() - view.members.keys():
                if rank in self.served:
                    mailbox.lose(rank)
                else:  # nothing of it comes but its results
                    self._for_results.get(rank, transport).lose(rank)
            for rank, incarnation in view.members.items():
                if before.get(rank) != incarnation and self._membership.rank in self._whom(rank):
                    self._meetings.append(Thread(target=self._reach, args=(mailbox, rank, incarnation), daemon=True))
                    self._meetings[-1].start()

    def _reach(self, mailbox: Mailbox, rank: int, incarnation: int) -> None:
        with contextlib.suppress(PeerLost):  # it is lost already, which the keeper says
            link = self.meet(rank, incarnation)
            if rank not in self.served:
                self._for_results[rank] = link
            elif not mailbox.connect(rank, link):
                link.close()

    def sources(self, mailbox: Mailbox, transport: Transport) -> dict[int, Transport]:
        """On the leader, at the end: the transport for the results of each rank that is not lost."""
        for meeting in self._meetings if self._experiment.regions is not None else ():
            meeting.join(MEETING_SECONDS)
        links = {**dict.fromkeys(transport.members, transport), **mailbox.links, **self._for_results}
        gone = {self._membership.rank} | mailbox.links.keys() - set(mailbox.present)
        return {rank: link for rank, link in links.items() if rank in self._known and rank not in gone}


class ServedRun(ElasticRun):
    """The run of a rank that keeps its connections, except to lost ranks."""

    def __init__(self, *described: Any, **options: Any) -> None:
        super().__init__(*described, **options)
        self._connections = Connections(self.experiment, self.membership)
        self._links: Mapping[int, Transport] = {}

    def _world(self, group: Group | None) -> ProcessWorld:
        try:
            transport = group or self._connections.meet(self.rank, self.membership.incarnation)
        except PeerLost:
            self._end_quietly()
        return ProcessWorld(self.parts, **self._shared(transport, goes_on=bool(self._connections.served), joins=group is None))

    def _run(self, world: ProcessWorld, state: State | None) -> None:
        try:
            result = world.run(self._program(state), now=state is None)
            if self.record.leads:
                self.history.record_discarded(result)
            world.mailbox.close()
            if self.record.leads:
                self.membership.tell_over()
        except RunOver:
            world.mailbox.close()
        except PeerLost:
            if state is not None:
                raise
            self._end_quietly()

    def _changed(self, world: ProcessWorld, view: View) -> None:
        if view.over and self.record.leads and not self.membership.has_told_over:
            world.mailbox.fail(over_too_early())
        if self._connections.served or self.rank == self.experiment.leader:
            self._connections.follow(view, world.mailbox, world.transport)

    def _meet_after_end(self, world: ProcessWorld) -> None:
        if self.record.leads:
            self._links = self._connections.sources(world.mailbox, world.transport)

    @property
    def sources(self) -> Mapping[int, Transport]:
        """The same as in the base class, with a connection to each rank."""
        return self._links

    def seen_lost(self) -> list[tuple[int, float]]:
        """On a local server: (rank, second of the run) of each worker whose connection broke before its loss was announced."""
        return [(rank, at - self.began) for rank, at in self.membership.ledger.untold.items()] if self._connections.served else []

    def _end_quietly(self) -> NoReturn:
        """The server does not answer a joining rank: raise RunOver if the run has ended, and PeerLost otherwise."""
        self.hands_in = False
        if self.membership.ends_within(QUIET_SECONDS):
            raise RunOver
        raise PeerLost.of(self.experiment.server_of(self.rank))
