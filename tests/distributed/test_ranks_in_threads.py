"""The real world of each rank over the fake transport: the simulator's numbers, and what is said when something goes wrong."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from threads import run_in_threads
from worlds import cluster, experiment, node, rows_of, simulate

from hetsim import effects as fx
from hetsim.coordination.base import Coordination
from hetsim.coordination.parameter_server import ParameterServer
from hetsim.coordination.plan import Plan
from hetsim.coordination.state import State
from hetsim.distributed.pacing.cpu_quota import CpuCap
from hetsim.distributed.rank import standstill
from hetsim.distributed.rank.results import collect_results, send_results
from hetsim.distributed.rank.run import RankRun
from hetsim.effects import AllReduce, Commit, Gradient, LocalUpdate, Node, Program, Receive, Regroup, Send, Update
from hetsim.errors import ProgramError, RunFailed
from hetsim.files.writing import unfinished
from hetsim.policies.admission import Decision, EveryGradient
from hetsim.runtime.experiment import Experiment
from hetsim.runtime.rank import RankState
from hetsim.runtime.recording.recorder import GRADIENT
from hetsim.runtime.recording.trace import MAX_LIST_NUMBERS, TracePart, append_received

pytestmark = pytest.mark.slow

QUICK = cluster(*(node(seconds) for seconds in (4e-5, 1e-5, 2e-5)), network={"latency_seconds": 1e-5, "bytes_per_second": 1e9})
SMALL: dict[str, Any] = {
    "workload": {"num_parameters": 6, "num_samples": 90},
    "batch_size": 30,
    "cluster": QUICK,
    "dtype": "float64",
    "budget": {"epochs": 2},
}
AXES = ("allocation", "weighting", "discount", "compensation", "admission", "compression")


def small(*choices: str, **keys: Any) -> Experiment:
    """A quadratic on three quick nodes."""
    return experiment(*choices, "workload=quadratic", **{**SMALL, **keys})


def by(kind: type[Coordination], base: Experiment, **changes: Any) -> Experiment:
    """The experiment with another coordination, of the same policies but for these."""
    policies = {axis: getattr(base.coordination, axis) for axis in AXES}
    return replace(base, coordination=kind(**{**policies, **changes}))


@pytest.mark.parametrize(
    ("choices", "keys"),
    [
        (("method=ssgd", "weighting=per_sample"), {}),
        (("method=dbs",), {}),
        (("method=ssgd", "coordination=overlapped_all_reduce"), {"coordination": {"bucket_bytes": 16}}),
        (("method=hetgrad", "allocation=fixed", "coordination=overlapped_all_reduce"), {"allocation": {"parts": [3, 1, 2]}}),
        (("method=diloco",), {"coordination": {"period": 2}}),
        (("method=muloco",), {"coordination": {"period": 2}}),
        (("method=sparse_loco",), {"coordination": {"period": 2}, "compression": {"keep": 1, "chunk": 4}}),
        (("method=streaming_diloco",), {"coordination": {"period": 4}}),
        (("method=pipe_sgd",), {"coordination": {"warm_up": 1}}),
        (("method=od_sgd",), {"coordination": {"warm_up": 1}}),
        (("method=hetgrad", "allocation=even"), {}),
    ],
    ids=lambda its: " ".join(its) if isinstance(its, tuple) else "",
)
def test_parameters_are_the_simulators_to_the_last_bit(choices: tuple[str, ...], keys: dict[str, Any]) -> None:
    """Of every synchronous method whose split does not follow measured seconds, or whose weighting makes that no matter."""
    described = small(*choices, **keys)

    ends = run_in_threads(described)

    leader = ends[described.leader]
    assert isinstance(leader, RankRun), ends
    assert leader.history.last.version == simulate(described).states[-1].version
    if "method=dbs" not in choices:
        assert torch.equal(leader.history.last.weights, simulate(described).weights)


def test_behind_a_barrier_parameters_are_the_simulators_but_for_the_order_of_a_sum() -> None:
    """Ranges are handed out to the workers in the order in which these are ready, and gradients are added up in rank order."""
    described = small("method=ssgd", "coordination=parameter_server")

    leader = run_in_threads(described)[described.leader]

    assert isinstance(leader, RankRun)
    torch.testing.assert_close(leader.history.last.weights, simulate(described).weights, rtol=0, atol=1e-12)


@dataclass(frozen=True)
class NeverReleases(EveryGradient):
    """Applies each gradient, and releases nobody."""

    def arrived(self, state: None, contribution: fx.Contribution) -> tuple[None, Decision]:
        return None, Decision(apply=(contribution,))


def test_a_run_in_which_nobody_can_go_on_says_who_waits_for_whom() -> None:
    """Both worlds do: the simulator at once, the real one when a second look finds the same."""
    stuck = by(ParameterServer, small("method=asgd"), admission=NeverReleases())

    ends = run_in_threads(stuck, watch=True)

    waits = "; ".join(f"rank {rank} waits for a message from rank 3" for rank in range(3))
    assert isinstance(ends[3], RunFailed)
    assert str(ends[3]) == f"the run can make no progress: {waits}; rank 3 waits for a message from anyone"
    with pytest.raises(RunFailed, match="^" + f"the simulation can make no progress: {waits}; rank 3 waits for a message from anyone"):
        simulate(stuck)


@dataclass(frozen=True, kw_only=True)
class ByHand(Coordination):
    """A method of a test's own, with a server on the last rank."""

    needs_server: ClassVar[bool] = True
    regroups: ClassVar[bool] = False

    def program(self, node: Node, plan: Plan, state: State) -> Program[State | None]:
        return self.server(node, plan, state) if node.rank == node.server else self.worker(node, plan, state)

    def server(self, node: Node, plan: Plan, state: State) -> Program[None]:
        """One round of each worker, one after another."""
        for rank in range(node.num_workers):
            message = yield from Receive(rank)
            weights = yield from Update(at=state.weights, gradient=message.payload)
            state = replace(state, version=state.version + 1, weights=weights)
            yield from Commit(state.version, state)

    def worker(self, node: Node, plan: Plan, state: State) -> Program[None]:
        """Compute, and push."""
        computed = yield from Gradient(at=state.weights, batch=fx.Batch(0, 10), version=0)
        yield from Send(node.server, computed.gradient)


@dataclass(frozen=True, kw_only=True)
class ReadsTooMuch(ByHand):
    """The server asks each message for a value that no worker sends."""

    def server(self, node: Node, plan: Plan, state: State) -> Program[None]:
        message = yield from Receive()
        yield from Update(at=state.weights, gradient=message.payload * message.weight)


def test_a_missing_header_value_is_the_same_sentence_in_both_worlds() -> None:
    """It names the value, the sender and what the header holds."""
    lacking = by(ReadsTooMuch, small("method=asgd"))

    ends = run_in_threads(lacking)

    assert isinstance(ends[3], ProgramError)
    sentence = "rank 3 reads 'weight' of a message from rank {}, whose header holds nothing: add weight=… to that Send"
    assert str(ends[3]) in {sentence.format(rank) for rank in range(3)}
    with pytest.raises(ProgramError) as raised:
        simulate(lacking)
    assert str(raised.value) in {sentence.format(rank) for rank in range(3)}


@dataclass(frozen=True, kw_only=True)
class Regroups(ByHand):
    """A worker asks for what a world may not support."""

    def worker(self, node: Node, plan: Plan, state: State) -> Program[None]:
        yield from Regroup()


def test_an_effect_that_a_world_does_not_support_is_one_sentence() -> None:
    """With world and effect."""
    ends = run_in_threads(by(Regroups, small("method=asgd")))

    assert "backend=dist does not support the effect Regroup" in " ".join(map(str, ends))


@dataclass(frozen=True, kw_only=True)
class Closes(ByHand):
    """Notes when its programs are closed."""

    closed: Any

    def worker(self, node: Node, plan: Plan, state: State) -> Program[None]:
        try:
            yield from Send(node.server, state.weights)
            yield from Receive(node.server)
        finally:
            self.closed.append(node.rank)

    def server(self, node: Node, plan: Plan, state: State) -> Program[None]:
        yield from Receive()
        raise RunFailed("the server gives up")


def test_a_program_is_closed_whatever_ends_the_run() -> None:
    """So that its own `finally` is run, on every rank."""
    closed: list[int] = []

    ends = run_in_threads(by(Closes, small("method=asgd"), closed=closed))

    assert str(ends[3]) == "the server gives up"
    assert sorted(closed) == [0, 1, 2]


@dataclass(frozen=True, kw_only=True)
class EndsEarly(ByHand):
    """The server ends while the workers wait for it."""

    def worker(self, node: Node, plan: Plan, state: State) -> Program[None]:
        yield from Receive(node.server)

    def server(self, node: Node, plan: Plan, state: State) -> Program[None]:
        yield from Commit(1, replace(state, version=1))


def test_who_waits_for_a_program_that_has_ended_says_so() -> None:
    """No message can come any more."""
    ends = run_in_threads(by(EndsEarly, small("method=asgd")))

    assert "rank 0 waits for a message, but the program of rank 3 has ended: no message can come" in [str(end) for end in ends]


@dataclass(frozen=True, kw_only=True)
class Uneven(Coordination):
    """Rank 0 enters a reduction that the others never enter."""

    needs_server: ClassVar[bool] = False

    def program(self, node: Node, plan: Plan, state: State) -> Program[None]:
        if node.rank == 0:
            yield from AllReduce(state.weights)
        yield from Commit(1, replace(state, version=1))


def test_a_reduction_that_not_all_ranks_enter_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """In both worlds, with the rank that waits in it; in the real one after a time in which nothing has changed."""
    monkeypatch.setattr(standstill, "COLLECTIVE_SECONDS", 3.0)
    uneven = by(Uneven, small("method=ssgd"))

    ends = run_in_threads(uneven, watch=True)

    assert str(ends[0]) == "the run can make no progress: rank 0 waits in a AllReduce; rank 1 has ended; rank 2 has ended"
    with pytest.raises(RunFailed, match="rank 0 waits in a AllReduce for ranks 1, 2"):
        simulate(uneven)


def at(what: str, *, collective: str | None = None, ended: bool = False, **counts: dict[str, int]) -> dict[str, Any]:
    """What a rank has written to the store."""
    return {"num_asked": 1, "description": what, "collective": collective, "ended": ended, "sent": {}, "arrived": {}, **counts}


WAITS = at("waits for a message from anyone")


@pytest.mark.parametrize(
    ("ranks", "still"),
    [
        ([WAITS, WAITS], True),
        ([WAITS, None], False),
        ([WAITS, at("has ended", ended=True)], True),
        ([at("has ended", ended=True)] * 2, False),
        ([at("in", collective="0 5 AllReduce")] * 2, False),
        ([at("in", collective="0 5 AllReduce"), at("in", collective="0 6 AllReduce")], True),
        ([at("waits", sent={"1": 3}), at("waits", arrived={"0": 2})], False),
        ([at("waits", sent={"1": 3}), at("waits", arrived={"0": 3})], True),
    ],
    ids=[
        "all wait",
        "one works",
        "one has ended",
        "all have ended",
        "the same collective",
        "two collectives",
        "a message under way",
        "none",
    ],
)
def test_what_counts_as_a_standstill(ranks: list[Any], still: bool) -> None:
    """All wait or have ended, every message has arrived, and they are not all in the same collective."""
    assert standstill.is_standstill(dict(enumerate(ranks))) is still


def test_a_collective_is_waited_for_longer() -> None:
    """One rank may be through with it while the last part is still under way to another."""
    assert standstill.patience({0: WAITS, 1: WAITS}) == 1
    assert standstill.patience({0: WAITS, 1: at("in", collective="0 5 AllReduce")}) == 300


@dataclass(frozen=True, kw_only=True)
class LocalSchedule(ByHand):
    """A server's method with a local optimizer, whose server sends no epoch: the worker says which epoch a step belongs to."""

    takes_local_steps: ClassVar[bool] = True

    def worker(self, node: Node, plan: Plan, state: State) -> Program[None]:
        x = state.weights
        for start in (0, 90, 180):
            computed = yield from Gradient(at=state.weights, batch=fx.Batch(start, 10), version=0)
            x = yield from LocalUpdate(at=x, gradient=computed.gradient, version=0, epoch=plan.epoch(start))
        yield from Send(node.server, state.weights - x)


def test_a_workers_own_schedule_follows_the_epoch_on_the_effect() -> None:
    """In both worlds alike; LocalUpdate cannot be made without one, so no schedule can freeze unseen."""
    keys = {
        "local_optimizer": {"_target_": "torch.optim.SGD", "lr": 0.1},
        "local_learning_rate_schedule": {"_target_": "torch.optim.lr_scheduler.StepLR", "step_size": 1, "gamma": 0.1},
        "budget": {"updates": 100},
    }
    decaying = by(LocalSchedule, small("method=od_sgd", **keys))
    constant = by(LocalSchedule, small("method=od_sgd", **{**keys, "local_learning_rate_schedule": None}))

    ends, frozen = run_in_threads(decaying), simulate(constant)

    assert isinstance(ends[3], RankRun), ends
    assert torch.equal(ends[3].history.last.weights, simulate(decaying).weights)
    assert not torch.equal(simulate(decaying).weights, frozen.weights)
    with pytest.raises(TypeError, match="epoch"):
        LocalUpdate(at=0.0, gradient=0.0, version=0)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", ["source", "header", "sent_at", "due_at"])
def test_a_header_value_cannot_hide_what_every_message_has(name: str) -> None:
    """It is refused where the message is made."""
    with pytest.raises(ValueError, match="give the header value another name"):
        Send(0, None, **{name: 1})


def test_ranks_hand_in_bytes_and_the_leader_has_what_all_did() -> None:
    """Numbers as JSON, rows as an Arrow stream."""
    described = small("method=ssgd")
    lateness: dict[str, Any] = {}
    devices: list[str] = []

    def finish(run: RankRun) -> None:
        if not run.record.leads:
            send_results(run, CpuCap())
        else:
            results = collect_results(run, run.trace, CpuCap())
            lateness.update(results.lateness)
            devices.extend(results.devices)

    ends = run_in_threads(described, finish=finish, pad=True)

    leader = ends[0]
    assert isinstance(leader, RankRun), ends
    assert devices == ["cpu", "cpu", "cpu"]
    assert [activity.iterations for activity in leader.metrics.activity] == [6, 6, 6]
    assert sum(activity.samples for activity in leader.metrics.activity) == 180
    assert lateness["gradient"].count == 18
    summary = leader.metrics.summary()
    assert json.loads(json.dumps(summary)) == summary


def test_a_part_of_a_trace_goes_through_bytes(tmp_path: Path) -> None:
    """All rows, also of more than one batch; anything else is one sentence."""
    from pyarrow import parquet

    from hetsim.runtime.recording.trace import Trace

    rows = [(float(i), float(i + 1), 1, GRADIENT, i, 5, 0, 0) for i in range(100_000)]
    with TracePart("full") as part:
        record, longest = part.on(GRADIENT), 0
        assert record is not None
        for row in rows:
            record(row)
            longest = max(longest, len(part.rows))
        part.close()
        assert longest <= MAX_LIST_NUMBERS
        trace = Trace(tmp_path, "full")

        append_received(trace, part.pieces(), rank=1)
        trace.close()

    table = parquet.read_table(unfinished(tmp_path / "trace.parquet"))
    assert table.column("start").to_pylist() == [row[0] for row in rows]
    assert set(table.column("kind").to_pylist()) == {"gradient"}
    with Trace(tmp_path, "full") as trace, pytest.raises(RunFailed, match="rank 1 sent a trace that cannot be read"):
        append_received(trace, iter([b"no arrow stream"]), rank=1)


def test_a_rank_owns_what_its_checkpoint_has() -> None:
    """A snapshot stays as the rank was; a restart clears what the rank alone knew."""
    rank = RankState(rank=0, version=3, own={"compression": 5}, num_messages={1: 2})
    saved = rank.snapshot()

    rank.own["compression"] = 6
    rank.num_messages[1] = 3
    rank.restart(version=4, epoch=1, optimizer="o", local_optimizer="l")

    assert (saved.version, saved.own, saved.num_messages) == (3, {"compression": 5}, {1: 2})
    assert (rank.version, rank.own, rank.num_messages) == (4, {}, {1: 3})


def test_rows_of_the_second_thread_have_the_version_of_their_start() -> None:
    """A reduction that was started at a version is recorded with it, whatever the first thread has committed meanwhile."""
    described = small("method=pipe_sgd", coordination={"warm_up": 1})

    ends = run_in_threads(described, detail="full")

    leader = ends[0]
    assert isinstance(leader, RankRun), ends
    versions = [row.version for row in rows_of(leader.trace) if row.kind == "all_reduce"]
    simulated = [row.version for row in simulate(described, trace="full").rows("all_reduce") if row.rank == 0]
    assert versions == simulated
