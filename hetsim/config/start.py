"""Run a composed config in a folder, for each run of the command and for Python's `hetsim.run`."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hetsim import checks
from hetsim.checkpoints.folder import has_checkpoints, newest
from hetsim.config.build import build_experiment
from hetsim.config.compose import Composed
from hetsim.config.plausible import implausible
from hetsim.distributed.environment import check_alone, is_launched
from hetsim.files.identity import check_holds_no_other, identity_in
from hetsim.runtime.experiment import Experiment
from hetsim.runtime.recording.curve import Point

DOWNLOAD = re.compile(r"[+]*(workload\.)?download=(?i:true)")
"""An argument that allows downloads of data. A file cannot vary it in a sweep."""
Lock = Callable[[Path], contextlib.AbstractContextManager[None]]


def start(
    run: Composed,
    lock: Lock | None = None,
    watch: Callable[[Point], None] | None = None,
    *,
    goes_on: bool = False,
    tell: Callable[[str], None] | None = None,
) -> dict[str, Any] | None:
    """The summary of the run; None in a process that does not lead. Of a launcher's processes, which share the folder, one locks it.

    `watch` is called with each evaluation of a simulated run, and may end the run by an exception. With `goes_on` the run resumes from
    its own checkpoint, if the folder has one. `tell` is called with each warning that is known before the run. RunFailed or ValueError
    with one sentence if the folder is in use, or contains another finished run that this one does not resume.
    """
    experiment, backend = build_experiment(run.entries)
    if backend.name == "sim":
        check_alone()
    check_download(experiment, run.words)
    if goes_on and not is_launched():  # a launcher's processes may not share the folder
        experiment = dataclasses.replace(experiment, resume=saved_by(run.folder, run.identity))
    if doubts := implausible(run.entries, experiment.cluster):
        experiment = dataclasses.replace(experiment, doubts=tuple(doubts))
    leads = backend.leads(experiment)
    if leads:
        warn_without_checkpoints(experiment, run.words)
        if tell is not None:
            for doubt in doubts:
                tell(doubt)
    with lock(run.folder) if lock is not None and leads else contextlib.nullcontext():
        if leads and not (experiment.resume is not None and run.folder.resolve() == experiment.resume.resolve().parent.parent):
            check_holds_no_other(run.folder, run.identity)
        return backend.run(experiment if watch is None else dataclasses.replace(experiment, watch=watch), run.folder, run.text)


def saved_by(folder: Path, identity: str) -> Path | None:
    """The newest checkpoint in a folder if it belongs to a run of this identity. Raises ValueError if it is invalid."""
    if not has_checkpoints(folder):
        return None
    from hetsim.checkpoints.file import read

    path = newest(folder)
    return path if identity_in(read(path)[0]["config"]) == identity else None


def warn_without_checkpoints(experiment: Experiment, typed: Sequence[str]) -> None:
    """Warn if `resume` is typed for a run that writes no checkpoints, because a kill then loses its progress."""
    resume_words = [word for word in typed if word.startswith("resume=")]
    if resume_words and not experiment.checkpoint.enabled:
        warnings.warn(
            f"{checks.printable(resume_words[-1])} cannot continue this run after a kill, because the run writes no checkpoints: "
            "add checkpoint.every_seconds=600 or checkpoint.every_updates=100",
            stacklevel=2,
        )


def check_download(experiment: Experiment, typed: Sequence[str]) -> None:
    """Raise ValueError if a config file, and no typed argument, allows downloads."""
    if getattr(experiment.workload, "download", False) and not any(DOWNLOAD.fullmatch(word) for word in typed):
        raise ValueError("download is set by a config file, but only the command line may set it: type download=true")
