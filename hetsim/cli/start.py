"""Run a composed config in a folder: what the command does for each run, and Python's `hetsim.run` for one."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from hetsim.cli.build import build_experiment, refuse_unread_rates
from hetsim.cli.devices import resolved
from hetsim.cli.entries import entries_of, identity
from hetsim.cli.environment import check_shown
from hetsim.cli.yaml_text import as_yaml
from hetsim.results.identity import config_header
from hetsim.runtime.curve import Point
from hetsim.runtime.experiment import Experiment

DOWNLOAD = re.compile(r"[+]*(workload\.)?download=(?i:true)")
"""A word that says whether data may be fetched. A file cannot vary it in a sweep."""
DATA_ROOT = re.compile(r"[+]*(workload\.)?data_root=")
Lock = Callable[[Path], contextlib.AbstractContextManager[None]]


def start(
    config: DictConfig, folder: Path, typed: Sequence[str], lock: Lock | None = None, watch: Callable[[Point], None] | None = None
) -> dict[str, Any] | None:
    """The summary of the run; None in a process that does not lead it. Of a launcher's processes, which share the folder, one locks it.

    `watch` is called with each evaluation of a simulated run, and may raise what ends it.
    """
    refuse_unread_rates(config, typed)
    made, backend = build_experiment(config)
    written, environment = entries_of(config)
    check_download(made, typed, environment)
    check_shown(environment)
    text = config_header(identity(written, environment), typed, environment) + as_yaml(resolved(written))
    with lock(folder) if lock is not None and backend.leads(made) else contextlib.nullcontext():
        return backend.run(made if watch is None else dataclasses.replace(made, watch=watch), folder, text)


def check_download(made: Experiment, typed: Sequence[str], environment: Collection[str]) -> None:
    """ValueError with one sentence if a config file, and nobody who typed it, says that data are to be fetched.

    So too if it says that they go to a folder whose name is the value of a variable, by the keys that depend on the environment.
    """
    if not getattr(made.workload, "download", False):
        return
    if {"data_root", "workload.data_root"} & {*environment} and not any(DATA_ROOT.match(word) for word in typed):
        raise ValueError("data_root comes from an environment variable by a config file, and download=true would show it: type data_root=…")
    if not any(DOWNLOAD.fullmatch(word) for word in typed):
        raise ValueError("download is set by a config file, and is taken from the command line alone: type download=true")
