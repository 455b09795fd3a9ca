"""Write the checkpoints of a run, and keep the newest."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hetsim.checkpoints import folder
from hetsim.checkpoints.file import read, write
from hetsim.checkpoints.rows import SavedTrace, row_paths
from hetsim.coordination.state import State
from hetsim.files.writing import named_in_errors
from hetsim.runtime.checkpointing import Checkpointing, Due, StopRequest
from hetsim.runtime.rank import Checkpoint
from hetsim.runtime.recording.trace import Trace, append_received


def check_replaceable(run: Path) -> None:
    """Raise ValueError if the folder contains checkpoints of an unfinished run, which may have taken days."""
    if folder.has_checkpoints(run) and not _has_ended(run):
        raise ValueError(
            f"{folder.place(run)} has the checkpoints of a run that has not ended, which this one would replace: resume that run with "
            f"{goes_on(run)}, or remove them, or take another folder for this run"
        )


def _has_ended(run: Path) -> bool:
    """Whether the newest checkpoint in a folder belongs to the finished run there, and not to a later one."""
    try:
        return (run / "summary.json").exists() and (run / "config.yaml").read_text() == read(folder.newest(run))[0]["config"]
    except (OSError, ValueError):
        return False


def goes_on(run: Path) -> str:
    """The quoted command that resumes a run."""
    return f"'hetsim resume={shlex.quote(str(run))}'"


class Saver:
    """Keeps the newest checkpoints of a run in its folder. `due(version)` returns whether one is due.

    `config` is the content of the run's config.yaml. `resumed` is the file from which the run has resumed. `goes_on`: the rank that wrote
    the checkpoints before is lost. Its last complete checkpoint is at version `newest`; None: there was none.
    """

    def __init__(
        self, run: Path, config: str, settings: Checkpointing, trace: Trace, *,
        clock: Callable[[], float], stop: StopRequest, resumed: Path | None = None, goes_on: bool = False, newest: int | None = None,
    ) -> None:  # fmt: skip
        self.run = run
        self.config = config
        self.settings = settings
        self.trace = trace
        self.stop = stop
        self.due = Due(settings, clock, stop)
        self.newest = newest
        """The version of the run's newest checkpoint."""
        self._kept: list[tuple[Path, list[Path]]] = []
        if folder.place(run).is_symlink():
            raise ValueError(f"{folder.place(run)} is a link, and would be written through: remove it, or take another folder for the run")
        if newest is None and resumed is not None and resumed.parent.resolve() == folder.place(run).resolve():
            newest = int(resumed.name[:12])
        if newest is not None:  # a run that has saved itself has removed what was not its own
            rows = [path for path in folder.files(run) if folder.ROWS.fullmatch(path.name)]
            checkpoints = sorted(path for path in folder.files(run) if folder.FILE.fullmatch(path.name))
            self._kept = [(path, rows) for path in checkpoints if int(path.name[:12]) <= newest][-settings.keep :]
        elif not goes_on:
            check_replaceable(run)
        with named_in_errors(folder.place(run)):
            folder.place(run).mkdir(parents=True, exist_ok=True)

    def begin(self) -> None:
        """The next interval begins now, see `Due.begin`."""
        self.due.begin()

    def append(self, rows: Iterable[bytes], *, rank: int, change: Callable[[Any], Any]) -> None:
        """Append a rank's rows to the trace of the run."""
        append_received(self.trace, iter(rows), rank=rank, change=change)

    def write(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint, and remove the oldest ones."""
        version = checkpoint.state.version
        names = self.trace.split() if isinstance(self.trace, SavedTrace) else ()
        path = folder.path_of(self.run, version)
        write(path, config=self.config, checkpoint=replace(checkpoint, progress={**checkpoint.progress, "trace": names}))
        earlier_files = [(earlier, rows) for earlier, rows in self._kept if earlier != path]
        self._kept = [*earlier_files, (path, row_paths(self.run, names))][-self.settings.keep :]
        current = [self.trace.current] if isinstance(self.trace, SavedTrace) and self.trace.current is not None else []
        folder.tidy(self.run, keep=[*current, *(kept for path, rows in self._kept for kept in (path, *rows))])
        self.due.mark_saved(version)
        self.newest = version

    def sentence(self, last: State, seconds: float) -> str:
        """The message to the user when the run has stopped."""
        return f"stopped at version {last.version}, at {seconds:.6g} s of its clock: {goes_on(self.run)} resumes it"


class NoSaver:
    """Replaces a `Saver` on a rank that writes no checkpoints."""

    newest: int | None = None

    def __init__(self) -> None:
        self.stop = StopRequest()

    def due(self, version: int) -> bool:
        """No checkpoint is ever due."""
        return False

    def begin(self) -> None:
        """Do nothing."""

    def append(self, rows: Iterable[bytes], *, rank: int, change: Callable[[Any], Any]) -> None:
        """Do nothing."""

    def write(self, checkpoint: Checkpoint) -> None:
        """Do nothing."""

    def sentence(self, last: State, seconds: float) -> str:
        """The message to the user when the run has stopped."""
        return f"stopped at version {last.version}, at {seconds:.6g} s of its clock"
