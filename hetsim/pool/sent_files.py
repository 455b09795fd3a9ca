"""Copy the files of runs from a node without the sweep's folder to that folder.

Only a run's own files are sent, up to a maximum size. They are written only below the sweep's folder, under these names.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from hetsim.errors import RunFailed
from hetsim.files.folder import FILES, abandon, finish_run, remove_error, write_error
from hetsim.files.lock import folder_lock
from hetsim.files.writing import begun

ERROR = "error.txt"
"""The file of a run that failed."""
NAMES = (*FILES, ERROR)
MAX_BYTES = 1 << 30
"""The maximum size of a run's files together."""
MAX_ERROR_BYTES = 1 << 20
MAX_DEPTH = 8
"""The maximum number of folders between a sweep and a run, because `hydra.sweep.subdir` may contain several."""
Sent = tuple[str, dict[str, bytes]]
"""A run's folder relative to its sweep, and its files."""


def pack(scratch: Path) -> list[Sent]:
    """Read and remove the files of all runs below this folder. Raises RunFailed if a run's files are too large."""
    runs = []
    try:
        for folder in sorted({path.parent for path in scratch.rglob("*") if path.name in NAMES and not path.is_symlink()}):
            files = [path for name in NAMES if (path := folder / name).is_file() and not path.is_symlink()]
            size = sum(path.stat().st_size for path in files)
            if size > MAX_BYTES:
                raise RunFailed(
                    f"the run's files have {size / 2**30:.3g} GiB, and Ray brings back at most {MAX_BYTES / 2**30:.3g}: "
                    "share the sweep's folder with the nodes, or type trace=none"
                )
            runs.append((folder.relative_to(scratch).as_posix(), {path.name: path.read_bytes() for path in files}))
    finally:
        for path in scratch.iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
    return runs


def unpack(sent: object, sweep: Path) -> None:
    """Write the files of runs below their sweep's folder. Raises RunFailed for files that no run writes."""
    for name, files in _check_sent(sent):
        folder = sweep / name
        for place in (folder, *folder.parents):
            if sweep in place.parents and place.is_symlink():
                raise RunFailed(f"{place} is a link, and would be written through: remove it")
        with folder_lock(folder):
            if "summary.json" in files:
                _finish(folder, files)
                remove_error(folder)
            elif ERROR in files:
                write_error(folder, files[ERROR].decode(errors="replace").rstrip("\n"))


def _finish(folder: Path, files: dict[str, bytes]) -> None:
    written = [name for name in FILES if name in files]
    with contextlib.ExitStack() as stack:
        stack.callback(abandon, folder)  # nothing is left to remove after the end of the run
        for name in written:
            with begun(folder / name) as file:
                file.write(files[name])
        finish_run(folder, written)


def _check_sent(sent: object) -> Iterable[Sent]:
    for run in sent if isinstance(sent, list) else [sent]:
        name, files = run if isinstance(run, tuple) and len(run) == 2 else (None, None)
        if not isinstance(name, str) or not isinstance(files, dict):
            raise RunFailed("a Ray node sent something that is not the files of a run: update hetsim on all nodes")
        folders = PurePosixPath(name).parts
        plain = name.isprintable() and "\\" not in name and 1 <= len(folders) <= MAX_DEPTH and not name.startswith(("/", "."))
        if not plain or any(folder.startswith(".") for folder in folders):
            raise RunFailed(f"a Ray node sent files for the folder {name!r}, which is no run's: update hetsim on all nodes")
        if not all(key in NAMES and isinstance(value, bytes) for key, value in files.items()):
            raise RunFailed(f"a Ray node sent files of {name} that no run leaves: update hetsim on all nodes")
        if sum(map(len, files.values())) > MAX_BYTES or len(files.get(ERROR, b"")) > MAX_ERROR_BYTES:
            raise RunFailed(f"a Ray node sent more than {MAX_BYTES / 2**30:.3g} GiB for {name}: type trace=none")
        yield name, files
