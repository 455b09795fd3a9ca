"""Launchers that execute a sweep's runs in processes which live longer than a run: on this machine, or on the nodes of a Ray cluster.

Hydra's data come from the sweep's process as a pickle. Only text is sent back.
"""

from __future__ import annotations

import base64
import contextlib
import io
import pickle
import sys
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, configure_log, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig
from omegaconf.basecontainer import BaseContainer

from hetsim import checks
from hetsim.config.errors import USERS, sentence
from hetsim.config.guard import provenance
from hetsim.config.guard.compositions import compositions
from hetsim.errors import RunFailed
from hetsim.pool.cores import free_cores
from hetsim.pool.pool import LocalPool, NodeLost, Pool, PoolEnded
from hetsim.pool.process import Answer
from hetsim.pool.ray import RayPool, check_installed, connected
from hetsim.sweeps import job  # noqa: F401 its resolver names the folders of runs
from hetsim.sweeps.execute import execute
from hetsim.sweeps.outcomes import Outcome
from hetsim.sweeps.record import SweepRecord

FUNCTION = "hetsim.sweeps.process_launchers:executing"


class InProcesses(Launcher):
    """Executes each run once, in one of several processes, or again if its node is lost."""

    config: DictConfig
    hydra_context: HydraContext
    task_function: TaskFunction

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Set up, as Hydra's launchers do."""
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Launch these runs. Returns how each ended."""
        setup_globals()
        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        folder = Path(str(self.config.hydra.sweep.dir)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        with self.opened(len(job_overrides), folder, self._sent()) as pool:
            ended = dict(pool.map(partial(_ended, pool, folder), enumerate(job_overrides, initial_job_idx)))
        return [ended[number] for number in sorted(ended)]

    @abstractmethod
    def opened(self, num_runs: int, folder: Path, sent: str) -> contextlib.AbstractContextManager[Pool]:
        """The processes, for a block. Each calls `executing` with what is `sent`, and writes runs to this folder."""

    def _sent(self) -> str:
        """Hydra's state and the templates of the configs, as text."""
        state = Singleton.get_state()["instances"]
        templates = compositions(self.hydra_context.config_loader, self.config).templates
        return base64.b64encode(pickle.dumps((self.hydra_context, self.task_function, self.config, state, templates))).decode()


class Here(InProcesses):
    """`hydra/launcher=joblib`: processes of this machine."""

    def __init__(self, n_jobs: int, **others: Any) -> None:
        """Raise ValueError for no jobs, and for a setting that has no effect."""
        if not n_jobs:
            raise ValueError("hydra.launcher.n_jobs must be at least 1, or -1 for all cores, not 0")
        from hydra_plugins.hydra_joblib_launcher.config import JobLibLauncherConf

        self.n_jobs = n_jobs if n_jobs > 0 else max(1, free_cores() + 1 + n_jobs)
        for key, value in others.items():
            if value != getattr(JobLibLauncherConf, key):
                raise ValueError(f"hydra.launcher.{key} does nothing, because hetsim reads n_jobs alone: leave it out")

    @contextlib.contextmanager
    def opened(self, num_runs: int, folder: Path, sent: str) -> Iterator[Pool]:
        """The same as `InProcesses.opened`."""
        with contextlib.closing(LocalPool(FUNCTION, min(self.n_jobs, num_runs), of="the sweep", first=sent)) as pool:
            yield pool


class OnRay(InProcesses):
    """`hydra/launcher=ray`. Each process has `num_cpus` CPUs and `num_gpus` GPUs."""

    def __init__(self, n_jobs: int | None, num_cpus: float, num_gpus: float) -> None:
        self.n_jobs, self.num_cpus, self.num_gpus = n_jobs, num_cpus, num_gpus

    def setup(self, **options: Any) -> None:
        """Set up, as Hydra's launchers do. Raises ValueError for settings that Ray cannot fulfil."""
        check_installed()
        if self.n_jobs is not None:
            checks.whole("hydra.launcher.n_jobs", self.n_jobs)
        for key, value in (("num_cpus", self.num_cpus), ("num_gpus", self.num_gpus)):
            if value < 0 or not self.num_cpus + self.num_gpus > 0:
                raise ValueError(f"hydra.launcher.{key} must be at least 0, and one of num_cpus and num_gpus above, not {value:g}")
        super().setup(**options)

    @contextlib.contextmanager
    def opened(self, num_runs: int, folder: Path, sent: str) -> Iterator[Pool]:
        """The same as `InProcesses.opened`."""
        needs = {"num_cpus": self.num_cpus, "num_gpus": self.num_gpus}
        with (
            connected((self.n_jobs or 0) * self.num_cpus),
            contextlib.closing(RayPool(FUNCTION, self.n_jobs, of="the sweep", folder=folder, first=sent, **needs)) as pool,
        ):
            yield pool


def _ended(pool: Pool, folder: Path, run: tuple[int, Sequence[str]]) -> JobReturn:
    """Execute a run. Raises RunFailed if the pool has ended, or if too many nodes are lost."""
    number, typed = run
    try:
        answer = pool.ask({"typed": [*typed], "number": number, "folder": str(folder)})
    except (NodeLost, PoolEnded):
        raise
    except RunFailed as error:  # its process was killed, or its files are too large
        print(f"hetsim: error: {error}", file=sys.stderr, flush=True)
        return _kept(Outcome(" ".join(typed), tuple(typed), failure=str(error)))
    for text, stream in ((answer["out"], sys.stdout), (answer["err"], sys.stderr)):
        print(text, end="", file=stream, flush=True)
    if "refused" in answer:
        return JobReturn(overrides=[*typed], status=JobStatus.FAILED, _return_value=ValueError(answer["refused"]))
    return _kept(Outcome.from_json(answer["outcome"]))


def _kept(outcome: Outcome) -> JobReturn:
    """The outcome of a run, recorded for the sweep."""
    assert SweepRecord.current is not None
    SweepRecord.current.outcomes.append(outcome)
    return JobReturn(overrides=[*outcome.typed], status=JobStatus.COMPLETED, _return_value=outcome)


def executing(sent: str) -> Answer:
    """In a process of the pool: the function that executes a run. Hydra in this process uses what was sent."""
    provenance.install()
    context, task, master, state, templates = pickle.loads(base64.b64decode(sent))
    setup_globals()
    Singleton.set_state({"instances": state, "omegaconf_resolvers": BaseContainer._resolvers})  # those of hetsim and Hydra
    known = compositions(context.config_loader, master)
    known.templates.update(templates)
    known.sealed = known.of_others
    records = (callback for callback in context.callbacks.callbacks if isinstance(callback, SweepRecord))
    SweepRecord.current = next(records)  # it is no copy then, and writes no outcomes: they are sent
    return lambda question, _: _executed(context, task, master, **question)


def _executed(
    context: HydraContext, task: TaskFunction, master: DictConfig, *, typed: list[str], number: int, folder: str
) -> dict[str, Any]:
    told, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(errors):
        try:
            ended = execute(context, task, master, typed, number=number, job_id=f"{master.hydra.job.name}_{number}", sweep=folder)
            error = None if ended.status is JobStatus.COMPLETED else ended._return_value
        except USERS as raised:  # there is no config to run
            error = raised
    printed = {"out": told.getvalue(), "err": errors.getvalue()}
    if isinstance(error, Exception):
        reason = sentence(error) if isinstance(error, USERS) else f"{type(error).__name__}: {sentence(error)}"
        return {**printed, "refused": reason}
    return {**printed, "outcome": ended.return_value.to_json()}
