"""Runs on real processes, with what each rank did reported to the test."""

from __future__ import annotations

import multiprocessing
import pickle
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from types import SimpleNamespace
from typing import Any

import torch.distributed as dist
from worlds import Row, rows_of

from hetsim.coordination.state import State
from hetsim.distributed.communication.gloo import GlooTransport
from hetsim.distributed.launch import local as launch
from hetsim.distributed.pacing.padding import Pace
from hetsim.distributed.rank.run import FixedMembership, RankRun, prepare_rank
from hetsim.effects import Batch, Contribution
from hetsim.runtime.experiment import Experiment
from hetsim.runtime.rank import Checkpoint, RankState
from hetsim.runtime.recording.recorder import Recorder
from hetsim.runtime.recording.trace import Trace


@dataclass
class Part:
    """What one rank did: its committed states and rank states, the ranges that it computed, its trace rows and its pace."""

    states: list[State]
    owned: list[RankState]
    computed: list[Batch]
    rows: list[Row]
    pace: Pace


class Forked(ForkServerProcess):
    """A process that hetsim's own server forks, as the ranks of a run."""

    def start(self) -> None:
        """The same as of other processes."""
        with launch.own_server():
            super().start()


def forking(*imports: str) -> Any:
    """What makes pipes and processes. Their server is that of all runs of this test process, and imports these modules, too."""
    launch.begin_server(imports)
    return SimpleNamespace(Pipe=multiprocessing.Pipe, Process=Forked)


def run_in_processes(experiment: Experiment, *, pad: bool = True, checkpoint: Checkpoint | None = None) -> list[Part]:
    """Every rank's part of a run, in rank order; the run resumes from the checkpoint, if given."""
    return run_all_in_processes([experiment], pad=pad, checkpoint=checkpoint)[0]


def run_all_in_processes(
    experiments: Sequence[Experiment], *, pad: bool = True, checkpoint: Checkpoint | None = None, timeout: float = 180
) -> list[list[Part]]:
    """The parts of several runs, one after another in the same processes; a rank that a run does not have waits for the next."""
    num_ranks = max(experiment.num_ranks for experiment in experiments)
    listening = launch.listen(None)
    context = forking(*experiments[0].imports)
    pipes = [context.Pipe(duplex=False) for _ in range(num_ranks)]
    processes = []
    for rank, (_, sender) in enumerate(pipes):
        arguments = (experiments, rank, num_ranks, pad, checkpoint, listening, listening.getsockname()[1], sender)
        processes.append(context.Process(target=_parts, args=arguments, daemon=True))
    for process in processes:
        process.start()
    listening.close()
    for _, sender in pipes:
        sender.close()
    results: list[list[Part | None]] = []
    try:
        for receiver, _ in pipes:
            assert receiver.poll(timeout), "a rank did not end in time"
            results.append(pickle.loads(receiver.recv_bytes()))
    finally:
        for process in processes:
            process.join(0 if len(results) < len(pipes) else 10)
            process.terminate()
    return [[part for part in parts if part is not None] for parts in zip(*results, strict=True)]


def _parts(
    experiments: Sequence[Experiment],
    rank: int,
    num_ranks: int,
    pad: bool,
    checkpoint: Checkpoint | None,
    listening: Any,
    port: int,
    sender: Any,
) -> None:
    fd = listening.detach() if rank == 0 else None
    store = dist.TCPStore("127.0.0.1", port, num_ranks, rank == 0, master_listen_fd=fd)
    parts = [
        _part(experiment, rank, pad, checkpoint, dist.PrefixStore(f"run {number}", store)) if rank < experiment.num_ranks else None
        for number, experiment in enumerate(experiments)
    ]
    sender.send_bytes(pickle.dumps(parts))
    store.add("done", 1)
    while rank == 0 and store.add("done", 0) < num_ranks:  # this process has the store, so it ends last
        time.sleep(0.01)


def _part(experiment: Experiment, rank: int, pad: bool, checkpoint: Checkpoint | None, store: Any) -> Part:
    task, optimizers = experiment.load()
    computed: list[Batch] = []
    gradient = task.gradient

    def recording_gradient(at: Any, batch: Batch) -> Any:
        computed.append(batch)
        return gradient(at, batch)

    task.gradient = recording_gradient  # type: ignore[method-assign]
    trace, pace = Trace(None, "full"), Pace("pad" if pad else "none")
    owned: list[RankState] = []
    with GlooTransport.connect(rank, experiment.num_ranks, store) as transport:
        run = RankRun(
            prepare_rank(transport, pace, experiment, task, optimizers, checkpoint=checkpoint), trace,
            membership=FixedMembership(transport, leader=experiment.leader), pace=pace, keep=owned.append,
            recorders=[committed := Committed()],
        )  # fmt: skip
        run.run(store)
    profiled = experiment.coordination.allocation.repetitions and rank < experiment.num_workers and checkpoint is None
    counts_layers = experiment.coordination.overlapped_bytes is not None
    num_discarded = 1 + counts_layers + (experiment.coordination.allocation.repetitions + 1 if profiled else 0)
    return Part(committed.states, owned, computed[num_discarded:], rows_of(trace), pace)


class Committed(Recorder):
    """Records the states that were committed."""

    def __init__(self) -> None:
        self.states: list[State] = []

    def commit(self, seconds: float, rank: int, state: State, applied: Sequence[Contribution]) -> None:
        self.states.append(state.evolve(outstanding=tuple(state.outstanding)))
