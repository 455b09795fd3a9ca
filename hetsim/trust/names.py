"""The code that a config may name: classes of hetsim and torch.optim, and classes and workloads in modules that the user trusts.

A `_target_` must be a public class of the kind that its key expects. A user's own workload is a public function with the decorator
`hetsim.workload`. `trust` contains exact names of modules. No other module of the user is imported.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from hetsim import checks
from hetsim.trust.shipped import targets

ROOMS = {
    **dict.fromkeys(("allocation", "weighting", "discount", "compensation", "admission", "compression"), ("hetsim.policies",)),
    **dict.fromkeys(("workload", "partition", "optimizer"), ("hetsim.workloads",)),
    "coordination": ("hetsim.coordination",),
    "backend": ("hetsim.sim", "hetsim.distributed"),
}
"""The packages with hetsim's own classes for a key."""
TORCH = "torch.optim"
TORCH_GROUPS = ("optimizer", "learning_rate_schedule")
"""The groups whose classes are torch.optim's instead of hetsim's."""
OFFER = "write @hetsim.workload above a function that returns a hetsim.Training"
MARK = "__hetsim_workload__"
"""The attribute of a decorated function."""
imported: set[str] = set()
"""The user's modules whose code a config has run in this process."""


def check_name(path: object, *, key: str, group: str, trust: Iterable[str] = ()) -> str:
    """This class name, if a config may use it at this key. Raises ValueError otherwise. Nothing is imported."""
    if not isinstance(path, str) or not all(part.isidentifier() for part in path.split(".")):
        raise ValueError(f"{key}={path} is not the name of a class: give one such as {examples(group)[0]}")
    top = path.split(".")[0]
    module, _, name = path.rpartition(".")
    if _is_own(module, group) and not name.startswith("_"):
        return path
    if top == "hetsim" and group not in TORCH_GROUPS:
        raise _not_shipped(path, key, group)
    of_torch = group in TORCH_GROUPS and _within(module, TORCH)
    if not of_torch and (module not in trust or top == "hetsim"):
        raise ValueError(f"{key}={path} is not allowed: it must name a class of {_owner(group)}{_advice(module or path, trust)}")
    if any(part.startswith("_") for part in (path.removeprefix(TORCH).split(".") if of_torch else [name])):
        root = TORCH if of_torch else module
        raise ValueError(
            f"{key}={path} is not allowed: it must name a public class of {root}, such as {root}.{examples(group)[0].split('.')[-1]}"
        )
    return path


def resolve(path: str, *, key: str, group: str, kind: type, trust: Iterable[str] = ()) -> type:
    """The class with this name, a subclass of `kind`. Raises ValueError if it does not exist or may not be named here."""
    module, _, name = check_name(path, key=key, group=group, trust=trust).rpartition(".")
    if _is_own(module, group):
        with contextlib.suppress(ModuleNotFoundError):
            shipped: Any = getattr(importlib.import_module(module), name, None)
            is_of_kind = isinstance(shipped, type) and issubclass(shipped, kind) and not inspect.isabstract(shipped)
            if is_of_kind and _is_own(shipped.__module__, group):
                return shipped  # type: ignore[no-any-return]
        raise _not_shipped(path, key, group)
    of_torch = group in TORCH_GROUPS and _within(module, TORCH)
    named = vars(sys.modules[module]).get(name) if of_torch and module in sys.modules else None
    if of_torch and named is None:
        raise ValueError(f"{key}={path} does not exist: name a class such as {' or '.join(examples(group))}")
    named = named if of_torch else _attribute(module, name, f"{key}={path}")
    if not (isinstance(named, type) and issubclass(named, kind)) or (of_torch and not _within(named.__module__, TORCH)):
        raise ValueError(f"{key}={path} is no {kind.__name__}: name a subclass of {kind.__module__}.{kind.__qualname__}")
    return named


def check_function(path: object, *, key: str, trust: Iterable[str] = ()) -> tuple[str, str]:
    """The module and name of a workload, as in `mymodel:build`. Raises ValueError if it may not be named. Nothing is imported."""
    module, colon, name = path.partition(":") if isinstance(path, str) else ("", "", "")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), name)):
        raise ValueError(f"{key}={path} is not the name of a function in a module: give one such as mymodel:build")
    if module not in trust or module.split(".")[0] == "hetsim":
        advice = (
            f": a module's name has no .py at its end, as in {module[:-3]}:{name}" if module.endswith(".py") else _advice(module, trust)
        )
        raise ValueError(f"{key}={path} is not allowed: it must name a function of a module that you trust{advice}")
    if name.startswith("_"):
        raise ValueError(f"{key}={path} is not allowed: it must name a public function of {module}, such as {module}:build")
    return module, name


def resolve_function(path: str, *, key: str, trust: Iterable[str] = ()) -> FunctionType:
    """The workload with this name. Imports its module. Raises ValueError if it does not exist or may not be named here."""
    function = _attribute(*check_function(path, key=key, trust=trust), f"{key}={path}")
    if not (isinstance(function, FunctionType) and hasattr(function, MARK)):
        raise ValueError(f"{key}={path} is not a workload: {OFFER}")
    return function


def _attribute(module: str, name: str, where: str) -> Any:
    """The attribute of a trusted, imported module. Raises ValueError if it does not exist."""
    attribute = vars(_imported(module, where)).get(name)
    if attribute is None:
        raise ValueError(f"{where} is not there: {module} has no {name!r}, so correct the name")
    return attribute


def _imported(module: str, where: str) -> ModuleType:
    """The module, imported with its parent packages: their code runs. Raises ValueError if that fails."""
    imported.add(module)
    try:
        for end in [at for at, letter in enumerate(f"{module}.") if letter == "."]:
            _check_found(module[:end])
            importlib.import_module(module[:end])
    except _NotFound as error:
        raise ValueError(f"{where} is refused, because {error}") from None
    except (Exception, SystemExit) as error:
        line = error.__traceback__
        while line is not None and line.tb_next is not None:
            line = line.tb_next
        at = f", line {line.tb_lineno}" if line is not None and line.tb_frame.f_globals.get("__name__") == module else ""
        raise ValueError(f"{where}: {module} cannot be imported ({type(error).__name__}: {error}{at}): correct it") from error
    return sys.modules[module]


class _NotFound(Exception):
    """The reason why Python would not import the user's module."""


def _check_found(module: str) -> None:
    """Raise _NotFound if the module does not exist, or a folder shadows it. The parent packages are imported."""
    if module in sys.modules:
        return
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:  # what is above it is no package
        spec = None
    if spec is None:
        remedy = "add its folder to PYTHONPATH, or install it" if "." not in module else "correct the name"
        raise _NotFound(f"Python finds no module {module!r}: {remedy}")
    for folder in spec.submodule_search_locations or ():
        if (file := Path(folder).with_suffix(".py")).is_file():
            raise _NotFound(f"Python takes the folder {folder} for {module}, and {file} is there, too: rename one of them")


def check_trusted(trust: object) -> list[str]:
    """The names of trusted modules. Raises ValueError for other values."""
    if trust is None:
        return []
    if not isinstance(trust, list) or not all(isinstance(root, str) and all(map(str.isidentifier, root.split("."))) for root in trust):
        raise ValueError(f"trust must be a list of module names, such as trust=[mymethods], not {trust!r}")
    return trust


def argument_names(target: Callable[..., Any]) -> list[str]:
    """The names of the arguments of this class or function."""
    return list(inspect.signature(target).parameters)


def required_arguments(target: Callable[..., Any]) -> list[str]:
    """The arguments without a default."""
    parameters = inspect.signature(target).parameters.items()
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [name for name, parameter in parameters if parameter.default is parameter.empty and parameter.kind not in several]


def _is_own(module: str, group: str) -> bool:
    """Whether a module is in a package with hetsim's classes for this key."""
    return any(_within(module, room) for room in ROOMS.get(group, ()))


def _not_shipped(path: str, key: str, group: str) -> ValueError:
    shipped = targets(group)
    return ValueError(f"{key}={path} is none of the classes that hetsim has for {group}: take {' or '.join(shipped)}{_near(path, shipped)}")


def _within(name: str, root: str) -> bool:
    return name == root or name.startswith(root + ".")


def _owner(group: str) -> str:
    return TORCH if group in TORCH_GROUPS else f"hetsim, such as {targets(group)[0]}"


def examples(group: str) -> tuple[str, ...]:
    """Classes that are allowed at a key of this group."""
    if group in TORCH_GROUPS:
        return (f"{TORCH}.SGD",) if group == TORCH_GROUPS[0] else (f"{TORCH}.lr_scheduler.StepLR",)
    return targets(group)


def _near(path: str, shipped: Iterable[str]) -> str:
    same = [name for name in shipped if name.split(".")[-1] == path.split(".")[-1]]
    return f"; did you mean {same[0]!r}?" if same else checks.suggestion(path, list(shipped))


def _advice(module: str, trust: Iterable[str]) -> str:
    top = module.split(".")[0]
    is_known = top in sys.stdlib_module_names or top in ("hetsim", "torch") or module in trust
    return "" if is_known else f"; if {module} is a module of your own, add 'trust=[{module}]' to the command line"
