"""A run on real processes, with everything that went on in it told back to the test."""

from __future__ import annotations

import multiprocessing
import pickle
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from worlds import Row, rows_of

from hetsim.coordination.plan import State
from hetsim.dist import launch
from hetsim.dist.pace import Pace
from hetsim.dist.process import _group, perform
from hetsim.effects import Batch
from hetsim.experiment import Experiment
from hetsim.history import History
from hetsim.trace import Trace


@dataclass
class Part:
    """What one rank did: the states that it committed, the ranges that it computed, its rows and its pace."""

    states: list[State]
    computed: list[Batch]
    rows: list[Row]
    pace: Pace


def play(experiment: Experiment, *, pad: bool = True, state: State | None = None) -> list[Part]:
    """Every rank's part of this run, in rank order; from a committed state if one is given."""
    listening = launch.listen(None)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*launch.PRELOAD, *experiment.workload.imports])
    pipes = [context.Pipe(duplex=False) for _ in range(experiment.num_ranks)]
    processes = []
    for rank, (_, telling) in enumerate(pipes):
        arguments = (experiment, rank, pad, state, listening, listening.getsockname()[1], telling)
        processes.append(context.Process(target=_part, args=arguments, daemon=True))
    for process in processes:
        process.start()
    listening.close()
    for _, telling in pipes:
        telling.close()
    parts: list[Part] = []
    try:
        for heard, _ in pipes:
            assert heard.poll(60), "a rank did not end within a minute"
            parts.append(pickle.loads(heard.recv_bytes()))
    finally:
        for process in processes:
            process.join(0 if len(parts) < len(pipes) else 10)
            process.terminate()
    return parts


def _part(experiment: Experiment, rank: int, pad: bool, state: State | None, listening: Any, port: int, telling: Any) -> None:
    fd = listening.detach() if rank == 0 else None
    store = dist.TCPStore("127.0.0.1", port, experiment.num_ranks, rank == 0, master_listen_fd=fd)
    task, optimizer = experiment.load()
    computed: list[Batch] = []
    gradient = task.gradient

    def computing(at: Any, batch: Batch) -> Any:
        computed.append(batch)
        return gradient(at, batch)

    task.gradient = computing  # type: ignore[method-assign]
    states: list[State] = []
    trace, pace = Trace(None, "full"), Pace(pad)
    start = experiment.coordination.initial(experiment.plan(task.num_samples), task.initial()) if state is None else state
    history = History(experiment, task, trace, start, keep=states.append) if rank == experiment.leader else None
    with _group(rank, experiment.num_ranks, store) as background:
        perform(experiment, task, optimizer, rank=rank, state=start, trace=trace, history=history, pace=pace, background=background)
    telling.send_bytes(pickle.dumps(Part(states, computed[1:], rows_of(trace), pace)))  # the first gradient only warmed up
