"""The folder `checkpoints` of a run. The newest files are kept, and files of an earlier run are removed."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from pathlib import Path

NAME = "checkpoints"
FILE = re.compile(r"\d{12}\.safetensors")
ROWS = re.compile(r"rows-\d{12}\.parquet")


def place(run: Path) -> Path:
    """The folder of a run's checkpoints."""
    return run / NAME


def path_of(run: Path, version: int) -> Path:
    """The file of the checkpoint at this version."""
    return place(run) / f"{version:012}.safetensors"


def rows_path(run: Path, version: int) -> Path:
    """The file with the trace's rows between the previous checkpoint and the one at this version."""
    return place(run) / f"rows-{version:012}.parquet"


def newest(run: Path) -> Path:
    """The file of a run's newest checkpoint. Raises ValueError if the run has none."""
    if not run.is_dir():
        raise ValueError(f"resume={run} is not a folder: give the folder of a run, which holds {NAME}")
    folder = place(run)
    if folder.is_symlink():
        raise ValueError(f"{folder} is a link, and is not followed: put the folder itself there")
    checkpoints = sorted(path for path in files(run) if FILE.fullmatch(path.name))
    if not checkpoints:
        raise ValueError(f"resume={run} has no checkpoint: give a run with checkpoint.every_seconds or checkpoint.every_updates")
    return checkpoints[-1]


def has_checkpoints(run: Path) -> bool:
    """Whether a run's folder contains a checkpoint."""
    return any(FILE.fullmatch(path.name) for path in files(run))


def tidy(run: Path, *, keep: Iterable[Path]) -> None:
    """Remove all other checkpoints and rows, and all unfinished files."""
    kept = set(keep)
    for path in files(run):
        ours = FILE.fullmatch(path.name) or ROWS.fullmatch(path.name)
        if (ours and path not in kept) or path.name.endswith(".unfinished"):
            with contextlib.suppress(OSError):
                path.unlink()


def files(run: Path) -> list[Path]:
    """The files in the folder of a run's checkpoints."""
    folder = place(run)
    try:
        return [*folder.iterdir()] if not folder.is_symlink() else []
    except OSError:
        return []
