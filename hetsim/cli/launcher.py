"""How hetsim steers Hydra's sweeps: a callback that records how the runs ended, and one patch that no callback can replace."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback
from hydra.plugins.sweeper import Sweeper
from omegaconf import DictConfig

from hetsim.cli.environment import hidden
from hetsim.cli.errors import report, sentence
from hetsim.cli.objective import WORST, check_objective, check_search, search_direction
from hetsim.cli.outcomes import Outcome, best_line, closing_line, failure_lines
from hetsim.cli.sweep_size import check_sweep_size
from hetsim.dist.torchrun import leave_reason
from hetsim.errors import RunFailed
from hetsim.runtime.files import write_text

AGAIN = "the same command with the same hydra.sweep.dir goes on with what is missing"
RESUME = "add hydra.sweep.dir={folder} to go on"


class SweepRecord(Callback):
    """The callback in conf/config.yaml that records how the runs of a sweep ended.

    Hydra calls `on_multirun_start` in the process of the command, and `on_job_start` and `on_job_end` in the process of each run.
    joblib and submitit give those processes a copy of this object, so the copies write outcomes to files in the sweep's folder, and
    `report` reads them. Hydra turns every Exception that a callback raises into a warning, but lets `SystemExit` pass.
    """

    current: ClassVar[SweepRecord | None] = None
    """The record of this process's sweep; None in a single run, and in the processes that a launcher starts."""

    def __init__(self) -> None:
        self.folder: str | None = None
        self.objective: str | None = None
        self.direction: str | None = None
        self.outcomes: list[Outcome] = []
        self._files: Path | None = None

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Check what the sweep optimises, before anything is launched."""
        try:
            objective, direction = config.get("objective"), search_direction(config.hydra)
            check_objective(objective, workload=config.get("workload"))
            if direction is not None:
                check_search(objective, direction)
            check_sweep_size(config.hydra, search=direction is not None)
            self.folder, self.objective, self.direction = os.path.relpath(config.hydra.sweep.dir), objective, direction
            self._files = Path(config.hydra.sweep.dir).absolute() / f".outcomes-{uuid.uuid4().hex}"
            self._files.mkdir(parents=True)
            for path in self._files.parent.iterdir():  # multirun.yaml, .submitit, a run's folder: Hydra would write through them
                if path.is_symlink() or not (path.is_file() or path.is_dir()):
                    raise ValueError(f"{path} is a link or a pipe, and would be written through: remove it")
            if "submitit_folder" in (config.hydra.get("launcher") or {}):  # it holds pickles, so it must be none that was there before
                config.hydra.launcher.submitit_folder = f"${{hydra.sweep.dir}}/.submitit/{uuid.uuid4().hex}/%j"
        except Exception as error:
            report(error, hide=partial(hidden, config=config))
            raise SystemExit(1) from None
        SweepRecord.current = self

    def on_job_start(self, config: DictConfig, **_: Any) -> None:
        """Show no progress bars in other processes: they would overwrite each other."""
        if self._is_a_copy:
            os.environ["TQDM_DISABLE"] = "1"

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **_: Any) -> None:
        """Keep the outcome of a run of a sweep, where `report` finds it."""
        if self._files is None or job_return.status != JobStatus.COMPLETED:
            return
        if not self._is_a_copy:
            self.outcomes.append(job_return.return_value)
            return
        try:
            write_text(self._files / f"{config.hydra.job.num}.json", job_return.return_value.to_json())
        except Exception as error:
            job_return.status, job_return.return_value = JobStatus.FAILED, error  # Hydra raises it in the process of the command

    def report(self) -> bool:
        """Print how the runs ended; whether all of them succeeded."""
        assert self.folder is not None
        assert self._files is not None
        written = sorted(self._files.glob("*.json"), key=lambda path: int(path.stem))
        outcomes = [*self.outcomes, *(Outcome.from_json(path.read_text(encoding="utf-8")) for path in written)]
        if not outcomes:
            report(ValueError("the sweep has no runs: give each key a value (glob(…) is for groups of choices)"))
            return False
        if self.direction is not None and self.objective is not None and outcomes:
            print(best_line(outcomes, self.objective, worst=WORST[self.direction]))
        print(closing_line(outcomes, self.folder), flush=True)
        failures = failure_lines(outcomes)
        if failures:
            leave_reason(failures)
            print(failures, file=sys.stderr, flush=True)
        return not failures

    def close(self) -> None:
        """Remove the files of the outcomes; the command is at its end."""
        SweepRecord.current = None
        if self._files is not None:
            shutil.rmtree(self._files, ignore_errors=True)
            with contextlib.suppress(OSError):
                self._files.parent.rmdir()  # of a sweep that was refused before its first run

    @property
    def _is_a_copy(self) -> bool:
        return self._files is not None and SweepRecord.current is not self


def launch_failure(error: Exception) -> RunFailed:
    """An error that broke off a sweep, as a sentence that says how to go on."""
    if isinstance(error, BrokenProcessPool):
        return RunFailed(f"a worker process was killed, perhaps for lack of memory: {AGAIN}")
    if isinstance(error, RuntimeError) and type(error).__module__.startswith("submitit"):
        return RunFailed(f"a job was lost ({str(error).splitlines()[0]}): see the logs in the sweep's .submitit; {AGAIN}")
    reason = f"{type(error).__name__}: {sentence(error)}"
    return RunFailed(f"the sweep broke off ({reason}): {AGAIN}; hydra.verbose=true shows the traceback")


@contextlib.contextmanager
def composed_once_per_choice() -> Iterator[None]:
    """While this lasts, a sweeper checks by one composition all runs that make the same choices of groups.

    Hydra's sweeper composes every run before it launches the first, one after the other, which takes minutes for a thousand seeds.
    No callback is called between the two, so the check itself is replaced; a launcher still composes every run.
    """
    validate = Sweeper.validate_batch_is_legal

    def validate_one_of_each(sweeper: Sweeper, batch: Sequence[Sequence[str]]) -> None:
        assert sweeper.hydra_context is not None
        loader = sweeper.hydra_context.config_loader
        validate(sweeper, one_of_each_choice(batch, is_group=lambda name: bool(loader.get_group_options(name))))

    Sweeper.validate_batch_is_legal = validate_one_of_each  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        Sweeper.validate_batch_is_legal = validate  # type: ignore[method-assign]


def one_of_each_choice(batch: Sequence[Sequence[str]], *, is_group: Callable[[str], bool]) -> list[Sequence[str]]:
    """The first of all runs that make the same choices of groups and override the same keys: the keys' values change no composition."""
    groups: dict[str, bool] = {}
    distinct: dict[tuple[str, ...], Sequence[str]] = {}
    for overrides in batch:
        keys = [override.split("=")[0] for override in overrides]
        for key in keys:
            if key not in groups:
                groups[key] = is_group(key.lstrip("+~").split("@")[0])
        choices = tuple(override if groups[key] else key for override, key in zip(overrides, keys, strict=True))
        distinct.setdefault(choices, overrides)
    return list(distinct.values())
