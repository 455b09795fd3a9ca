"""Padding by a clock that stands still unless somebody sleeps or works: exact moments, no process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from fake_transport import FakeNetwork
from worlds import cluster, experiment, node

from hetsim.checkpoints.saver import NoSaver
from hetsim.cluster.model import Cluster
from hetsim.distributed.communication.channel import Arrival
from hetsim.distributed.communication.clock_alignment import Clocks
from hetsim.distributed.communication.mailbox import Mailbox
from hetsim.distributed.communication.reduction import Reduction
from hetsim.distributed.environment import Emulation
from hetsim.distributed.pacing import padding as pace
from hetsim.distributed.pacing import shared_links
from hetsim.distributed.pacing.padding import LateResults, Pace
from hetsim.distributed.pacing.shared_links import PREFIX, LinkEmulator, SharedLinks, remove_leftovers
from hetsim.distributed.rank.checkpointing import Saving
from hetsim.distributed.rank.world import SECOND, ProcessWorld, RankParts, StartedEffect, Turn
from hetsim.effects import AllReduce, Batch, Commit, Effect, Gradient, GradientSum, PeerLost, Program, Receive, Send, Start, Update, Wait
from hetsim.errors import RunFailed
from hetsim.results.reading.intervals import first_intervals
from hetsim.runtime.nonfinite import NonfiniteGradients
from hetsim.runtime.preparation import prepare
from hetsim.runtime.profiling import Profile
from hetsim.runtime.rank import Checkpoint, RankState
from hetsim.runtime.recording.metrics import Metrics
from hetsim.runtime.recording.recorder import COMMIT, GRADIENT
from hetsim.runtime.recording.run_record import RunRecord
from hetsim.runtime.recording.trace import Trace, as_table
from hetsim.vector import Phantom

BEGAN = 100.0


class Clock:
    """Seconds, moved by hand."""

    def __init__(self) -> None:
        self.now = BEGAN

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Sleeping moves it, and wakes up 0.1 s late."""
    fake = Clock()
    monkeypatch.setattr(Pace, "sleep_until", lambda pace, moment: setattr(pace.clock, "now", moment + 0.1))
    return fake


class Letters:
    """A mailbox that gives what it is told to, and keeps what it is given."""

    states: Any = None

    def __init__(self, *messages: Arrival | PeerLost) -> None:
        self.messages = list(messages)
        self.sent: list[tuple[int, float]] = []

    def receive(self, source: int | None) -> Arrival:
        """The next one."""
        message = self.messages.pop(0)
        if isinstance(message, PeerLost):
            raise message
        return message

    def send(self, to: int, header: dict[str, Any], payload: Any, *, at: float) -> None:
        """Remember when."""
        self.sent.append((to, at))


def driver(
    clock: Clock, *, rank: int = 0, takes: float = 0.0, emulate: Emulation = "pad", letters: Any = None, **keys: Any
) -> ProcessWorld:
    """A rank of two: 0.5 s + 0.25 s a sample, updates of 1 s; the real gradient and step take `takes`."""
    nodes = cluster(*[node(0.25, 0.5, seconds_per_update=1.0)] * 2, seconds_per_update=2.0)
    made = experiment(
        "method=asgd",
        "workload=phantom",
        cluster=keys.pop("cluster", nodes),
        batch_size=8,
        **{key: value for key, value in keys.items() if key != "checkpoint"},
    )
    task, optimizers = made.load()
    gradient, step = task.gradient, optimizers.main.step

    def working(*asked: Any) -> Any:
        clock.now += takes
        return gradient(*asked)

    def stepping(*asked: Any) -> Any:
        clock.now += takes
        return step(*asked)

    task.gradient, optimizers.main.step = working, stepping  # type: ignore[method-assign]
    prepared = prepare(made, task, optimizers, profile=Profile, checkpoint=keys.get("checkpoint"))
    metrics = Metrics(2, num_ahead=1)
    transport, state = FakeNetwork(2).transport(min(rank, 1)), prepared.rank_state(rank)
    record = RunRecord(prepared, metrics, [], at_once=False, keeps=False, leads=False)
    saving = Saving(
        prepared, state, record, Trace(None, "none"), clocks=Clocks.shared(2, leader=2), saver=NoSaver(), joined=False,
        absences=lambda _: (), on_saved=bool,
    )  # fmt: skip
    parts = RankParts(
        prepared=prepared, state=state, leader=2, pace=Pace(emulate, clock=clock), record=record, recorders=[metrics], saving=saving,
        nonfinite=NonfiniteGradients("skip", metrics.activity),
    )  # fmt: skip
    reduction = Reduction.by_gloo(transport, task.device, "ordered")
    ranked = ProcessWorld(parts, transport=transport, mailbox=letters or Letters(), reduction=reduction, began=BEGAN)
    ranked.metrics = metrics  # type: ignore[attr-defined]
    return ranked


def asked(rank: ProcessWorld, effect: Effect[Any], at: float) -> Any:
    """The answer to an effect that is asked for at this moment, and the moment that it is then."""
    return rank.answer_effect(effect, Turn(at, rank.transport, rank.state.version))


def arrival(source: int, *, sent_at: float = BEGAN, due_at: float = BEGAN, payload: Any = None, **header: Any) -> Arrival:
    """A message as the mailbox hands it out."""
    message = Arrival(source, header, payload)
    message.sent_at, message.due_at = sent_at, due_at
    return message


def test_what_is_early_ends_when_it_is_due(clock: Clock) -> None:
    """From the moment that counts as reached, not from when the thread woke up: lateness of the system does not add up."""
    rank = driver(clock, takes=0.01)

    computed, end = asked(rank, Gradient(at=Phantom(8), batch=Batch(0, 4), version=0), BEGAN)
    _, stepped = asked(rank, Update(at=Phantom(8), gradient=Phantom(8)), end)

    assert (computed.seconds, end, stepped) == (1.5, BEGAN + 1.5, BEGAN + 2.5)
    assert clock.now == pytest.approx(BEGAN + 2.6)
    assert rank.pace.kinds == {"gradient": LateResults(1, 0, 0.0), "update": LateResults(1, 0, 0.0)}


def test_what_is_late_ends_when_it_is_there_and_is_counted(clock: Clock) -> None:
    """It takes what it really took."""
    rank = driver(clock, takes=4.0)

    computed, end = asked(rank, Gradient(at=Phantom(8), batch=Batch(0, 4), version=0), BEGAN)

    assert (computed.seconds, end) == (4.0, BEGAN + 4.0)
    assert rank.pace.kinds == {"gradient": LateResults(1, 1, 2.5)}
    assert (rank.metrics.activity[0].iterations, rank.metrics.activity[0].compute_seconds) == (1, 4.0)


def test_without_padding_the_hardware_is_taken_as_it_is(clock: Clock) -> None:
    """Nothing is held, nothing is counted as late."""
    rank = driver(clock, takes=0.25, emulate="none")

    computed, end = asked(rank, Gradient(at=Phantom(8), batch=Batch(0, 4), version=0), 0.0)

    assert (computed.seconds, end) == (0.25, BEGAN + 0.25)
    assert rank.pace.kinds == {}


def test_under_quotas_late_gradients_and_updates_are_counted_and_nothing_is_held(clock: Clock) -> None:
    """Of 1.5 s described a gradient took 0.25 or 4; what a quota does not act on is not counted."""
    early, late = (driver(clock, takes=seconds, emulate="quota") for seconds in (0.25, 4.0))

    for rank in (early, late):
        began = clock.now
        _, end = asked(rank, Gradient(at=Phantom(8), batch=Batch(0, 4), version=0), began)
        assert end - began == (0.25 if rank is early else 4.0)
        assert asked(rank, Update(at=Phantom(8), gradient=Phantom(8)), end)[1] == clock.now
        rank.pace.due("message", 0.0, 1.0)

    assert early.pace.kinds == {"gradient": LateResults(1, 0, 0.0), "update": LateResults(1, 0, 0.0)}
    assert late.pace.kinds == {"gradient": LateResults(1, 1, 2.5), "update": LateResults(1, 1, 3.0)}


@pytest.mark.usefixtures("clock")
def test_buckets_are_held_until_all_ranks_are_described_to_have_them() -> None:
    """Gradients of 1.5 and 2.5 s begin at once; three buckets of 4 bytes take 0.5 s each, the last after the slow one."""
    link = {"latency_seconds": 0.125, "bytes_per_second": 16.0}
    nodes = cluster(*[node(0.25, 0.5)] * 2, network=link)
    keys: Any = {"cluster": nodes, "workload": {"num_parameters": 3, "num_samples": 99}}
    network, ends = FakeNetwork(2), dict[int, tuple[Any, float]]()

    def part(rank: int) -> None:
        its = driver(Clock(), rank=rank, **keys)
        its.transport = network.transport(rank)
        its.reduction = Reduction.by_gloo(its.transport, its.task.device, "ordered")
        batch = Batch(0, 4 + 4 * rank)
        ends[rank] = asked(its, GradientSum(at=Phantom(12), batch=batch, version=0, factor=lambda: 1.0, bucket_bytes=4), BEGAN)

    threads = [Thread(target=part, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert [ends[rank][0].seconds for rank in (0, 1)] == [1.5, 2.5]
    assert [ends[rank][1] - BEGAN for rank in (0, 1)] == pytest.approx([3.0, 3.0])


def test_a_message_is_received_when_it_is_due_and_no_earlier_than_one_asks(clock: Clock) -> None:
    """max(when the program asks, when it is due); a header is data for the program alone, whatever its values are called."""
    letters = Letters(*(arrival(1, due_at=BEGAN + 2, version=7, epoch=3) for _ in range(2)))
    worker = driver(clock, letters=letters)

    assert asked(worker, Receive(), BEGAN + 1)[1] == BEGAN + 2
    assert asked(worker, Receive(), BEGAN + 3)[1] == BEGAN + 3
    assert (worker.state.version, worker.state.epoch) == (0, 0)


def test_a_message_is_on_its_way_from_the_moment_reached(clock: Clock) -> None:
    """Not from when the thread that sends it got around to it."""
    letters = Letters()
    clock.now += 0.5

    asked(driver(clock, letters=letters), Send(2, None), BEGAN + 0.25)

    assert letters.sent == [(2, BEGAN + 0.25)]


def test_what_was_started_is_waited_for(clock: Clock) -> None:
    """The later of the program's own moment and its end; a second thread has collectives of its own and the version of the start."""
    rank, turns = driver(clock), []
    future: Future[Any] = Future()
    future.set_result(("answer", BEGAN + 3))
    rank.handlers[AllReduce] = lambda _state, _effect, turn: (turns.append(turn), turn.at)

    assert asked(rank, Wait(StartedEffect(future)), BEGAN + 1) == ("answer", BEGAN + 3)
    assert asked(rank, Wait(StartedEffect(future)), BEGAN + 4) == ("answer", BEGAN + 4)
    rank.state.version = 5
    started, _ = asked(rank, Start(AllReduce(Phantom(8))), BEGAN)
    asked(rank, Wait(started), BEGAN)
    assert [(turn.transport, turn.version, turn.thread) for turn in turns] == [(rank.transport.background, 5, SECOND)]


def test_a_lost_peer_surfaces_at_the_programs_own_line(clock: Clock) -> None:
    """Fault tolerance is an ordinary try/except; what the program asks next is answered as ever."""
    caught = []

    def program() -> Program[None]:
        try:
            yield from Receive(1)
        except PeerLost as error:
            caught.append(str(error))
        message = yield from Receive(1)
        caught.append(message.said)

    driver(clock, letters=Letters(PeerLost("rank 1 is gone"), arrival(1, said="hello"))).run(program())

    assert caught == ["rank 1 is gone", "hello"]


def test_epochs_advance_at_a_commit(clock: Clock) -> None:
    """A schedule by epochs of applied samples follows."""
    rank = driver(clock, workload={"num_samples": 8})
    state = rank.experiment.coordination.initial(rank.experiment.plan(rank.task), Phantom(8))

    asked(rank, Commit(5, state.evolve(version=5, num_samples=17)), BEGAN)

    assert (rank.state.epoch, rank.state.version) == (2, 5)


def room(pad: bool = True, *, peers: tuple[int, ...] = (), clock: Callable[[], float] = pace.clock) -> Mailbox:
    """A mailroom where a byte takes a second."""
    return Mailbox(
        FakeNetwork(2).transport(0), peers, lambda _, size: float(size), Pace("pad" if pad else "none", clock=clock), began=BEGAN
    )


def test_messages_are_delivered_in_the_order_in_which_they_are_due(clock: Clock) -> None:
    """A small one that was sent later overtakes a large one from another rank, but none from its own."""
    post = room(clock=clock)
    post.arrive(0, {"sent_at": 0.0}, Phantom(3))
    post.arrive(1, {"sent_at": 1.0}, Phantom(1))
    post.arrive(0, {"sent_at": 1.5}, Phantom(1))
    clock.now = BEGAN + 10

    received = [post.receive(None) for _ in range(3)]

    assert [(message.source, message.due_at) for message in received] == [(1, BEGAN + 2), (0, BEGAN + 3), (0, BEGAN + 3)]


def test_a_late_message_is_due_when_it_came(clock: Clock) -> None:
    """And is counted; without padding every message is due when it came, and none is late."""
    clock.now = BEGAN + 5
    for pad, counted in ((True, {"message": LateResults(1, 1, 3.0)}), (False, {})):
        post = room(pad, clock=clock)
        post.arrive(0, {"sent_at": 0.0}, Phantom(2))

        assert post.receive(0).due_at == BEGAN + 5
        assert post.pace.kinds == counted


def test_a_message_is_held_until_it_is_due() -> None:
    """On the real clock."""
    began = pace.clock()
    post = Mailbox(FakeNetwork(2).transport(0), (), lambda *_: 0.05, Pace("pad"), began=began)
    post.arrive(0, {"sent_at": 0.0})

    message = post.receive(None)

    assert pace.clock() >= message.due_at >= began + 0.05


LATENCY = 2.0


def narrow() -> Cluster:
    """Two workers and their server, whose links carry 1,000 bytes per second."""
    described = cluster(*[node(0.25)] * 2)
    described["server"] |= {"uplink_bytes_per_second": 1000.0, "downlink_bytes_per_second": 1000.0}
    return experiment("method=asgd", "workload=phantom", cluster=described).cluster


@pytest.fixture
def rooms(clock: Clock, tmp_path: Path) -> list[Mailbox]:
    """Of these at the moment 0.05; latencies of 2 s."""
    shared, network = narrow(), FakeNetwork(3)
    clock.now = BEGAN + 0.05
    peers = {0: [2], 1: [2], 2: [0, 1]}
    return [
        Mailbox(
            network.transport(rank), peers[rank], lambda *_: LATENCY, Pace("pad", clock=clock), began=BEGAN,
            links=LinkEmulator(SharedLinks(shared, seed=0), tmp_path / "transfers", rank=rank),
        )
        for rank in range(3)
    ]  # fmt: skip


def until(holds: Callable[[], object]) -> None:
    """Wait until this holds: another thread sees to it."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_messages_to_the_server_are_due_when_their_shared_transfers_end(clock: Clock, rooms: list[Mailbox]) -> None:
    """60 bytes from 0 on, and 80 from 0.02 on: the first is through at 0.10 and the other, alone again, at 0.14; then the latency."""
    first, second, server = rooms
    first.send(2, {}, Phantom(60), at=BEGAN)
    second.send(2, {}, Phantom(80), at=BEGAN + 0.02)
    until(lambda: server.num_arrived == {0: 1, 1: 1})
    assert server.due_before(BEGAN + 2.05, wait=False) is None

    clock.now = BEGAN + 3.0
    messages = [server.receive(None) for _ in range(2)]

    assert [message.source for message in messages] == [0, 1]
    assert [message.due_at - BEGAN for message in messages] == pytest.approx([2.10, 2.14])
    assert [message.sent_at - BEGAN for message in messages] == pytest.approx([0.0, 0.02])
    assert server.pace.kinds == {"message": LateResults(2, 0, 0.0)}


def test_messages_to_workers_share_the_server_s_link(clock: Clock, rooms: list[Mailbox]) -> None:
    """Two replies at once; a second message to the same worker waits for the first. No worker is told when a transfer ends."""
    first, second, server = rooms
    server.send(0, {"number": 1}, Phantom(100), at=BEGAN)
    server.send(1, {"number": 2}, Phantom(50), at=BEGAN)
    server.send(0, {"number": 3}, None, at=BEGAN)
    until(lambda: (first.num_arrived, second.num_arrived) == ({2: 2}, {2: 1}))
    assert server.num_sent == {0: 2, 1: 1}

    clock.now = BEGAN + 3.0
    messages = [first.receive(None), first.receive(None), second.receive(None)]

    assert [message.number for message in messages] == [1, 3, 2]
    assert [message.due_at - BEGAN for message in messages] == pytest.approx([2.15, 2.15, 2.1])


def test_a_message_is_held_longer_if_another_transfer_begins(clock: Clock, rooms: list[Mailbox]) -> None:
    """After the receiver has looked: 100 bytes from 0 on, alone until 0.05, are through at 0.15."""
    first, second, server = rooms
    first.send(2, {}, Phantom(100), at=BEGAN)
    until(lambda: server.num_arrived[0])
    clock.now = BEGAN + LATENCY + 0.1
    assert server.due_before(BEGAN + 9, wait=False) == pytest.approx(clock.now)

    second.send(2, {}, Phantom(100), at=BEGAN + 0.05)
    until(lambda: server.num_arrived[1])

    assert server.due_before(BEGAN + 9, wait=False) is None
    clock.now = BEGAN + 3.0
    assert [server.receive(None).due_at - BEGAN for _ in range(2)] == pytest.approx([2.15, 2.2])


def test_a_message_whose_transfer_goes_on_is_received_after_its_sender_has_ended(clock: Clock, rooms: list[Mailbox]) -> None:
    """Whoever waits for the last message of a program gets it."""
    first, second, server = rooms
    server.send(0, {}, Phantom(100), at=BEGAN)
    leaving = [Thread(target=each.close, daemon=True) for each in (server, second)]
    for thread in leaving:
        thread.start()
    until(lambda: first._ended)

    clock.now = BEGAN + 3.0

    assert first.receive(2).due_at - BEGAN == pytest.approx(2.1)
    first.close()
    for thread in leaving:
        thread.join(60)
        assert not thread.is_alive()
    with pytest.raises(RunFailed, match="no message can come"):
        first.receive(2)


def test_messages_of_a_lost_worker_whose_transfers_go_on_still_count(clock: Clock, rooms: list[Mailbox]) -> None:
    """As what is held without shared links; then it is told."""
    first, _, server = rooms
    first.send(2, {}, Phantom(100), at=BEGAN)
    until(lambda: server.num_arrived[0])
    server.lose(0)

    clock.now = BEGAN + 3.0

    assert server.receive(0).due_at - BEGAN == pytest.approx(2.1)
    with pytest.raises(PeerLost, match="rank 0 is gone"):
        server.receive(0)


def test_half_a_record_is_read_once_it_is_whole(tmp_path: Path) -> None:
    """A system may show the part of a record that fits into a page before the rest."""
    path = tmp_path / "transfers"
    sender, receiver = (LinkEmulator(SharedLinks(narrow(), seed=0), path, rank=rank) for rank in (0, 2))
    assert sender.begin(2, 1000, 0.0) == 0
    record = path.read_bytes()
    with path.open("ab") as file:
        file.write(record[:7])
        file.flush()
        receiver.project()
        file.write(record[7:])

    assert [receiver.transfer(number).nbytes for number in range(2)] == [1000, 1000]


def test_only_files_of_dead_runs_are_removed(tmp_path: Path) -> None:
    """A file that a process has open is no leftover, and one that is removed before it is locked is made again."""
    left, used = (tmp_path / f"{PREFIX}{os.getuid()}-{name}" for name in ("left", "used"))
    left.touch()
    emulator = LinkEmulator(SharedLinks(narrow(), seed=0), used, rank=0)

    remove_leftovers(tmp_path)

    assert list(tmp_path.iterdir()) == [used]
    emulator.remove()
    assert not list(tmp_path.iterdir())


def test_a_file_that_was_made_meanwhile_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process has removed the leftover, and a run has made its own file before this process locks what it has opened."""
    path, lock = tmp_path / f"{PREFIX}{os.getuid()}-1", shared_links.fcntl.flock
    path.touch()
    made: list[LinkEmulator] = []

    def late(file: Any, how: int) -> None:
        monkeypatch.setattr(shared_links.fcntl, "flock", lock)
        path.unlink()
        made.append(LinkEmulator(SharedLinks(narrow(), seed=0), path, rank=0))
        lock(file, how)

    monkeypatch.setattr(shared_links.fcntl, "flock", late)
    remove_leftovers(tmp_path)

    assert path.exists()


def test_a_header_that_cannot_be_sent_is_the_senders_error() -> None:
    """It surfaces where it was made, instead of in a thread."""
    post = room(peers=(1,))

    with pytest.raises(AssertionError, match="bytes is too long"):
        post.send(1, {"text": "x" * 600}, None, at=BEGAN)
    with pytest.raises(TypeError):
        post.send(1, {"number": torch.ones(1)}, None, at=BEGAN)


def test_what_breaks_a_thread_reaches_the_program() -> None:
    """Whoever waits is told, instead of waiting for ever."""
    post = room()
    post.fail(KeyError("float99"))

    with pytest.raises(KeyError, match="float99"):
        post.receive(None)


@pytest.mark.usefixtures("clock")
def test_a_lost_peer_is_told_once_its_messages_are_read() -> None:
    """What it had sent still counts."""
    post = room()
    post.arrive(1, {"sent_at": 0.0})
    post.lose(1)

    assert post.receive(None).source == 1
    with pytest.raises(PeerLost, match="rank 1 is gone"):
        post.receive(None)


def test_a_noisy_node_goes_on_where_its_stream_stood(clock: Clock) -> None:
    """The sixth gradient of a run that starts after five takes what an uninterrupted run's sixth takes."""
    noisy = cluster(*[node(0.25, 0.5, noise={"distribution": "lognorm", "s": 0.5})] * 2)
    fresh = driver(clock, cluster=noisy)
    sixth = [fresh.gradient_seconds(4, 0.0) for _ in range(6)][-1]

    saved = Checkpoint(state=fresh.prepared.start, ranks=tuple(RankState(rank=rank, num_gradients=5) for rank in range(3)))
    later = driver(clock, cluster=noisy, checkpoint=saved)

    assert later.gradient_seconds(4, 0.0) == sixth


def test_a_timeline_finds_the_first_gradients_wherever_their_rows_stand() -> None:
    """A distributed trace has one rank's rows behind another's."""
    trace = Trace(None, "full")
    for version in range(25_000):
        trace.record((float(version), float(version), 2, COMMIT, version, 0, 0, 0))
    for start in (3.0, 1.0):
        trace.record((start, start + 1, 0, GRADIENT, 0, 0, 0, 0))

    assert first_intervals(as_table(trace.rows)) == [(1.0, 2.0, 0, "gradient"), (3.0, 4.0, 0, "gradient")]
