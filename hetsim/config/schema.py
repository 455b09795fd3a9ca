"""The keys of a config: groups and axes of policies, besides plain values. For an unknown key: the correction.

Corrections come from the keys, the choices of a group, and usual synonyms.
"""

from __future__ import annotations

import contextlib
import importlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from hetsim import checks
from hetsim.files.keys import PLAIN
from hetsim.trust.names import argument_names, check_name
from hetsim.trust.shipped import choice, choices, choices_with

AXES = ("allocation", "weighting", "discount", "compensation", "admission", "compression")
"""The axes of policies."""

OPTIMIZERS = {"optimizer": "learning_rate_schedule", "local_optimizer": "local_learning_rate_schedule"}
"""Each optimizer, with the key of its learning-rate schedule."""
TORCH_KEYS = {
    **{key: group for either in OPTIMIZERS.items() for key, group in zip(either, ("optimizer", "learning_rate_schedule"), strict=True)},
    "regional_optimizer": "optimizer",
}
"""The keys that hold a class of torch.optim, with the group of `hetsim.trust.names` that it must belong to."""
GROUPS = (
    *("backend", "cluster", "workload", "coordination", "budget", "checkpoint", "partition", "regional_optimizer"),
    *(*AXES, *OPTIMIZERS, *OPTIMIZERS.values()),
)
"""The keys that are groups of choices, or hold keys of their own."""
RATES = {"learning_rate": "optimizer", "momentum": "optimizer", "local_learning_rate": "local_optimizer"}
"""Each rate, with the optimizer that reads it."""

SYNONYMS = {
    "learning_rate=…": ("lr", "eta", "step_size", "base_lr", "alpha"),
    "local_learning_rate=…": ("local_lr", "inner_lr", "lr_local"),
    "learning_rate_schedule={_target_: torch.optim.lr_scheduler.StepLR, step_size: 10}": ("scheduler", "lr_scheduler", "lr_schedule"),
    "batch_size=…": ("bs", "batch", "batchsize", "global_batch", "global_batch_size", "train_batch_size", "minibatch"),
    "budget.epochs=…": ("num_epochs", "n_epochs", "max_epochs", "epoch"),
    "budget.updates=…": ("steps", "num_steps", "max_steps", "iterations", "iters", "max_iters", "updates", "num_updates"),
    "budget.seconds=…": ("seconds", "max_seconds", "time", "max_time", "duration", "time_limit"),
    "optimizer=…": ("optim", "opt"),
    "workload=…": ("dataset", "task", "problem"),
    "workload.model=lenet, or workload=phantom workload.num_parameters=25.6M": ("model", "num_parameters", "parameters"),
    "cluster=machines 'cluster.machines=[…]'": ("machines", "gpus", "hosts"),
    "'cluster.nodes=[{count: 4, seconds_per_sample: 1 ms, overhead_seconds: 0}]'": ("nodes", "workers", "num_workers", "world_size"),
    "cluster.network.bytes_per_second=…": ("network", "bandwidth", "link"),
    "cluster.network.latency_seconds=…": ("latency",),
    "'+cluster.faults={schedule: […]}'": ("faults", "failures"),
    "method=…": ("algorithm", "algo", "strategy"),
    "seed=…": ("random_seed", "rng_seed"),
    "threads=…": ("num_threads", "n_threads"),
    "data_root=…": ("data_dir", "data_path", "dataroot"),
    "+optimizer.weight_decay=…": ("weight_decay", "wd", "l2"),
    "optimizer=nesterov": ("nesterov",),
    "autocast=bfloat16": ("precision", "amp", "mixed_precision", "bf16"),
    "hydra.run.dir=FOLDER": ("output", "out", "output_dir", "outdir", "out_dir", "folder", "run_dir", "log_dir", "save_dir"),
    "logger=wandb": ("wandb", "tensorboard", "mlflow"),
}
"""Arguments of hetsim, and their names in other programs."""
MEANT = {name: word for word, names in SYNONYMS.items() for name in names}
"""The arguments of hetsim by synonym."""
OF_DIST = ("backend.emulate", "backend.interface", "backend.port", "backend.reduction", "backend.micro_batch")


def unknown(key: str) -> str:
    """The error for a key that the whole config does not have."""
    if key in MEANT:
        return f"{key} is not a key of the config: type {MEANT[key]}"
    return f"{key} is not a key of the config: 'hetsim --help' lists all keys{checks.suggestion(key, (*PLAIN, *GROUPS))}"


def unknown_key(typed: str, error: BaseException | None) -> str:
    """The error for a typed key, or a key in a typed mapping, that OmegaConf did not find."""
    key = dotted(getattr(error, "full_key", None) or typed)
    group, _, name = key.partition(".")
    if key == "objective":
        return "objective is not a key of the config: it is an option of hetsim-search"
    if key in OF_DIST:
        return f"{key} is not a key of the config: add backend=dist, which has it"
    if key == "cluster.machines":
        return f"{key} is a whole cluster of its own: type cluster=machines 'cluster.machines=[…]'"
    if not name:
        return unknown(key)
    parent = getattr(error, "parent_node", None)
    root: Any = parent._get_root() if isinstance(parent, DictConfig) else None
    last = key.rpartition(".")[2]
    if root is None or group not in root:
        return unknown(key if group in MEANT else group) if group not in (*PLAIN, *GROUPS) else f"{key} is not a key of the config"
    if group in PLAIN:
        return f"{key} is not a key of the config, because {group} has a value and no keys within it: type {group}=…"
    having = choices_with(group, name) if "." not in name else ""
    keys = [] if parent is None or parent._is_none() else [str(key_within) for key_within in parent]
    close = checks.suggestion(last, keys)
    if refused := _refused(root, group, name, having):
        return f"{key} is not a key of the config{close}" if close else refused
    if group in ("budget", "checkpoint"):
        return f"{key} is not a key of the config: {group} has {', '.join(keys)}{close or _elsewhere(last)}"
    plus = f"+{key}" if key == dotted(typed) else f"++{typed}"
    return f"{key} is not a key of the config as it stands: add {'a +' if plus[1] != '+' else '++'} in front, as {plus}=…"


def dotted(key: str) -> str:
    """A key as a user types it: `cluster.nodes.0.count` for `cluster.nodes[0].count`."""
    return re.sub(r"\[(\w+)\]", r".\1", key)


def _refused(root: DictConfig, group: str, name: str, having: str) -> str:
    """The schema's error for a key that is added to a group; an empty string if it may be added, or only the run can decide."""
    key = f"{group}.{name}"
    if group == "cluster":
        return _refused_in_cluster(root, key)
    target = OmegaConf.select(root, f"{group}._target_")
    options = _options(group, target)
    if options is None or "." in name or name in options:
        return ""
    shipped = choice(group, OmegaConf.to_container(root[group]))  # type: ignore[arg-type]
    owner = f"{target} ({', '.join(options)})" if group in TORCH_KEYS else f"{group}={shipped} ({', '.join(options) or 'it has none'})"
    if name in choices(group):
        return f"{key} is not a key of {owner}; did you mean {group}={name}?"
    near = checks.suggestion(name, options)
    return f"{key} is not a key of {owner}{near or (f': {having}' if having else _elsewhere(name)) or ': leave it out'}"


def _elsewhere(name: str) -> str:
    """'; did you mean …?' with a key of the whole config, if this name is a key or a synonym of one."""
    word = MEANT.get(name, f"{name}=…" if name in PLAIN else "")
    return f"; did you mean {word}?" if word else ""


def _options(group: str, target: Any) -> Sequence[str] | None:
    """The keys that a class of hetsim or torch accepts in a config; None for other classes."""
    kind = TORCH_KEYS.get(group, group)
    with contextlib.suppress(Exception):  # of a name that is none: the run reports it
        check_name(target, key=group, group=kind)
        module, _, name = target.rpartition(".")
        if group in TORCH_KEYS or target.startswith("hetsim."):
            return [argument for argument in argument_names(getattr(importlib.import_module(module), name)) if argument not in OF_NO_CONFIG]
    return None


OF_NO_CONFIG = (*AXES, "trust", "params", "optimizer")
"""Arguments that hetsim passes itself, and a config does not contain."""


def _refused_in_cluster(root: DictConfig, key: str) -> str:
    from hetsim.cluster.parse.cluster import parse_cluster

    above, _, last = key.rpartition(".")
    with contextlib.suppress(Exception):  # what else is wrong, the run reports
        cluster = OmegaConf.to_container(root.cluster, resolve=True)
        _put(cluster, key.split(".")[1:])
        try:
            parse_cluster(cluster)
        except ValueError as error:
            if str(error).startswith((f"{key} ", f"{above} must be")):
                return str(error)
            if lacking := re.match(rf"{re.escape(above)}\.(\w+) is missing", str(error)):
                instead = f"'{above}={{{lacking[1]}: …, {last}: …}}'"
                return f"{key} is not a key of the config, because {above} is a single value there: type {instead}"
    return ""


def _put(entries: Any, names: Sequence[str]) -> None:
    """Put null at this key."""
    first, *rest = names
    place: Any = int(first) if isinstance(entries, list) else first
    if not rest:
        entries[place] = None
        return
    if isinstance(entries, dict) and not isinstance(entries.get(place), Mapping | list):
        entries[place] = {}
    _put(entries[place], rest)
