"""The launchers of a sweep: in this process, in processes of this machine or of a Ray cluster, and as jobs of submitit.

A run is sent to another process as text: its words and its resolved config. Of jobs, submitit keeps pickles in its own folder.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hetsim import checks
from hetsim.config.compose import Composed
from hetsim.config.compositions import compositions
from hetsim.errors import RunFailed
from hetsim.plain import from_plain, to_plain
from hetsim.pool.cores import free_cores, share_cores
from hetsim.pool.interpreter import python
from hetsim.pool.pool import LocalPool, NodeLost, Pool, PoolEnded
from hetsim.pool.process import Answer
from hetsim.runtime.output import outlive_readers
from hetsim.sweeps.job import Outcome, job
from hetsim.sweeps.single import run_by_hydra

ANSWERING = f"{__name__}:answering"
"""The function of a process that executes runs."""
Runs = Iterable[tuple[int, Composed]]
"""The runs with their numbers in the sweep."""
Outcomes = Iterator[tuple[int, Outcome]]


@dataclass(frozen=True)
class SweepSettings:
    """What the runs of a sweep have in common."""

    folder: Path
    """The sweep's folder."""
    settings: dict[str, Any]
    """The launcher's keys, without the class."""
    verbose: bool = False
    hydra: tuple[tuple[str, ...], str, tuple[str, ...]] | None = None
    """Folders of configs, the primary config, and the words for Hydra, if Hydra has something to do around each run; else None."""


def execute(config: Composed, sweep: SweepSettings, number: int) -> Outcome:
    """Execute a run in this process."""
    task = partial(job, config, sweep=sweep.folder, verbose=sweep.verbose)
    if sweep.hydra is None:
        return task()
    folders, name, words = sweep.hydra
    choices = compositions(folders, name)
    settings = choices.config([*words, *config.words])
    settings.hydra.job.num, settings.hydra.job.id = number, str(number)
    return run_by_hydra(choices, settings, config.folder, task)


def in_this_process(sweep: SweepSettings, runs: Runs) -> Outcomes:
    """`hydra/launcher=basic`: runs one by one."""
    return ((number, execute(config, sweep, number)) for number, config in runs)


def in_processes(sweep: SweepSettings, runs: Runs) -> Outcomes:
    """`hydra/launcher=joblib`: processes of this machine. Raises ValueError for no jobs, and for a setting without effect."""
    from hydra_plugins.hydra_joblib_launcher.config import JobLibLauncherConf

    num_jobs = sweep.settings.pop("n_jobs")
    if not num_jobs:
        raise ValueError("hydra.launcher.n_jobs must be at least 1, or -1 for all cores, not 0")
    for key, value in sweep.settings.items():
        if value != getattr(JobLibLauncherConf, key):
            raise ValueError(f"hydra.launcher.{key} does nothing, because hetsim reads n_jobs alone: leave it out")
    size = num_jobs if num_jobs > 0 else max(1, free_cores() + 1 + num_jobs)
    with contextlib.closing(LocalPool(ANSWERING, size, of="the sweep")) as pool:
        yield from _of_pool(pool, sweep, runs)


def on_ray(sweep: SweepSettings, runs: Runs) -> Outcomes:
    """`hydra/launcher=ray`. Each process has `num_cpus` CPUs and `num_gpus` GPUs. Raises ValueError for what Ray cannot fulfil."""
    from hetsim.pool.ray import RayPool, check_installed, connected

    check_installed()
    num_jobs, needs = sweep.settings["n_jobs"], {key: sweep.settings[key] for key in ("num_cpus", "num_gpus")}
    if num_jobs is not None:
        checks.whole("hydra.launcher.n_jobs", num_jobs)
    for key, value in needs.items():
        if value < 0 or not sum(needs.values()) > 0:
            raise ValueError(f"hydra.launcher.{key} must be at least 0, and one of num_cpus and num_gpus above, not {value:g}")
    with (
        connected((num_jobs or 0) * needs["num_cpus"]),
        contextlib.closing(RayPool(ANSWERING, num_jobs, of="the sweep", folder=sweep.folder, **needs)) as pool,
    ):
        yield from _of_pool(pool, sweep, runs)


def _of_pool(pool: Pool, sweep: SweepSettings, runs: Runs) -> Outcomes:
    def ask(run: tuple[int, Composed]) -> tuple[int, Outcome]:
        number, config = run
        try:
            answer = pool.ask(question_of(config, sweep, number))
        except (NodeLost, PoolEnded):
            raise
        except RunFailed as error:  # its process was killed, or its files are too large
            print(f"hetsim: error: {error}", file=sys.stderr, flush=True)
            return number, Outcome(os.path.relpath(config.folder, sweep.folder), config.words, failure=str(error))
        for text, stream in ((answer["out"], sys.stdout), (answer["err"], sys.stderr)):
            print(text, end="", file=stream, flush=True)
        return number, outcome_of(answer["outcome"])

    return (numbered for _, numbered in pool.map(ask, runs))


def question_of(config: Composed, sweep: SweepSettings, number: int) -> dict[str, Any]:
    """A run as JSON data."""
    return {
        "words": config.words,
        "entries": to_plain(config.entries),
        "identity": config.identity,
        "folder": str(sweep.folder),
        "name": os.path.relpath(config.folder, sweep.folder),
        "number": number,
        "verbose": sweep.verbose,
        "hydra": sweep.hydra,
    }


def answered(question: dict[str, Any]) -> dict[str, Any]:
    """Execute the run of a question in this process. Returns its outcome as JSON data."""
    folder, hydra = Path(question["folder"]), question["hydra"]
    config = Composed(tuple(question["words"]), from_plain(dict, question["entries"]), question["identity"], folder / question["name"])
    hydra = None if hydra is None else (tuple(hydra[0]), hydra[1], tuple(hydra[2]))
    return asdict(execute(config, SweepSettings(folder, {}, question["verbose"], hydra), question["number"]))


def outcome_of(entries: dict[str, Any]) -> Outcome:
    """The outcome that `answered` has returned."""
    return Outcome(**{**entries, "words": tuple(entries["words"])})


def answering(_: None) -> Answer:
    """In a process of a pool: the function that executes a run."""

    def answer(question: dict[str, Any], _: Any) -> dict[str, Any]:
        printed, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
            outcome = answered(question)
        return {"outcome": outcome, "out": printed.getvalue(), "err": errors.getvalue()}

    return answer


class Job:
    """What submitit calls in the process of a job."""

    def __call__(self, question: dict[str, Any]) -> dict[str, Any]:
        """Execute a run, without progress bars, which would fill the job's log."""
        outlive_readers("hetsim")
        share_cores()
        os.environ["TQDM_DISABLE"] = "1"
        return answered(question)

    def checkpoint(self, question: dict[str, Any]) -> Any:
        """Start the job again after its time limit, if the user's settings allow it."""
        import submitit

        return submitit.helpers.DelayedSubmission(self, question)


def as_jobs(cluster: str, sweep: SweepSettings, runs: Runs) -> Outcomes:
    """`hydra/launcher=submitit_local` or `submitit_slurm`: an array with a job for each run."""
    import submitit
    from hydra_plugins.hydra_submitit_launcher.config import BaseQueueConf

    general = {field.name for field in fields(BaseQueueConf)}
    options = {key if key in general else f"{cluster}_{key}": value for key, value in sweep.settings.items() if key != "submitit_folder"}
    timeouts = {key: options.pop(key) for key in [f"{cluster}_max_num_timeout"] if key in options}
    folder = sweep.folder / ".submitit" / uuid.uuid4().hex / "%j"  # it will hold pickles, so it must be none that was there before
    with _ending_jobs() if cluster == "local" else contextlib.nullcontext():
        executor = submitit.AutoExecutor(str(folder), cluster=cluster, **timeouts, **{f"{cluster}_python": shlex.join(python())})
        executor.update_parameters(**options)
        numbers, configs = zip(*runs, strict=True)
        jobs = executor.map_array(Job(), [question_of(config, sweep, number) for number, config in zip(numbers, configs, strict=True)])
        yield from zip(numbers, [outcome_of(job.results()[0]) for job in jobs], strict=True)


@contextlib.contextmanager
def _ending_jobs() -> Iterator[None]:
    """If the block raises, as after a signal, end the jobs that it started on this host.

    Each job is in its own process group. So Ctrl-C reaches only this process. Otherwise the jobs would print tracebacks.
    """
    from submitit.local import local

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


RAY = "hetsim.sweeps.launchers.on_ray"
LAUNCHERS: dict[str, Callable[[SweepSettings, Runs], Outcomes]] = {
    "hydra._internal.core_plugins.basic_launcher.BasicLauncher": in_this_process,
    "hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher": in_processes,
    "hydra_plugins.hydra_submitit_launcher.submitit_launcher.LocalLauncher": partial(as_jobs, "local"),
    "hydra_plugins.hydra_submitit_launcher.submitit_launcher.SlurmLauncher": partial(as_jobs, "slurm"),
    RAY: on_ray,
}
"""The launchers by the class in the config of a choice of hydra/launcher."""
