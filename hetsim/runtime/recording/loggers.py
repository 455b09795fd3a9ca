"""Send a finished run to TensorBoard, Weights & Biases or MLflow: its config, its curve and the numbers of its summary."""

from __future__ import annotations

import importlib.util
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hetsim import checks
from hetsim.runtime.recording.curve import Point

MAX_PARAMETER = 500
"""The maximum length of a config value. All of MLflow's stores accept it."""
BATCH = 100
"""The number of parameters or metrics that MLflow accepts at a time."""


def check(name: str) -> None:
    """Raise ValueError for a logger that is unknown or not installed."""
    checks.choice("logger", name, tuple(LOGGERS))
    if importlib.util.find_spec(name) is None:
        raise ValueError(f"logger={name} needs the package {name}: pip install {name}, or leave logger out")


@dataclass(frozen=True)
class Log:
    """The data of a run for a logger."""

    folder: Path
    """The run's folder."""
    title: str
    config: Mapping[str, Any]
    """The config by dotted key."""
    points: Sequence[Point]
    summary: Mapping[str, Any]

    @property
    def numbers(self) -> dict[str, float]:
        """The numbers of the summary, by name."""
        values = {**self.summary, **self.summary["final"]}
        return {name: float(value) for name, value in values.items() if isinstance(value, int | float) and not isinstance(value, bool)}

    @property
    def curve(self) -> list[tuple[Point, dict[str, float]]]:
        """Each evaluation, and its finite numbers by name."""
        return [(point, dict(_finite(point))) for point in self.points]


def write(name: str, log: Log) -> None:
    """Send a run to this logger. The run's own files are already complete, so an error of the logger is only a warning."""
    try:
        place = log.folder / PLACES[name]
        if place.is_symlink():
            raise ValueError(f"{place} is a link, and would be written through: remove it")
        LOGGERS[name](log)
    except Exception as error:
        reason = checks.one_line(f"{type(error).__name__}: {error}")
        warnings.warn(f"logger={name} did not get this run ({reason}); the run's own files are complete", stacklevel=2)


def _write_tensorboard(log: Log) -> None:
    """Write event files to `tensorboard` in the run's folder. Their times are seconds of the run's clock."""
    from torch.utils.tensorboard import SummaryWriter

    place = log.folder / "tensorboard"
    for earlier in place.glob("events.out.tfevents.*"):  # of a run that this one replaces
        earlier.unlink()
    with SummaryWriter(str(place)) as writer:
        for point, numbers in log.curve:
            for name, value in numbers.items():
                writer.add_scalar(f"curve/{name}", value, point.version, walltime=point.seconds)
        last = log.points[-1]
        for name, value in log.numbers.items():
            writer.add_scalar(f"summary/{name}", value, last.version, walltime=last.seconds)
        lines = "".join(f"    {checks.printable(f'{key}: {value}')}\n" for key, value in log.config.items())
        writer.add_text("config", lines, 0, walltime=0.0)


def _write_wandb(log: Log) -> None:
    """Write an offline run to `wandb` in the run's folder, for `wandb sync`. WANDB_MODE=online sends it at once."""
    import wandb

    mode = os.environ.get("WANDB_MODE", "offline")
    with wandb.init(project="hetsim", name=log.title, dir=str(log.folder), config=dict(log.config), mode=mode) as run:
        for point, numbers in log.curve:
            run.log({"seconds": point.seconds, "samples": point.samples, **numbers}, step=point.version)
        run.summary.update(log.numbers)


def _write_mlflow(log: Log) -> None:
    """Write a run of the experiment `hetsim` to `mlflow.db` in the run's folder, or to MLFLOW_TRACKING_URI."""
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    place = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(log.folder / 'mlflow.db').absolute()}"
    client = MlflowClient(tracking_uri=place)
    existing = client.get_experiment_by_name("hetsim")
    experiment = client.create_experiment("hetsim") if existing is None else existing.experiment_id
    run = client.create_run(experiment, run_name=log.title).info.run_id
    parameters = [Param(key, str(value)[:MAX_PARAMETER]) for key, value in log.config.items()]
    last = log.points[-1]
    metrics = [
        Metric(name, value, round(1000 * point.seconds), point.version) for point, numbers in log.curve for name, value in numbers.items()
    ]
    metrics += [Metric(f"summary.{name}", value, round(1000 * last.seconds), last.version) for name, value in log.numbers.items()]
    for first in range(0, max(len(parameters), len(metrics)), BATCH):
        client.log_batch(run, metrics=metrics[first : first + BATCH], params=parameters[first : first + BATCH])
    client.set_terminated(run)


def _finite(point: Point) -> Iterator[tuple[str, float]]:
    yield from ((name, value) for name, value in point.evaluation.named().items() if value is not None and math.isfinite(value))


LOGGERS = {"tensorboard": _write_tensorboard, "wandb": _write_wandb, "mlflow": _write_mlflow}
"""The functions by logger. A logger's name is also its package's name."""
PLACES = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow.db"}
"""The name of each logger's output in a run's folder."""
