"""From a config to a run. The only place that knows Hydra."""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from hetsim import checks, report, trusted
from hetsim.budget import Budget
from hetsim.cluster import cluster
from hetsim.coordination.plan import Coordination
from hetsim.experiment import Backend, Experiment, RunFailed
from hetsim.methods import configs
from hetsim.policies.admission import Admission
from hetsim.policies.allocation import Allocation
from hetsim.policies.compensation import Compensation
from hetsim.policies.compression import Compression
from hetsim.policies.weighting import Discount, Weighting
from hetsim.workloads.task import OptimizerRecipe, Recipe, Workload

AXES: dict[str, type] = {
    "allocation": Allocation,
    "weighting": Weighting,
    "discount": Discount,
    "compensation": Compensation,
    "admission": Admission,
    "compression": Compression,
}
PLAIN = (
    *("method", "seed", "batch_size", "dtype", "threads", "evaluate_every_epochs", "trace", "pictures"),
    *("trust", "data_root", "download", "learning_rate", "momentum", "local_learning_rate"),
)
OPTIMIZERS = {"optimizer": "learning_rate_schedule", "local_optimizer": "local_learning_rate_schedule"}
GROUPS = ("backend", "cluster", "workload", "coordination", "budget", *AXES, *OPTIMIZERS, *OPTIMIZERS.values())


def experiment(config: DictConfig) -> tuple[Experiment, Backend]:
    """The objects that a config describes; ValueError with one sentence if it describes none."""
    try:
        entries = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise ValueError(_sentence(error)) from None
    entries = checks.mapping("config", entries, optional=(*PLAIN, *GROUPS))
    for name in ("backend", "cluster", "workload", "coordination", "optimizer", "budget", *AXES):
        checks.mapping(name, entries.get(name), optional=list(entries.get(name) or ()))
    trust = entries.get("trust") or []
    if not isinstance(trust, list) or not all(isinstance(module, str) for module in trust):
        raise ValueError(f"trust must be a list of module names, such as trust=[mypackage], not {trust!r}")
    late = (*OPTIMIZERS, *OPTIMIZERS.values())  # resolved where torch may be imported
    for key, path in _targets({name: entry for name, entry in entries.items() if name not in late}):
        trusted.resolve(path, key=key, trust=trust)
    for key, path in _targets({name: entries.get(name) for name in late}):
        trusted.permitted(path, key=key, trust=trust)
    for rate in ("learning_rate", "momentum", "local_learning_rate"):
        checks.number(rate, entries.get(rate, 0.0), zero=True)
    if entries.get("local_learning_rate_schedule") is not None and not entries.get("local_optimizer"):
        raise ValueError(
            "local_learning_rate_schedule would do nothing without a local optimizer: leave it out, or add local_optimizer=sgd"
        )
    budget = checks.mapping("budget", entries["budget"], optional=("epochs", "updates", "seconds"))
    policies = {axis: _build(axis, entries[axis], kind, trust) for axis, kind in AXES.items()}
    made = Experiment(
        method=str(entries["method"]),
        coordination=_build("coordination", entries["coordination"], Coordination, trust, **policies),
        cluster=cluster(entries["cluster"]),
        workload=_build("workload", entries["workload"], Workload, trust),
        optimizer=_optimizer(entries, "optimizer", tuple(trust)),
        local_optimizer=_optimizer(entries, "local_optimizer", tuple(trust)) if entries.get("local_optimizer") else None,
        budget=Budget(**budget),
        **{key: entries[key] for key in ("batch_size", "seed", "dtype", "threads", "evaluate_every_epochs", "trace", "pictures")},
    )
    backend = _build("backend", entries["backend"], Backend, trust)
    backend.check(made)
    return made, backend


def _build(name: str, entry: dict[str, Any], kind: type, trust: list[str], **given: Any) -> Any:
    """The object that `_target_` names, of the expected kind and with no key that it does not know."""
    if "_target_" not in entry:
        raise ValueError(f"{name}._target_ is missing: choose one of hetsim's configs with {name}=…, or name a class")
    target = trusted.resolve(entry["_target_"], key=f"{name}._target_", trust=trust)
    if not (isinstance(target, type) and issubclass(target, kind)):
        raise ValueError(f"{name}._target_={entry['_target_']} is no {kind.__name__}: name a subclass of {kind.__module__}.{kind.__name__}")
    if inspect.isabstract(target):
        lacks = ", ".join(sorted(getattr(target, "__abstractmethods__", ())))
        raise ValueError(f"{name}._target_={entry['_target_']} lacks {lacks}: write what {kind.__module__}.{kind.__name__} asks for")
    options = [key for key in entry if key != "_target_"]
    known = [key for key in trusted.options(target) if key not in given]
    for option in options:
        if option not in known:
            raise ValueError(
                f"{name}.{option} is no key of {entry['_target_']} ({', '.join(known) or 'it has none'})"
                f"{checks.suggestion(option, known) or f': add {chr(39)}~{name}.{option}{chr(39)} to leave it out'}"
            )
    for option in trusted.required(target):
        if option not in options and option not in given:
            raise ValueError(f"{name}.{option} is missing: give it a value")
    return instantiate({**entry, "_partial_": True}, _convert_="all")(**given)


def _optimizer(entries: Mapping[str, Any], name: str, trust: tuple[str, ...]) -> OptimizerRecipe:
    schedule = entries.get(OPTIMIZERS[name])
    recipe = None if schedule is None else _recipe(OPTIMIZERS[name], schedule)
    return OptimizerRecipe(_recipe(name, entries[name]), recipe, trust, key=name, schedule_key=OPTIMIZERS[name])


def _recipe(name: str, entry: Any) -> Recipe:
    """What to build later; nested recipes too."""
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


RATES = {"learning_rate": "optimizer", "momentum": "optimizer", "local_learning_rate": "local_optimizer"}


def _used(config: DictConfig, typed: Sequence[str]) -> None:
    """Refuse a rate that was typed where the optimizer does not read it."""
    for rate, group in RATES.items():
        entry = config.get(group)
        if any(override.split("=")[0] == rate for override in typed) and entry and f"${{{rate}}}" not in OmegaConf.to_yaml(entry):
            raise ValueError(f"{rate} would do nothing, as this {group} does not read it: set {group}'s own keys, such as {group}.lr")


USERS = (ValueError, OSError, RunFailed, HydraException, OmegaConfBaseException)  # what a user can mend
failures: list[BaseException] = []  # of the jobs of this command, told already


@hydra.main(version_base="1.3", config_path=str(configs()), config_name="config")
def _app(config: DictConfig) -> None:
    """One job. What fails is told here, and does not keep the other jobs of a sweep from running."""
    folder = Path(HydraConfig.get().runtime.output_dir)
    summary = None
    try:
        _used(config, HydraConfig.get().overrides.task)
        made, backend = experiment(config)
        summary = backend.run(made, folder, OmegaConf.to_yaml(config, resolve=True))
    except USERS as error:
        if _verbose():
            raise
        if os.environ.get("RANK", "0") == "0" or not isinstance(error, ValueError):  # of torchrun's ranks, one tells what all see
            _tell(error)
        failures.append(error)
    finally:
        if summary is None:
            with contextlib.suppress(OSError):
                folder.rmdir()  # Hydra made it; if anything is in it, it is somebody's
    if summary is not None:
        print(report.describe(summary))
        for warning in summary["warnings"]:
            print(f"hetsim: warning: {warning}", file=sys.stderr)
        print(f"  files in {os.path.relpath(folder)}", flush=True)


def main() -> None:
    """The command `hetsim`: one sentence and exit status 1 for what a user can mend, 130 after Ctrl-C."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # let errors through to here, where they become sentences
    try:
        _app()
    except KeyboardInterrupt:
        print("hetsim: interrupted", file=sys.stderr)
        sys.exit(130)
    except USERS as error:
        if _verbose():
            raise
        _tell(error)
        sys.exit(1)
    sys.exit(1 if failures else 0)


def _tell(error: BaseException) -> None:
    print(f"hetsim: error: {_sentence(error)}", file=sys.stderr, flush=True)


def _verbose() -> bool:
    return any(argument.lower() == "hydra.verbose=true" for argument in sys.argv)


def _sentence(error: BaseException) -> str:
    """What went wrong, in one line."""
    text = " ".join(str(error).split())
    if isinstance(error, MissingMandatoryValue):
        return f"{error.full_key} is missing: give it a value"
    unknown = re.match(r"Could not override '([^']+)'", text)
    if unknown:
        top = unknown[1].split(".")[0]
        if unknown[1] in ("backend.emulate", "backend.interface", "backend.port"):
            return f"{unknown[1]} is no key of the config: add backend=dist, which has it"
        hint = "" if top in (*PLAIN, *GROUPS) else checks.suggestion(top, (*PLAIN, *GROUPS))
        return f"{unknown[1]} is no key of the config: see 'hetsim --help' for those there are{hint}"
    unreadable = re.match(r"(?:LexerNoViableAltException: |Error parsing override ')(.*?)(?: \^|'| See )", text)
    if unreadable:
        return f"{unreadable[1]} cannot be read as key=value: see 'hetsim --help', and quote braces and spaces for the shell"
    no_choice = re.match(r"In '.*?': Could not find '(.+?)/([^/']*)' Available options in '.*?': (.*?) Config search path:", text)
    if no_choice:
        *others, last = no_choice[3].split()
        return f"{no_choice[1]}={no_choice[2]} is no choice: take {', '.join(others)}{' or ' if others else ''}{last}"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename} cannot be written or read ({error.strerror}): set hydra.run.dir to a folder that can be"
    return text or type(error).__name__
