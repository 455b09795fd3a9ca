"""The checkpoints of a run in processes: each rank sends its state to the leader, which writes the checkpoints.

Without a server, the leader's broadcast decides at each commit, and the ranks send their states at a commit that is saved.

A server requests its workers' states before it releases them. Each worker answers when it next waits for a message, so it has pushed at
most the ranges that the server knows to be outstanding. The run continues in the meantime. A local server asks its own workers first, and
its answer contains their states.

A checkpoint contains a lost rank in the state in which it will return. If all ranks form a new group, an unfinished checkpoint is
dropped. The last complete checkpoint stays, and the next one is written when it is due.

A signal that asks a run to stop may reach any of its processes. `StopWatch` passes it to the leader, which decides for all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from threading import Event, Thread
from typing import Any

from hetsim.checkpoints.file import classes_of, pack_state, unpack_state
from hetsim.checkpoints.saver import NoSaver, Saver
from hetsim.coordination.state import State
from hetsim.distributed.communication.clock_alignment import Clocks
from hetsim.distributed.communication.mailbox import Answering, StateQuestions
from hetsim.distributed.communication.transport import Transport
from hetsim.distributed.membership.keeper import STOP, Store
from hetsim.runtime.checkpointing import StopRequest
from hetsim.runtime.preparation import Preparation
from hetsim.runtime.rank import Checkpoint, RankState
from hetsim.runtime.recording.metrics import RankActivity
from hetsim.runtime.recording.run_record import RunRecord, activity_until
from hetsim.runtime.recording.trace import Trace, TracePart

POLL_SECONDS = 0.25
"""The interval at which a stop request is looked for."""
NUMBER_BYTES = 8
"""The bytes of a number in an answer: rank, then state and rows, each after its length."""


@dataclass
class PendingCheckpoint:
    """A server's checkpoint that waits for the workers' answers."""

    state: State
    num_gradients: Sequence[int]
    seconds: float
    progress: dict[str, Any]
    server: RankState
    packed_states: dict[int, bytes] = field(default_factory=dict)


class Saving(Answering):
    """One rank's part in the checkpoints of a run.

    Args:
        record: this rank's record of the run. The leader's record includes what it knows of the other ranks.
        saver: writes the checkpoints, on the leader.
        joined: whether this rank joined a running run. Its activity then counts from that time.
        absences: returns (rank, from, until) of each absence that is over at this second of the run.
        on_saved: called with the version of each checkpoint once it is complete.
    """

    def __init__(
        self, prepared: Preparation, state: RankState, record: RunRecord, trace: Trace, *, clocks: Clocks, saver: Saver | NoSaver,
        joined: bool, absences: Callable[[float], Iterable[tuple[int, float, float]]], on_saved: Callable[[int], object],
    ) -> None:  # fmt: skip
        self.prepared = prepared
        self.experiment = experiment = prepared.experiment
        self.state = state
        self.rank: int = state.rank
        self.record = record
        self.joined = joined
        self.trace = trace
        self.clocks = clocks
        self.saver = saver
        self.agrees = experiment.checkpoint.enabled and not experiment.coordination.needs_server
        """Whether all ranks follow the leader's decision at each commit."""
        self.stopped = False
        """Whether the leader has ended the run on request. If ranks agree at commits, all know it."""
        self.sent_rows: list[bytes] = []
        """On another rank: the rows that it sent last. They are lost with a leader that has not saved them."""
        self._absences = absences
        self._on_saved = on_saved
        self._progress_at_end: dict[str, Any] = {}
        self._pending: PendingCheckpoint | None = None
        self._incomplete: int | None = None
        """The version of a checkpoint that is written, and not complete by its description."""
        self._workers = experiment.workers_of(self.rank) if self.rank != experiment.leader else []
        """The workers of a local server."""
        self._answer: tuple[int, bytes] | None = None
        """On a local server: its answer for a version, without its workers' missing answers."""

    def decide(self, version: int, going: bool, questions: StateQuestions) -> tuple[bool, bool]:
        """This rank's decision whether the run continues after this version, and whether it is saved there."""
        self.write_answered(questions)
        if going and self.saver.stop.asked:
            going, self.stopped = False, True
        return going, going and self._pending is None and self.saver.due(version)

    def forget(self) -> None:
        """Drop the checkpoint that waits for answers, because after a change of membership all ranks restart from the last commit."""
        self._pending = None

    def save(self, seconds: float, transport: Transport, questions: StateQuestions, *, leader: int) -> None:
        """Save the run at this commit: send this rank's state to the leader. The leader receives the others' states."""
        if not self.record.leads:
            self._hand_in(transport, leader)
            return
        pending = self._now(seconds, self.record.progress())
        if self.agrees:
            self._collect(pending, transport)
            self._incomplete = pending.state.version
        else:
            self._pending = pending
            questions.ask(pending.state.version, self.experiment.peers(self.rank))

    def complete(self) -> None:
        """On the leader without a server: the checkpoint that it wrote last counts from now on."""
        if self._incomplete is not None:
            self.saver.begin()
            self._on_saved(self._incomplete)
            self._incomplete = None

    def _now(self, seconds: float, progress: dict[str, Any]) -> PendingCheckpoint:
        return PendingCheckpoint(self.record.history.last, self.record.num_gradients(), seconds, progress, self.state.snapshot())

    def _hand_in(self, transport: Transport, leader: int) -> None:
        # all ranks without a server take the same steps, so the memory of their optimizer is the leader's
        own_state = replace(self.state.snapshot(), optimizer=None)
        self.sent_rows = list(self._rows())
        transport.control.send_bytes([self._part(own_state)], leader)
        transport.control.send_bytes(self.sent_rows, leader)

    def _collect(self, pending: PendingCheckpoint, transport: Transport) -> None:
        for rank in transport.members:
            if rank != self.rank:
                pending.packed_states[rank] = b"".join(transport.control.receive_bytes(rank))
                self._append(transport.control.receive_bytes(rank), rank)
        self._write(pending)

    def answer(self, version: int, questions: StateQuestions) -> None:
        """On a worker of a server or a local server: send this rank's state, and the states below it, to the server above."""
        contents = [self._part(self.state.snapshot()), b"".join(self._rows())]
        self._answer = version, encode_number(self.rank) + b"".join(encode_number(len(content)) + content for content in contents)
        if self._workers:
            questions.ask(version, self._workers)
        self.pass_on(questions)

    def pass_on(self, questions: StateQuestions) -> None:
        """Send the answer when this rank's own workers have answered, except lost ones."""
        if self._answer is None or (self._workers and questions.awaited):
            return
        (version, content), self._answer = self._answer, None
        others = questions.take_answers(version) if self._workers else {}
        above = self.experiment.leader if self._workers else self.experiment.server_of(self.rank)
        questions.answer(above, version, b"".join([content, *others.values()]))

    def write_answered(self, questions: StateQuestions) -> None:
        """On the leader: write a checkpoint for which all ranks have answered, except lost ones."""
        pending = self._pending
        if pending is None or questions.awaited:
            return
        for content in questions.take_answers(pending.state.version).values():
            for rank, part, rows in answers(content):
                pending.packed_states[rank] = part
                self._append([rows], rank)
        self._pending = None
        self._write(pending)
        self._on_saved(pending.state.version)

    def end(self, questions: StateQuestions) -> None:
        """At the end of the program, on the leader: write the requested checkpoint, and keep the recorders' progress for the last one."""
        self.write_answered(questions)
        if self.experiment.checkpoint.enabled and self.record.leads:
            self._progress_at_end = self.record.progress()

    def last_part(self) -> bytes:
        """A rank's state at the end of the run."""
        return self._part(self.state.snapshot())

    def write_last(self, packed_states: dict[int, bytes], activity: Sequence[RankActivity]) -> None:
        """On the leader, after all ranks have sent their results: write the checkpoint of the finished run."""
        pending = self._now(self.record.metrics.applied.seconds, self._progress_at_end)
        self._write(replace(pending, packed_states=packed_states), activity)
        self._on_saved(pending.state.version)

    def _part(self, state: RankState) -> bytes:
        activity = self.record.metrics.activity
        numbers = activity[self.rank].as_numbers() if self.rank < len(activity) else None
        return pack_state({"state": state, "activity": json.dumps(numbers), "joined": self.joined})

    def _rows(self) -> Iterable[bytes]:
        return self.trace.drain() if isinstance(self.trace, TracePart) else ()

    def _append(self, pieces: Iterable[bytes], rank: int) -> None:
        if pieces:
            self.saver.append(pieces, rank=rank, change=self.clocks.change(rank))

    def _write(self, pending: PendingCheckpoint, at_end: Sequence[RankActivity] | None = None) -> None:
        """Write a checkpoint with each worker's activity so far or, at the end of the run, with `at_end`."""
        classes, num_ahead = classes_of(self.experiment), self.experiment.coordination.num_ahead
        ranks = {self.rank: pending.server}
        activity = [RankActivity.of_numbers(worker.as_numbers(), num_ahead) for worker in self.record.metrics.activity if at_end is None]
        for rank, content in pending.packed_states.items():
            part = unpack_state(content, classes)
            state: RankState = part["state"]
            ranks[rank] = replace(state, optimizer=pending.server.optimizer) if self.agrees else state
            numbers = json.loads(part["activity"])
            if numbers is not None and activity:
                worker = RankActivity.of_numbers(numbers, num_ahead)
                activity[rank] = worker.after(activity[rank]) if part["joined"] else worker
        if at_end is None:
            for rank, start, end in self._absences(pending.seconds):
                activity[rank].add_absence(start, end)
            self._append(self._rows(), self.rank)  # with the absences
        for rank in range(self.experiment.num_ranks):
            if rank not in ranks:
                ranks[rank] = self._absent(rank, pending)
        for rank, count in enumerate(pending.num_gradients):
            ranks[rank].num_gradients = count
        seconds = (pending.seconds,) * len(ranks)
        progress = {**pending.progress, "activity": activity_until(at_end or activity, seconds)}
        state_then = pending.state.evolve(outstanding=tuple(pending.state.outstanding))
        by_rank = tuple(ranks[rank] for rank in sorted(ranks))
        self.saver.write(Checkpoint(state=state_then, ranks=by_rank, seconds=seconds, progress=progress))

    def _absent(self, rank: int, pending: PendingCheckpoint) -> RankState:
        """The state in which a lost rank will return."""
        state = RankState(rank=rank)
        optimizer = pending.server.optimizer if self.agrees else self.prepared.optimizer_of(rank).initial()
        self.prepared.restart(state, pending.state, optimizer=optimizer)
        return state


def encode_number(number: int) -> bytes:
    """A rank or a length as bytes."""
    return number.to_bytes(NUMBER_BYTES)


def answers(content: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """(rank, state, rows) of each rank in a peer's answer to the leader."""
    at = 0

    def number() -> int:
        nonlocal at
        at += NUMBER_BYTES
        return int.from_bytes(content[at - NUMBER_BYTES : at])

    while at < len(content):
        fields: list[Any] = [number()]
        for _ in range(2):
            length = number()
            fields.append(content[at : at + length])
            at += length
        yield fields[0], fields[1], fields[2]


class StopWatch:
    """Within this context, a stop request to any rank is passed to the leader through the processes' store.

    This includes a request to the leader, because another rank may lead at the next version.
    """

    def __init__(self, store: Store, stop: StopRequest, *, leads: bool) -> None:
        self._store = store
        self._stop = stop
        self.leads = leads
        """Whether this rank leads, from now on."""
        self._ended = Event()
        self._thread = Thread(target=self._watch, daemon=True)

    def __enter__(self) -> StopWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(2 * POLL_SECONDS)

    def _watch(self) -> None:
        while not self._ended.wait(POLL_SECONDS):
            try:
                if self._stop.asked:
                    self._store.set(STOP, "1")
                    return
                if self.leads and self._store.check([STOP]):
                    self._stop.ask()
                    return
            except Exception:  # the run has ended, and the store with it
                return
