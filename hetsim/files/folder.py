"""The folder of a run. All files get their names together at the end of the run, or none does."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from pathlib import Path

from hetsim.files.writing import begun, finish, unfinished, write_text

FILES = (
    *("trace.parquet", "timeline.png", "curve.png", "curve.csv", "weights.safetensors", "per_worker.parquet"),
    *("config.yaml", "summary.json"),
)
"""The files that a run may write, in the order in which they get their names."""

UNFINISHED = ".*.unfinished"
"""The names of files that are being written, as `unfinished` makes them."""


@contextlib.contextmanager
def run_folder(folder: Path, config: str) -> Iterator[None]:
    """The folder of a run while it runs, with its resolved config. If the block raises, the run's files are removed.

    Unfinished files of a killed run are removed, so that the unfinished files at the end are this run's.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.glob(UNFINISHED):
            path.unlink(missing_ok=True)
        with begun(folder / "config.yaml") as file:
            file.write(config.encode())
        yield
    except BaseException:
        abandon(folder)
        raise


def written_files(folder: Path) -> list[str]:
    """The files that the run in this folder has written."""
    return [path.name.removeprefix(".").removesuffix(".unfinished") for path in folder.glob(UNFINISHED)]


def finish_run(folder: Path, written: Collection[str]) -> None:
    """Give the files of a run their names, the summary last. They replace all files of an earlier run.

    The earlier run's summary is removed first. So a killed process never leaves a summary next to another run's files.
    """
    assert set(written) <= set(FILES), "FILES lacks a file of this run, which would keep its temporary name"
    others = [folder / name for name in FILES if name not in written]
    replaced = [folder / "summary.json", *others, *map(unfinished, others)]
    finish([folder / name for name in FILES if name in written], instead_of=replaced)


def abandon(folder: Path) -> None:
    """Remove the files of an unfinished run, and its folder if that is then empty."""
    with contextlib.suppress(OSError):
        for path in (*folder.glob(UNFINISHED), *folder.glob(f"checkpoints/{UNFINISHED}")):
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            (folder / "checkpoints").rmdir()
        folder.rmdir()


def write_error(folder: Path, sentence: str, traceback: str = "") -> None:
    """Write the reason of a failure into the run's folder, if the folder is writable."""
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)  # a run that failed has removed its empty folder
        write_text(folder / "error.txt", f"{sentence}\n{traceback}")


def remove_error(folder: Path) -> None:
    """Remove the `error.txt` of an earlier failed run."""
    with contextlib.suppress(OSError):
        (folder / "error.txt").unlink(missing_ok=True)
