"""Which code a config may run: what a `_target_` *resolves to* must be defined in hetsim, torch.optim or a trusted module."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any

HOME = ("hetsim", "torch.optim")
MOVED = {
    "hetsim.coordination.one_step_delay.DelayedAllReduce": "hetsim.coordination.delayed_all_reduce.DelayedAllReduce",
    "hetsim.coordination.one_step_delay.DelayedParameterServer": "hetsim.coordination.delayed_server.DelayedParameterServer",
    "hetsim.policies.optperf.OptPerf": "hetsim.policies.allocation.OptPerf",
    "hetsim.sim.simulator.Simulator": "hetsim.sim.Simulator",
    "hetsim.dist.launch.Processes": "hetsim.dist.Processes",
    "hetsim.workloads.arrays.NpzArrays": "hetsim.workloads.data.npz.NpzArrays",
    "hetsim.workloads.digits.Digits": "hetsim.workloads.data.digits.Digits",
    "hetsim.workloads.vision.CIFAR10": "hetsim.workloads.data.torchvision.CIFAR10",
    "hetsim.workloads.vision.FashionMNIST": "hetsim.workloads.data.torchvision.FashionMNIST",
    "hetsim.workloads.vision.MNIST": "hetsim.workloads.data.torchvision.MNIST",
}
"""Where classes are now, by the names in configs of hetsim 0.1, which keep working."""


def permitted(path: Any, *, key: str, trust: Iterable[str] = ()) -> str:
    """This dotted name, if it is in a permitted module; `resolve` checks the rest once it may be imported."""
    roots = (*HOME, *trust)
    if not isinstance(path, str) or not _within(path, roots):
        raise ValueError(_refusal(path, key, roots))
    return path


_FIRST = {current: first for first, current in MOVED.items() if "workloads" in first or "coordination" in first or "policies" in first}
"""The backends had their present names from the first."""


def first_name(path: Any) -> Any:
    """The name that a class had first, by the name that it has now; any other value stays as it is."""
    return _FIRST.get(path, path) if isinstance(path, str) else path


def current_name(path: str) -> str:
    """The name that a class has now, by the name that a config has for it."""
    return MOVED.get(path, path)


def resolve(path: Any, *, key: str, trust: Iterable[str] = ()) -> Callable[..., Any]:
    """The class or function of this dotted name; ValueError if it does not exist or is defined elsewhere."""
    roots = (*HOME, *trust)
    permitted(path, key=key, trust=trust)
    target = _locate(current_name(path), key)
    if not isinstance(target, type | FunctionType) or not _within(target.__module__, roots):
        raise ValueError(_refusal(path, key, roots))
    return target


def argument_names(target: Callable[..., Any]) -> list[str]:
    """The names of the arguments that this class or function takes."""
    return list(inspect.signature(target).parameters)


def required_arguments(target: Callable[..., Any]) -> list[str]:
    """The arguments that have no default."""
    return [name for name, parameter in inspect.signature(target).parameters.items() if parameter.default is parameter.empty]


def _refusal(path: Any, key: str, roots: Iterable[str]) -> str:
    top = path.split(".")[0] if isinstance(path, str) else ""
    known = top in sys.stdlib_module_names or any(root.split(".")[0] == top for root in roots)
    yours = f"; if {top} is a module of your own, add 'trust=[{top}]'" if top.isidentifier() and not known else ""
    return f"{key}={path} is not allowed: it must name a class or function that is defined in {' or '.join(roots)}{yours}"


def _within(name: str, roots: Iterable[str]) -> bool:
    return any(name == root or name.startswith(root + ".") for root in roots)


def _locate(path: str, key: str) -> Any:
    """Import the modules in the path, then follow attributes."""
    parts = path.split(".")
    if not all(parts):
        raise ValueError(f"{key}={path} is no dotted name: name a class or function, such as package.module.Class")
    found: Any = None
    for index, part in enumerate(parts):
        if found is not None and hasattr(found, part):
            found = getattr(found, part)
            continue
        try:
            found = importlib.import_module(".".join(parts[: index + 1]))
        except ImportError:
            if index == 0:
                raise ValueError(f"{key}={path}: Python finds no module {part!r}: add its folder to PYTHONPATH, or install it") from None
            raise ValueError(f"{key}={path} does not exist: {'.'.join(parts[:index]) or path} has no {part!r}") from None
    return found
