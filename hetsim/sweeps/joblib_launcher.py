"""Hydra's joblib launcher, which sends common data only once to each process."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing import resource_tracker as multiprocessings_tracker
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, configure_log, setup_globals
from hydra_plugins.hydra_joblib_launcher._core import process_joblib_cfg
from hydra_plugins.hydra_joblib_launcher.joblib_launcher import JoblibLauncher
from joblib import Parallel, delayed
from joblib.externals.loky.backend import resource_tracker
from joblib.externals.loky.backend.popen_loky_posix import Popen
from joblib.externals.loky.backend.reduction import dumps

from hetsim.config.guard.compositions import Template, compositions
from hetsim.pool.parent import end_with
from hetsim.sweeps.sent_runs import common_of, run_sent


class Pool(JoblibLauncher):  # type: ignore[misc]
    """`hydra/launcher=joblib`. Hydra's own launcher sends its plugins' state with each run, and each process searches for plugins again."""

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Launch these runs. Returns how each ended."""
        assert self.config is not None
        assert self.hydra_context is not None
        assert self.task_function is not None
        setup_globals()
        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        Path(str(self.config.hydra.sweep.dir)).mkdir(parents=True, exist_ok=True)
        options = {**self.joblib, "backend": "loky"}
        process_joblib_cfg(options)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        resource_tracker.ensure_running()  # it outlives a terminal that is closed, as it does Ctrl-C, and tidies up in silence
        multiprocessings_tracker.ensure_running()  # it would unblock signals if the start of the first process started it
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        common = bytes(dumps(common_of(self)))
        known = compositions(self.hydra_context.config_loader, self.config)
        with _started_uninterrupted():
            return list(
                Parallel(**options)(
                    delayed(_in_a_process_of_the_pool)(common, [*typed], known.known_template(typed), number)
                    for number, typed in enumerate(job_overrides, initial_job_idx)
                )
            )


@contextlib.contextmanager
def _started_uninterrupted() -> Iterator[None]:
    """Within this context, processes that joblib starts ignore Ctrl-C except during a run. Elsewhere it would print joblib's traceback.

    The sweep also receives Ctrl-C, and ends the processes. If the sweep is killed, they end by themselves.
    """
    launch = Popen._launch

    def held_back(self: Any, process: Any) -> None:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        process._target = partial(_following, os.getpid(), process._target)
        try:
            launch(self, process)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    Popen._launch = held_back
    try:
        yield
    finally:
        Popen._launch = launch


def _following(sweep: int, work: Callable[..., object], *arguments: Any, **options: Any) -> object:
    end_with(sweep)
    return work(*arguments, **options)


def _in_a_process_of_the_pool(common: bytes, typed: list[str], template: Template | None, number: int) -> JobReturn:
    with _interruptible():
        return run_sent(common, typed, template, number)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
