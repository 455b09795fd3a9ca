"""Which library adds up the vectors of an all-reduce, where they are, and what happens where a rank is lost that NCCL waits for."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from threading import Event, Thread
from typing import Any, ClassVar
from weakref import ReferenceType, ref

import pytest
import torch
import torch.distributed as dist
from elsewhere import Elsewhere
from fake_transport import FakeNetwork
from processes import forking
from running import wait_for
from threads import run_in_threads
from worlds import cluster, experiment, node, simulate

from hetsim.coordination.base import Coordination
from hetsim.coordination.plan import Plan
from hetsim.coordination.state import State
from hetsim.distributed.communication import reduction
from hetsim.distributed.communication.gloo import GlooTransport
from hetsim.distributed.communication.mailbox import Mailbox
from hetsim.distributed.communication.reduction import PeerWatch, open_reduction, reducing_library
from hetsim.distributed.launch import local as launch
from hetsim.distributed.pacing.padding import Pace, clock
from hetsim.distributed.rank.results import shared_gpu_warnings
from hetsim.distributed.rank.run import RankRun
from hetsim.effects import AllReduce, Commit, Node, PeerLost, Program, Start, Wait
from hetsim.errors import RunFailed
from hetsim.workloads.device import CPU, num_cuda_devices

QUICK = cluster(*(node(seconds) for seconds in (4e-5, 1e-5, 2e-5)), network={"latency_seconds": 1e-5, "bytes_per_second": 1e9})

AXES = ("allocation", "weighting", "discount", "compensation", "admission", "compression")


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        ([0.0, 0.0], "gloo"),
        ([7.0, 0.0], "gloo"),
        ([7.0, 7.0], "gloo"),
        ([7.0, 8.0, 7.0], "gloo"),
        ([7.0, 8.0, 9.0], "nccl"),
        ([7.0], "nccl"),
        ([0.0], "gloo"),
    ],
)
def test_nccl_adds_up_where_each_rank_has_a_gpu_of_its_own(gpus: list[float], expected: str) -> None:
    """It takes no tensor of the CPU's, and no two ranks on one GPU. A GPU has the same number in all processes that use it."""
    assert reducing_library(gpus) == expected


def test_ranks_that_share_a_gpu_are_reported() -> None:
    """Each GPU by itself; ranks on the CPU share nothing."""
    assert shared_gpu_warnings([0.0, 7.0, 0.0, 8.0]) == []
    assert shared_gpu_warnings([7.0, 8.0, 7.0, 8.0, 7.0, 0.0]) == [
        "ranks 0, 2 and 4 share a GPU: the steps of one take longer while another computes",
        "ranks 1 and 3 share a GPU: the steps of one take longer while another computes",
    ]


@pytest.mark.parametrize("method", ["ssgd", "ssgd coordination=overlapped_all_reduce", "pipe_sgd"])
@pytest.mark.parametrize("order", ["ordered", "native"])
def test_sums_on_devices_have_the_bits_of_sums_through_the_cpu(method: str, order: str) -> None:
    """In the program's thread and in that of what it starts. In rank order they are the simulator's."""
    described = experiment(*f"method={method}".split(), "workload=quadratic", cluster=QUICK, budget={"updates": 8})
    weights = []

    for on_devices in (True, False):
        ends = run_in_threads(described, devices=[Elsewhere() for _ in range(3)], reduction=order, sums_on_devices=on_devices)
        assert all(isinstance(end, RankRun) for end in ends), ends
        weights += [end.last.weights for end in ends]  # type: ignore[union-attr]

    assert all(torch.equal(other, weights[0]) for other in weights)
    if order == "ordered":
        assert torch.equal(weights[0], simulate(described).weights)


@dataclass(frozen=True, kw_only=True)
class HandsOver(Coordination):
    """After a reduction of its own, starts some of what it has just computed, and computes with the sums at once."""

    needs_server: ClassVar[bool] = False
    regroups: ClassVar[bool] = False

    def program(self, node: Node, plan: Plan, state: State) -> Program[State]:
        state = state.evolve(weights=(yield from AllReduce(state.weights)) / 3)
        for version in range(1, 4):
            pending = yield from Start(AllReduce(state.weights * (node.rank + 1)))
            state = state.evolve(version=version, weights=(yield from Wait(pending)) / 6 + 1)
            yield from Commit(version, state)
        return state


@pytest.mark.parametrize("on_devices", [True, False])
def test_threads_of_a_rank_hand_each_other_what_is_done(on_devices: bool) -> None:
    """Each has its own queue on the device, and its own group. With padding, nothing else synchronises between two effects."""
    made = experiment("method=ssgd", "workload=quadratic", cluster=QUICK, budget={"updates": 3})
    described = replace(made, coordination=HandsOver(**{axis: getattr(made.coordination, axis) for axis in AXES}))

    ends = run_in_threads(described, pad=True, devices=[Elsewhere() for _ in range(3)], sums_on_devices=on_devices)

    assert all(isinstance(end, RankRun) for end in ends), ends
    assert all(torch.allclose(end.last.weights, described.load()[0].initial() + 3) for end in ends)  # type: ignore[union-attr]


class Slow(CPU):
    """Its copies come when the test says so."""

    in_cpu_memory = False

    def __init__(self) -> None:
        super().__init__()
        self.come = Event()
        self.num_begun = 0

    def begin_fetch(self, value: Any) -> Any:
        self.num_begun += 1

        def fetched() -> Any:
            assert self.come.wait(60)
            return value

        return fetched


def test_a_sender_goes_on_while_its_payload_comes_from_the_device() -> None:
    """The header may be under way by then; the message arrives once the copy is there."""
    network, device = FakeNetwork(2), Slow()
    boxes = [
        Mailbox(network.transport(rank), [1 - rank], lambda *_: 0.0, Pace("none"), began=clock(), device=device if rank == 0 else None)
        for rank in range(2)
    ]

    boxes[0].send(1, {"version": 3}, torch.arange(4.0), at=clock())
    time.sleep(0.05)
    assert device.num_begun == 1
    assert not boxes[1].has_message(0)
    device.come.set()
    message = boxes[1].receive(0)

    assert message.header == {"version": 3}
    assert torch.equal(message.payload, torch.arange(4.0))


class Copies(CPU):
    """Copies what is fetched, and knows which copies live."""

    in_cpu_memory = False

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[ReferenceType[torch.Tensor]] = []

    def begin_fetch(self, value: Any) -> Any:
        copy = value.clone()
        self.copies.append(ref(copy))
        return lambda: copy


def test_a_copy_is_given_up_once_it_is_sent() -> None:
    """Its pinned memory is for the next one then, and not before."""
    network, device = FakeNetwork(2), Copies()
    sender = Mailbox(network.transport(0), [1], lambda *_: 0.0, Pace("none"), began=clock(), device=device)
    receiver = Mailbox(network.transport(1), [0], lambda *_: 0.0, Pace("none"), began=clock())

    for _ in range(3):
        sender.send(1, {}, torch.ones(4), at=clock())
        receiver.receive(0)

    wait_for(lambda: not any(copy() is not None for copy in device.copies), 5)
    assert len(device.copies) == 3


def test_a_rank_that_is_lost_is_reported_once_by_the_next() -> None:
    """Unless that one has failed itself, which is nearer to the cause."""
    network, reported = FakeNetwork(3), []
    watches = [PeerWatch(network.transport(rank).background, reported.append) for rank in range(3)]
    for watch in watches:
        watch.__enter__()
    watches[0].cancel()

    network.lose(2)
    time.sleep(0.05)
    assert reported == []
    network.lose(0)
    wait_for(lambda: reported)

    assert [str(error) for error in reported] == ["rank 0 is gone"]


def test_ranks_that_end_wait_for_each_other_and_report_nothing() -> None:
    """A rank alone watches nobody."""
    network, reported = FakeNetwork(3), []
    watches = [PeerWatch(network.transport(rank).background, reported.append) for rank in range(3)]
    for watch in watches:
        watch.__enter__()
    ends = [Thread(target=watch.__exit__, args=(None,), daemon=True) for watch in watches]
    with PeerWatch(FakeNetwork(1).transport(0), reported.append):
        pass

    for end in ends:
        end.start()
    for end in ends:
        end.join(60)

    assert not any(end.is_alive() for end in ends)
    assert reported == []


@pytest.fixture
def alone() -> Iterator[GlooTransport]:
    """The transport of a rank that is the only one."""
    with GlooTransport.connect(0, 1, dist.HashStore()) as transport:
        yield transport


def test_without_gpus_no_group_of_nccls_is_made(alone: GlooTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would look for a driver."""
    monkeypatch.setattr(reduction, "dist", None)

    with open_reduction("gloo", alone, CPU(), "ordered", interface="lo", report=pytest.fail) as made:
        assert made.library == "gloo"
        assert made.main(torch.ones(3)).tolist() == [1, 1, 1]


def test_a_group_that_nccl_cannot_make_is_one_sentence(alone: GlooTransport) -> None:
    """Of NCCL's own first line: here there is no GPU for it, or no NCCL."""
    if num_cuda_devices():
        pytest.skip("this machine has a CUDA device")

    with (
        pytest.raises(PeerLost, match=r"^NCCL cannot add up the ranks' vectors \(.*\): set NCCL_DEBUG=WARN to see why$"),
        open_reduction("nccl", alone, CPU(), "ordered", interface="lo", report=pytest.fail),
    ):
        pytest.fail("connected without a GPU")


class GlooForNCCL:
    """torch.distributed as the module sees it, with groups of gloo's in place of NCCL's."""

    def __getattr__(self, name: str) -> Any:
        return getattr(dist, name)

    def destroy_process_group(self, group: Any) -> None:
        """Leave it."""
        dist.destroy_process_group(group)

    def new_group(self, *, backend: str, timeout: Any) -> Any:
        """A group of the same ranks."""
        assert backend == "nccl"
        return dist.new_group(backend="gloo", timeout=timeout)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the module make groups of gloo's."""
    monkeypatch.setattr(reduction, "dist", GlooForNCCL())
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "lo")


@pytest.mark.usefixtures("stand_in")
def test_nccl_has_a_group_for_each_thread_which_is_left_after_the_run(alone: GlooTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the leader evaluates: a group takes memory of the GPU's."""
    monkeypatch.setattr(dist.ProcessGroup, "abort", pytest.fail)
    before = len(dist.distributed_c10d._world.pg_map)

    with open_reduction("nccl", alone, CPU(), "native", interface="lo", report=pytest.fail) as made:
        assert made.library == "nccl"
        assert [add(torch.ones(3)).tolist() for add in (made.main, made.second)] == [[1, 1, 1]] * 2
        assert len(dist.distributed_c10d._world.pg_map) == before + 2

    assert len(dist.distributed_c10d._world.pg_map) == before


@pytest.mark.usefixtures("stand_in")
def test_a_run_that_fails_aborts_its_groups(alone: GlooTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that leaving them waits for nobody. If even that does not end, the process has to."""
    aborted: list[Any] = []
    reported: list[Exception] = []
    monkeypatch.setattr(dist.ProcessGroup, "abort", lambda group: aborted.append(group))

    for error in (KeyError("its own"), PeerLost("rank 7 is gone")):
        with pytest.raises(type(error)), open_reduction("nccl", alone, CPU(), "native", interface="lo", report=reported.append):
            raise error
    assert len(aborted) == 4
    assert reported == []
    monkeypatch.setattr(dist.ProcessGroup, "abort", lambda _: time.sleep(60))
    monkeypatch.setattr(reduction, "ABORT_SECONDS", 0.05)
    for error in (KeyError("its own"), PeerLost("rank 7 is gone")):
        with pytest.raises(type(error)), open_reduction("nccl", alone, CPU(), "native", interface="lo", report=reported.append):
            raise error

    assert [(type(each), str(each)) for each in reported] == [(RunFailed, "rank 0: 'its own'"), (PeerLost, "rank 7 is gone")]


def hang(rank: int, listening: Any, port: int, sender: Any) -> None:
    """In a process: connect as for NCCL, and wait for ever, as NCCL does for a rank that is gone. Rank 1 of three is killed."""
    fd = listening.detach() if rank == 0 else None
    store = dist.TCPStore("127.0.0.1", port, 3, rank == 0, master_listen_fd=fd)  # type: ignore[attr-defined]
    reduction.dist = GlooForNCCL()  # type: ignore[attr-defined]

    def report(error: PeerLost) -> None:
        sender.send(str(error))
        os._exit(1)

    with (
        GlooTransport.connect(rank, 3, store) as transport,
        open_reduction("nccl", transport, CPU(), "ordered", interface="lo", report=report) as made,
    ):
        sender.send(made.main(torch.full((5,), 2.0**rank)).tolist())
        transport.control.barrier()
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(1000)


@pytest.mark.slow
def test_no_rank_waits_in_nccl_for_one_that_was_killed() -> None:
    """The next rank notices it by gloo and ends, and so do the others one after another, whoever started them."""
    listening = launch.listen(None)
    context = forking()
    pipes = [context.Pipe(duplex=False) for _ in range(3)]
    port = listening.getsockname()[1]
    processes = [context.Process(target=hang, args=(rank, listening, port, sender), daemon=True) for rank, (_, sender) in enumerate(pipes)]
    for process in processes:
        process.start()
    listening.close()
    for _, sender in pipes:
        sender.close()

    for receiver, _ in pipes:
        assert receiver.poll(60)
        assert receiver.recv() == [7.0] * 5
    for rank in (0, 2):
        receiver, _ = pipes[rank]
        assert receiver.poll(60)
        assert "is gone: its process ended or its connection broke" in receiver.recv()
    for process in processes:
        process.join(60)

    assert [process.exitcode for process in processes] == [1, -signal.SIGKILL, 1]
