"""The same policy objects on real processes: the simulator's numbers, and never less than the described times."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from processes import run_in_processes
from pyarrow import parquet
from running import LONG, family, hetsim, started, wait_for
from worlds import Row, cluster, experiment, node, simulate, tiles

from hetsim.cluster.network.collectives import Collectives
from hetsim.config.build import AXES
from hetsim.coordination.base import Coordination
from hetsim.coordination.plan import Plan
from hetsim.coordination.state import State
from hetsim.distributed import Processes
from hetsim.distributed.communication.channel import decode_header, encode_header
from hetsim.distributed.environment import wait_less_for_names
from hetsim.effects import AllReduce, Batch, Commit, Gather, Gradient, Node, Now, Program, Start, Wait
from hetsim.errors import RunFailed
from hetsim.vector import Phantom, nbytes

pytestmark = pytest.mark.slow

MASTER = (("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29500"))
QUICK = cluster(
    *(node(seconds, 1e-3, seconds_per_update=5e-4) for seconds in (4e-5, 1e-5, 2e-5)),
    network={"latency_seconds": 1e-3, "bytes_per_second": 1e8},
    seconds_per_update=5e-4,
)
"""Three nodes of unequal speed whose steps take milliseconds."""


@pytest.mark.parametrize("allocation", ["allocation=even", "allocation=dbs"])
@pytest.mark.sampled(1)
def test_synchronous_parameters_are_the_simulators(allocation: str) -> None:
    """SSGD weighted per sample in float64: every committed version agrees to 1e-12, so the serial law holds here too."""
    made = experiment(
        "method=ssgd", allocation, "weighting=per_sample", cluster=QUICK, batch_size=48, dtype="float64", budget={"epochs": 1}
    )

    real, simulated = run_in_processes(made)[0].states, simulate(made).states

    assert [state.version for state in real] == [state.version for state in simulated] == list(range(1, 31))
    for mine, theirs in zip(real, simulated, strict=True):
        torch.testing.assert_close(mine.weights, theirs.weights, rtol=0, atol=1e-12)


def test_single_precision_agrees_over_the_first_commits() -> None:
    """float32 drifts by rounding alone: within 1e-5 over twenty commits."""
    made = experiment("method=ssgd", cluster=QUICK, batch_size=48, budget={"updates": 20})

    real, simulated = run_in_processes(made)[0].states, simulate(made).states

    assert len(real) == 20
    for mine, theirs in zip(real, simulated, strict=True):
        torch.testing.assert_close(mine.weights, theirs.weights, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "method",
    [("method=ssgd", "allocation=dbs"), ("method=asgd",), ("method=dbs_sgd",), ("method=ssgd", "coordination=parameter_server")],
    ids=" ".join,
)
@pytest.mark.parametrize("pad", [True, False], ids=["pad", "none"])
@pytest.mark.sampled(3)
def test_each_position_is_handed_out_once(method: tuple[str, ...], pad: bool) -> None:
    """Whoever computes, in whatever order: an epoch budget is the sample sequence, once."""
    made = experiment(*method, cluster=QUICK, batch_size=48, budget={"epochs": 1})

    parts = run_in_processes(made, pad=pad)

    assert tiles([batch for part in parts[: made.num_workers] for batch in part.computed], stop=1437)
    assert parts[made.leader].states[-1].num_samples == 1437


def test_padding_is_never_undercut() -> None:
    """No gradient, update or message takes less than the cluster describes; nor does a whole run."""
    made = experiment("method=asgd", cluster=QUICK, batch_size=48, budget={"epochs": 1})
    described = made.cluster

    parts = run_in_processes(made)

    size = nbytes(parts[made.leader].states[-1].weights)
    rows = [row for part in parts for row in part.rows]
    assert {row.kind for row in rows} == {"gradient", "update", "message", "apply", "commit"}
    for row in rows:
        took = row.end - row.start
        if row.kind == "gradient":
            speed = described.nodes[row.rank]
            assert took >= speed.overhead_seconds + row.samples * speed.seconds_per_sample - 1e-9
        if row.kind == "update":
            assert took >= 5e-4 - 1e-9
        if row.kind == "message":
            assert row.nbytes in (0, size)
            assert took >= described.message_seconds(0, 1, row.nbytes) - 1e-9


@pytest.mark.realtime
@pytest.mark.parametrize("method", [("method=asgd",), ("method=ssgd", "coordination=parameter_server")], ids=" ".join)
def test_messages_never_get_more_of_the_server_s_links_than_they_carry(method: tuple[str, ...]) -> None:
    """Of the messages in one direction, those that are sent and delivered within any stretch of time fit through the link in it.

    Where the machine stands still, the end of a transfer may be told before the server knows of another that had begun, so a few may be
    early. Without shared links, most of them are.
    """
    carries, latency = 2e6, 1e-3
    described = cluster(*[node(1e-5, 1e-3)] * 3, network={"latency_seconds": latency, "bytes_per_second": 1e9})
    described["server"] |= {"uplink_bytes_per_second": 2 * carries, "downlink_bytes_per_second": carries}
    made = experiment(*method, cluster=described, batch_size=48, budget={"updates": 20})

    rows = [row for part in run_in_processes(made) for row in part.rows if row.kind == "message" and row.nbytes]
    to_server, from_server = ([row for row in rows if (row.rank == 3) is back] for back in (False, True))
    assert (len(to_server), len(from_server)) >= (20, 20)
    early = sum(too_early(messages, on, latency) for messages, on in ((to_server, carries), (from_server, 2 * carries)))

    assert early <= len(rows) / 10


def too_early(messages: Sequence[Row], capacity: float, latency: float) -> int:
    """How many messages have come when no link of this capacity had carried all that was sent since another one, and came before it."""
    found = 0
    for first in messages:
        sent = 0
        for end, size in sorted((row.end, row.nbytes) for row in messages if row.start >= first.start):
            sent += size
            found += end - latency - first.start < sent / capacity - 1e-9
    return found


def test_a_synchronous_run_is_never_shorter_than_its_simulation() -> None:
    """Each reduction and gather waits for the last to enter and then its described time, so the ends cannot come early."""
    made = experiment("method=ssgd", "allocation=dbs", cluster=QUICK, batch_size=48, budget={"updates": 12})

    real = [row.end for row in run_in_processes(made)[0].rows if row.kind == "commit"]

    simulated = simulate(experiment("method=ssgd", "allocation=even", cluster=QUICK, batch_size=48, budget={"updates": 1})).seconds
    assert len(real) == 12
    assert real[0] >= simulated[0] + Collectives(made.cluster).gather_seconds() - 1e-9
    assert real == sorted(real)


def test_a_reduction_is_held_since_the_last_entry() -> None:
    """On every rank alike: the slowest node's gradient, then the described ring."""
    made = experiment("method=ssgd", "allocation=dbs", cluster=QUICK, batch_size=48, budget={"updates": 4})

    parts = run_in_processes(made)

    ring, size = Collectives(made.cluster), nbytes(parts[0].states[-1].weights)
    for kind, described in (("all_reduce", ring.all_reduce_seconds(size)), ("gather", ring.gather_seconds())):
        meetings = list(zip(*([row for row in part.rows if row.kind == kind] for part in parts), strict=True))
        assert len(meetings) == 4
        for rows in meetings:
            last = max(row.start for row in rows)
            assert all(row.end >= last + described - 1e-9 for row in rows)


def test_a_reduction_over_links_that_change_is_held_as_long_as_they_take_then(tmp_path: Path) -> None:
    """From its last entry on, by the run's clock: links are a hundred times slower after the first update."""
    (tmp_path / "slow.csv").write_text("seconds,factor\n0,1\n0.03,100\n")
    slow = {**QUICK, "nodes": [{**row, "link_slowdown": str(tmp_path / "slow.csv")} for row in QUICK["nodes"]]}
    slow["network"] = {**QUICK["network"], "sharing": "max_min"}
    made = experiment("method=ssgd", cluster=slow, batch_size=48, budget={"updates": 4})

    parts = run_in_processes(made)

    ring, size = Collectives(made.cluster), nbytes(parts[0].states[-1].weights)
    meetings = list(zip(*([row for row in part.rows if row.kind == "all_reduce"] for part in parts), strict=True))
    assert len(meetings) == 4
    for rows in meetings:
        last = max(row.start for row in rows)
        assert all(row.end >= last + ring.all_reduce_seconds(size, begins=last) - 1e-9 for row in rows)
    assert ring.all_reduce_seconds(size, begins=1.0) > 1.1 * ring.all_reduce_seconds(size, begins=0.0)


@pytest.mark.realtime
def test_what_cannot_keep_the_described_pace_is_counted_and_told(tmp_path: Path) -> None:
    """On a cluster faster than any machine everything is late, and the summary says so."""
    impossible = cluster(*[node(1e-12, seconds_per_update=1e-12)] * 2, network={"latency_seconds": 0.0, "bytes_per_second": 1e15})
    made = experiment("method=ssgd", "workload=quadratic", cluster=impossible, budget={"updates": 5})

    summary = Processes().run(made, tmp_path, "")

    assert summary is not None
    late_seconds = summary["emulation"]["gradient"].pop("late_seconds")
    assert summary["emulation"]["gradient"] == {"count": 10, "late": 10}
    assert 0 < late_seconds <= 2 * summary["seconds"]
    assert "10 of 10 gradients" in summary["warnings"][0]
    assert "took longer than the cluster describes" in summary["warnings"][0]


def test_the_summary_says_that_links_were_shared(tmp_path: Path) -> None:
    """With a server and padding; an all-reduce is held by its closed form, and without padding the network is what it is."""
    described = cluster(*[node(1e-5)] * 2)
    described["server"] |= {"uplink_bytes_per_second": 1e9}
    server, none = (
        experiment(f"method={method}", "workload=phantom", cluster=described, budget={"updates": 3}) for method in ("asgd", "ssgd")
    )

    told = [
        Processes(emulate=emulate).run(made, tmp_path / str(k), "")
        for k, (made, emulate) in enumerate(((server, "pad"), (none, "pad"), (server, "none")))
    ]

    assert [summary is not None and summary["emulation"].get("shared_links") for summary in told] == [True, None, None]


def test_a_run_leaves_its_files_and_a_trace_of_every_rank(tmp_path: Path) -> None:
    """One schema for both backends."""
    made = experiment("method=dbs_sgd", cluster=QUICK, batch_size=48, budget={"epochs": 1}, trace="full", pictures=True)

    summary = Processes(emulate="none").run(made, tmp_path, "seed: 0\n")

    assert {path.name for path in tmp_path.iterdir()} == {
        *("summary.json", "trace.parquet", "curve.csv", "timeline.png", "curve.png", "config.yaml")
    }
    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    assert summary is not None
    assert summary["num_samples"] == sum(worker["samples"] for worker in summary["per_worker"]) == 1437
    assert summary["backend"] == "dist"
    assert summary["warnings"] == []
    trace = parquet.read_table(tmp_path / "trace.parquet").to_pydict()
    assert set(trace["rank"]) == {0, 1, 2, 3}
    assert trace["kind"].count("commit") == summary["num_updates"]


@pytest.mark.parametrize("method", [("method=ssgd",), ("method=asgd",)], ids=" ".join)
def test_phantoms_travel_too(method: tuple[str, ...], tmp_path: Path) -> None:
    """A timing-only run works in both worlds."""
    made = experiment(*method, "workload=phantom", "allocation=dbs", cluster=QUICK, batch_size=48, budget={"updates": 3})

    summary = Processes().run(made, tmp_path, "")

    assert summary is not None
    assert summary["num_updates"] == 3
    assert summary["seconds"] > made.cluster.message_seconds(0, 1, 4_000_000)
    assert summary["final"] == {"train_loss": None, "test_accuracy": None}


def test_a_run_goes_on_from_a_committed_state() -> None:
    """Stop at update 4, start again from what Commit was given: the tenth version is the uninterrupted run's."""
    made = experiment("method=ssgd", cluster=QUICK, batch_size=48, dtype="float64", budget={"updates": 10})
    whole = simulate(made, saved=True)

    resumed = run_in_processes(made, checkpoint=whole.checkpoints[3])[0].states

    assert [state.version for state in resumed] == list(range(5, 11))
    torch.testing.assert_close(resumed[-1].weights, whole.weights, rtol=0, atol=1e-12)


@pytest.mark.realtime
def test_a_budget_of_seconds_stops_every_rank_at_the_same_commit() -> None:
    """Rank 0 judges and tells the others: nobody waits for a reduction that never comes."""
    made = experiment("method=ssgd", cluster=QUICK, batch_size=48, budget={"seconds": 0.5})

    parts = run_in_processes(made)

    commits = [row for row in parts[0].rows if row.kind == "commit"]
    assert commits[-1].end >= 0.5
    assert len(commits) > 1
    assert all(commit.end < 0.5 for commit in commits[:-1])
    assert [sum(row.kind == "all_reduce" for row in part.rows) for part in parts] == [len(commits)] * 3


@dataclass(frozen=True, kw_only=True)
class Overlapped(Coordination):
    """Start a reduction and a gather, compute meanwhile, then wait for both."""

    needs_server: ClassVar[bool] = False

    def program(self, node: Node, plan: Plan, state: State) -> Program[None]:
        """Check the answers, and that the times overlap."""
        for version in range(1, NUM_TRIES + 1):
            began = yield from Now()
            reduction = yield from Start(AllReduce(state.weights * 0 + node.rank))
            gathering = yield from Start(Gather(float(node.rank)))
            yield from Gradient(at=state.weights, batch=Batch(48 * node.rank, 48), version=version - 1)
            total = yield from Wait(reduction)
            numbers = yield from Wait(gathering)
            ended = yield from Now()
            ordered = yield from AllReduce(state.weights * 0 + (1.0, 1e16, -1e16)[node.rank])
            assert total[0] == 3
            assert ordered[0] == (1.0 + 1e16) - 1e16 == 0.0  # in another order it is 1
            assert numbers == (0.0, 1.0, 2.0)
            yield from Commit(version, State(version=version, weights=state.weights * 0 + (ended - began)))


NUM_TRIES = 10


@pytest.mark.realtime
def test_what_was_started_goes_on_while_the_program_computes() -> None:
    """The described gradient (40 ms) hides the described reduction and gather (6 ms): the run takes the longer, if nothing else does."""
    slow = cluster(
        *[node(0.8e-3, 1.6e-3)] * 3,
        network={"latency_seconds": 1e-3, "bytes_per_second": 1e9},
    )
    made = experiment("method=ssgd", "workload=quadratic", cluster=slow, batch_size=48, dtype="float64", budget={"updates": NUM_TRIES})
    policies = {axis: getattr(made.coordination, axis) for axis in AXES}
    made = replace(made, coordination=Overlapped(**policies))

    took = [float(state.weights[0]) for state in run_in_processes(made)[0].states]

    assert len(took) == NUM_TRIES
    assert min(took) == pytest.approx(0.04, abs=0.003)


@dataclass(frozen=True, kw_only=True)
class AsksForNames(Coordination):
    """A method without gradients, each of whose ranks checks that it does not wait for a name server as long as usual."""

    needs_server: ClassVar[bool] = False

    def program(self, node: Node, plan: Plan, state: State) -> Program[None]:
        """Commit once, or say what is wrong."""
        if "RES_OPTIONS" not in os.environ:
            raise RunFailed(f"rank {node.rank} waits for five seconds")
        yield from Commit(1, state.evolve(version=1))


def test_a_lost_answer_of_a_name_server_delays_no_start_by_five_seconds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """torch's store asks for the name of each client's address. What the user has set is left alone, and the user's process, too."""
    monkeypatch.delenv("RES_OPTIONS", raising=False)
    made = experiment("method=ssgd", "workload=quadratic", cluster=QUICK, batch_size=48, budget={"updates": 1})
    policies = {axis: getattr(made.coordination, axis) for axis in AXES}
    made = replace(made, coordination=AsksForNames(**policies))

    summary = Processes(emulate="none").run(made, tmp_path, "")

    assert summary is not None
    assert summary["num_updates"] == 1
    assert "RES_OPTIONS" not in os.environ
    monkeypatch.setenv("RES_OPTIONS", "timeout:9")
    wait_less_for_names()
    assert os.environ["RES_OPTIONS"] == "timeout:9"


def test_headers_keep_numbers_and_ranges() -> None:
    """What a header says survives the wire to the last bit, and the payload's size goes before it."""
    numbers = torch.linspace(0, 1, 5, dtype=torch.float64)
    header, expected = decode_header(encode_header({"version": 7, "seconds": 0.1 + 0.2, "batch": Batch(3, 4)}, numbers))

    assert header == {"version": 7, "seconds": 0.1 + 0.2, "batch": Batch(3, 4)}
    assert expected is not None
    assert expected.nbytes == 40
    assert torch.equal(expected.of(numbers.view(torch.uint8)), numbers)
    _, expected = decode_header(encode_header({}, Phantom(12, 2)))
    assert expected is not None
    assert (expected.nbytes, expected.of(torch.empty(12))) == (12, Phantom(12, 2))
    assert decode_header(encode_header({}, None)) == ({}, None)


def test_a_port_that_is_taken_is_one_sentence() -> None:
    """The store's port is had before any process starts, or not at all."""
    from hetsim.distributed.launch.local import listen

    with listen(None) as taken:
        port = taken.getsockname()[1]

        with pytest.raises(ValueError, match=rf"backend\.port={port} is not available \(Address already in use\): choose another"):
            listen(port)


def test_a_wrong_number_of_processes_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under torchrun the world has a rank for each worker, and one for the server of a method that has one."""
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "3"), ("LOCAL_WORLD_SIZE", "3"), ("TORCHELASTIC_RUN_ID", "none"), *MASTER):
        monkeypatch.setenv(name, value)

    Processes().check(experiment("method=ssgd", cluster=QUICK))
    with pytest.raises(
        ValueError, match=r"torchrun started 3 processes, but method=asgd on cluster=by hand takes 4: 3 workers and a server"
    ):
        Processes().check(experiment("method=asgd", cluster=QUICK))


def test_padding_across_hosts_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is due is told by one clock."""
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "3"), ("LOCAL_WORLD_SIZE", "2"), *MASTER):
        monkeypatch.setenv(name, value)

    Processes().check(experiment("method=ssgd", cluster=QUICK))
    with pytest.raises(ValueError, match=r"^backend\.emulate=pad needs one clock"):
        Processes(emulate="pad").check(experiment("method=ssgd", cluster=QUICK))


@pytest.mark.real_start
def test_ctrl_c_while_the_processes_start_is_quiet(tmp_path: Path) -> None:
    """They are still importing: no traceback of theirs, and nothing left."""
    command = hetsim(*LONG, folder=tmp_path / "run")
    wait_for(lambda: len(family(command.pid)) >= 3)
    time.sleep(0.3)

    os.killpg(command.pid, signal.SIGINT)
    _, told = command.communicate(timeout=120)

    wait_for(lambda: not family(command.pid))
    assert (command.returncode, told) == (130, "hetsim: interrupted\n")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("end", ["interrupt", "kill", "lose the server", "lose all ranks"])
@pytest.mark.sampled(2)
def test_no_process_is_left_behind(end: str, tmp_path: Path) -> None:
    """Neither after Ctrl-C, nor when the parent is killed, nor when the server is, or all ranks are: and the reason is one sentence."""
    command = hetsim(*LONG, *(["method=ssgd"] if end == "lose all ranks" else []), folder=tmp_path)
    running = started(command, tmp_path)

    if end == "interrupt":
        os.killpg(command.pid, signal.SIGINT)
    elif end == "kill":
        command.kill()
    else:
        for rank in running[-4 if end == "lose all ranks" else -1 :]:
            os.kill(rank, signal.SIGKILL)
    _, told = command.communicate(timeout=120)

    wait_for(lambda: not family(command.pid))
    assert len(running) >= 6
    assert command.returncode == {"interrupt": 130, "kill": -signal.SIGKILL}.get(end, 1)
    assert "Traceback" not in told
    if end.startswith("lose"):
        assert told.strip().endswith("the run is lost")
        assert told.count("\n") == 1


def test_an_error_on_one_rank_ends_them_all(tmp_path: Path) -> None:
    """What only a process can find out, an optimizer that cannot work, reaches the user as its sentence."""
    made = experiment("method=ssgd", "optimizer=adam", cluster=QUICK, budget={"updates": 1})
    bad = replace(made, optimizer=made.optimizer.__class__(made.optimizer.optimizer.__class__("torch.optim.LBFGS")))

    with pytest.raises(ValueError, match=r"torch\.optim\.LBFGS does not work on one flat dense vector"):
        Processes().run(bad, tmp_path, "")


def test_torchrun_starts_a_run(tmp_path: Path) -> None:
    """Processes that torchrun started meet, train, and the leader alone writes."""
    two = "cluster.nodes=[{count: 2, seconds_per_sample: 1e-5, overhead_seconds: 0}]"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "hetsim"]
    overrides = ["backend=dist", "method=ssgd", "workload=quadratic", two, "budget.epochs=2", "pictures=false", f"hydra.run.dir={tmp_path}"]

    ended = subprocess.run([*command, *overrides], capture_output=True, text=True, timeout=120, check=False)

    assert ended.returncode == 0, ended.stderr
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["num_updates"] == 16
    assert summary["emulation"] == {"emulate": "none", "reduction": "ordered", "library": "gloo"}


def test_a_lost_run_says_so() -> None:
    """RunFailed takes one string, as the sentence that a user reads."""
    assert str(RunFailed("rank 2 is gone")) == "rank 2 is gone"
