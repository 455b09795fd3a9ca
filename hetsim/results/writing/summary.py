"""Write the files of a finished run: summary.json, per_worker.parquet, curve.csv and the pictures."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hetsim.files.config_file import flattened, read_config
from hetsim.files.folder import finish_run, written_files
from hetsim.files.writing import begun, unfinished
from hetsim.results.writing.figures import draw_run
from hetsim.results.writing.remarks import has_diverged, remarks
from hetsim.results.writing.workers import MAX_LISTED, quantile_summary, write_workers
from hetsim.runtime.recording import loggers, metrics
from hetsim.runtime.recording.curve import Point
from hetsim.runtime.recording.outcome import PoolUse, RunOutcome


def write_summary(folder: Path, outcome: RunOutcome, summary: dict[str, Any]) -> dict[str, Any]:
    """Write summary.json, curve.csv and, if asked for, the pictures. Then give all files of the run their names.

    Returns the `summary` as written: with quantiles instead of very many workers' numbers.
    """
    if outcome.experiment.pictures:
        trace = unfinished(folder / "trace.parquet") if outcome.experiment.trace != "none" else None
        draw_run(folder, trace, outcome.points, summary)
    if outcome.experiment.save_weights is not None:
        write_weights(folder / "weights.safetensors", outcome)
    if outcome.experiment.num_workers > MAX_LISTED:
        write_workers(folder / "per_worker.parquet", summary)
        summary = quantile_summary(summary)
    with begun(folder / "curve.csv") as file:
        file.write(curve_csv(outcome.points).encode())
    with begun(folder / "summary.json") as file:
        file.write(json.dumps(summary, indent=2, allow_nan=False).encode() + b"\n")
    finish_run(folder, written_files(folder))
    if outcome.experiment.logger is not None:
        title = f"{summary['method']} on {summary['cluster']}, {summary['workload']} ({summary['backend']})"
        loggers.write(outcome.experiment.logger, loggers.Log(folder, title, dict(flattened(read_config(folder))), outcome.points, summary))
    return summary


def write_weights(path: Path, outcome: RunOutcome) -> None:
    """Write the weights as named tensors, for a model's `load_state_dict`."""
    from safetensors.torch import save

    named = {name: tensor.contiguous() for name, tensor in outcome.curve.task.named(outcome.weights).items()}
    about = {"format": "pt", "which": str(outcome.experiment.save_weights), "workload": outcome.experiment.workload.name}
    with begun(path) as file:
        file.write(_with_sorted_header(save(named, metadata=about)))


def _with_sorted_header(content: bytes) -> bytes:
    """A safetensors file whose header lists the metadata in order, because the library writes them in a random one."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode().ljust(length)
    return content[:8] + text + content[8 + length :] if len(text) == length else content


def summary_of(
    outcome: RunOutcome,
    *,
    backend: str,
    wall_seconds: float,
    devices: Sequence[str],
    emulation: Mapping[str, Any] | None = None,
    warnings: Sequence[str] = (),
) -> dict[str, Any]:
    """The numbers of a run, as in summary.json, with all workers. `devices` are the devices of the processes, in rank order."""
    experiment, last, applied = outcome.experiment, outcome.last, outcome.applied
    final = outcome.points[-1].evaluation
    numbers = metrics.summary(applied, outcome.activity)
    return {
        "method": experiment.method,
        "backend": backend,
        "cluster": experiment.cluster.name,
        "workload": experiment.workload.name,
        "seed": experiment.seed,
        "num_workers": experiment.num_workers,
        "num_updates": applied.num_updates,
        "num_samples": last.num_samples,
        "num_samples_discarded": last.num_samples_discarded,
        "num_samples_in_flight": last.num_samples_in_flight,
        "seconds": numbers["seconds"],
        "profile_seconds": outcome.profile_seconds,
        "updates_per_second": numbers["updates_per_second"],
        "samples_per_second": metrics.ratio(last.num_samples - outcome.start.num_samples, numbers["seconds"]),
        "staleness_mean": numbers["staleness_mean"],
        **{key: numbers[key] for key in ("staleness_max", "staleness_p50", "staleness_p95")},
        "num_nonfinite_gradients": numbers["num_nonfinite_gradients"],
        "idle_share": numbers["idle_share"],
        "batch_sizes": list(experiment.coordination.allocation.shares(last.allocation)),
        "final": {name: _finite(value) for name, value in final.named().items()},
        "class_accuracy": None if final.class_accuracy is None else list(final.class_accuracy),
        "diverged": has_diverged(outcome),
        "per_worker": numbers["per_worker"],
        "weight_shares": applied.weight_shares,
        "pools": pools(outcome.pools),
        "wall_seconds": wall_seconds,
        "devices": list(devices),
        "emulation": None if emulation is None else dict(emulation),
        **({"num_restarts": outcome.num_restarts} if outcome.num_restarts else {}),
        **_calibration(outcome),
        "warnings": [*warnings, *remarks(outcome)],
    }


def _calibration(outcome: RunOutcome) -> dict[str, Any]:
    """For a calibrated cluster: its date, the clusters it is composed of, and the error of its predictions."""
    calibration = outcome.experiment.cluster.calibrated
    if calibration is None:
        return {}
    tried = {"tried": dict(calibration.tried)} if calibration.tried else {}
    errors = {"error": calibration.error, "spread": calibration.spread}
    return {"calibrated": {"date": calibration.date, "composed": list(calibration.composed), **errors, **tried}}


def pools(uses: Sequence[PoolUse] | None) -> list[dict[str, Any]] | None:
    """The use of each worker's own samples, in rank order; None if all workers share the samples."""
    if uses is None:
        return None
    return [
        {"rank": rank, "samples": pool.samples, "epochs": pool.epochs, "closed": pool.closed, "remainder": pool.remainder}
        for rank, pool in enumerate(uses)
    ]


def curve_csv(points: Sequence[Point]) -> str:
    """The learning curve as CSV, the workload's own metrics last. Missing numbers are empty fields."""
    lines = [",".join(("seconds", "version", "samples", *points[0].evaluation.named()))]
    for point in points:
        values = point.evaluation.named().values()
        lines.append(f"{point.seconds!r},{point.version},{point.samples}," + ",".join("" if v is None else repr(v) for v in values))
    return "\n".join(lines) + "\n"


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
