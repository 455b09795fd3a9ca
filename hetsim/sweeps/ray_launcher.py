"""`hydra/launcher=ray`: a sweep's runs on the nodes of a Ray cluster, or on a local Ray."""

from __future__ import annotations

import base64
import contextlib
import io
import pickle
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, JobStatus, configure_log, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from hetsim import checks
from hetsim.config.errors import USERS, sentence
from hetsim.config.guard.compositions import Compositions, Template, compositions
from hetsim.errors import RunFailed
from hetsim.pool.pool import NodeLost, PoolEnded
from hetsim.pool.process import Answer
from hetsim.pool.ray import RayPool, check_installed, connected
from hetsim.sweeps.outcomes import Outcome
from hetsim.sweeps.record import SweepRecord
from hetsim.sweeps.sent_runs import common_of, received, run_sent


class OnRay(Launcher):
    """Executes each run once, or again if its node is lost. Each process has `num_cpus` CPUs and `num_gpus` GPUs."""

    def __init__(self, n_jobs: int | None, num_cpus: float, num_gpus: float) -> None:
        self.n_jobs, self.num_cpus, self.num_gpus = n_jobs, num_cpus, num_gpus

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Set up, as Hydra's launchers do. Raises ValueError for settings that Ray cannot fulfil."""
        check_installed()
        if self.n_jobs is not None:
            checks.whole("hydra.launcher.n_jobs", self.n_jobs)
        for key, value in (("num_cpus", self.num_cpus), ("num_gpus", self.num_gpus)):
            if value < 0 or not self.num_cpus + self.num_gpus > 0:
                raise ValueError(f"hydra.launcher.{key} must be at least 0, and one of num_cpus and num_gpus above, not {value:g}")
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Launch these runs. Returns how each ended."""
        setup_globals()
        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        folder = Path(str(self.config.hydra.sweep.dir)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        first = sendable(self, compositions(self.hydra_context.config_loader, self.config).templates)
        with connected((self.n_jobs or 0) * self.num_cpus):
            pool = RayPool(
                "hetsim.sweeps.ray_launcher:answering",
                self.n_jobs,
                of="the sweep",
                folder=folder,
                first=first,
                num_cpus=self.num_cpus,
                num_gpus=self.num_gpus,
            )
            with contextlib.closing(pool):
                ended = dict(pool.map(partial(_ended, pool, folder), enumerate(job_overrides, initial_job_idx)))
        return [ended[number] for number in sorted(ended)]


def _ended(pool: RayPool, folder: Path, run: tuple[int, Sequence[str]]) -> JobReturn:
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


def sendable(launcher: Launcher, templates: Mapping[tuple[str, ...], Template]) -> str:
    """The common data of a launcher's runs as a process's first line: Hydra's state, and the templates of the configs."""
    return base64.b64encode(pickle.dumps((pickle.dumps(common_of(launcher)), dict(templates)))).decode()


def answering(sent: str) -> Answer:
    """In a process of the pool: the function that executes a run."""
    common, templates = pickle.loads(base64.b64decode(sent))
    context, _, master = received(common)
    known = compositions(context.config_loader, master)
    known.templates.update(templates)
    records = (callback for callback in context.callbacks.callbacks if isinstance(callback, SweepRecord))
    SweepRecord.current = next(records)  # it is no copy then, and writes no outcomes: they are sent
    return lambda question, _: _answer(common, known, **question)


def _answer(common: bytes, known: Compositions, *, typed: list[str], number: int, folder: str) -> dict[str, Any]:
    told, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(errors):
        try:
            ended = run_sent(common, typed, known.known_template(typed), number, sweep=folder)
            error = None if ended.status is JobStatus.COMPLETED else ended._return_value
        except USERS as raised:  # there is no config to run
            error = raised
    printed = {"out": told.getvalue(), "err": errors.getvalue()}
    if isinstance(error, Exception):
        reason = sentence(error) if isinstance(error, USERS) else f"{type(error).__name__}: {sentence(error)}"
        return {**printed, "refused": reason}
    return {**printed, "outcome": ended.return_value.to_json()}
