"""The end of a run. Each rank sends its results, and the leader writes the last checkpoint and the summary."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from hetsim.distributed.communication.reduction import Library
from hetsim.distributed.environment import Settings
from hetsim.distributed.pacing.cpu_quota import CpuCap, quota_warnings
from hetsim.distributed.pacing.padding import LateResults, clock, emulation, late_warnings
from hetsim.distributed.rank.run import RankRun
from hetsim.effects import PeerLost
from hetsim.errors import RunStopped
from hetsim.pool.cores import free_cores
from hetsim.results.writing.summary import summary_of, write_summary
from hetsim.runtime.experiment import Experiment
from hetsim.runtime.recording.metrics import RankActivity
from hetsim.runtime.recording.trace import Trace, TracePart, append_received


def send_results(run: RankRun, cap: CpuCap) -> None:
    """Send this rank's results to the leader: numbers as JSON, and its rows as an Arrow stream."""
    assert isinstance(run.trace, TracePart)
    is_worker = run.rank < run.experiment.num_workers
    numbers = {
        "activity": run.metrics.activity[run.rank].as_numbers() if is_worker else None,
        "joined": run.joined,
        "device": run.prepared.task.device.name,
        "gpu": run.prepared.task.device.gpu,
        "lateness": {kind: vars(lateness) for kind, lateness in run.pace.kinds.items()},
        "cap": cap.report,
        "lost": [(rank, at - run.began) for rank, at in run.membership.ledger.unannounced.items()],
    }
    run.close()
    leader = run.parts.leader
    transport = run.transports[leader]
    transport.unless_lost(partial(run.clocks.finish_with, transport, run.pace.clock, run.rank), leader)
    transport.send_bytes([json.dumps(numbers).encode()], leader)
    transport.send_bytes(run.trace.pieces(), leader)
    if run.experiment.checkpoint.enabled:
        transport.send_bytes([run.saving.last_part()], leader)


class Results(NamedTuple):
    """The ranks' results besides their rows and their activity."""

    lateness: dict[str, LateResults]
    """The lateness of all ranks together, by kind."""
    devices: list[str]
    """The device of each rank."""
    gpus: list[float]
    """The GPU of each rank, 0 for a rank without a GPU or without results."""
    caps: dict[int, dict[str, Any] | None]
    """The CPU cap of each rank; None for a rank without a cap."""
    states: dict[int, bytes]
    """The state of each other rank at the end, if the run saves checkpoints."""
    missing: list[int]
    """The ranks that were lost before they had sent all results."""


def collect_results(run: RankRun, trace: Trace, cap: CpuCap) -> Results:
    """On the leader: receive the other ranks' results in rank order, and their rows for this trace. A lost rank's results are lost."""
    experiment, clocks = run.experiment, run.clocks
    lateness: dict[str, LateResults] = defaultdict(LateResults, run.pace.kinds)
    devices = [run.prepared.task.device.name] * experiment.num_ranks
    gpus = [0.0] * experiment.num_ranks
    gpus[run.rank] = run.prepared.task.device.gpu
    caps, states = {run.rank: cap.report}, {}
    missing = []
    for rank, transport in sorted(run.transports.items()):
        if rank == run.rank:
            continue
        try:
            transport.unless_lost(partial(clocks.finish_with, transport, run.pace.clock, rank), rank)
            numbers = json.loads(b"".join(transport.receive_bytes(rank)))
            append_received(trace, transport.receive_bytes(rank), rank=rank, change=clocks.change(rank))
            if numbers["activity"] is not None:
                activity = RankActivity.of_numbers(numbers["activity"], experiment.coordination.num_ahead)
                if numbers["joined"]:
                    activity = activity.after(run.metrics.activity[rank])
                run.metrics.activity[rank] = activity.on_clock(*clocks.line(rank)) if clocks.several else activity
            rate, shift = clocks.line(rank)
            for lost, seconds in numbers["lost"]:
                run.membership.ledger.lost_connection(lost, run.began + shift + rate * seconds)
            devices[rank], gpus[rank] = numbers["device"], numbers["gpu"]
            for kind, counts in numbers["lateness"].items():
                lateness[kind] += LateResults(**counts)
            caps[rank] = numbers["cap"]
            if experiment.checkpoint.enabled:
                states[rank] = b"".join(transport.receive_bytes(rank))
        except PeerLost:
            if not run.membership.lose(rank):
                raise
            missing.append(rank)
    return Results(lateness, devices, gpus, caps, states, missing)


def close(run: RankRun, trace: Trace, states: dict[int, bytes], activity: Sequence[RankActivity], *, stopped: bool) -> None:
    """On the leader: close all recorders and the trace of all ranks, and write the last checkpoint if the run saves any.

    `activity` is each worker's activity for the checkpoint. Raises RunStopped for a run that was asked to stop. Its learning curve is
    evaluated after the resume, because evaluating may take longer than the signal's sender waits.
    """
    if not stopped:
        run.close()
    if isinstance(run.trace, TracePart):
        rows = iter(run.trace.drain()) if stopped else run.trace.pieces()
        append_received(trace, rows, rank=run.rank, change=run.clocks.change(run.rank))
    if not stopped:
        trace.close()
    if run.experiment.checkpoint.enabled:
        run.saving.write_last(states, activity)
    if stopped:
        raise RunStopped(run.saving.saver.sentence(run.history.last, run.metrics.applied.seconds))


def write_results(run: RankRun, folder: Path, settings: Settings, results: Results, *, library: Library) -> dict[str, Any]:
    """On the leader: write the run's files. Returns the summary."""
    experiment, clocks = run.experiment, run.clocks
    emulated = emulation(settings, results.lateness, library=library, shared_links=run.emulates_links)
    warnings = late_warnings(results.lateness, run.metrics.applied.seconds)
    if settings.emulate == "quota":
        server = results.caps.pop(experiment.num_workers, None)
        emulated["workers"] = [
            {"rank": rank, **report}
            for rank, report in sorted(results.caps.items())
            if report is not None and rank < experiment.num_workers
        ]
        emulated |= {} if server is None else {"server": server}
        warnings = quota_warnings(experiment, emulated["workers"])
    warnings += shared_gpu_warnings(results.gpus) + calibration_warnings(experiment) + missing_warnings(results.missing)
    if not clocks.several:
        warnings += crowded_warnings(experiment.threads, experiment.widths[: experiment.num_workers], free_cores())
    if clocks.several:
        emulated["clocks"] = clocks.as_numbers()
    if (losses := run.membership.ledger.as_numbers(run.began)) is not None:
        emulated["losses"] = losses
    summary = summary_of(
        run.outcome, backend="dist", wall_seconds=clock() - run.begun, devices=results.devices, emulation=emulated, warnings=warnings
    )
    return write_summary(folder, run.outcome, summary)


def shared_gpu_warnings(gpus: Sequence[float]) -> list[str]:
    """A sentence for each GPU that several ranks share."""
    ranks = {gpu: [str(rank) for rank, used in enumerate(gpus) if used == gpu] for gpu in gpus if gpu}
    return [
        f"ranks {', '.join(sharing[:-1])} and {sharing[-1]} share a GPU: the steps of one take longer while another computes"
        for sharing in ranks.values()
        if len(sharing) > 1
    ]


def crowded_warnings(threads: int, widths: Sequence[int], cores: int) -> list[str]:
    """A warning if workers that compute with several threads share fewer cores, on which these threads wait for each other."""
    if threads == 1 or sum(widths) <= cores:
        return []
    return [
        f"the workers compute with {sum(widths)} threads on {cores} core{'s' * (cores > 1)}, where threads that wait for each other take "
        "many times as long: lower threads"
    ]


def missing_warnings(ranks: Sequence[int]) -> list[str]:
    """A warning for each rank that was lost after the last version."""
    return [f"rank {rank} was lost at the end, before it had sent its records: its work is missing" for rank in ranks]


def calibration_warnings(experiment: Experiment) -> list[str]:
    """A warning if the cluster was calibrated with another PyTorch, or on other threads or devices."""
    calibrated = experiment.cluster.calibrated
    if calibrated is None:
        return []
    remark = calibrated.process_warning(torch=str(torch.__version__), threads=experiment.threads, device=experiment.device)
    return [] if remark is None else [remark]
