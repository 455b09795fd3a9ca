"""The registry has every class that ships, and nothing else."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator

import pytest
import yaml

from hetsim.config.build import POLICIES
from hetsim.coordination.base import Coordination
from hetsim.distributed import Processes
from hetsim.runtime.backend import Backend
from hetsim.sim import Simulator
from hetsim.trust.names import resolve
from hetsim.trust.registry import SHIPPED
from hetsim.trust.shipped import configs
from hetsim.workloads.data import digits, npz, torchvision
from hetsim.workloads.task import Workload

KINDS = {**POLICIES, "coordination": Coordination, "workload": Workload, "backend": Backend}
BASES = (torchvision.TorchvisionImages,)
"""Classes that others are made from, without an abstract method."""
LOADED = (Processes, Simulator, digits, npz, torchvision)
"""Imported, so that the subclasses of each kind are known."""


def concrete(kind: type) -> Iterator[type]:
    """Every subclass in hetsim that can be made."""
    for below in kind.__subclasses__():
        yield from concrete(below)
        if below.__module__.startswith("hetsim.") and not inspect.isabstract(below) and below not in BASES:
            yield below


@pytest.mark.parametrize("group", KINDS)
def test_every_class_that_ships_is_registered(group: str) -> None:
    """Under the key that expects it, by a name that leads to it."""
    registered = {resolve(name, key="key", group=group, kind=KINDS[group]) for name in SHIPPED[group]}
    for name in SHIPPED[group]:
        importlib.import_module(name.rpartition(".")[0])

    assert registered == {
        found for found in concrete(KINDS[group]) if not found.__module__.startswith(("hetsim.calibration.", "hetsim.ddp."))
    }


def test_no_config_names_what_calibrates() -> None:
    """It reads clocks and writes a file, and is built by its command alone."""
    with pytest.raises(ValueError, match=r"hetsim\.calibration\.among_workers\.AmongWorkers"):
        resolve("hetsim.calibration.among_workers.AmongWorkers", key="coordination._target_", group="coordination", kind=Coordination)


def test_every_config_that_ships_names_a_registered_class() -> None:
    named = {
        (group, entries["_target_"])
        for group in SHIPPED
        for path in (configs() / group).glob("*.yaml")
        if not (entries := yaml.safe_load(path.read_text(encoding="utf-8"))).get("_target_", "torch.").startswith("torch.")
    }

    assert {group for group, _ in named} == set(SHIPPED)
    named = {(group, name) for group, name in named if not name.startswith("torch.optim.")}
    assert {name for group, name in named} == {name for names in SHIPPED.values() for name in names}
    assert {name for group, name in named if name not in SHIPPED[group]} == set()


def test_no_class_is_registered_twice() -> None:
    registered = [name for names in SHIPPED.values() for name in names]

    assert len(registered) == len(set(registered))
