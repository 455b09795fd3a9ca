"""Run a composed config in a folder: what the command does for each run, and Python's `hetsim.run` for one."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from hetsim.cli import libraries
from hetsim.cli.build import build_experiment, refuse_unread_rates
from hetsim.cli.environment import without_values
from hetsim.cli.folders import name
from hetsim.results.identity import config_header, identity_of
from hetsim.runtime.curve import Point

DOWNLOAD = re.compile(r"[+]*(workload\.)?download=true", re.IGNORECASE)
"""A word that says whether data may be fetched. A file cannot vary it in a sweep."""
Lock = Callable[[Path], contextlib.AbstractContextManager[None]]


def start(
    config: DictConfig, folder: Path, typed: Sequence[str], lock: Lock | None = None, watch: Callable[[Point], None] | None = None
) -> dict[str, Any] | None:
    """The summary of the run; None in a process that does not lead it. Of torchrun's processes, which share the folder, one locks it.

    `watch` is called with each evaluation of a simulated run, and may raise what ends it.
    """
    refuse_unread_rates(config, typed)
    made, backend = build_experiment(config)
    if getattr(made.workload, "download", False) and not any(DOWNLOAD.fullmatch(word) for word in typed):
        raise ValueError("download is set by a config file, and is taken from the command line alone: type download=true")
    written, environment = without_values(config)
    text = config_header(identity(written, environment), typed, environment) + OmegaConf.to_yaml(OmegaConf.create(written))
    with lock(folder) if lock is not None and backend.leads(made) else contextlib.nullcontext():
        return backend.run(made if watch is None else dataclasses.replace(made, watch=watch), folder, text)


def identity(entries: dict[str, Any], environment: dict[str, str]) -> str:
    """The identity of a run: its hash has in it the hashes of values from the environment, not the values."""
    return identity_of({**entries, "environment": environment} if environment else entries)


def without_hydra(config: DictConfig) -> DictConfig:
    """The config without Hydra's own part."""
    return OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"]) if "hydra" in config else config


# On import, as the names of folders refer to it, and what is built imports PyTorch.
libraries.install()
OmegaConf.register_new_resolver("hetsim.name", lambda key, *, _root_: name(key, config=_root_), replace=True)
