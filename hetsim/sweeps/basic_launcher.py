"""Hydra's basic launcher, for runs that are shorter than Hydra's work around each run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra.core.utils import JobReturn, configure_log, setup_globals

from hetsim.sweeps.execute import execute


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
