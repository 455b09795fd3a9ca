"""What the ranks hand in when their programs have ended, and what the leader makes of it: the last checkpoint and the summary."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from hetsim.distributed.communication.reduction import Library
from hetsim.distributed.communication.transport import Transport
from hetsim.distributed.devices import shared_gpu_warnings
from hetsim.distributed.pacing.cpu_quota import Uncapped, quota_warnings
from hetsim.distributed.pacing.padding import Lateness, clock, emulation, late_warnings
from hetsim.distributed.rank.elastic import ElasticRun
from hetsim.distributed.rank.run import RankRun
from hetsim.distributed.settings import Settings
from hetsim.effects import PeerLost
from hetsim.errors import RunStopped
from hetsim.results.writing.summary import write_summary
from hetsim.runtime.experiment import Experiment
from hetsim.runtime.metrics import RankActivity
from hetsim.runtime.trace import Trace, TracePart, append_received


def send_results(run: RankRun, cap: Uncapped, transport: Transport | None = None) -> None:
    """Send this rank's results to the leader, by the run's transport or this one: numbers as JSON, and its rows as an Arrow stream."""
    assert isinstance(run.trace, TracePart)
    is_worker = run.rank < run.experiment.num_workers
    numbers = {
        "activity": run.metrics.activity[run.rank].as_numbers() if is_worker else None,
        "joined": run.joined,
        "device": run.prepared.task.device.name,
        "gpu": run.prepared.task.device.gpu,
        "lateness": {kind: vars(lateness) for kind, lateness in run.pace.kinds.items()},
        "cap": cap.report,
        "lost": run.seen_lost() if isinstance(run, ElasticRun) else [],
    }
    run.close()
    transport = transport or run.transport
    assert transport is not None
    if isinstance(run, ElasticRun):
        run.clocks.finish_with(transport, run.pace.clock, run.rank)
    transport.send_bytes([json.dumps(numbers).encode()], run.leader)
    transport.send_bytes(run.trace.pieces(), run.leader)
    if run.saving is not None:
        transport.send_bytes([run.saving.last_part(run.state)], run.leader)


class Results(NamedTuple):
    """What the ranks hand in beside their rows and their activity."""

    lateness: dict[str, Lateness]
    """Of all ranks together, by kind."""
    devices: list[str]
    """Of each rank."""
    gpus: list[float]
    """The GPU of each rank, 0 for a rank that has none or has not handed it in."""
    caps: dict[int, dict[str, Any] | None]
    """How each rank was capped; None if it was not."""
    states: dict[int, bytes]
    """Of each other rank, its state at the end, where the run is saved."""
    missing: list[int]
    """The ranks that were lost before they had handed in all."""


def collect_results(run: RankRun, trace: Trace, cap: Uncapped, sources: Mapping[int, Transport] | None = None) -> Results:
    """On the leader: receive the other ranks' results, in rank order, with their rows for this trace.

    `sources` are the transports by which they come, if it is not the run's; what a rank that is lost has done is lost with it.
    """
    experiment, clocks = run.experiment, run.clocks
    if sources is None:
        assert run.transport is not None
        sources = {rank: run.transport for rank in range(experiment.num_ranks) if rank != run.rank}
    lateness: dict[str, Lateness] = defaultdict(Lateness, run.pace.kinds)
    devices = [run.prepared.task.device.name] * experiment.num_ranks
    gpus = [0.0] * experiment.num_ranks
    gpus[run.rank] = run.prepared.task.device.gpu
    caps, states = {run.rank: cap.report}, {}
    missing = []
    for rank, transport in sorted(sources.items()):
        try:
            if isinstance(run, ElasticRun):
                transport.unless_lost(partial(clocks.finish_with, transport, run.pace.clock, rank), rank)
            numbers = json.loads(b"".join(transport.receive_bytes(rank)))
            append_received(trace, transport.receive_bytes(rank), rank=rank, change=clocks.change(rank))
            if numbers["activity"] is not None:
                activity = RankActivity.of_numbers(numbers["activity"], experiment.coordination.num_ahead)
                if numbers["joined"]:
                    activity = activity.after(run.metrics.activity[rank])
                run.metrics.activity[rank] = activity.on_clock(*clocks.line(rank)) if clocks.several else activity
            if isinstance(run, ElasticRun):
                run.have_seen_lost(numbers["lost"], *clocks.line(rank))
            devices[rank], gpus[rank] = numbers["device"], numbers["gpu"]
            for kind, counts in numbers["lateness"].items():
                lateness[kind] += Lateness(**counts)
            caps[rank] = numbers["cap"]
            if run.saving is not None:
                states[rank] = b"".join(transport.receive_bytes(rank))
        except PeerLost:
            if not isinstance(run, ElasticRun):
                raise
            run.membership.ledger.lost_connection(rank, run.pace.clock())
            missing.append(rank)
    return Results(lateness, devices, gpus, caps, states, missing)


def close(run: RankRun, trace: Trace, states: dict[int, bytes], activity: Sequence[RankActivity], *, stopped: bool) -> None:
    """On the leader: close all recorders and this trace of all ranks, and write the last checkpoint, if the run is saved.

    In the checkpoint each worker has done this. Raises RunStopped for a run that was asked to stop. Its learning curve is evaluated when it
    goes on, as that may take longer than whoever has sent the signal waits.
    """
    if not stopped:
        run.close()
    if isinstance(run.trace, TracePart):
        rows = iter(run.trace.drain()) if stopped else run.trace.pieces()
        append_received(trace, rows, rank=run.rank, change=run.clocks.change(run.rank))
    if not stopped:
        trace.close()
    if run.saving is not None:
        assert run.saving.saver is not None
        last, seconds = run.history.last, run.metrics.applied.seconds
        run.saving.write_last(
            last, run.state, states,
            num_gradients=run.record.num_gradients(), seconds=seconds, progress=run.progress_at_end, activity=activity,
        )  # fmt: skip
        if stopped:
            raise RunStopped(run.saving.saver.sentence(last, seconds))


def summarised(
    run: RankRun, folder: Path, settings: Settings, results: Results, *,
    library: Library, begun: float, losses: dict[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """On the leader: write the run's files. Returns the summary."""
    experiment, clocks = run.experiment, run.clocks
    emulated = emulation(settings, results.lateness, library=library, shared_links=run.links is not None)
    warnings = late_warnings(results.lateness, run.metrics.applied.seconds)
    if settings.emulate == "quota":
        server = results.caps.pop(experiment.num_workers, None)
        emulated["workers"] = [
            {"rank": rank, **done} for rank, done in sorted(results.caps.items()) if done is not None and rank < experiment.num_workers
        ]
        emulated |= {} if server is None else {"server": server}
        warnings = quota_warnings(experiment, emulated["workers"])
    warnings += shared_gpu_warnings(results.gpus) + calibration_warnings(experiment) + missing_warnings(results.missing)
    if clocks.several:
        emulated["clocks"] = clocks.as_numbers()
    if losses is not None:
        emulated["losses"] = losses
    return write_summary(
        folder, run.outcome, backend="dist", wall_seconds=clock() - begun, devices=results.devices,
        emulation=emulated, warnings=warnings,
    )  # fmt: skip


def missing_warnings(ranks: Sequence[int]) -> list[str]:
    """A sentence for each rank that was lost after the last version."""
    return [f"rank {rank} was lost at the end, before it had handed in what it had recorded: what it did is missing" for rank in ranks]


def calibration_warnings(experiment: Experiment) -> list[str]:
    """A sentence if the cluster was calibrated with another PyTorch, or on other threads or devices."""
    calibrated = experiment.cluster.calibrated
    if calibrated is None:
        return []
    remark = calibrated.otherwise(torch=str(torch.__version__), threads=experiment.threads, device=experiment.device)
    return [] if remark is None else [remark]
