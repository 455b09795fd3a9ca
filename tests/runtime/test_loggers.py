"""`logger=…`: TensorBoard, Weights & Biases and MLflow get the config, the curve and the numbers of the summary, in both backends."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from worlds import experiment

import hetsim
from hetsim.errors import RunFailed
from hetsim.runtime.recording import loggers

WORDS = ("method=ssgd", "workload=quadratic", "cluster=uniform4", "budget.epochs=null", "budget.updates=3", "pictures=false")


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_a_logger_that_is_not_installed_is_one_sentence(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the run."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)

    with pytest.raises(ValueError, match=f"^logger={name} needs the package {name}: pip install {name}, or leave logger out$"):
        experiment("method=ssgd", "workload=quadratic", logger=name)


def test_an_unknown_logger_is_one_sentence() -> None:
    """It names the loggers that there are."""
    with pytest.raises(ValueError, match=r"^logger must be tensorboard or wandb or mlflow, not 'csv'$"):
        experiment("method=ssgd", "workload=quadratic", logger="csv")


def test_a_logger_gets_the_config_the_curve_and_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the run's own files, which are complete by then."""
    found: list[loggers.Log] = []
    monkeypatch.setattr(loggers, "check", lambda _: None)
    monkeypatch.setitem(loggers.LOGGERS, "wandb", lambda log: found.append(log) if (log.folder / "summary.json").exists() else None)

    run = hetsim.run(*WORDS, "logger=wandb", folder=tmp_path / "run")

    log = found[0]
    assert log.title == "ssgd on uniform4, quadratic (sim)"
    assert (log.config["budget.updates"], log.config["logger"]) == (3, "wandb")
    assert [(point.version, numbers["train_loss"]) for point, numbers in log.curve] == [
        (row["version"], row["train_loss"]) for row in run.curve().to_pylist()
    ]
    assert log.numbers["updates_per_second"] == run.summary["updates_per_second"]
    assert log.numbers["train_loss"] == run.summary["final"]["train_loss"]
    assert "diverged" not in log.numbers


def test_an_error_of_a_logger_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run has finished, and its files are complete."""

    def failing(_: loggers.Log) -> None:
        raise RunFailed("no\nnetwork")

    monkeypatch.setattr(loggers, "check", lambda _: None)
    monkeypatch.setitem(loggers.LOGGERS, "wandb", failing)

    with pytest.warns(UserWarning, match=r"logger=wandb did not get this run \(RunFailed: no network\); the run's own files are complete"):
        hetsim.run(*WORDS, "logger=wandb", folder=tmp_path / "run")

    assert json.loads((tmp_path / "run" / "summary.json").read_text())["num_updates"] == 3


@pytest.mark.parametrize("name", loggers.LOGGERS)
def test_no_logger_writes_through_a_link(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of a stranger's may have one that leads to other events."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / loggers.PLACES[name]).symlink_to(tmp_path / "elsewhere")
    monkeypatch.setitem(loggers.LOGGERS, name, lambda _: pytest.fail("it was called"))

    with pytest.warns(UserWarning, match=f"logger={name} did not get this run .* is a link, and would be written through: remove it"):
        loggers.write(name, loggers.Log(tmp_path / "run", "title", {}, [], {"final": {}}))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("backend", ["sim", pytest.param("dist", marks=pytest.mark.long)])
def test_tensorboard_reads_the_run(backend: str, tmp_path: Path) -> None:
    """Over versions and seconds of the run's own clock; a run that replaces another one replaces its events."""
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="tensorboard is not installed")
    for seed in range(2):
        (tmp_path / "run" / "summary.json").unlink(missing_ok=True)
        run = hetsim.run(*WORDS, f"backend={backend}", f"seed={seed}", "logger=tensorboard", folder=tmp_path / "run")

    read: Any = events.EventAccumulator(str(run.folder / "tensorboard"))
    read.Reload()

    curve = [(event.step, event.value, event.wall_time) for event in read.Scalars("curve/train_loss")]
    expected = [(row["version"], row["train_loss"], row["seconds"]) for row in run.curve().to_pylist()]
    assert curve == [pytest.approx(row, rel=1e-6) for row in expected]
    assert read.Scalars("summary/seed")[0].value == 1
    assert len(list((run.folder / "tensorboard").iterdir())) == 1


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_mlflow_reads_the_run(tmp_path: Path) -> None:
    """From the file in the run's folder."""
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    run = hetsim.run(*WORDS, "logger=mlflow", folder=tmp_path / "run")

    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{run.folder / 'mlflow.db'}")
    (found,) = client.search_runs([client.get_experiment_by_name("hetsim").experiment_id])

    assert found.data.params["budget.updates"] == "3"
    assert found.data.metrics["summary.updates_per_second"] == run.summary["updates_per_second"]
    assert [point.value for point in client.get_metric_history(found.info.run_id, "train_loss")] == run.curve()["train_loss"].to_pylist()


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_wandb_gets_an_offline_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the run's folder, without a network."""
    pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setattr(sys, "argv", ["hetsim"])
    monkeypatch.delenv("WANDB_MODE", raising=False)

    run = hetsim.run(*WORDS, "logger=wandb", folder=tmp_path / "run")

    assert [path.suffix for path in run.folder.glob("wandb/offline-run-*/run-*")] == [".wandb"]
