"""Whose code a config may name: classes that ship with hetsim, torch.optim's, and classes and workloads of modules that the user trusts.

A `_target_` is looked up by the key at which it stands, and must be a public class of the kind that this key expects. A workload of the
user's own is a public function that `hetsim.workload` decorates.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any

from hetsim import checks
from hetsim.trust import source as trusted_source
from hetsim.trust.registry import SHIPPED, current_name

TORCH = "torch.optim"
TORCH_GROUPS = ("optimizer", "learning_rate_schedule")
"""The groups whose classes are torch.optim's instead of hetsim's."""
DECORATORS = ("hetsim.workload", "hetsim.workloads.own.workload", "hetsim.workloads.own.training.workload")
"""The names of what decorates a function that a config may name as a workload."""
OFFER = f"write @{DECORATORS[0]} above a function that returns a hetsim.Training"
MARK = "__hetsim_workload__"
"""The attribute of a function that is decorated so."""


def check_name(path: object, *, key: str, group: str, trust: Iterable[str] = ()) -> str:
    """This name of a class, if a config may name it at this key. ValueError with one sentence if not; nothing is imported."""
    if not isinstance(path, str) or not all(part.isidentifier() for part in path.split(".")):
        raise ValueError(f"{key}={path} is no name of a class: give one such as {_examples(group)[0]}")
    top = path.split(".")[0]
    shipped = SHIPPED.get(group, ())
    if current_name(path) in shipped:
        return path
    if top == "hetsim" and group not in TORCH_GROUPS:
        raise ValueError(
            f"{key}={path} is none of the classes that hetsim has for {group}: take {' or '.join(shipped)}{_near(path, shipped)}"
        )
    root = next((root for root in trust if _within(path, root)), TORCH if group in TORCH_GROUPS and _within(path, TORCH) else None)
    if root is None or top == "hetsim":
        raise ValueError(f"{key}={path} is not allowed: it must name a class of {_owner(group)}{_advice(top, trust)}")
    if path == root or any(part.startswith("_") for part in path.removeprefix(root + ".").split(".")):
        raise ValueError(
            f"{key}={path} is not allowed: it must name a public class of {root}, such as {root}.{_examples(group)[0].split('.')[-1]}"
        )
    return path


def check_source(path: object, *, key: str, group: str, kind: type, trust: Iterable[str] = ()) -> tuple[str, str]:
    """The module that defines the class of this name, and its name there. ValueError if it may not be named here, or cannot be a `kind`.

    Of a trusted module, the source is read; none of its code has run.
    """
    name = current_name(check_name(path, key=key, group=group, trust=trust))
    module, _, last = name.rpartition(".")
    if name in SHIPPED.get(group, ()) or (group in TORCH_GROUPS and _within(name, TORCH)):
        return module, last
    try:
        return trusted_source.definition(module, last, kind, trust=trust)
    except trusted_source.Unsuitable as error:
        raise ValueError(f"{key}={path} is refused, as {error}: name a subclass of {kind.__module__}.{kind.__qualname__}") from None
    except ValueError as error:
        raise ValueError(f"{key}={path} is refused, as {error}") from None


def resolve(path: str, *, key: str, group: str, kind: type, trust: Iterable[str] = ()) -> type:
    """The class of this name, a subclass of `kind`. ValueError with one sentence if there is none, or it may not be named here."""
    module, name = check_source(path, key=key, group=group, kind=kind, trust=trust)
    if current_name(path) in SHIPPED.get(group, ()):
        shipped: type = getattr(importlib.import_module(module), name)
        return shipped
    if group in TORCH_GROUPS and _within(module, TORCH):
        found = vars(sys.modules[module]).get(name) if module in sys.modules else None
        if found is None:
            raise ValueError(f"{key}={path} does not exist: name a class such as {' or '.join(_examples(group))}")
        roots: Iterable[str] = (TORCH,)
    else:
        try:
            found = vars(trusted_source.imported(module)).get(name)
        except ValueError as error:
            raise ValueError(f"{key}={path}: {error}") from None
        roots = trust
    if not (isinstance(found, type) and issubclass(found, kind) and any(_within(found.__module__, root) for root in roots)):
        raise ValueError(f"{key}={path} is no {kind.__name__}: name a subclass of {kind.__module__}.{kind.__qualname__}")
    return found


def check_function(path: object, *, key: str, trust: Iterable[str] = ()) -> tuple[str, str]:
    """The module that defines the workload of this name, as in `mymodel:build`, and its name there. ValueError if it may not be named.

    Of a trusted module, the source is read; none of its code has run.
    """
    module, colon, name = path.partition(":") if isinstance(path, str) else ("", "", "")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), name)):
        raise ValueError(f"{key}={path} is no name of a function in a module: give one such as mymodel:build")
    top = module.split(".")[0]
    root = next((root for root in trust if _within(module, root)), None)
    if root is None or top == "hetsim":
        raise ValueError(f"{key}={path} is not allowed: it must name a function of a module that you trust{_advice(top, trust)}")
    if any(part.startswith("_") for part in (*module.removeprefix(root).split("."), name)):
        raise ValueError(f"{key}={path} is not allowed: it must name a public function of {root}, such as {root}:build")
    try:
        return trusted_source.decorated(module, name, DECORATORS, MARK, trust=trust)
    except trusted_source.Unsuitable as error:
        raise ValueError(f"{key}={path} is refused, as {error}: {OFFER}") from None
    except ValueError as error:
        raise ValueError(f"{key}={path} is refused, as {error}") from None


def resolve_function(path: str, *, key: str, trust: Iterable[str] = ()) -> FunctionType:
    """The workload of this name; its module is imported. ValueError with one sentence if there is none, or it may not be named here."""
    module, name = check_function(path, key=key, trust=trust)
    try:
        found = vars(trusted_source.imported(module)).get(name)
    except ValueError as error:
        raise ValueError(f"{key}={path}: {error}") from None
    if not (isinstance(found, FunctionType) and hasattr(found, MARK) and any(_within(found.__module__, root) for root in trust)):
        raise ValueError(f"{key}={path} is no workload: {OFFER}")
    return found


def check_trusted(trust: object) -> list[str]:
    """The names of modules that the user trusts; ValueError with one sentence if the value is something else."""
    if trust is None:
        return []
    if not isinstance(trust, list) or not all(isinstance(root, str) and all(map(str.isidentifier, root.split("."))) for root in trust):
        raise ValueError(f"trust must be a list of module names, such as trust=[mypackage], not {trust!r}")
    return trust


def argument_names(target: Callable[..., Any]) -> list[str]:
    """The names of the arguments that this class or function takes."""
    return list(inspect.signature(target).parameters)


def required_arguments(target: Callable[..., Any]) -> list[str]:
    """The arguments that have no default."""
    parameters = inspect.signature(target).parameters.items()
    return [name for name, each in parameters if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]


def _within(name: str, root: str) -> bool:
    return name == root or name.startswith(root + ".")


def _owner(group: str) -> str:
    return TORCH if group in TORCH_GROUPS else f"hetsim, such as {SHIPPED[group][0]}"


def _examples(group: str) -> tuple[str, ...]:
    if group in TORCH_GROUPS:
        return (f"{TORCH}.SGD",) if group == TORCH_GROUPS[0] else (f"{TORCH}.lr_scheduler.StepLR",)
    return SHIPPED[group]


def _near(path: str, shipped: Iterable[str]) -> str:
    same = [name for name in shipped if name.split(".")[-1] == path.split(".")[-1]]
    return f"; did you mean {same[0]!r}?" if same else checks.suggestion(path, list(shipped))


def _advice(top: str, trust: Iterable[str]) -> str:
    known = top in sys.stdlib_module_names or top in ("hetsim", "torch") or any(root.split(".")[0] == top for root in trust)
    return "" if known else f"; if {top} is a module of your own, add 'trust=[{top}]' to the command line"
