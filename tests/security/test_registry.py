"""A class of hetsim that a config may name is a choice in `conf/`, and each choice there names such a class."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest

from hetsim.config.build import POLICIES
from hetsim.coordination.base import Coordination
from hetsim.runtime.backend import Backend
from hetsim.trust.names import ROOMS, resolve
from hetsim.trust.shipped import targets
from hetsim.workloads.partition import Partition
from hetsim.workloads.task import Workload

KINDS = {**POLICIES, "coordination": Coordination, "workload": Workload, "backend": Backend, "partition": Partition}


def concrete(kind: type) -> Iterator[type]:
    """Every public subclass in hetsim that can be made."""
    for below in kind.__subclasses__():
        yield from concrete(below)
        if below.__module__.startswith("hetsim.") and not inspect.isabstract(below) and not below.__name__.startswith("_"):
            yield below


@pytest.mark.parametrize("group", KINDS)
def test_every_class_of_a_kind_is_a_choice(group: str) -> None:
    """One that none of the shipped configs names could be used by nobody."""
    named = {resolve(name, key="key", group=group, kind=KINDS[group]) for name in targets(group)}

    assert named == {kind for kind in concrete(KINDS[group]) if kind.__module__.startswith(ROOMS[group])}


def test_every_optimizer_of_hetsims_is_a_choice() -> None:
    """Also one that steps parameter by parameter."""
    import torch

    named = {resolve(name, key="key", group="optimizer", kind=torch.optim.Optimizer) for name in targets("optimizer")}

    assert named == {kind for kind in concrete(torch.optim.Optimizer) if kind.__module__.startswith(ROOMS["optimizer"])}


REFUSED = {
    # a class that hetsim has for something else, a base class, and what a module of hetsim imports
    "hetsim.calibration.among_workers.AmongWorkers": "is none of the classes that hetsim has for coordination: take hetsim.coordination.",
    "hetsim.policies.allocation.Even": "is none of the classes that hetsim has for coordination",
    "hetsim.coordination.nothing.Mine": "is none of the classes that hetsim has for coordination",
    "hetsim.coordination.all_reduce.Iterator": "is none of the classes that hetsim has for coordination",
    "hetsim.coordination.parallel.ParameterServer": "did you mean 'hetsim.coordination.parameter_server.ParameterServer'?",
}


@pytest.mark.parametrize("name", REFUSED)
def test_another_class_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"coordination\._target_=hetsim") as caught:
        resolve(name, key="coordination._target_", group="coordination", kind=Coordination)

    assert REFUSED[name] in str(caught.value)
