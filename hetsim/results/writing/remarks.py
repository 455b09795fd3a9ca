"""Remarks on a finished run, for the `warnings` of its summary and for the terminal."""

from __future__ import annotations

import math
from dataclasses import fields

from hetsim.runtime.budget import DEFAULT_EPOCHS
from hetsim.runtime.recording.outcome import RunOutcome

FELT = 0.1
"""The share of a run's time from which a server's updates would matter."""
UNEQUAL = 1.2
"""The ratio of the largest to the smallest share that is worth a remark."""


def remarks(outcome: RunOutcome) -> list[str]:
    """All remarks, one sentence each."""
    experiment = outcome.experiment
    candidates = (
        _divergence(outcome),
        _nonfinite(outcome),
        experiment.coordination.remark(outcome.last),
        experiment.coordination.allocation.remark(outcome.num_epochs),
        _budget(outcome),
        *experiment.doubts,
        _tables(outcome),
        _weighting(outcome),
        _doubts(outcome),
        _calibration(outcome),
        _server_without_effect(outcome),
        _keys_without_effect(outcome),
        _late_faults(outcome),
        _late_slowdowns(outcome),
        _late_schedules(outcome),
        _large_batch(outcome),
        _unsaved_weights(outcome),
        _unused_workers(outcome),
        _closed_pools(outcome),
    )
    return [remark for remark in candidates if remark is not None]


def has_diverged(outcome: RunOutcome) -> bool:
    """Return whether the training diverged: the training loss was not finite, or ended above its initial value.

    The evaluated losses in `curve.csv` decide. Without them, the losses that were reported with the gradients decide.
    """
    return _reason(outcome) is not None


def _reason(outcome: RunOutcome) -> str | None:
    losses = {point.version: point.evaluation.train_loss for point in outcome.points if point.evaluation.train_loss is not None}
    if not losses or (outcome.divergence.reason is not None and outcome.experiment.stop_when_diverged):
        return outcome.divergence.reason
    for version, loss in losses.items():
        if not math.isfinite(loss):
            return f"its loss was not finite at version {version}"
    values = list(losses.values())
    return f"its loss rose from {values[0]:.4g} to {values[-1]:.4g}" if values[-1] > values[0] else None


def _divergence(outcome: RunOutcome) -> str | None:
    reason = _reason(outcome)
    if reason is None:
        return None
    stopped = outcome.experiment.stop_when_diverged and outcome.divergence.version == outcome.last.version
    return f"the training diverged: {reason}{', where the run was stopped' if stopped else ''}; try a lower learning_rate"


def _nonfinite(outcome: RunOutcome) -> str | None:
    """A remark on gradients that were left out because they are not finite."""
    by_rank = [activity.num_nonfinite for activity in outcome.activity]
    if not any(by_rank):
        return None
    return (
        f"{sum(by_rank)} of the gradients, of {sum(map(bool, by_rank))} of the workers, had a NaN or an infinity and were left out, so "
        "their samples taught nothing: lower learning_rate, or take nonfinite=fail to end a run at the first"
    )


def _budget(outcome: RunOutcome) -> str | None:
    if outcome.divergence.reason is not None and outcome.experiment.stop_when_diverged:
        return None
    return outcome.experiment.budget.remark(outcome.last.version, outcome.applied.seconds)


def _weighting(outcome: RunOutcome) -> str | None:
    """A remark on unequal shares with equal weights in a version of all workers, which is then not the gradient of the global batch."""
    coordination, applied = outcome.experiment.coordination, outcome.applied
    shares = coordination.allocation.shares(outcome.last.allocation)
    together = applied.num_updates > 0 and sum(applied.count) > 0.9 * len(shares) * applied.num_updates
    if not together or not coordination.weighting.equal or max(shares) <= UNEQUAL * min(shares):
        return None
    if outcome.experiment.method == "static":  # as it was published
        return None
    return (
        f"weighting=per_worker counts the mean of {max(shares)} samples as much as that of {min(shares)}, so a version is not made from "
        "the gradient of its batch: weighting=per_sample does that"
    )


def _doubts(outcome: RunOutcome) -> str | None:
    """A remark on the reasons not to trust the times of a calibrated cluster."""
    calibrated = outcome.experiment.cluster.calibrated
    return None if calibrated is None else calibrated.doubtful


def _calibration(outcome: RunOutcome) -> str | None:
    """A remark if the run differs from what the cluster was calibrated with. A phantom stands for any workload of its size."""
    experiment = outcome.experiment
    if experiment.cluster.calibrated is None:
        return None
    return experiment.cluster.calibrated.workload_warning(
        workload=None if outcome.is_phantom else experiment.workload.name,
        num_parameters=outcome.num_parameters,
        dtype=experiment.dtype,
        shares=experiment.coordination.allocation.shares(outcome.last.allocation),
    )


def _server_without_effect(outcome: RunOutcome) -> str | None:
    """A remark on described properties of a server or of shared links that have no effect, because the method has no server."""
    experiment = outcome.experiment
    cluster, server = experiment.cluster, experiment.cluster.server
    if experiment.coordination.needs_server or cluster.calibrated is not None:  # a calibration wrote them
        return None
    plain, others = type(server)(), {"seconds_per_update", "device", "assumed", *server.assumed}
    differing = [part.name for part in fields(server) if getattr(server, part.name) != getattr(plain, part.name)]
    keys = [f"server.{name}" for name in differing if name not in others]
    if server.seconds_per_update * outcome.applied.num_updates > FELT * outcome.applied.seconds:
        keys.insert(0, "server.seconds_per_update")
    keys += [] if cluster.network.sharing_noise is None else ["network.sharing_noise"]
    if not keys:
        return None
    return f"method={experiment.method} has no server, so it does not feel {', '.join(f'cluster.{key}' for key in keys)}"


def _keys_without_effect(outcome: RunOutcome) -> str | None:
    """A remark on keys that need losses or gradients, in a run without them. Keys that need weights are refused."""
    experiment = outcome.experiment
    typed = {"nonfinite=fail": experiment.nonfinite == "fail", "stop_when_diverged=true": experiment.stop_when_diverged}
    idle = [word for word, is_set in typed.items() if is_set]
    if not idle or not outcome.is_phantom:
        return None
    does = "does" if len(idle) == 1 else "do"
    return f"{' and '.join(idle)} {does} nothing, because workload={experiment.workload.name} has neither losses nor gradients"


def _late_faults(outcome: RunOutcome) -> str | None:
    """A remark on nodes whose scheduled faults are all after the end of the run."""
    end, faults = outcome.applied.seconds, outcome.experiment.cluster.faults
    absences = {rank: node_faults.scheduled for rank, node_faults in faults.nodes.items() if node_faults.scheduled}
    first = {rank: min(start or until for start, until in times) for rank, times in sorted({**absences, **faults.pauses}.items())}
    late = [(rank, seconds) for rank, seconds in first.items() if seconds > end]
    if not late:
        return None
    rank, seconds = late[0]
    others = f" (and {len(late) - 1} more)" if len(late) > 1 else ""
    return (
        f"the first fault of node {rank}{others} is at {seconds:.10g} s, after the run's end at {end:.4g} s, so it did not happen: "
        "cluster.faults counts seconds from the beginning of the run"
    )


def _late_slowdowns(outcome: RunOutcome) -> str | None:
    """A remark on the first recorded slowdown of a node or a link that begins after the end of the run."""
    end, cluster = outcome.applied.seconds, outcome.experiment.cluster
    nodes = {id(node): (rank, node) for rank, node in reversed([*enumerate(cluster.nodes)])}
    recorded = [(f"slowdown of node {rank}", node.slowdown) for rank, node in nodes.values() if rank not in cluster.faults.pauses]
    links = [(f"node {rank}", node.link_slowdown) for rank, node in nodes.values()]
    links.append(("the server", cluster.server.link_slowdown))
    links += [(f"cluster.network.racks.{name}", rack.link_slowdown) for name, rack in cluster.network.racks.items()]
    recorded += [(f"link_slowdown of {label}", slowdown.points) for label, slowdown in links if slowdown is not None]
    for label, points in recorded:
        changes = [seconds for seconds, factor in points if factor != 1]
        if changes and changes[0] > end:
            return (
                f"the {label} begins at {changes[0]:.10g} s, after the run's end at {end:.4g} s, so it did not happen: its file counts "
                "seconds from the beginning of the run"
            )
    return None


def _late_schedules(outcome: RunOutcome) -> str | None:
    """A remark on a schedule of learning rates whose first step comes after the end of the run."""
    experiment = outcome.experiment
    for recipe in (experiment.optimizer, experiment.local_optimizer):
        options = {} if recipe is None or recipe.schedule is None or outcome.is_phantom else recipe.schedule.options
        milestones = options.get("milestones")
        first = options.get("step_size", min(milestones) if milestones else 0)
        if recipe is not None and first > max(1.0, outcome.num_epochs):
            name = "milestones" if milestones else "step_size"
            return (
                f"{recipe.schedule_key}.{name} first changes the rate after {first} epochs, and the run ended after "
                f"{outcome.num_epochs:.3g}: a schedule steps once per epoch, not per update"
            )
    return None


def _large_batch(outcome: RunOutcome) -> str | None:
    """A remark on a global batch that contains samples twice. A phantom's data matter only if the user counts epochs."""
    experiment, num_samples = outcome.experiment, outcome.curve.task.num_samples
    is_endless = outcome.is_phantom and experiment.budget.epochs in (None, DEFAULT_EPOCHS)
    if experiment.batch_size <= num_samples or is_endless:
        return None
    return (
        f"batch_size={experiment.batch_size} is above the {num_samples} samples of workload={experiment.workload.name}, so a batch repeats "
        f"samples: type batch_size={max(num_samples // 10, 1)} or less"
    )


def _unsaved_weights(outcome: RunOutcome) -> str | None:
    """A remark on a training that loses its weights, or may lose them, and saves none."""
    experiment, count = outcome.experiment, outcome.num_restarts
    faults = experiment.cluster.faults
    if experiment.coordination.needs_server or faults.checkpoint is not None:
        return None
    drawn = all(rank in faults.nodes and faults.nodes[rank].seconds_to_crash for rank in range(experiment.num_workers))
    if not count and not drawn:
        return None
    often = "once" if count == 1 else f"{count} times"
    happened = (
        f"all nodes were absent at once, {often}, and the training began again at its first version" if count else "all nodes may crash"
    )
    return (
        f"{happened}, because nothing saves the weights: type +cluster.faults.checkpoint.every=30min, and its seconds and restart_seconds"
    )


def _unused_workers(outcome: RunOutcome) -> str | None:
    """A remark on workers whose own samples no version contains."""
    if outcome.pools is None or not outcome.applied.num_updates:
        return None
    unused = [rank for rank, share in enumerate(outcome.applied.weight_shares) if not share and not outcome.pools[rank].closed]
    if not unused:
        return None
    others = f" (and of {len(unused) - 1} more)" if len(unused) > 1 else ""
    return (
        f"no gradient of worker {unused[0]}{others} was applied, so the model has seen none of its own "
        f"{outcome.pools[unused[0]].samples} samples: give the run a larger budget, or take a method that drops no gradients"
    )


def _closed_pools(outcome: RunOutcome) -> str | None:
    """A remark on pools whose owners were absent at the end."""
    closed = [(rank, pool) for rank, pool in enumerate(outcome.pools or ()) if pool.closed]
    if not closed:
        return None
    rank, pool = closed[0]
    others = f" (and {len(closed) - 1} more, in pools of the summary)" if len(closed) > 1 else ""
    return (
        f"worker {rank} was absent when the run ended: its {pool.samples} samples were gone through {pool.epochs:.3g} times, and "
        f"{pool.remainder} of the last epoch are left{others}"
    )


def _tables(outcome: RunOutcome) -> str | None:
    """A remark on nodes whose single measured time is used for other sizes than the measured one."""
    shares = outcome.experiment.coordination.allocation.shares(outcome.last.allocation)
    nodes = outcome.experiment.cluster.nodes
    alone = [rank for rank, node in enumerate(nodes) if len(node.table) == 1 and node.table[0][0] != shares[rank]]
    if not alone:
        return None
    rank, (samples, seconds) = alone[0], nodes[alone[0]].table[0]
    others = f" (and of {len(alone) - 1} more)" if len(alone) > 1 else ""
    return (
        f"the table of worker {rank}{others} has one point, [{samples}, {seconds:g}], so its gradients take {seconds:g} s whatever their "
        f"samples, here {shares[rank]}: add a second point, or give seconds_per_sample and overhead_seconds"
    )
