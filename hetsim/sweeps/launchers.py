"""Hydra's launchers: for runs that are shorter than Hydra's work around each run, and for jobs that run only checked configs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, configure_log, setup_globals

from hetsim.sweeps.execute import execute
from hetsim.sweeps.sweeper import CombinationsSweeper


class InThisProcess(BasicLauncher):
    """`hydra/launcher=basic`: runs one by one."""

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Launch these runs. Returns how each ended."""
        assert self.config is not None
        assert self.hydra_context is not None
        assert self.task_function is not None
        setup_globals()
        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        Path(str(self.config.hydra.sweep.dir)).mkdir(parents=True, exist_ok=True)
        return [
            execute(self.hydra_context, self.task_function, self.config, typed, number=number, job_id=number)
            for number, typed in enumerate(job_overrides, initial_job_idx)
        ]


def _pool(**options: Any) -> Any:
    from hetsim.sweeps.joblib_launcher import Pool

    return Pool(**options)


def _local(**options: Any) -> Any:
    from hetsim.sweeps.submitit_launcher import Local

    return Local(**options)


def _slurm(**options: Any) -> Any:
    from hetsim.sweeps.submitit_launcher import Slurm

    return Slurm(**options)


def _ray(**options: Any) -> Any:
    from hetsim.sweeps.ray_launcher import OnRay

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
    "hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher": _pool,
    "hydra_plugins.hydra_submitit_launcher.submitit_launcher.LocalLauncher": _local,
    "hydra_plugins.hydra_submitit_launcher.submitit_launcher.SlurmLauncher": _slurm,
}
"""Launchers whose modules a single run does not import. Hydra calls these functions to make them."""


@contextlib.contextmanager
def own_plugins() -> Iterator[None]:
    """Within this context, Hydra's table of installed plugins contains these classes under the names of Hydra's own."""
    installed = Plugins.instance().class_name_to_class
    before = dict(installed)
    installed[_name(BasicSweeper)] = CombinationsSweeper
    installed[_name(BasicLauncher)] = InThisProcess
    installed.update({name: made for name, made in LATER.items() if name in installed})
    installed[RayConf._target_] = _ray  # type: ignore[assignment]
    try:
        yield
    finally:
        installed.clear()
        installed.update(before)


def _name(plugin: type) -> str:
    return f"{plugin.__module__}.{plugin.__name__}"
