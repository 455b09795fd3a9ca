"""A run on real processes, with everything that went on in it reported to the test."""

from __future__ import annotations

import multiprocessing
import pickle
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from worlds import Row, rows_of

from hetsim.coordination.state import State
from hetsim.dist import launch
from hetsim.dist.pace import Pace
from hetsim.dist.rank import RankRun
from hetsim.dist.transport import GlooTransport
from hetsim.effects import Batch, Contribution
from hetsim.runtime.experiment import Experiment
from hetsim.runtime.rank import Checkpoint, RankState
from hetsim.runtime.recorder import Recorder
from hetsim.runtime.trace import Trace


@dataclass
class Part:
    """What one rank did: the states that it committed and owned, the ranges that it computed, its rows and its pace."""

    states: list[State]
    owned: list[RankState]
    computed: list[Batch]
    rows: list[Row]
    pace: Pace


def play(experiment: Experiment, *, pad: bool = True, checkpoint: Checkpoint | None = None) -> list[Part]:
    """Every rank's part of this run, in rank order; from a checkpoint if one is given."""
    return play_all([experiment], pad=pad, checkpoint=checkpoint)[0]


def play_all(
    experiments: Sequence[Experiment], *, pad: bool = True, checkpoint: Checkpoint | None = None, patience: float = 60
) -> list[list[Part]]:
    """The same for several runs, one after another in the same processes; a rank that a run does not need waits for the next one."""
    num_ranks = max(experiment.num_ranks for experiment in experiments)
    listening = launch.listen(None)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*launch.PRELOAD, *experiments[0].workload.imports])
    pipes = [context.Pipe(duplex=False) for _ in range(num_ranks)]
    processes = []
    for rank, (_, telling) in enumerate(pipes):
        arguments = (experiments, rank, num_ranks, pad, checkpoint, listening, listening.getsockname()[1], telling)
        processes.append(context.Process(target=_parts, args=arguments, daemon=True))
    for process in processes:
        process.start()
    listening.close()
    for _, telling in pipes:
        telling.close()
    told: list[list[Part | None]] = []
    try:
        for heard, _ in pipes:
            assert heard.poll(patience), "a rank did not end in time"
            told.append(pickle.loads(heard.recv_bytes()))
    finally:
        for process in processes:
            process.join(0 if len(told) < len(pipes) else 10)
            process.terminate()
    return [[part for part in parts if part is not None] for parts in zip(*told, strict=True)]


def _parts(
    experiments: Sequence[Experiment],
    rank: int,
    num_ranks: int,
    pad: bool,
    checkpoint: Checkpoint | None,
    listening: Any,
    port: int,
    telling: Any,
) -> None:
    fd = listening.detach() if rank == 0 else None
    store = dist.TCPStore("127.0.0.1", port, num_ranks, rank == 0, master_listen_fd=fd)
    parts = [
        _part(experiment, rank, pad, checkpoint, dist.PrefixStore(f"run {number}", store)) if rank < experiment.num_ranks else None
        for number, experiment in enumerate(experiments)
    ]
    telling.send_bytes(pickle.dumps(parts))
    store.add("done", 1)
    while rank == 0 and store.add("done", 0) < num_ranks:  # the store is this process's: it leaves last
        time.sleep(0.01)


def _part(experiment: Experiment, rank: int, pad: bool, checkpoint: Checkpoint | None, store: Any) -> Part:
    task, optimizers = experiment.load()
    computed: list[Batch] = []
    gradient = task.gradient

    def computing(at: Any, batch: Batch) -> Any:
        computed.append(batch)
        return gradient(at, batch)

    task.gradient = computing  # type: ignore[method-assign]
    trace, pace = Trace(None, "full"), Pace(pad)
    owned: list[RankState] = []
    with GlooTransport.connect(rank, experiment.num_ranks, store) as transport:
        run = RankRun(
            experiment, task, optimizers, trace, rank=rank, transport=transport, pace=pace,
            checkpoint=checkpoint, keep=owned.append, recorders=[seen := Committed()],
        )  # fmt: skip
        run.run(store)
    profiled = experiment.coordination.allocation.repetitions and rank < experiment.num_workers and checkpoint is None
    num_thrown_away = 1 + (experiment.coordination.allocation.repetitions + 1 if profiled else 0)
    return Part(seen.states, owned, computed[num_thrown_away:], rows_of(trace), pace)


class Committed(Recorder):
    """The states that were committed."""

    def __init__(self) -> None:
        self.states: list[State] = []

    def commit(self, seconds: float, rank: int, state: State, applied: Sequence[Contribution]) -> None:
        """Remember it."""
        self.states.append(state.evolve(outstanding=tuple(state.outstanding)))
