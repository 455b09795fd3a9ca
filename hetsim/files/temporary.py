"""Temporary folders. If their process was killed, the next start removes them: each contains a file that its process has locked."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from multiprocessing import util
from pathlib import Path

OWNER = ".hetsim"
"""The locked file in a folder."""
LONGEST_SOCKET = 107
"""The maximum length of a Unix socket's path, in bytes."""
PREFIXES = ("hetsim-", "pymp-")
"""The prefixes of folders by hetsim, and by multiprocessing in its processes."""


@contextlib.contextmanager
def temporary_folder(prefix: str, place: Path | None = None) -> Iterator[Path]:
    """A new folder for the block, in the system's temporary folder or at `place`."""
    remove_abandoned(place)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=place, ignore_cleanup_errors=True) as folder, owned(Path(folder)):
        yield Path(folder)


@contextlib.contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Within this context, no process removes this folder as abandoned. After the end of this process, any process does."""
    file = _lock(folder)
    try:
        yield
    finally:
        os.close(file)


@cache
def own_multiprocessings_folder() -> None:
    """Own multiprocessing's folder of sockets until the end of this process. Raises ValueError if the sockets' paths are too long."""
    if (length := len(os.fsencode(util.get_temp_dir())) + len("/listener-12345678")) > LONGEST_SOCKET:
        raise ValueError(
            f"TMPDIR={tempfile.gettempdir()} is too long: processes meet at sockets there, whose paths would have {length} bytes and may "
            f"have {LONGEST_SOCKET}; set a shorter TMPDIR, such as /tmp"
        )
    remove_abandoned()
    with contextlib.suppress(OSError):  # it cannot be written
        _lock(Path(util.get_temp_dir()))


def _lock(folder: Path) -> int:
    """Own a folder until this file is closed."""
    unlocked = folder / f"{OWNER}.{os.getpid()}"
    file = os.open(unlocked, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    with contextlib.suppress(OSError):  # on a file system without locks the folder stays after a kill
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.replace(unlocked, folder / OWNER)  # its name is there only once it is locked
    return file


def remove_abandoned(place: Path | None = None) -> None:
    """Remove this user's folders at `place` whose processes have ended without removing them. Links are not followed."""
    place = place or Path(tempfile.gettempdir())
    for path in [path for prefix in PREFIXES for path in place.glob(f"{prefix}*")]:
        with contextlib.suppress(OSError):  # its process lives, or it has just been removed
            if _is_own(path, stat.S_ISDIR) and _is_own(path / OWNER, stat.S_ISREG):
                file = os.open(path / OWNER, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
                finally:
                    os.close(file)


def _is_own(path: Path, kind: Callable[[int], bool]) -> bool:
    status = path.lstat()
    return status.st_uid == os.getuid() and kind(status.st_mode)
