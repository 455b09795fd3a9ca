"""A simulated run leaves nothing in memory but its summary: a world is a cycle of references, and holds the data."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
from worlds import UNEVEN, experiment

from hetsim.errors import RunFailed
from hetsim.runtime.experiment import Experiment
from hetsim.sim.backend import Simulation, Simulator


@pytest.mark.parametrize("method", ["asgd", "ssgd", "fedbuff"])
def test_a_finished_run_leaves_no_task(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without waiting for Python to look at everything."""
    tasks: list[weakref.ref[Any]] = []
    load = Experiment.load

    def watched(self: Experiment, *given: Any, **named: Any) -> Any:
        task, optimizers = load(self, *given, **named)
        tasks.append(weakref.ref(task))
        return task, optimizers

    monkeypatch.setattr(Experiment, "load", watched)
    made = experiment(f"method={method}", "workload=quadratic", cluster=UNEVEN, batch_size=12, budget={"updates": 3})
    gc.disable()
    try:
        Simulation(made).run()
        Simulator().run(made, tmp_path / "run", "")
        assert [task() for task in tasks] == [None, None]
    finally:
        gc.enable()


def test_the_collector_is_as_it_was() -> None:
    """After a run, and after one that failed."""
    gc.unfreeze()  # a command may have begun in this process
    before = gc.get_threshold(), gc.get_freeze_count()
    made = experiment("method=asgd", "workload=quadratic", cluster=UNEVEN, batch_size=12, budget={"updates": 3})
    Simulation(made).run()
    lost = {**UNEVEN, "faults": {"schedule": [{"nodes": "all", "crash": 1e-3}]}}
    with pytest.raises(RunFailed):
        Simulation(experiment("method=asgd", "workload=quadratic", cluster=lost, batch_size=12, budget={"updates": 300})).run()

    assert (gc.get_threshold(), gc.get_freeze_count()) == before
