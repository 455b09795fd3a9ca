"""When transfers between the processes of one host end that share links, as each process computes by itself.

Each process appends the transfers that it begins to a file before it sends the message, and reads those of the others from it. So all of
them know the same transfers, and none has to wait until another one says that a transfer has ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import tempfile
import weakref
from pathlib import Path
from threading import Lock

from hetsim.distributed.pacing.shared_links import SharedLinks, Transfer
from hetsim.runtime.experiment import Experiment

RECORD = struct.Struct("<iidd")
"""A transfer: its sender, its receiver, when it began in seconds of the host's clock, and its bytes."""
MANY = 1024
"""Transfers that are read at a time."""
PREFIX = "hetsim-transfers-"
"""Of the names of the files."""


class LinkEmulator:
    """Knows all transfers over shared links that any process has begun which has opened the same file."""

    def __init__(self, links: SharedLinks, path: Path, *, rank: int) -> None:
        self.rank = rank
        self.carries = links.carries
        self._links = links
        self._path = path
        self._file = opened(path)
        weakref.finalize(self, os.close, self._file)
        self._lock = Lock()
        self._num_read = 0
        self._transfers: dict[int, Transfer] = {}
        """Those to this rank that it has not asked for, by number."""

    @classmethod
    def of_run(cls, experiment: Experiment, rank: int, *, began: float) -> LinkEmulator:
        """The emulator of a rank in the run that began at this moment, which all of its processes know and no other run has."""
        folder = Path(tempfile.gettempdir())
        remove_leftovers(folder)
        return cls(
            SharedLinks(experiment.cluster, seed=experiment.seed, began=began), folder / f"{PREFIX}{os.getuid()}-{began.hex()}", rank=rank
        )

    def begin(self, receiver: int, nbytes: int, at: float) -> int:
        """Record that a transfer from this rank has begun at this moment. Returns its number, by which the receiver knows it."""
        with self._lock:
            os.write(self._file, RECORD.pack(self.rank, receiver, at, nbytes))
            return os.lseek(self._file, 0, os.SEEK_CUR) // RECORD.size - 1

    def transfer(self, number: int) -> Transfer:
        """The transfer of this number, which the receiver asks for once. Its end is known after `project`."""
        self._read()
        return self._transfers.pop(number)

    def project(self) -> None:
        """Set when each transfer ends, if no other begins than those that have."""
        self._read()
        self._links.project()

    def remove(self) -> None:
        """Remove the file, as the run is over; those who have it open can still read it."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _read(self) -> None:
        while len(records := os.pread(self._file, RECORD.size * MANY, RECORD.size * self._num_read)) >= RECORD.size:
            whole = len(records) // RECORD.size * RECORD.size  # at the end of a page, part of a record may be there before the rest
            for sender, receiver, at, nbytes in RECORD.iter_unpack(records[:whole]):
                transfer = Transfer(at, nbytes)
                self._links.begin(sender, receiver, transfer)
                if receiver == self.rank:
                    self._transfers[self._num_read] = transfer
                self._num_read += 1


def opened(path: Path) -> int:
    """The file of this path, which is made if it is missing, locked so that it is no leftover."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        fcntl.flock(file, fcntl.LOCK_SH)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file), path.stat()):
                return file
        os.close(file)  # it was removed before it was locked


def remove_leftovers(folder: Path) -> None:
    """Remove the files of runs whose processes have all been killed."""
    for path in folder.glob(f"{PREFIX}{os.getuid()}-*"):
        with contextlib.suppress(OSError), path.open() as file:  # OSError: a process has it open, or has just removed it
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):  # and not another process's, which was made before the lock
                path.unlink()
