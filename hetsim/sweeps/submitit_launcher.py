"""Hydra's submitit launchers. Their jobs compose their configs again, perhaps hours later, and run only the checked configs."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import submitit
from hydra.core.utils import JobReturn, JobStatus
from hydra_plugins.hydra_submitit_launcher.submitit_launcher import BaseSubmititLauncher, LocalLauncher, SlurmLauncher
from submitit.local import local

from hetsim.config.errors import USERS
from hetsim.config.guard import provenance
from hetsim.config.guard.compositions import compositions, digests
from hetsim.pool.cores import share_cores


@contextlib.contextmanager
def _keeping_out(cluster: str) -> Iterator[None]:
    """Pass settings to the jobs' Python on its command line that are usually in its environment: import nothing from the current folder.

    SLURM does not pass the script's variables to a job's steps if SBATCH_EXPORT is NONE.
    """
    made = submitit.AutoExecutor
    if os.environ.get("PYTHONSAFEPATH"):
        python = f"{shlex.quote(sys.executable)} -P"
        submitit.AutoExecutor = partial(made, **{f"{cluster}_python": python})  # type: ignore[misc,assignment]
    try:
        yield
    finally:
        submitit.AutoExecutor = made  # type: ignore[misc]


@contextlib.contextmanager
def _ending_jobs() -> Iterator[None]:
    """If the block raises, as after a signal, end the jobs that it started on this host.

    Each job is in its own process group. So Ctrl-C reaches only this process. Otherwise the jobs would print tracebacks.
    """
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(*arguments, process_group=0, **options))
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
        """Launch these runs. Returns how each ended."""
        assert self.config is not None
        assert self.hydra_context is not None
        self.expected = digests(self.hydra_context.config_loader, self.config, job_overrides)
        with _keeping_out(self._EXECUTOR):
            returned: Sequence[JobReturn] = super().launch(job_overrides, initial_job_idx)
        return returned

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
