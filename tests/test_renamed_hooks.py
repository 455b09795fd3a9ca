"""A class that was written for hetsim 0.1 and overrides a hook by its old name is refused, not silently ignored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from worlds import exit_status

from hetsim.cli.main import main
from hetsim.coordination.base import Coordination
from hetsim.coordination.parameter_server import ParameterServer
from hetsim.policies.admission import Admission, Barrier, Decision
from hetsim.policies.allocation import Allocation, Even
from hetsim.policies.compensation import Compensation
from hetsim.trust.names import resolve
from hetsim.trust.registry import SHIPPED, current_name, old_names
from hetsim.workloads.task import Optimizer


def hook(*_: Any) -> None:
    """Some method."""


@pytest.mark.parametrize(
    ("base", "old", "value", "new"),
    [
        (Admission, "left", hook, "worker_left"),
        (Barrier, "joined", hook, "worker_joined"),
        (Allocation, "profiled", hook, "observe_profile"),
        (Compensation, "reckons_with_momentum", True, "requires_plain_sgd"),
        (Coordination, "resilient", hook, "with_recovery"),
        (ParameterServer, "regrouping", hook, "restart_on_change"),
        (Optimizer, "feels_scale", False, "scale_sensitive"),
        (Optimizer, "feels_scale", property(hook), "scale_sensitive"),
    ],
)
def test_a_hooks_old_name_is_refused(base: type, old: str, value: Any, new: str):
    """When the class is defined, with one sentence that names class, old and new name; the new name is accepted."""
    with pytest.raises(ValueError, match=rf"mine\.Mine\.{old} would be ignored, because it is called {new} now: rename it"):
        type("Mine", (base,), {"__module__": "mine", old: value})

    assert getattr(type("Mine", (base,), {new: value}), new) is not None


def test_an_allocations_old_argument_is_refused():
    """`initial` respects a node's memory by its argument `max_samples`."""

    def initial(self: Any, num_workers: int, batch_size: int, most: Any = None) -> None: ...

    with pytest.raises(ValueError, match=r"argument most of mine\.Mine\.initial would be ignored, because it is called max_samples now"):
        type("Mine", (Even,), {"__module__": "mine", "initial": initial})


def test_a_config_key_may_have_a_methods_old_name():
    """A field is no hook."""

    @dataclass(frozen=True, kw_only=True)
    class Mine(Barrier):
        left: int = 3

    assert Mine().left == 3


def test_a_decisions_old_field_is_refused():
    """By Python itself."""
    with pytest.raises(TypeError, match="free"):
        Decision(free=(0,))  # type: ignore[call-arg]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Writes a module that Python finds."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return lambda name, text: (tmp_path / f"{name}.py").write_text(text, encoding="utf-8") and None


def test_the_sentence_reaches_the_one_who_named_the_class(module: Callable[[str, str], None]):
    """The config is not told that there is no such class."""
    module("written_for_0_1", "from hetsim.policies.admission import Barrier\nclass Mine(Barrier):\n    def left(self): ...\n")

    with pytest.raises(ValueError, match=r"written_for_0_1\.Mine\.left would be ignored"):
        resolve("written_for_0_1.Mine", key="admission._target_", group="admission", kind=Admission, trust=["written_for_0_1"])


@pytest.mark.slow
def test_classes_that_have_moved_keep_their_old_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A config of hetsim 0.1 still runs; every old name leads to a class."""
    typed = ("backend._target_=hetsim.sim.simulator.Simulator", "method=optperf", "allocation._target_=hetsim.policies.optperf.OptPerf")

    quick = ("workload=quadratic", "budget.epochs=2", "pictures=false", f"hydra.run.dir={tmp_path / 'run'}")

    assert exit_status(monkeypatch, "hetsim", main, *typed, *quick) == 0

    for old in old_names():
        group = next(group for group, names in SHIPPED.items() if current_name(old) in names)
        assert resolve(old, key="key", group=group, kind=object).__name__ == old.rpartition(".")[2]
