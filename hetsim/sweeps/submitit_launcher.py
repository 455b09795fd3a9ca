"""Hydra's submitit launchers. Their jobs compose their configs again, perhaps hours later, and run only the checked configs."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import submitit
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus
from hydra_plugins.hydra_submitit_launcher.config import BaseQueueConf
from hydra_plugins.hydra_submitit_launcher.submitit_launcher import BaseSubmititLauncher, LocalLauncher, SlurmLauncher
from submitit.local import local

from hetsim.config.errors import USERS
from hetsim.config.guard import provenance
from hetsim.config.guard.compositions import compositions, digests
from hetsim.pool.cores import share_cores
from hetsim.pool.interpreter import python


@contextlib.contextmanager
def _ending_jobs() -> Iterator[None]:
    """If the block raises, as after a signal, end the jobs that it started on this host.

    Each job is in its own process group. So Ctrl-C reaches only this process. Otherwise the jobs would print tracebacks.
    """
    started: list[subprocess.Popen[bytes]] = []

    def start(command: str | list[str], **options: Any) -> subprocess.Popen[bytes]:
        if isinstance(command, list):  # Python's; with a setup, it is a line for a shell
            command = [*python(), *command[1:]]
        started.append(subprocess.Popen(command, process_group=0, **options))
        return started[-1]

    local.subprocess = SimpleNamespace(Popen=start)  # type: ignore[attr-defined,assignment]
    try:
        yield
    except BaseException:
        for controller in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(controller.pid, signal.SIGKILL)
            controller.wait()
        raise
    finally:
        local.subprocess = subprocess  # type: ignore[attr-defined]


class _Checked(BaseSubmititLauncher):  # type: ignore[misc]
    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Launch these runs, as Hydra's launcher does, with the options of this process's Python. Returns how each ended."""
        assert self.config is not None
        assert self.hydra_context is not None
        self.expected = digests(self.hydra_context.config_loader, self.config, job_overrides)
        general = {field.name for field in fields(BaseQueueConf)}
        params = {key if key in general else f"{self._EXECUTOR}_{key}": value for key, value in self.params.items()}
        timeouts = {key: params.pop(key) for key in [f"{self._EXECUTOR}_max_num_timeout"] if key in params}
        folder = params.pop("submitit_folder")
        executor = submitit.AutoExecutor(folder, cluster=self._EXECUTOR, **timeouts, **{f"{self._EXECUTOR}_python": shlex.join(python())})
        executor.update_parameters(**params)
        Path(str(self.config.hydra.sweep.dir)).mkdir(parents=True, exist_ok=True)
        state, numbers = Singleton.get_state(), range(initial_job_idx, initial_job_idx + len(job_overrides))
        arguments = [([*typed], "hydra.sweep.dir", i, f"job_id_for_{i}", state) for i, typed in zip(numbers, job_overrides, strict=True)]
        jobs = executor.map_array(self, *zip(*arguments, strict=True))
        return [job.results()[0] for job in jobs]

    def __call__(self, sweep_overrides: list[str], *arguments: Any) -> JobReturn:
        """Execute a run in its job's process. Returns how it ended."""
        assert self.config is not None
        assert self.hydra_context is not None
        provenance.install()
        share_cores()
        compositions(self.hydra_context.config_loader, self.config).expected = self.expected
        try:
            returned: JobReturn = super().__call__(sweep_overrides, *arguments)
        except USERS as error:  # there is no config to run
            returned = JobReturn(overrides=sweep_overrides, status=JobStatus.FAILED, _return_value=error)
        return returned


class Local(_Checked, LocalLauncher):  # type: ignore[misc]
    """`hydra/launcher=submitit_local`."""

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Launch these runs. Returns how each ended. No run survives an interruption of this process."""
        with _ending_jobs():
            return super().launch(job_overrides, initial_job_idx)


class Slurm(_Checked, SlurmLauncher):  # type: ignore[misc]
    """`hydra/launcher=submitit_slurm`."""
