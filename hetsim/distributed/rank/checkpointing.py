"""The checkpoints of a run in processes: each rank hands its state to the leader, which writes them.

Without a server the ranks agree at each commit, by the leader's broadcast, and hand in what they have at the commit that is saved. A
server asks its workers, which are in the middle of something, by a message before those that release them: each answers when it next
waits for a message, so that it has pushed at most what the server knows to be outstanding, and all goes on meanwhile. A local server
asks its own workers first, and answers with what they have answered.

A rank that is lost is in a checkpoint as it will be when it comes back. Where all ranks form a new group, what was being saved is dropped:
the last complete checkpoint stays, and the next one comes when it is due.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hetsim.checkpoints.file import packed, unpacked
from hetsim.checkpoints.kinds import kinds_of
from hetsim.checkpoints.saver import Saver
from hetsim.coordination.state import State
from hetsim.distributed.communication.clock_alignment import Clocks
from hetsim.distributed.communication.mailbox import Mailbox
from hetsim.distributed.communication.transport import Transport
from hetsim.runtime.metrics import RankActivity
from hetsim.runtime.preparation import Preparation
from hetsim.runtime.rank import Checkpoint, RankState
from hetsim.runtime.record import activity_until
from hetsim.runtime.trace import Trace, TracePart, append_received

NUMBER_BYTES = 8
"""Of a rank or a length, in what a rank answers: its number, and its state and its rows, each after its length."""


@dataclass
class Asked:
    """A checkpoint of a server that waits for the answers of its workers."""

    state: State
    num_gradients: Sequence[int]
    seconds: float
    progress: dict[str, Any]
    server: RankState
    parts: dict[int, bytes] = field(default_factory=dict)


class Saving:
    """One rank's part in the checkpoints of a run. `saver` writes them, on the leader; None on other ranks.

    `joined` says whether this rank joined a run under way: its activity is what it has done since. On the leader, `activity` has what it
    knows of the others.
    """

    def __init__(
        self, prepared: Preparation, rank: int, trace: Trace, activity: Sequence[RankActivity], *,
        clocks: Clocks, saver: Saver | None, joined: bool = False,
    ) -> None:  # fmt: skip
        self.prepared = prepared
        self.experiment = experiment = prepared.experiment
        self.rank = rank
        self.joined = joined
        self.trace = trace
        self.activity = activity
        self.clocks = clocks
        self.saver = saver
        self.mailbox: Mailbox | None = None
        self.absences: Callable[[float], Iterable[tuple[int, float, float]]] = lambda _: ()
        """On the leader: (rank, from, until) of each absence that is over at this second of the run."""
        self.agrees = not experiment.coordination.needs_server
        """Whether all ranks follow the leader's decision at each commit."""
        self.stopped = False
        """Whether the leader has ended the run because it was asked to, as all ranks know where they agree."""
        self.given: list[bytes] = []
        """On another rank: the rows that it has handed in last, which are lost with a leader that has not saved them."""
        self.on_saved: Callable[[int], object] = lambda _: None
        """On the leader: called with the version of each checkpoint once it is complete."""
        self._asked: Asked | None = None
        self._workers = experiment.workers_of(rank) if rank != experiment.leader else []
        """Those of a local server."""
        self._answer: tuple[int, bytes] | None = None
        """On a local server: what it answers for a version, beside what its workers have yet to answer."""

    def decide(self, version: int, going: bool) -> tuple[bool, bool]:
        """On the leader: whether the run goes on after this version, and whether it is saved there."""
        assert self.saver is not None
        if going and self.saver.stop.asked:
            going, self.stopped = False, True
        return going, going and self._asked is None and self.saver.due(version)

    def forget(self) -> None:
        """Drop the checkpoint that waits for answers: the membership has changed, and all restart from the last commit."""
        self._asked = None

    def hand_in(self, state: RankState, transport: Transport, leader: int) -> None:
        """On another rank: send the leader this rank's state, at a commit that is saved."""
        # all ranks without a server take the same steps, so the memory of their optimizer is the leader's
        own = replace(state.snapshot(), optimizer=None)
        self.given = list(self._rows())
        transport.control.send_bytes([self._part(own)], leader)
        transport.control.send_bytes(self.given, leader)

    def collect(
        self, state: State, own: RankState, transport: Transport, *,
        num_gradients: Sequence[int], seconds: float, progress: dict[str, Any],
    ) -> None:  # fmt: skip
        """On the leader without a server: receive the states of all ranks that are present, and write the checkpoint."""
        parts = {}
        for rank in transport.members:
            if rank != self.rank:
                parts[rank] = b"".join(transport.control.receive_bytes(rank))
                self._append(transport.control.receive_bytes(rank), rank)
        self._write(Asked(state, num_gradients, seconds, progress, own.snapshot(), parts))

    def ask(self, state: State, own: RankState, *, num_gradients: Sequence[int], seconds: float, progress: dict[str, Any]) -> None:
        """On the server: ask the workers for their states at this version."""
        assert self.mailbox is not None
        self._asked = Asked(state, num_gradients, seconds, progress, own.snapshot())
        self.mailbox.states.ask(state.version, self.experiment.peers(self.rank))

    def answer(self, state: RankState, version: int) -> None:
        """On a worker of a server, and on a local server: send the server above it this rank's state, and what it has of others."""
        assert self.mailbox is not None
        own = [self._part(state.snapshot()), b"".join(self._rows())]
        self._answer = version, numbered(self.rank) + b"".join(numbered(len(each)) + each for each in own)
        if self._workers:
            self.mailbox.states.ask(version, self._workers)
        self.pass_on()

    def pass_on(self) -> None:
        """Send what is to be answered, once this rank's own workers that are not lost have answered."""
        if self._answer is None:
            return
        assert self.mailbox is not None
        if self._workers and self.mailbox.states.awaited:
            return
        (version, own), self._answer = self._answer, None
        others = self.mailbox.states.take_answers(version) if self._workers else {}
        above = self.experiment.leader if self._workers else self.experiment.server_of(self.rank)
        self.mailbox.states.answer(above, version, b"".join([own, *others.values()]))

    def write_answered(self) -> None:
        """On the leader: write the checkpoint for which all that are not lost have answered, if there is one."""
        asked = self._asked
        if asked is None:
            return
        assert self.mailbox is not None
        if self.mailbox.states.awaited:
            return
        for content in self.mailbox.states.take_answers(asked.state.version).values():
            for rank, part, rows in answers(content):
                asked.parts[rank] = part
                self._append([rows], rank)
        self._asked = None
        self._write(asked)

    def last_part(self, state: RankState) -> bytes:
        """A rank's state at the end of the run."""
        return self._part(state.snapshot())

    def write_last(
        self,
        state: State,
        own: RankState,
        parts: dict[int, bytes],
        *,
        num_gradients: Sequence[int],
        seconds: float,
        progress: dict[str, Any],
        activity: Sequence[RankActivity],
    ) -> None:
        """On the leader, when all ranks have handed in their results: write the checkpoint of the run as it has ended."""
        self._write(Asked(state, num_gradients, seconds, progress, own.snapshot(), parts), activity)

    def _part(self, state: RankState) -> bytes:
        activity = self.activity[self.rank].as_numbers() if self.rank < len(self.activity) else None
        return packed({"state": state, "activity": json.dumps(activity), "joined": self.joined})

    def _rows(self) -> Iterable[bytes]:
        return self.trace.drain() if isinstance(self.trace, TracePart) else ()

    def _append(self, pieces: Iterable[bytes], rank: int) -> None:
        assert self.saver is not None
        if not pieces:
            return
        append_received(self.saver.trace, iter(pieces), rank=rank, change=self.clocks.change(rank))

    def _write(self, asked: Asked, at_end: Sequence[RankActivity] | None = None) -> None:
        """Write it, with what each worker has done by then or, at the end of the run, with this."""
        assert self.saver is not None
        kinds, num_ahead = kinds_of(self.experiment), self.experiment.coordination.num_ahead
        ranks = {self.rank: asked.server}
        activity = [RankActivity.of_numbers(its.as_numbers(), num_ahead) for its in self.activity if at_end is None]
        for rank, content in asked.parts.items():
            part = unpacked(content, kinds)
            state: RankState = part["state"]
            ranks[rank] = replace(state, optimizer=asked.server.optimizer) if self.agrees else state
            numbers = json.loads(part["activity"])
            if numbers is not None and activity:
                its = RankActivity.of_numbers(numbers, num_ahead)
                activity[rank] = its.after(activity[rank]) if part["joined"] else its
        if at_end is None:
            for rank, start, end in self.absences(asked.seconds):
                activity[rank].add_absence(start, end)
            self._append(self._rows(), self.rank)  # with the absences
        for rank in range(self.experiment.num_ranks):
            if rank not in ranks:
                ranks[rank] = self._absent(rank, asked)
        for rank, count in enumerate(asked.num_gradients):
            ranks[rank].num_gradients = count
        seconds = (asked.seconds,) * len(ranks)
        progress = {**asked.progress, "activity": activity_until(at_end or activity, seconds)}
        state_then = asked.state.evolve(outstanding=tuple(asked.state.outstanding))
        by_rank = tuple(ranks[rank] for rank in sorted(ranks))
        self.saver.write(Checkpoint(state=state_then, ranks=by_rank, seconds=seconds, progress=progress))
        self.on_saved(asked.state.version)

    def _absent(self, rank: int, asked: Asked) -> RankState:
        """The state that a rank which is lost will have when it returns."""
        state = RankState(rank=rank)
        optimizer = asked.server.optimizer if self.agrees else self.prepared.optimizer_of(rank).initial()
        self.prepared.restart(state, asked.state, optimizer=optimizer)
        return state


def numbered(number: int) -> bytes:
    """A rank or a length."""
    return number.to_bytes(NUMBER_BYTES)


def answers(content: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """(rank, its state, its rows) of each rank in what a peer of the leader has answered."""
    at = 0

    def number() -> int:
        nonlocal at
        at += NUMBER_BYTES
        return int.from_bytes(content[at - NUMBER_BYTES : at])

    while at < len(content):
        found: list[Any] = [number()]
        for _ in range(2):
            length = number()
            found.append(content[at : at + length])
            at += length
        yield found[0], found[1], found[2]
