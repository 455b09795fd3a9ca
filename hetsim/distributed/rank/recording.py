"""The files of a rank's records: its part of the trace and, on the leader, the whole run's files."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from hetsim.checkpoints.folder import has_checkpoints, newest
from hetsim.checkpoints.resume import continue_trace
from hetsim.checkpoints.rows import SavedTrace
from hetsim.checkpoints.saver import NoSaver, Saver
from hetsim.distributed.communication.clock_alignment import Clocks
from hetsim.distributed.environment import is_launched
from hetsim.distributed.pacing.padding import clock
from hetsim.distributed.rank.cleanup import leading
from hetsim.errors import RunFailed
from hetsim.files.folder import run_folder
from hetsim.files.lock import folder_lock
from hetsim.runtime.checkpointing import StopRequest
from hetsim.runtime.experiment import Experiment
from hetsim.runtime.rank import Checkpoint
from hetsim.runtime.recording.trace import Trace, TracePart


@contextlib.contextmanager
def written_to(folder: Path, config: str) -> Iterator[None]:
    """On the leader: the folder of the run. No unfinished file remains, however this process ends."""
    with leading(folder), run_folder(folder, config):
        yield


def recording(
    experiment: Experiment, folder: Path, config: str, traces: contextlib.ExitStack, *,
    leads: bool, checkpoint: Checkpoint | None, stop: StopRequest, clocks: Clocks,
) -> tuple[Trace, Trace, Saver | NoSaver]:  # fmt: skip
    """The trace that finally contains a rank's rows, the trace to which it writes them, and the object that writes checkpoints.

    Both traces are the same, except on a leader with several clocks. `traces` closes them.
    """
    if not leads:
        part = traces.enter_context(TracePart(experiment.trace))
        return part, part, NoSaver()
    saves = experiment.checkpoint.enabled
    saver: Saver | NoSaver = NoSaver()
    whole = trace = traces.enter_context((SavedTrace if saves else Trace)(folder, experiment.trace))
    if saves:
        saver = Saver(folder, config, experiment.checkpoint, whole, clock=clock, stop=stop, resumed=experiment.resume)
    if checkpoint is not None and experiment.resume is not None:
        continue_trace(whole, experiment.resume, checkpoint, experiment)
    if clocks.several:
        trace = traces.enter_context(TracePart(experiment.trace))
    return whole, trace, saver


def taken_over(
    experiment: Experiment, folder: Path, config: str, files: contextlib.ExitStack, *,
    saved: bool, load: Callable[[Path], Checkpoint], stop: StopRequest,
) -> tuple[Trace, Saver | NoSaver, Checkpoint | None]:  # fmt: skip
    """On a new leader: the run's trace from its files, the object that writes checkpoints, and the last checkpoint.

    `saved` is whether the run has written one. Otherwise, checkpoints in its folder belong to another run.
    """
    if is_launched():  # otherwise the launcher has it
        files.enter_context(folder_lock(folder))
    files.enter_context(written_to(folder, config))
    if saved and not has_checkpoints(folder):
        raise RunFailed(f"the checkpoints in {folder} are not on this host, which leads from now on: share the folder among the hosts")
    saves = experiment.checkpoint.enabled
    saver: Saver | NoSaver = NoSaver()
    last = load(newest(folder)) if saved else None
    whole = files.enter_context((SavedTrace if saves else Trace)(folder, experiment.trace))
    if saves:
        saver = Saver(
            folder, config, experiment.checkpoint, whole, clock=clock, stop=stop, resumed=experiment.resume, goes_on=True,
            newest=None if last is None else last.state.version,
        )  # fmt: skip
    if last is not None:
        assert isinstance(whole, SavedTrace)
        whole.go_on(last.progress["trace"])
    elif experiment.resume is not None:
        continue_trace(whole, experiment.resume, load(experiment.resume), experiment)
    return whole, saver, last
