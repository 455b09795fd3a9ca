"""What does nothing, or cannot be meant, is told: one warning or one refusal each."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import numpy as np
import pytest
import torch
from test_command import words
from worlds import exit_status

from hetsim.cli.main import main
from hetsim.trust.names import argument_names
from hetsim.trust.shipped import targets
from hetsim.trust.signatures import is_missing, written_arguments

pytestmark = pytest.mark.slow

PHANTOM = "workload=phantom budget.epochs=null budget.updates=5 pictures=false method=asgd"
NODE = "seconds_per_sample: 1 ms, overhead_seconds: 0"
STEP_LR = "_target_: torch.optim.lr_scheduler.StepLR"
FAULTS = "+cluster.faults={schedule: [FAULT]}"
UNIX = "the first fault of node 3 is at 1700000000 s, after the run's end at 0.4344 s, so it did not happen: cluster.faults counts seconds"
TOLD: dict[str, str] = {
    # what is typed: what the warning or the refusal says; nothing where nothing is told
    f"{PHANTOM} {FAULTS.replace('FAULT', '{nodes: [3], join: 1.7e9}')}": UNIX,
    f"{PHANTOM} {FAULTS.replace('FAULT', '{nodes: [1, 2], stop: 5, continue: 6}')}": "first fault of node 1 (and 1 more) is at 5 s",
    f"{PHANTOM} {FAULTS.replace('FAULT', '{nodes: [3], leave: 99}')}": "the first fault of node 3 is at 99 s, after",
    f"{PHANTOM} {FAULTS.replace('FAULT', '{nodes: [3], join: 1 ms, crash: 99}')}": "",
    f"{PHANTOM} {FAULTS.replace('FAULT', '{nodes: [3], crash: 1 ms, repair: 99}')}": "",
    # a phantom builds no optimizer
    f"{PHANTOM} +optimizer.nonsense=1": "optimizer.nonsense is not an option of torch.optim.SGD: add '~optimizer.nonsense' to leave it out",
    f"{PHANTOM} optimizer=muon +optimizer.momentun=1": "momentun is not an option of hetsim.workloads.muon.Muon; did you mean 'momentum'?",
    f"{PHANTOM} optimizer._target_=torch.optim.Nothing": "torch.optim.Nothing does not exist: name a class such as torch.optim.SGD",
    f"{PHANTOM.replace('asgd', 'local_sgd')} +local_optimizer.speed=1": "local_optimizer.speed is not an option of torch.optim.SGD",
    f"{PHANTOM} learning_rate_schedule={{{STEP_LR}, step_size: 2, gama: 1}}": "learning_rate_schedule.gama is not an option of",
    f"{PHANTOM} learning_rate_schedule={{_target_: torch.optim.lr_scheduler.ChainedScheduler, schedulers: [{{{STEP_LR}, size: 2}}]}}": (
        "learning_rate_schedule.schedulers.0.size is not an option of"
    ),
    f"{PHANTOM} learning_rate_schedule={{{STEP_LR}, step_size: 2}}": "",
    f"{PHANTOM} local_learning_rate=0.3": "local_learning_rate does nothing, because this run has no local_optimizer",
    f"{PHANTOM} nonfinite=fail": "nonfinite=fail does nothing, because workload=phantom has neither losses nor gradients",
    f"{PHANTOM} nonfinite=fail stop_when_diverged=true": "nonfinite=fail and stop_when_diverged=true do nothing, because",
    f"{PHANTOM} save_weights=final": "save_weights would do nothing, because workload=phantom has no weights: leave it out",
    f"{PHANTOM} autocast=bfloat16": "autocast=bfloat16 would do nothing, because workload=phantom has no model: leave it out",
    "workload=quadratic budget.epochs=1 nonfinite=fail stop_when_diverged=true": "",
    f"{PHANTOM} checkpoint.keep=5": "checkpoint.keep does nothing without checkpoint.every_updates or checkpoint.every_seconds: add one",
    f"{PHANTOM} checkpoint.keep=5 checkpoint.every_updates=2": "",
    f"{PHANTOM} hydra/launcher=joblib": "hydra/launcher=joblib does nothing without -m",
    f"{PHANTOM} hydra.sweep.dir=sweep": "hydra.sweep.dir=sweep does nothing without -m",
    f"-m {PHANTOM} hydra.sweep.dir=sweep": "hydra.run.dir=run does nothing with -m",
    f"{PHANTOM} hydra.verbose=false": "",
    f"{PHANTOM} workload.num_samples=1 batch_size=100000": "",
    f"{PHANTOM} batch_size=64 batch_size=128": "batch_size is given twice, and the last one counts: leave one out",
    f"{PHANTOM} cluster.nodes=[{{count: 4, count: 3, {NODE}}}]": "count in cluster.nodes is given twice, and the last one counts",
    f"{PHANTOM} workload.num_parameters=25": "workload.num_parameters is 25, which is probably a mistake (usual: 1000 to 1e+14): type its",
    f"{PHANTOM} +cluster.nodes.0.slowdown=late.csv": "the slowdown of node 0 begins at 100 s, after the run's end at 0.3048 s",
    f"workload=quadratic budget.epochs=2 learning_rate_schedule={{{STEP_LR}, step_size: 20}}": (
        "learning_rate_schedule.step_size first changes the rate after 20 epochs, and the run ended after 2: a schedule steps once per"
    ),
    "workload=quadratic budget.epochs=1 batch_size=4096": "batch_size=4096 is above the 2048 samples of workload=quadratic",
    "workload=quadratic workload.num_samples=1 batch_size=100000": (
        "batch_size=100000 is more than 1000 times the number of samples of workload=quadratic, 1: lower it, because a batch would "
        "repeat each"
    ),
    "workload=arrays workload.path=first.npz": (
        "workload.path=first.npz: x_train has images of shape (3, 8, 8), and channels belong last: store np.moveaxis(x_train, 1, 3)"
    ),
    "workload=arrays workload.path=last.npz batch_size=8 budget.epochs=1 method=ssgd": "so it does not feel cluster.server",
}


@pytest.mark.sampled(4)
@pytest.mark.filterwarnings("default:(local_learning_rate|checkpoint)")
@pytest.mark.parametrize("typed", TOLD)
def test_what_does_nothing_is_told(typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """In one line."""
    monkeypatch.chdir(tmp_path)
    for name, shape in (("first", (8, 3, 8, 8)), ("last", (8, 8, 8, 3))):
        x, y = np.ones(shape, dtype=np.float32), np.arange(8) % 2
        np.savez(f"{name}.npz", x_train=x, y_train=y, x_test=x, y_test=y)

    Path("late.csv").write_text("seconds,factor\n0,1\n100,3\n", encoding="utf-8")

    status = exit_status(monkeypatch, "hetsim", main, *words(typed), "hydra.run.dir=run")

    told = capsys.readouterr().err
    assert TOLD[typed] in told
    assert told.count("\n") == bool(TOLD[typed])
    assert ("hetsim: error: " in told) == (status == 1)


def test_the_arguments_that_a_source_tells_are_those_of_the_class() -> None:
    """Of each optimizer and schedule that a config may name."""
    found = {f"torch.optim.{name}": kind for name, kind in vars(torch.optim).items() if inspect.isclass(kind)}
    found |= {f"torch.optim.lr_scheduler.{name}": getattr(torch.optim.lr_scheduler, name) for name in torch.optim.lr_scheduler.__all__}
    found |= {name: getattr(importlib.import_module(name.rpartition(".")[0]), name.rpartition(".")[2]) for name in targets("optimizer")}

    assert len(found) > 30
    for name, kind in found.items():
        assert written_arguments(name) == argument_names(kind), name


def test_what_no_source_tells_is_left_to_the_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its module is not imported."""
    (tmp_path / "told.py").write_text(
        "raise SystemExit\nclass A:\n    def __init__(self, params, lr): ...\nclass B(A): ...\n"
        "class C:\n    def __init__(self, **own): ...\nclass D(*[A]): ...\nclass E(E): ...\n"
    )
    (tmp_path / "broken.py").write_text("class")
    monkeypatch.syspath_prepend(tmp_path)

    assert [written_arguments(f"told.{name}") for name in "ABCDEF"] == [["params", "lr"]] * 2 + [None] * 4
    assert [written_arguments(f"{module}.A") for module in ("broken", "nowhere", "sys", "told.A")] == [None] * 4
    assert [is_missing(name) for name in ("told.F", "told.A", "nowhere.A", "sys.A")] == [True, False, False, False]
