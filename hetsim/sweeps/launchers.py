"""Hydra's sweeper and launchers: for runs that are shorter than Hydra's own work, and for jobs that run only checked configs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins


def _sweeper(**options: Any) -> Any:
    from hetsim.sweeps.sweeper import CombinationsSweeper

    return CombinationsSweeper(**options)


def _basic(**options: Any) -> Any:
    from hetsim.sweeps.basic_launcher import InThisProcess

    return InThisProcess(**options)


def _joblib(**options: Any) -> Any:
    from hetsim.sweeps.process_launchers import Here

    return Here(**options)


def _local(**options: Any) -> Any:
    from hetsim.sweeps.submitit_launcher import Local

    return Local(**options)


def _slurm(**options: Any) -> Any:
    from hetsim.sweeps.submitit_launcher import Slurm

    return Slurm(**options)


def _ray(**options: Any) -> Any:
    from hetsim.sweeps.process_launchers import OnRay

    return OnRay(**options)


@dataclass
class RayConf:
    """The keys of `hydra/launcher=ray`."""

    _target_: str = "hydra_plugins.hetsim.OnRay"  # by this name in the table of plugins, as Hydra wants: no package has it
    n_jobs: int | None = None
    num_cpus: float = 1
    num_gpus: float = 0


# On import, as Hydra's own launchers are in its store once they are imported.
ConfigStore.instance().store(group="hydra/launcher", name="ray", node=RayConf, provider="hetsim")

LATER: dict[str, Any] = {
    "hydra._internal.core_plugins.basic_sweeper.BasicSweeper": _sweeper,
    "hydra._internal.core_plugins.basic_launcher.BasicLauncher": _basic,
    "hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher": _joblib,
    "hydra_plugins.hydra_submitit_launcher.submitit_launcher.LocalLauncher": _local,
    "hydra_plugins.hydra_submitit_launcher.submitit_launcher.SlurmLauncher": _slurm,
}
"""Functions that Hydra calls to make a sweeper or a launcher, by the name of Hydra's own. A single run does not import their modules."""


@contextlib.contextmanager
def own_plugins() -> Iterator[None]:
    """Within this context, Hydra's table of installed plugins contains these classes under the names of Hydra's own."""
    installed = Plugins.instance().class_name_to_class
    before = dict(installed)
    installed.update({name: made for name, made in LATER.items() if name in installed})
    installed[RayConf._target_] = _ray  # type: ignore[assignment]
    try:
        yield
    finally:
        installed.clear()
        installed.update(before)
