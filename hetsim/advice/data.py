"""An advice as plain numbers, lists and texts."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from hetsim.advice.advice import Advice, Row
from hetsim.results.tables.estimates import Estimate


def as_data(found: Advice) -> dict[str, Any]:
    """An advice as JSON data."""

    def row(each: Row) -> dict[str, Any]:
        def interval(number: Estimate) -> dict[str, float | None]:
            return {"mean": number.mean, "low": number.low, "high": number.high}

        candidate = each.candidate
        return {
            "method": candidate.method.name,
            "allocation": candidate.allocation,
            "leave_out": list(candidate.leave_out),
            "rate_factor": candidate.factor,
            "trains_as_ddp": candidate.synchronous,
            "seconds": interval(each.seconds),
            "reached": each.seconds.num_known,
            "runs": each.seconds.num_runs,
            "gain": interval(each.gain),
            "cost": each.cost,
            "why": each.why,
            "command": each.command,
            "batch_sizes": list(each.batch_sizes),
            "alike": list(each.alike),
        }

    goal = None if found.goal is None else {"accuracy": found.goal.accuracy, "loss": found.goal.loss}
    return {
        "cluster": found.cluster,
        "workload": found.workload,
        "epochs": found.epochs,
        "samples": found.num_samples,
        "goal": goal,
        "advice": found.sentence,
        "split": None if found.split is None else asdict(found.split),
        "stopped": found.stopped,
        "calibration_error": found.error,
        "rows": [row(each) for each in found.rows],
        "baseline": row(found.baseline),
        "command": found.recommended.command,
        "trains_as_ddp": None if found.alike is None else row(found.alike),
        "trains_as_ddp_on_all_nodes": None if found.alike_on_all is None else row(found.alike_on_all),
        "remarks": list(found.remarks),
        "simulated_runs": found.num_runs,
        "refused": found.refused,
    }
