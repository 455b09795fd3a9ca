"""Hydra's launchers, with a record of how the runs ended that they launched."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any, cast

from hydra.core.config_loader import ConfigLoader
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from hetsim.cli import sweep
from hetsim.cli.job import _direction
from hetsim.errors import RunFailed


class Recorded(Launcher):
    """Any launcher, and how the runs ended that it launched: they may have ended in other processes, on other machines."""

    def __init__(self, launcher: Launcher, outcomes: list[sweep.Outcome]) -> None:
        self.launcher = launcher
        self.outcomes = outcomes

    def setup(self, **given: Any) -> None:
        """The launcher within is set up already."""

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """As the launcher within does; RunFailed if a process of it was lost."""
        try:
            returned = self.launcher.launch(job_overrides, initial_job_idx)
        except BrokenProcessPool:
            raise RunFailed(f"a worker process was killed, perhaps for lack of memory: {AGAIN}") from None
        except RuntimeError as error:
            if not type(error).__module__.startswith("submitit"):
                raise
            raise RunFailed(f"a job was lost ({str(error).splitlines()[0]}): see the logs in the sweep's .submitit; {AGAIN}") from None
        self.outcomes.extend(job.return_value for job in returned if job.status == JobStatus.COMPLETED)
        return returned


AGAIN = "the same command with the same hydra.sweep.dir goes on with what is missing"


class Composed:
    """A config loader for the sweeper's check that every run can be composed: once for all runs that make the same choices of groups.

    What is typed for a key changes no composition, and a thousand seeds would be composed here one after the other.
    """

    def __init__(self, loader: ConfigLoader) -> None:
        self.loader = loader
        self.composed: dict[tuple[str, ...], DictConfig] = {}
        self.groups: dict[str, bool] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def load_sweep_config(self, master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
        """The config of one run, or of its like that was composed before."""
        choices = tuple(override if self.is_group(key) else key for override in sweep_overrides for key in [override.split("=")[0]])
        if choices not in self.composed:
            self.composed[choices] = self.loader.load_sweep_config(master_config, sweep_overrides)
        return self.composed[choices]

    def is_group(self, key: str) -> bool:
        """Whether what is typed for it is one of a group's choices."""
        if key not in self.groups:
            self.groups[key] = bool(self.loader.get_group_options(key.lstrip("+~").split("@")[0]))
        return self.groups[key]


class Sweep:
    """What is known of this command's sweep: its folder, its objective, and how its runs ended."""

    def __init__(self) -> None:
        self.folder: str | None = None
        self.objective: str | None = None
        self.direction: str | None = None
        self.outcomes: list[sweep.Outcome] = []

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Whatever launcher a sweeper takes while this lasts is a recorded one."""
        plugins, quiet = Plugins.instance(), os.environ.get("TQDM_DISABLE")
        instantiate_launcher = plugins.instantiate_launcher

        def instantiate(*, config: DictConfig, hydra_context: HydraContext, task_function: TaskFunction) -> Launcher:
            self.folder = os.path.relpath(config.hydra.sweep.dir)
            self.objective, self.direction = config.objective, _direction(config.hydra)
            sweep.check_objective(self.objective)
            if self.direction is not None:
                sweep.check_search(self.objective, self.direction)
            if not config.hydra.launcher._target_.endswith(".BasicLauncher"):
                os.environ["TQDM_DISABLE"] = "1"  # the bars of several processes would write over each other
            own = HydraContext(config_loader=hydra_context.config_loader, callbacks=hydra_context.callbacks)
            hydra_context.config_loader = cast(ConfigLoader, Composed(own.config_loader))  # the sweeper's; the launcher composes every run
            return Recorded(instantiate_launcher(config=config, hydra_context=own, task_function=task_function), self.outcomes)

        plugins.instantiate_launcher = instantiate  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            plugins.instantiate_launcher = instantiate_launcher  # type: ignore[method-assign]
            if quiet is None:
                os.environ.pop("TQDM_DISABLE", None)

    def close(self) -> bool:
        """Tell how the runs ended; whether all of them succeeded."""
        if self.folder is None:
            return True
        if self.direction is not None and self.objective is not None and self.outcomes:
            print(sweep.best(self.outcomes, self.objective, worst=sweep.DIRECTIONS[self.direction]))
        print(sweep.ended(self.outcomes, self.folder), flush=True)
        failed = sweep.failures(self.outcomes)
        if failed:
            print(failed, file=sys.stderr, flush=True)
        return not failed
