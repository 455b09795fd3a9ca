"""Build the objects of a run from its config."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Set
from dataclasses import replace
from typing import Any

from hetsim import checks
from hetsim.cluster.parse.cluster import parse_cluster
from hetsim.cluster.quantities import convert_to_si, convert_whole_floats
from hetsim.config.resolved import check_model, name_of, with_names
from hetsim.config.resumed import resumed_file
from hetsim.config.schema import AXES, GROUPS, OPTIMIZERS, RATES, TORCH_KEYS, unknown
from hetsim.coordination.base import Coordination
from hetsim.files.config_file import flattened
from hetsim.files.keys import PLAIN
from hetsim.policies.admission import Admission
from hetsim.policies.allocation.base import Allocation
from hetsim.policies.compensation import Compensation
from hetsim.policies.compression import Compression
from hetsim.policies.weighting import Discount, Weighting
from hetsim.runtime.backend import Backend
from hetsim.runtime.budget import Budget
from hetsim.runtime.checkpointing import Checkpointing
from hetsim.runtime.experiment import Experiment
from hetsim.trust.names import argument_names, check_name, check_trusted, examples, required_arguments, resolve
from hetsim.trust.shipped import choices, choices_with
from hetsim.trust.signatures import is_missing, written_arguments
from hetsim.workloads.partition import Partition
from hetsim.workloads.task import OptimizerRecipe, Recipe, Workload

POLICIES: dict[str, type] = {
    "allocation": Allocation,
    "weighting": Weighting,
    "discount": Discount,
    "compensation": Compensation,
    "admission": Admission,
    "compression": Compression,
}
"""Each axis of policies, with the base class of its choices."""
CONSTRUCTED = {"optimizer": ("Optimizer", "params"), "learning_rate_schedule": ("LRScheduler", "optimizer")}
"""For each group: the base class in torch.optim, and the first argument of its constructor."""
MISSING = "???"
"""A mandatory value without a default."""
WITHIN = "schedulers"
"""The option with schedules in torch's SequentialLR and ChainedScheduler."""


def build_experiment(entries: Mapping[str, Any]) -> tuple[Experiment, Backend]:
    """The objects that a resolved config describes. Raises ValueError if it describes none."""
    experiment, entries = _experiment_of(entries)
    backend = _build("backend", entries["backend"], Backend, check_trusted(entries.get("trust")))
    backend.check(experiment)
    return experiment, backend


def build_without_backend(entries: Mapping[str, Any]) -> Experiment:
    """The run that a resolved config describes, for a backend that no config names. Raises ValueError if it describes none."""
    return _experiment_of(entries)[0]


def _experiment_of(entries: Mapping[str, Any]) -> tuple[Experiment, Mapping[str, Any]]:
    """The run that a config describes, and the config in SI units and with names."""
    if "grid" in entries:
        raise ValueError("grid says what a sweep varies for each method, by hydra/sweeper=basic: add -m, and type it as +grid=…")
    entries = checks.mapping("config", entries, optional=None)
    if others := [name for name in entries if name not in (*PLAIN, *GROUPS)]:
        raise ValueError(unknown(others[0]))
    if missing := [key for key, value in flattened(entries) if value == MISSING]:
        raise ValueError(f"{missing[0]} is missing: give it a value")
    for name, kind in PLAIN.items():
        if kind.is_required and entries.get(name) is None:
            raise ValueError(f"{name} is missing: give it a value")
    for name in ("backend", "cluster", "workload", "coordination", "optimizer", "budget", *AXES):
        checks.mapping(name, entries.get(name), optional=None)
    if entries.get("partition") is not None:
        checks.mapping("partition", entries["partition"], optional=None)
    entries = with_names(convert_whole_floats(convert_to_si(entries)))
    trust = check_trusted(entries.get("trust"))
    _check_targets(entries, trust)
    _check_rates(entries)
    budget = checks.mapping("budget", entries["budget"], optional=("epochs", "updates", "seconds"))
    saved = checks.mapping("checkpoint", entries.get("checkpoint") or {}, optional=("every_seconds", "every_updates", "keep"))
    cluster = parse_cluster(entries["cluster"])
    cluster = replace(cluster, name=name_of(entries["cluster"]))
    check_model(entries)
    policies = {axis: _build(axis, entries[axis], kind, trust) for axis, kind in POLICIES.items()}
    partition = None if entries.get("partition") is None else _build("partition", entries["partition"], Partition, trust)
    experiment = Experiment(
        method=checks.name("method", entries["method"]),
        coordination=_build("coordination", entries["coordination"], Coordination, trust, **policies),
        cluster=cluster,
        workload=_build("workload", entries["workload"], Workload, trust),
        optimizer=_optimizer(entries, "optimizer", tuple(trust)),
        local_optimizer=_optimizer(entries, "local_optimizer", tuple(trust)) if entries.get("local_optimizer") else None,
        regional_optimizer=_optimizer(entries, "regional_optimizer", tuple(trust)) if entries.get("regional_optimizer") else None,
        budget=Budget(**budget),
        checkpoint=Checkpointing(**saved),
        resume=resumed_file(entries.get("resume")),
        partition=partition,
        **{key: entries[key] for key, kind in PLAIN.items() if kind.is_of_experiment and key != "method" and key in entries},
    )
    return experiment, entries


def shipped_policy(axis: str, choice: str) -> Any:
    """The policy that a choice of an axis stands for, if no key of it is typed."""
    return _build(axis, choices(axis)[choice], POLICIES[axis], [])


def _check_targets(entries: Mapping[str, Any], trust: list[str]) -> None:
    """Raise ValueError for a misplaced or forbidden `_target_`. No code has run yet."""
    objects = {*AXES, "coordination", "workload", "backend", "partition"}
    for name, entry in entries.items():
        if name in objects and entry is not None:
            if "_target_" not in entry:
                raise ValueError(f"{name}._target_ is missing: choose one of hetsim's configs with {name}=…, or name a class")
            check_name(entry["_target_"], key=f"{name}._target_", group=name, trust=trust)
            _refuse_targets(name, {key: value for key, value in entry.items() if key != "_target_"})
        elif name not in TORCH_KEYS:
            _refuse_targets(name, entry)
    for name, group in TORCH_KEYS.items():
        if entries.get(name) is not None and (
            name not in ("local_optimizer", "regional_optimizer") or entries[name]
        ):  # of which none is {}
            _check_recipe(name, entries[name], group, trust)


def _check_recipe(key: str, entry: Any, group: str, trust: list[str]) -> None:
    """As `_check_targets`, for an optimizer, or a schedule and the schedules within it, whose options are those that its source has.

    Kinds are checked where torch is imported, which a phantom never does.
    """
    if not isinstance(entry, Mapping) or "_target_" not in entry:
        raise ValueError(f"{key} must have a _target_, such as torch.optim.SGD or torch.optim.lr_scheduler.StepLR, not {entry!r}")
    target = check_name(entry["_target_"], key=f"{key}._target_", group=group, trust=trust)
    for option, value in entry.items():
        if option == WITHIN and group == TORCH_KEYS["learning_rate_schedule"] and isinstance(value, list):
            for index, part in enumerate(value):
                _check_recipe(f"{key}.{option}.{index}", part, group, trust)
        elif option != "_target_":
            _refuse_targets(f"{key}.{option}", value)
            _refuse_directive(key, option)
    _check_options(key, target, entry.keys() - {"_target_"}, group)


def _check_options(key: str, target: str, options: Set[str], group: str) -> None:
    """Raise ValueError for a class that its module's source lacks, or an option that the class's source lacks."""
    name, first = CONSTRUCTED[group]
    options_of_class = written_arguments(target)
    if is_missing(target):
        raise ValueError(f"{key}._target_={target} does not exist: name a class such as {' or '.join(examples(group))}")
    if options_of_class is None:
        return
    if options_of_class[:1] != [first] and target.split(".")[0] == "torch":
        raise ValueError(f"{key}._target_={target} is no {name}: name a class such as {' or '.join(examples(group))}")
    for option in sorted(options - {*options_of_class}):
        remedy = checks.suggestion(option, options_of_class) or ": " + checks.without(f"{key}.{option}")
        raise ValueError(f"{key}.{option} is not an option of {target}{remedy}")


def _refuse_targets(key: str, entry: Any) -> None:
    """Raise ValueError for a `_target_`, or another directive of Hydra, in a part of the config that contains no object."""
    if isinstance(entry, Mapping):
        for name, value in entry.items():
            _refuse_directive(key, name)
            _refuse_targets(f"{key}.{name}", value)
    elif isinstance(entry, list):
        for index, value in enumerate(entry):
            _refuse_targets(f"{key}.{index}", value)
    elif entry is not None and not isinstance(entry, str | int | float):
        raise ValueError(f"{key} must be a number, a text, a list or a mapping, not {checks.shown(entry)}: leave the YAML tag out")


def _refuse_directive(key: str, name: Any) -> None:
    if name == "_target_":
        raise ValueError(f"{key}._target_ is not allowed, because {key} holds plain values and no object: leave it out")
    if name in ("_args_", "_partial_", "_recursive_", "_convert_"):
        raise ValueError(f"{key}.{name} is not a key of the schema: name the arguments themselves")


def _check_rates(entries: Mapping[str, Any]) -> None:
    for rate in RATES:
        checks.number(rate, entries.get(rate, 0.0), zero=True)
    if entries.get("local_learning_rate_schedule") is not None and not entries.get("local_optimizer"):
        raise ValueError(
            "local_learning_rate_schedule would do nothing without a local optimizer: leave it out, or add local_optimizer=sgd"
        )


def _build(name: str, entry: dict[str, Any], kind: type, trust: list[str], **arguments: Any) -> Any:
    """The object of the class in `_target_`. Raises ValueError if it is no `kind`, or a key is unknown or missing."""
    path = entry["_target_"]
    target = resolve(path, key=f"{name}._target_", group=name, kind=kind, trust=trust)
    if inspect.isabstract(target):
        lacks = ", ".join(sorted(getattr(target, "__abstractmethods__", ())))
        raise ValueError(f"{name}._target_={path} lacks {lacks}: write what {kind.__module__}.{kind.__name__} asks for")
    options = {key: value for key, value in entry.items() if key != "_target_"}
    arguments |= {"trust": tuple(trust)} if getattr(target, "takes_trust", False) else {}
    names = [key for key in argument_names(target) if key not in arguments]
    for option in options:
        if option not in names:
            having = choices_with(name, option)
            close = "" if having else checks.suggestion(option, names)
            leave_out = f": {checks.without(f'{name}.{option}')}{f', or {having}' if having else ''}"
            raise ValueError(f"{name}.{option} is not a key of {path} ({', '.join(names) or 'it has none'}){close or leave_out}")
    for option in required_arguments(target):
        if option not in options and option not in arguments:
            raise ValueError(f"{name}.{option} is missing: give it a value")
    try:
        return target(**options, **arguments)
    except (ValueError, AssertionError):
        raise
    except Exception as error:  # of a class of the user's own
        raise ValueError(f"{name}: {path} refuses {options}: {type(error).__name__}: {error}") from error


def _optimizer(entries: Mapping[str, Any], name: str, trust: tuple[str, ...]) -> OptimizerRecipe:
    key = OPTIMIZERS.get(name, "")
    schedule = entries.get(key)
    recipe = None if schedule is None else _recipe(schedule)
    return OptimizerRecipe(_recipe(entries[name]), recipe, trust, key=name, schedule_key=key)


def _recipe(entry: Mapping[str, Any]) -> Recipe:
    """The class and options of an object to build later, where torch may be imported. A schedule may contain schedules."""
    options = {key: value for key, value in entry.items() if key != "_target_"}
    if isinstance(options.get(WITHIN), list):
        options[WITHIN] = [_recipe(part) for part in options[WITHIN]]
    return Recipe(entry["_target_"], options)
