"""Building the objects of a run from its config."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hetsim import checks
from hetsim.cli.errors import sentence
from hetsim.cli.objective import check_objective
from hetsim.cli.schema import AXES, GROUPS, OPTIMIZERS, PLAIN, RATES
from hetsim.cluster.parse.cluster import parse_cluster
from hetsim.coordination.base import Coordination
from hetsim.runtime.backend import Backend
from hetsim.runtime.budget import Budget
from hetsim.runtime.experiment import Experiment
from hetsim.trust import argument_names, current_name, permitted, required_arguments, resolve
from hetsim.workloads.task import OptimizerRecipe, Recipe, Workload


def build_experiment(config: DictConfig) -> tuple[Experiment, Backend]:
    """The objects that a config describes; ValueError with one sentence if it describes none."""
    try:
        entries = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise ValueError(sentence(error)) from None
    entries = checks.mapping("config", entries, optional=(*PLAIN, *GROUPS))
    for name in ("backend", "cluster", "workload", "coordination", "optimizer", "budget", *AXES):
        checks.mapping(name, entries.get(name), optional=list(entries.get(name) or ()))
    trust = _checked_trust(entries)
    check_objective(entries.get("objective"))
    _check_rates(entries)
    budget = checks.mapping("budget", entries["budget"], optional=("epochs", "updates", "seconds"))
    policies = {axis: _build(axis, entries[axis], kind, trust) for axis, kind in AXES.items()}
    made = Experiment(
        method=str(entries["method"]),
        coordination=_build("coordination", entries["coordination"], Coordination, trust, **policies),
        cluster=parse_cluster(entries["cluster"]),
        workload=_build("workload", entries["workload"], Workload, trust),
        optimizer=_optimizer(entries, "optimizer", tuple(trust)),
        local_optimizer=_optimizer(entries, "local_optimizer", tuple(trust)) if entries.get("local_optimizer") else None,
        budget=Budget(**budget),
        **{key: entries[key] for key in ("batch_size", "seed", "dtype", "threads", "evaluate_every_epochs", "trace", "pictures")},
    )
    backend = _build("backend", entries["backend"], Backend, trust)
    backend.check(made)
    return made, backend


def _checked_trust(entries: Mapping[str, Any]) -> list[str]:
    """The modules that the config trusts, after each `_target_` was checked against them."""
    trust = entries.get("trust") or []
    if not isinstance(trust, list) or not all(isinstance(module, str) for module in trust):
        raise ValueError(f"trust must be a list of module names, such as trust=[mypackage], not {trust!r}")
    late = (*OPTIMIZERS, *OPTIMIZERS.values())  # resolved where torch may be imported
    for key, path in _targets({name: entry for name, entry in entries.items() if name not in late}):
        resolve(path, key=key, trust=trust)
    for key, path in _targets({name: entries.get(name) for name in late}):
        permitted(path, key=key, trust=trust)
    return trust


def _check_rates(entries: Mapping[str, Any]) -> None:
    for rate in RATES:
        checks.number(rate, entries.get(rate, 0.0), zero=True)
    if entries.get("local_learning_rate_schedule") is not None and not entries.get("local_optimizer"):
        raise ValueError(
            "local_learning_rate_schedule would do nothing without a local optimizer: leave it out, or add local_optimizer=sgd"
        )


def _build(name: str, entry: dict[str, Any], kind: type, trust: list[str], **given: Any) -> Any:
    """The object of the class that `_target_` names; ValueError if it is no `kind`, or a key is unknown or missing."""
    if "_target_" not in entry:
        raise ValueError(f"{name}._target_ is missing: choose one of hetsim's configs with {name}=…, or name a class")
    target = resolve(entry["_target_"], key=f"{name}._target_", trust=trust)
    if not (isinstance(target, type) and issubclass(target, kind)):
        raise ValueError(f"{name}._target_={entry['_target_']} is no {kind.__name__}: name a subclass of {kind.__module__}.{kind.__name__}")
    if inspect.isabstract(target):
        lacks = ", ".join(sorted(getattr(target, "__abstractmethods__", ())))
        raise ValueError(f"{name}._target_={entry['_target_']} lacks {lacks}: write what {kind.__module__}.{kind.__name__} asks for")
    options = [key for key in entry if key != "_target_"]
    known = [key for key in argument_names(target) if key not in given]
    for option in options:
        if option not in known:
            raise ValueError(
                f"{name}.{option} is no key of {entry['_target_']} ({', '.join(known) or 'it has none'})"
                f"{checks.suggestion(option, known) or f': add {chr(39)}~{name}.{option}{chr(39)} to leave it out'}"
            )
    for option in required_arguments(target):
        if option not in options and option not in given:
            raise ValueError(f"{name}.{option} is missing: give it a value")
    recipe = {**entry, "_target_": current_name(entry["_target_"]), "_partial_": True}
    return instantiate(recipe, _convert_="all")(**given)


def _optimizer(entries: Mapping[str, Any], name: str, trust: tuple[str, ...]) -> OptimizerRecipe:
    schedule = entries.get(OPTIMIZERS[name])
    recipe = None if schedule is None else _recipe(OPTIMIZERS[name], schedule)
    return OptimizerRecipe(_recipe(name, entries[name]), recipe, trust, key=name, schedule_key=OPTIMIZERS[name])


def _recipe(name: str, entry: Any) -> Recipe:
    """The class and options of what is built later, where torch may be imported; options may hold recipes."""
    if not isinstance(entry, Mapping) or "_target_" not in entry:
        raise ValueError(f"{name} must have a _target_, such as torch.optim.SGD or torch.optim.lr_scheduler.StepLR, not {entry!r}")
    options = {key: value for key, value in entry.items() if key != "_target_"}
    for key, value in options.items():
        if isinstance(value, list) and value and all(isinstance(part, Mapping) for part in value):
            options[key] = [_recipe(f"{name}.{key}", part) for part in value]
    return Recipe(entry["_target_"], options)


def _targets(entry: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every `_target_` at any depth, with the key where it stands."""
    if isinstance(entry, Mapping):
        for name, value in entry.items():
            where = f"{key}.{name}" if key else str(name)
            if name == "_target_":
                yield where, value
            elif isinstance(name, str) and name in ("_args_", "_partial_", "_recursive_", "_convert_"):
                raise ValueError(f"{where} is no key of the schema: name the arguments themselves")
            yield from _targets(value, where)
    elif isinstance(entry, list):
        for index, value in enumerate(entry):
            yield from _targets(value, f"{key}[{index}]")


def refuse_unread_rates(config: DictConfig, typed: Sequence[str]) -> None:
    """ValueError with one sentence if a rate was typed that no optimizer of this config reads."""
    for rate, group in RATES.items():
        entry = config.get(group)
        if any(override.split("=")[0] == rate for override in typed) and entry and f"${{{rate}}}" not in OmegaConf.to_yaml(entry):
            raise ValueError(f"{rate} would do nothing, as this {group} does not read it: set {group}'s own keys, such as {group}.lr")
