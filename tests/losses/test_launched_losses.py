"""hetsim-launch, one call for each host, here on one machine: a run goes on when a worker or a host is lost, and ends with its leader."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from faulty import Survived, applied_until, check_samples, survived
from pyarrow import parquet
from running import family, free_port, wait_for
from worlds import cluster, experiment, node

from hetsim.runtime.checkpointing import STOPPED
from hetsim.runtime.experiment import Experiment

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
SECONDS = 120
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "ssgd": ("method=ssgd", {}),
    "asgd": ("method=asgd", {}),
    "od_sgd": ("method=od_sgd", {"coordination": {"warm_up": 4}}),
    "local_sgd": ("method=local_sgd", {"coordination": {"period": 2}}),
    "halos": ("method=halos", {"coordination": {"period": 2, "merge_every": 2, "num_regions": 2}}),
}
SILENT = ("stop", "hold_gil", "kill_launcher")
"""The faults that nobody sees but by silence."""
NUM_SERVERS = {"asgd": 1, "od_sgd": 1, "halos": 3}


class Hosts:
    """Calls of hetsim-launch for one run, each of which starts so many processes."""

    def __init__(
        self,
        folder: Path,
        which: str,
        counts: Sequence[int],
        *faults: str,
        lost_after: float | None = None,
        epochs: int = 4,
        typed: Sequence[str] = (),
    ) -> None:
        if lost_after is None:  # a launcher sees that a process has ended; a busy one may be silent for seconds
            lost_after = 3.0 if any(fault.split()[0] in SILENT for each in faults for fault in each.split(", ")) else 60.0
        self.folder = folder
        self.summary = folder / "run" / "summary.json"
        method, keys = METHODS[which]
        num_workers = sum(counts) - NUM_SERVERS.get(which, 0)
        self.described: Experiment = experiment(
            method, "workload=quadratic", workload={"num_parameters": 8, "num_samples": 480}, batch_size=24, dtype="float64",
            cluster=cluster(*(node(1e-5, 1e-5) for _ in range(num_workers))), budget={"epochs": epochs}, **keys,
        )  # fmt: skip
        words = [
            method, "backend=dist", f"backend.lost_after_seconds={lost_after:g}", "backend.heartbeat_seconds=0.2", "batch_size=24",
            f"cluster.nodes=[{{count: {num_workers}, seconds_per_sample: 1e-5, overhead_seconds: 1e-5}}]", f"budget.epochs={epochs}",
            "cluster.server.seconds_per_update=0",
            "trust=[launched_faulty]", "workload=quadratic", "workload._target_=launched_faulty.Launched", "dtype=float64",
            "workload.num_parameters=8", "workload.num_samples=480", f"+workload.folder={folder}",
            f"+workload.faults=[{', '.join(faults)}]", "pictures=false", f"hydra.run.dir={folder / 'run'}",
            *(f"coordination.{key}={value}" for key, value in keys.get("coordination", {}).items()), *typed,
        ]  # fmt: skip
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")])}
        port = free_port()
        self.calls: list[subprocess.Popen[str]] = []
        for number, count in enumerate(counts):
            place = f"--nodes {len(counts)} --node-rank {number} --processes {count} --master 127.0.0.1:{port}".split()
            command = [sys.executable, "-m", "hetsim.cli.launch", *place, "--", *words]
            self.calls.append(
                subprocess.Popen(
                    command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
                )
            )
        self.begun = time.monotonic()

    @property
    def ended(self) -> bool:
        """Whether a call has."""
        return any(each.poll() is not None for each in self.calls)

    def end(self) -> tuple[list[int], list[str]]:
        """The exit statuses, and what was written on standard error, of all calls; no process of theirs is left."""
        told = [without_gloos(each.communicate(timeout=SECONDS)[1]) for each in self.calls]
        wait_for(lambda: not any(family(each.pid) for each in self.calls), 20)
        return [each.returncode for each in self.calls], told

    def survive(self) -> Survived:
        """The run, which all calls that live end well."""
        statuses, told = self.end()
        assert all(status in (0, -signal.SIGKILL) for status in statuses), (statuses, told)
        assert not any(told)
        return survived(json.loads(self.summary.read_text()), self.folder, time.monotonic() - self.begun)

    def clean(self) -> None:
        """End what is left."""
        for each in self.calls:
            for pid in (each.pid, *family(each.pid)):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            each.wait()


def without_gloos(text: str) -> str:
    """Without the lines in which gloo says that it tries again to connect."""
    return "".join(line for line in text.splitlines(keepends=True) if "gloo/transport" not in line)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Any]:
    """Starts calls of hetsim-launch."""
    started: list[Hosts] = []

    def start(*about: Any, **options: Any) -> Hosts:
        started.append(Hosts(tmp_path, *about, **options))
        return started[-1]

    yield start
    for each in started:
        each.clean()


@pytest.mark.parametrize(
    ("which", "counts", "fault", "lost"),
    [
        ("asgd", (2, 2), "kill 2 6", [2]),
        pytest.param("ssgd", (2, 1), "stop 2 6", [2], marks=pytest.mark.long),
        pytest.param("ssgd", (2, 2), "kill 3 6", [3], marks=pytest.mark.long),
        pytest.param("asgd", (2, 2), "stop 0 6", [0], marks=pytest.mark.long),
        pytest.param("asgd", (3, 1), "hold_gil 1 6", [1], marks=pytest.mark.long),
        pytest.param("od_sgd", (2, 2), "segfault 2 6", [2], marks=pytest.mark.long),
        pytest.param("local_sgd", (1, 2), "kill 1 6", [1], marks=pytest.mark.long),
        ("ssgd", (1, 2), "kill 0 6", [0]),
        pytest.param("ssgd", (2, 1), "stop 0 6", [0], marks=pytest.mark.long),
        pytest.param("local_sgd", (3,), "kill 0 6", [0], marks=pytest.mark.long),
        pytest.param("ssgd", (2, 2), "leave 0 6, kill 1 12", [0, 1], marks=pytest.mark.long),
        pytest.param("ssgd", (2, 1), "kill_launcher 2 6", [2], marks=pytest.mark.long),
        pytest.param("local_sgd", (1, 2), "kill_launcher 2 6", [1, 2], marks=pytest.mark.long),
        pytest.param("asgd", (1, 1, 2), "kill_launcher 1 6", [1], marks=pytest.mark.long),
        pytest.param("halos", (2, 4), "kill 1 0", [1], marks=pytest.mark.long),
    ],
    ids=lambda value: value if isinstance(value, str) else "+".join(map(str, value)),
)
@pytest.mark.sampled(1)
def test_a_run_goes_on_without_a_rank_also_without_its_leader(
    which: str, counts: tuple[int, ...], fault: str, lost: list[int], hosts: Any
) -> None:
    """Where it is killed, hangs, or its host goes down: all other calls end well, and no sample is lost or applied twice."""
    started = hosts(which, counts, fault, epochs=40 if which == "halos" else 4)

    run = started.survive()

    assert sorted(run.lost) == lost
    check_samples(run, started.described)


@pytest.mark.parametrize("counts", [(1, 2), pytest.param((3,), marks=pytest.mark.long)])
def test_a_saved_run_is_saved_by_its_next_leader(counts: tuple[int, ...], hosts: Any) -> None:
    """On another host, which writes to the same folder; nothing unfinished is left there, and the trace is whole."""
    started = hosts("ssgd", counts, "kill 0 11", typed=["checkpoint.every_updates=4", "trace=commits"])

    run = started.survive()

    assert run.lost == [0]
    check_samples(run, started.described)
    assert not list(started.folder.glob("run/**/.*"))
    rows = parquet.read_table(started.folder / "run" / "trace.parquet").to_pylist()
    assert [row["version"] for row in rows if row["kind"] == "commit"] == list(range(1, run.summary["num_updates"] + 1))


@pytest.mark.parametrize(
    ("which", "counts", "schedule", "processes"),
    [
        ("ssgd", (1, 2), "{nodes: [0], crash: 0.5, repair: 1.5}", {0: 2}),
        pytest.param("asgd", (2, 2), "{nodes: [2], crash: 0.5, repair: 1.5}", {2: 2}, marks=pytest.mark.long),
        pytest.param("asgd", (4,), "{nodes: [1], join: 1.0}, {nodes: [0], crash: 0.5, repair: 1.0}", {0: 2, 1: 1}, marks=pytest.mark.long),
        pytest.param("local_sgd", (3,), "{nodes: [1], stop: 0.5, continue: 4.0}", {1: 2}, marks=pytest.mark.long),
    ],
    ids=lambda value: value if isinstance(value, str) else "+".join(map(str, value)),
)
def test_faults_are_injected_into_launched_processes(
    which: str, counts: tuple[int, ...], schedule: str, processes: dict[int, int], hosts: Any
) -> None:
    """On one host and on several: each launcher hurts the processes that it started, and starts the next one of a rank that comes back."""
    faults = f"+cluster.faults={{schedule: [{schedule}], lost_after_seconds: {3 if 'stop' in schedule else 60}}}"
    started = hosts(which, counts, epochs=4_000_000, typed=[faults, "checkpoint.every_seconds=1000"])

    def took_part(rank: int) -> int:
        return sum(path.stat().st_size > 0 for path in started.folder.glob(f"computed-{rank}-*"))

    wait_for(lambda: all(took_part(rank) == number for rank, number in processes.items()) or started.ended, 2 * SECONDS)
    started.calls[0].send_signal(signal.SIGTERM)
    statuses, told = started.end()

    assert statuses == [STOPPED] * len(counts), told
    positions = [position for batch in applied_until(started.folder, 10**9) for position in range(batch.start, batch.stop)]
    assert len(positions) == len(set(positions))


@pytest.mark.long
@pytest.mark.parametrize(
    ("which", "fault", "sentence"),
    [
        ("asgd", "kill_in_commit 3 6", "the process of rank 3, the server, ended by itself (exit status -9): the run is lost\n"),
        ("asgd", "kill 0 6, kill 1 6, kill 2 6", "every node of the cluster is gone at "),
    ],
    ids=["the server is killed", "all workers are killed"],
)
def test_a_run_ends_everywhere_with_its_leader_or_its_last_worker(which: str, fault: str, sentence: str, hosts: Any) -> None:
    """One sentence, the same on all hosts, and nothing of the run."""
    started = hosts(which, (2, 2), fault, epochs=4000)

    statuses, told = started.end()

    assert statuses == [1, 1]
    assert told[0] == told[1]
    assert told[0].startswith(f"hetsim-launch: error: {sentence}")
    assert told[0].endswith(": the run is lost\n")
    assert told[0].count("\n") == 1
    assert not started.summary.parent.exists()


@pytest.mark.long
@pytest.mark.parametrize("counts", [(4, 1, 1), (3, 1, 1, 1)])
def test_a_run_ends_everywhere_with_a_local_server(counts: tuple[int, ...], hosts: Any) -> None:
    """Its workers know no other, though its host has nothing else."""
    started = hosts("halos", counts, epochs=4_000_000)
    wait_for(lambda: (started.folder / "applied").exists() and (started.folder / "applied").read_text(), SECONDS)

    started.calls[-1].kill()
    statuses, told = started.end()

    assert statuses == [1] * (len(counts) - 1) + [-signal.SIGKILL]
    assert all(sentence.startswith("hetsim-launch: error: ") and sentence.count("\n") == 1 for sentence in told[:-1])
    assert not started.summary.parent.exists()


@pytest.mark.long
def test_a_saved_run_that_lost_a_host_s_processes_is_stopped_on_all_hosts(hosts: Any) -> None:
    """The call that has none left ends with the status of the others, and the run can go on with all."""
    started = hosts("ssgd", (2, 1), "kill 2 6", epochs=4_000_000, typed=["checkpoint.every_updates=100"])
    saved = started.folder / "run" / "checkpoints"
    wait_for(lambda: list(saved.glob("*.safetensors")) or started.calls[0].poll() is not None, SECONDS)

    started.calls[0].send_signal(signal.SIGTERM)
    statuses, told = started.end()

    assert statuses == [STOPPED, STOPPED], told
    assert told[0].startswith("hetsim: stopped at version ")
    assert told[1] == ""
    assert list(saved.glob("*.safetensors"))
