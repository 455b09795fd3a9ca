"""A signal may reach a real run at any time: also while it loads its data, when it has much to evaluate, and when it does so at its end."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, fields, replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from worlds import cluster, experiment, node

from hetsim.checkpoints.folder import newest
from hetsim.distributed import Processes
from hetsim.errors import RunStopped
from hetsim.runtime.checkpointing import Checkpointing
from hetsim.workloads.device import Device
from hetsim.workloads.quadratic import Quadratic
from hetsim.workloads.task import Task

pytestmark = pytest.mark.slow
TWO = cluster(node(1e-4, count=2))


@dataclass(frozen=True, kw_only=True)
class Slow(Quadratic):
    """A quadratic that is loaded in so many seconds, and evaluated in so many, and tells of both in a folder."""

    folder: Path
    load_seconds: float
    evaluate_seconds: float

    def load(self, *, seed: int, dtype: str, device: Device) -> Task:
        self.tell("loading")
        time.sleep(self.load_seconds)
        task = super().load(seed=seed, dtype=dtype, device=device)
        evaluate = task.evaluate

        def slow(weights: Any) -> Any:
            self.tell("evaluating")
            time.sleep(self.evaluate_seconds)
            return evaluate(weights)

        task.evaluate = slow  # type: ignore[method-assign]
        return task

    def tell(self, what: str) -> None:
        with (self.folder / what).open("a") as file:
            print(os.getpid(), file=file)


def run(method: str, until: str, folder: Path, *, load: float = 0.0, evaluate: float = 0.0, **keys: Any) -> dict[str, Any] | None:
    """Run it in real processes, of which the one that has started them gets SIGTERM once the folder has such a file."""
    size = {"num_parameters": 8, "num_samples": 480}
    described = experiment(f"method={method}", "workload=quadratic", cluster=TWO, workload=size, **keys)
    its = {field.name: getattr(described.workload, field.name) for field in fields(described.workload)}
    workload = Slow(**its, folder=folder, load_seconds=load, evaluate_seconds=evaluate)
    saved = replace(described, workload=workload, checkpoint=Checkpointing(every_updates=20))

    def ask() -> None:
        deadline = time.monotonic() + 120
        while not list(folder.glob(until)) and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    backend = Processes(emulate="none")
    backend.check(saved)
    asking = Thread(target=ask)
    before = signal.signal(signal.SIGTERM, lambda *_: None)  # of the tests' own process, if the run fails before it comes
    asking.start()
    try:
        return backend.run(saved, folder / "run", "")
    finally:
        asking.join()
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("method", ["ssgd", "asgd"])
def test_one_that_comes_while_the_data_are_loaded_stops_the_run_at_its_beginning(method: str, tmp_path: Path) -> None:
    """It is saved all the same, so that the script which started it finds the status that it tests for."""
    with pytest.raises(RunStopped, match="stopped at version"):
        run(method, "loading", tmp_path, load=1.0, budget={"epochs": 1e6})

    assert int(newest(tmp_path / "run").name[:12]) < 20


def test_a_run_that_is_asked_to_stop_saves_itself_before_it_evaluates_anything(tmp_path: Path) -> None:
    """Evaluating its curve may take longer than is left to it; the points are evaluated when it goes on."""
    with pytest.raises(RunStopped, match="stopped at version"):
        run("ssgd", "run/checkpoints/*.safetensors", tmp_path, evaluate=5.0, budget={"epochs": 1e6}, evaluate_every_epochs=5)

    assert not (tmp_path / "evaluating").exists()
    assert int(newest(tmp_path / "run").name[:12]) > 0


def test_one_that_comes_in_the_last_evaluation_changes_nothing(tmp_path: Path) -> None:
    """The run has reached its budget."""
    summary = run("ssgd", "evaluating", tmp_path, evaluate=0.5, budget={"epochs": 2})

    assert summary is not None
    assert summary["num_samples"] == 2 * 480
    assert int(newest(tmp_path / "run").name[:12]) == summary["num_updates"]
