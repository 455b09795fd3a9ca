"""The callback with which hetsim takes part in Hydra's sweeps. It records how the runs ended."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
import uuid
from pathlib import Path
from typing import Any, ClassVar

from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from hetsim.config.errors import report, sentence
from hetsim.config.guard.folders import check_folder, check_no_links, check_script, check_script_folder
from hetsim.distributed.launch.failure_report import leave_reason
from hetsim.errors import RunFailed
from hetsim.files.folder import abandon
from hetsim.files.lock import only_run_in
from hetsim.files.writing import unfinished, write_text
from hetsim.runtime.output import outlive_readers
from hetsim.sweeps.execute import is_plain
from hetsim.sweeps.outcomes import Outcome, closing_line, failure_lines
from hetsim.sweeps.sweep_size import check_sweep_size

AGAIN = "the same command with the same hydra.sweep.dir runs what is missing"
LOCK_SECONDS = (0.1, 0.3, 0.6)
"""Pauses in which the system releases the locks of killed processes."""
RESUME = "add hydra.sweep.dir={folder} to resume"


class Refused(SystemExit):
    """A sweep that is refused before its first run. It is no Exception, because Hydra turns a callback's Exceptions into warnings."""

    def __init__(self, error: Exception) -> None:
        super().__init__(1)
        self.error = error


class SweepRecord(Callback):
    """The callback in conf/config.yaml that records how the runs of a sweep ended.

    Hydra calls `on_multirun_start` in the process of the command, and `on_job_start` and `on_job_end` in the process of each run.
    submitit gives those processes a copy of this object, so the copies write outcomes to files in the sweep's folder, and `ended` reads
    them.
    """

    current: ClassVar[SweepRecord | None] = None
    """The record of this process's sweep; None in a single run, and in a launcher's processes."""

    def __init__(self) -> None:
        self.folder: str | None = None
        self.outcomes: list[Outcome] = []
        self._files: Path | None = None

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        """Refuse a folder with links if Hydra writes its own files there."""
        try:
            if not is_plain(config):
                check_no_links(Path(config.hydra.run.dir).absolute())
        except Exception as error:
            raise Refused(error) from None

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Check the sweep's size and its folders before the launch."""
        try:
            check_sweep_size(config.hydra)
            self.folder = os.path.relpath(config.hydra.sweep.dir)
            if Path(self.folder).is_symlink():
                raise ValueError(f"{self.folder} is a link, and would be written through: set hydra.sweep.dir to another folder")
            check_folder("hydra.sweep.dir", Path(config.hydra.sweep.dir).absolute())
            if "submitit_folder" in (config.hydra.get("launcher") or {}):
                check_script_folder(Path(config.hydra.sweep.dir).absolute())
                check_script(config)
            self._files = Path(config.hydra.sweep.dir).absolute() / f".outcomes-{uuid.uuid4().hex}"
            self._files.mkdir(parents=True)
            for path in self._files.parent.iterdir():  # multirun.yaml, .submitit, a run's folder: Hydra would write through them
                if path.is_symlink() or not (path.is_file() or path.is_dir()):
                    raise ValueError(f"{path} is a link or a pipe, and would be written through: remove it")
            if not is_plain(config):
                check_no_links(self._files.parent)
            if "submitit_folder" in (config.hydra.get("launcher") or {}):
                # it holds pickles, so it must be none that was there before
                config.hydra.launcher.submitit_folder = f"${{hydra.sweep.dir}}/.submitit/{uuid.uuid4().hex}/%j"
        except Exception as error:
            raise Refused(error) from None
        SweepRecord.current = self

    def on_job_start(self, config: DictConfig, **_: Any) -> None:
        """Disable progress bars in other processes, because they would overwrite each other."""
        if self._is_a_copy:
            outlive_readers("hetsim")
            os.environ["TQDM_DISABLE"] = "1"

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **_: Any) -> None:
        """Record the outcome of a sweep's run for `report`."""
        if self._files is None or job_return.status != JobStatus.COMPLETED:
            return
        if not self._is_a_copy:
            self.outcomes.append(job_return.return_value)
            return
        try:
            write_text(self._files / f"{config.hydra.job.num}.json", job_return.return_value.to_json())
        except Exception as error:
            job_return.status, job_return.return_value = JobStatus.FAILED, error  # Hydra raises it in the process of the command

    def ended(self) -> list[Outcome]:
        """The outcomes of the runs. Raises ValueError if there are none."""
        assert self._files is not None
        written = sorted(self._files.glob("*.json"), key=lambda path: int(path.stem))
        outcomes = [*self.outcomes, *(Outcome.from_json(path.read_text(encoding="utf-8")) for path in written)]
        if not outcomes:
            raise ValueError("the sweep has no runs: give each key a value (glob(…) is for groups of choices)")
        return outcomes

    def report(self) -> bool:
        """Print the outcomes. Returns whether all runs succeeded."""
        assert self.folder is not None
        try:
            outcomes = self.ended()
        except ValueError as error:
            report(error)
            return False
        print(closing_line(outcomes, self.folder), flush=True)
        failures = failure_lines(outcomes)
        if failures:
            leave_reason(failures)
            print(failures, file=sys.stderr, flush=True)
        return not failures

    def remove_unfinished(self) -> None:
        """Remove unfinished files of runs that a signal ended. Runs in other processes were killed, or still run, as on a cluster."""
        assert self.folder is not None
        for pause in (0.0, *LOCK_SECONDS):
            time.sleep(pause)
            for path in list(Path(self.folder).rglob(unfinished(Path("config.yaml")).name)):
                with contextlib.suppress(OSError, RunFailed), only_run_in(path.parent):
                    abandon(path.parent)

    def close(self) -> None:
        """Remove the files of the outcomes at the end of the command."""
        SweepRecord.current = None
        if self._files is not None:
            shutil.rmtree(self._files, ignore_errors=True)
            with contextlib.suppress(OSError):
                self._files.parent.rmdir()  # of a sweep that was refused before its first run

    @property
    def _is_a_copy(self) -> bool:
        return self._files is not None and SweepRecord.current is not self


def launch_failure(error: Exception) -> RunFailed:
    """The error that ended a sweep early, as a sentence that shows how to resume."""
    if isinstance(error, RuntimeError) and type(error).__module__.startswith("submitit"):
        return RunFailed(f"a job was lost ({str(error).splitlines()[0]}): see the logs in the sweep's .submitit; {AGAIN}")
    reason = f"{type(error).__name__}: {sentence(error)}"
    return RunFailed(f"the sweep broke off ({reason}): {AGAIN}; hydra.verbose=true shows the traceback")
