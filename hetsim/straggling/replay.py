"""Replay the job in simulation: with a rank at the median, with another split of the batch, and without the rank.

The cluster is the result of `hetsim-calibrate --from-trace`, with spells at the times of the trace.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hetsim.advice.simulated import experiment_of, run
from hetsim.calibration.from_trace import FASTEST, Intervals, cluster_of
from hetsim.cluster.fewer import without
from hetsim.cluster.parse.cluster import parse_cluster
from hetsim.errors import RunFailed
from hetsim.files.temporary import temporary_folder
from hetsim.policies.allocation import Allocation
from hetsim.runtime.experiment import Experiment
from hetsim.straggling.job import Floats, Job
from hetsim.straggling.judging import COMPUTING, LINKS, JudgedJob, Spell, Straggler
from hetsim.trust.names import resolve
from hetsim.trust.shipped import choices

LEAST_STEPS, MOST_GRADIENTS = 300, 100_000
"""The minimum steps and maximum gradients of a replay. A split by speeds needs some steps to settle."""
MOST_HEALED = 4
"""The maximum number of stragglers that are replayed one by one."""
MAX_RANKS = 1024
LIKE_EVEN = 1.02
"""The largest share of a batch relative to the smallest one up to which a split is replayed as an even one."""


@dataclass(frozen=True)
class Replay:
    """The job's time under several changes, as shares of its simulated time that would be saved."""

    error: float
    """The error of the simulated seconds per sample, relative to the trace."""
    saved: Mapping[str, float]
    """The saved shares by change."""
    remarks: tuple[str, ...] = ()


def replay_job(judged_job: JudgedJob) -> Replay:
    """Simulate the job and its variants. Raises ValueError if that is impossible."""
    job = judged_job.job
    if job.num_ranks > MAX_RANKS:
        raise ValueError(f"{job.source} has {job.num_ranks} ranks, and a replay at most {MAX_RANKS}: see the costs in the trace")
    if not (job.samples > 0).any():
        raise ValueError(f"{job.source} has no samples")
    with temporary_folder("hetsim-stragglers-") as folder:
        config = _cluster(judged_job, folder)
        experiment, split = _experiments(judged_job)

        def seconds(changed: Experiment, cluster: Mapping[str, Any] = config, leave_out: Sequence[int] = ()) -> float:
            parsed = parse_cluster(dict(cluster))
            rate = run(replace(changed, cluster=without(parsed, leave_out))).numbers["samples_per_second"]
            if not rate:
                raise ValueError("no gradient is applied in the simulation")
            return 1 / float(rate)

        def healed(stragglers: Sequence[Straggler]) -> float:
            return 1 - seconds(experiment, _healed_cluster(judged_job, config, stragglers, folder)) / base

        base = seconds(experiment)
        saved = {}
        ranks = list(dict.fromkeys(straggler.rank for straggler in judged_job.stragglers if straggler.rank is not None))
        for rank in ranks[:MOST_HEALED]:
            stragglers = [straggler for straggler in judged_job.stragglers if straggler.rank == rank]
            saved[f"rank {rank} at the median"] = healed(stragglers)
        if len(ranks) > 1:
            saved["all of them at the median"] = healed([s for s in judged_job.stragglers if s.rank is not None])
        if split is not None:
            saved["DBS"] = 1 - seconds(split) / base
        remarks = []
        if 0 < len(ranks) < job.num_ranks - 1:
            name = f"without rank {ranks[0]}" if len(ranks) == 1 else "without all of them"
            others, _ = _experiments(judged_job, leave_out=ranks)
            saved[name] = 1 - seconds(others, _relieved_cluster(judged_job, config, ranks), leave_out=ranks) / base
    measured = job.seconds / float(job.samples.sum())
    if job.collectives is not None and job.method not in ("ssgd", "dbs"):
        remarks.append("a step is replayed as gradients and what is left of the all-reduce after them")
    if not job.has_samples:
        remarks.append("the files have no batch sizes: for DBS, a step's time is taken to be proportional to its samples")
    return Replay(base / measured - 1, saved, tuple(remarks))


def _experiments(judged_job: JudgedJob, leave_out: Sequence[int] = ()) -> tuple[Experiment, Experiment | None]:
    """The job, and the job with a batch split by DBS; None instead if such a split makes no sense.

    Without the ranks in `leave_out`, the others compute the whole batch of a job with collectives.
    """
    job = judged_job.job
    samples = np.delete(job.samples, leave_out, axis=0)
    num_ranks = len(samples)
    steps = max(LEAST_STEPS, min(job.num_steps, MOST_GRADIENTS // num_ranks))
    together = job.collectives is not None
    shares = [max(1, int(np.median(row[row > 0]))) if (row > 0).any() else 1 for row in samples]
    sums = job.samples.sum(axis=0)
    batch = max(num_ranks, int(np.median(sums[sums > 0]))) if together else sum(shares)
    words = [
        *("cluster=uniform4", f"cluster.nodes=[{{count: {num_ranks}, seconds_per_sample: 1, overhead_seconds: 0}}]"),
        *("workload=phantom", f"workload.num_parameters={max(1, job.nbytes // 4)}"),
        f"workload.num_samples={max(batch, job.num_samples or 20 * batch)}",
        *(f"batch_size={batch}", "budget.epochs=null", "trace=none", "pictures=false"),
        f"budget.updates={steps if together else steps * num_ranks}",
    ]
    adapts = _adapts(job.allocation)
    own_split = [f"allocation={job.allocation}"] if adapts else ["allocation=fixed", f"allocation.parts={shares}"]
    if not adapts and max(shares) <= LIKE_EVEN * min(shares):
        own_split = ["allocation=even"]
    if not together:
        return experiment_of([*words, f"method={_method(job.method)}", *own_split], None), None
    experiment = experiment_of([*words, "method=ssgd", "weighting=per_sample", *own_split], None)
    slow = any("chronic" in straggler.kinds for straggler in judged_job.stragglers)
    if adapts or not slow or job.method not in ("ssgd", "ddp"):
        return experiment, None
    return experiment, experiment_of([*words, "method=ssgd", "weighting=per_sample", "allocation=dbs"], None)


def _adapts(allocation: str) -> bool:
    """Whether a shipped allocation of this name changes the split by what it observes, and leaves no rank out."""
    target = choices("allocation").get(allocation, {}).get("_target_")
    if target is None:
        return False
    kind: Any = resolve(target, key="allocation", group="allocation", kind=Allocation)
    return kind.observe is not Allocation.observe and not kind.leaves_out


def _method(name: str) -> str:
    if name not in choices("method"):
        raise ValueError(f"method {name} does not ship with hetsim, so the job is not replayed")
    return name


def _cluster(judged_job: JudgedJob, folder: Path) -> dict[str, Any]:
    """The cluster of the trace. Slowdowns are written to files in the folder."""
    job = judged_job.job
    factors = np.ones_like(job.gradients)
    for straggler in _of_computing(judged_job):
        for spell in straggler.spells:
            factors[list(straggler.ranks), spell.first : spell.last + 1] *= spell.factor
    rank, step = np.nonzero(np.isfinite(job.gradients) & (job.samples > 0))
    gradients = _intervals(rank, step, (job.gradients / factors)[rank, step], job.samples[rank, step])
    updates = _intervals(rank, step, (job.updates / factors)[rank, step], job.samples[rank, step])
    ranks, steps = (indices.ravel() for indices in np.indices(job.gradients.shape))
    mean = float(job.collectives.mean()) if job.collectives is not None else 0.0
    kept = np.full(len(ranks), job.collectives is not None)
    reduced = _intervals(ranks[kept], steps[kept], np.full(kept.sum(), mean), np.full(kept.sum(), max(8, job.nbytes)))
    config = cluster_of("replayed", job.num_ranks, gradients, updates, reduced).config
    if job.links is not None:
        for node, link_seconds in zip(config["nodes"], job.links, strict=True):
            node |= _links(2 * job.nbytes / max(1e-9, float(np.nanmean(link_seconds)) if np.isfinite(link_seconds).any() else 1e-9))
        config["network"]["sharing"] = "none"
        config["server"] = {"seconds_per_update": job.server_seconds}
    _add_slowdowns(config["nodes"], job, _of_computing(judged_job), folder)
    return config


def _of_computing(judged_job: JudgedJob) -> list[Straggler]:
    return [straggler for straggler in judged_job.stragglers if straggler.part == COMPUTING]


def _add_slowdowns(nodes: Sequence[dict[str, Any]], job: Job, stragglers: Sequence[Straggler], folder: Path) -> None:
    """Write the spells of these stragglers to files, and name the files in the nodes."""
    for rank, node in enumerate(nodes):
        spells = sorted(
            (spell for straggler in stragglers if rank in straggler.ranks for spell in straggler.spells), key=lambda spell: spell.first
        )
        if spells:
            begins = _begins(job, rank)
            text = "seconds,factor\n" + "".join(f"{moment!r},{factor!r}\n" for moment, factor in _changes(spells, begins))
            path = folder / f"{rank}-{zlib.crc32(text.encode())}.csv"
            path.write_text(text)
            node |= {"slowdown": str(path), "slowdown_period_seconds": float(begins[-1])}


def _links(rate: float) -> dict[str, float]:
    return dict.fromkeys(("uplink_bytes_per_second", "downlink_bytes_per_second"), float(f"{min(FASTEST, max(1.0, rate)):.4g}"))


def _intervals(rank: Any, step: Any, seconds: Floats, size: Any) -> Intervals:
    return Intervals(rank, step, np.zeros(len(seconds)), seconds, np.asarray(size).astype(np.int64))


def _begins(job: Job, rank: int) -> Floats:
    """The beginning of each step of a rank, and the end of the last one."""
    if job.collectives is not None:
        lasts = np.nanmax(job.computing, axis=0) + job.collectives
    else:
        lasts = np.nan_to_num(job.computing[rank]) + (np.nan_to_num(job.links[rank]) if job.links is not None else 0.0)
    begins: Floats = np.r_[0.0, np.cumsum(lasts)]
    return begins


def _changes(spells: Sequence[Spell], begins: Floats) -> Iterator[tuple[float, float]]:
    """The rows of a slowdown file: a time, and the factor on all times from then on."""
    yield 0.0, 1.0
    for spell in spells:
        if begins[spell.last + 1] > begins[spell.first]:
            yield float(begins[spell.first]), spell.factor
            yield float(begins[spell.last + 1]) - 1e-9, 1.0


def _healed_cluster(judged_job: JudgedJob, config: Mapping[str, Any], stragglers: Sequence[Straggler], folder: Path) -> Mapping[str, Any]:
    """The cluster with these stragglers at the median of the fast ranks: without their spells, and with that rank's times."""
    healed = deepcopy(dict(config))
    nodes = healed["nodes"]
    for straggler in stragglers:
        judged = judged_job.links if straggler.part == LINKS else judged_job.computing
        if straggler.rank is None or judged is None or "chronic" not in straggler.kinds:
            continue
        middle, node = nodes[int(np.argmin(np.abs(np.log(judged.slowdown))))], nodes[straggler.rank]
        replaced = [key for key in {*middle, *node} if ("link_" in key) == (straggler.part == LINKS)]
        nodes[straggler.rank] = {
            **{key: value for key, value in node.items() if key not in replaced},
            **{key: value for key, value in middle.items() if key in replaced},
        }
    for node in nodes:
        for key in ("slowdown", "slowdown_period_seconds"):
            node.pop(key, None)
    _add_slowdowns(nodes, judged_job.job, [straggler for straggler in _of_computing(judged_job) if straggler not in stragglers], folder)
    chronic = [straggler.rank for straggler in stragglers if straggler.part == COMPUTING and "chronic" in straggler.kinds]
    return _relieved_cluster(judged_job, healed, chronic)


def _relieved_cluster(judged_job: JudgedJob, config: Mapping[str, Any], ranks: Sequence[int | None]) -> Mapping[str, Any]:
    """The cluster whose all-reduce no longer waits for the quotas of these ranks.

    All ranks add up equal parts. So under CPU quotas, an all-reduce is slower by the same factor as the slowest rank's gradient.
    """
    slowdown = judged_job.computing.slowdown
    if not judged_job.job.capped_collectives or judged_job.job.collectives is None:
        return config
    others = [float(rank_slowdown) for rank, rank_slowdown in enumerate(slowdown) if rank not in ranks]
    factor = max([1.0, *others]) / max(1.0, float(slowdown.max()))
    network = config["network"]
    table = [[nbytes, factor * seconds] for nbytes, seconds in network["all_reduce_table"]]
    return {**config, "network": {**network, "all_reduce_table": table}}


def replay_or_none(judged_job: JudgedJob) -> tuple[Replay | None, str]:
    """The replay of a job with stragglers; None and the reason without a replay."""
    if not judged_job.stragglers:
        return None, ""
    with suppress(RunFailed):
        try:
            return replay_job(judged_job), ""
        except ValueError as error:
            return None, f"not replayed: {error}"
    return None, "not replayed: the simulation failed"
