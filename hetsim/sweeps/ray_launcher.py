"""`hydra/launcher=ray`: a sweep's runs on the nodes of a Ray cluster, or on a local Ray."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, JobStatus, configure_log, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from hetsim import checks
from hetsim.config.guard.compositions import compositions
from hetsim.errors import RunFailed
from hetsim.pool.pool import NodeLost, despite_losses
from hetsim.pool.ray_pool import RayPool, check_installed, connected
from hetsim.sweeps.outcomes import Outcome
from hetsim.sweeps.process import sendable
from hetsim.sweeps.record import SweepRecord


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
                *("hetsim.sweeps.process", self.n_jobs), of="the sweep", folder=folder, first=first, num_cpus=self.num_cpus,
                num_gpus=self.num_gpus,
            )  # fmt: skip
            try:
                with ThreadPoolExecutor(pool.size) as threads:
                    work = _Work(pool, folder, enumerate(job_overrides, initial_job_idx))
                    try:
                        for working in [threads.submit(work.run) for _ in range(pool.size)]:
                            working.result()
                    except BaseException:
                        pool.close()  # the threads wait for its processes
                        raise
            finally:
                pool.close()
        return [work.ended[number] for number in sorted(work.ended)]


class _Work:
    """A sweep's runs, which several threads pass to processes."""

    def __init__(self, pool: RayPool, folder: Path, runs: Iterator[tuple[int, Sequence[str]]]) -> None:
        self.pool, self.folder, self.runs = pool, folder, runs
        self.ended: dict[int, JobReturn] = {}
        self._lock = threading.Lock()

    def run(self) -> None:
        """Execute runs one by one. Raises RunFailed if the pool has ended."""
        while True:
            with self._lock:
                number, typed = next(self.runs, (None, ()))
                if number is None:
                    return
            question = {"typed": [*typed], "number": number, "folder": str(self.folder)}
            self.ended[number] = despite_losses(partial(self._ended, typed, question))

    def _ended(self, typed: Sequence[str], question: dict[str, Any]) -> JobReturn:
        with self.pool.borrowed() as process:
            process.write(question)
            try:
                answer = process.read()
            except NodeLost:
                raise
            except RunFailed as error:  # its process was killed, or its files are too large
                if self.pool.ended is not None:
                    raise
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
