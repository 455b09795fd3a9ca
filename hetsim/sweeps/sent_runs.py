"""Execute a sweep's runs in a launcher's long-lived processes. The common data are sent and read once for each process."""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig
from omegaconf.basecontainer import BaseContainer

from hetsim.config.guard import provenance
from hetsim.config.guard.compositions import Template, compositions
from hetsim.pool.cores import share_cores
from hetsim.sweeps import job  # noqa: F401 its resolver names the folders of runs
from hetsim.sweeps.execute import execute


def common_of(launcher: Launcher) -> tuple[Any, ...]:
    """The common data of this launcher's runs, to be pickled."""
    its: Any = launcher
    return its.hydra_context, its.task_function, its.config, Singleton.get_state()["instances"], os.getpid(), os.getcwd()


def run_sent(common: bytes, typed: Sequence[str], template: Template | None, number: int, *, sweep: str | None = None) -> JobReturn:
    """Execute a run's overrides in this process. `sweep` is as in `execute`."""
    with provenance.installed():
        context, task, master = received(common)
        if template is not None:
            known = compositions(context.config_loader, master)
            known.keep(typed, template)
            known.sealed = template.others
        return execute(context, task, master, typed, number=number, job_id=f"{master.hydra.job.name}_{number}", sweep=sweep)


@lru_cache(maxsize=1)
def received(pickled: bytes) -> tuple[HydraContext, TaskFunction, DictConfig]:
    """The common data of a sweep's runs. Hydra in this process then uses them."""
    context, task, master, instances, sender, where = pickle.loads(pickled)
    if os.getpid() != sender:  # a pool of one process has none but this one
        with contextlib.suppress(OSError):  # a node may lack the folder; a process of a pool may have served a sweep from another one
            os.chdir(where)
        share_cores()
        setup_globals()
        Singleton.set_state({"instances": instances, "omegaconf_resolvers": BaseContainer._resolvers})  # those of hetsim and Hydra
    return context, task, master
