"""Compute in each process when transfers that share links end, between processes of one host.

Each process appends its new transfers to a file before it sends the message, and reads the others' transfers from it. So all processes
know the same transfers, and none has to wait for another's report that a transfer has ended.
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
"""A transfer: its sender, its receiver, its begin in seconds of the host's clock, and its bytes."""
MANY = 1024
"""The number of transfers to read at a time."""
PREFIX = "hetsim-transfers-"
"""The prefix of the files' names."""


class LinkEmulator:
    """Knows all transfers over shared links of the processes that have opened the same file."""

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
        """The transfers to this rank that it has not requested yet, by number."""

    @classmethod
    def of_run(cls, experiment: Experiment, rank: int, *, began: float) -> LinkEmulator:
        """The emulator of a rank in the run that began at this time. All processes know the time, and no other run has it."""
        folder = Path(tempfile.gettempdir())
        remove_leftovers(folder)
        return cls(
            SharedLinks(experiment.cluster, seed=experiment.seed, began=began), folder / f"{PREFIX}{os.getuid()}-{began.hex()}", rank=rank
        )

    def begin(self, receiver: int, nbytes: int, at: float) -> int:
        """Record that a transfer from this rank begins at this time. Returns its number, which the receiver uses, too."""
        with self._lock:
            os.write(self._file, RECORD.pack(self.rank, receiver, at, nbytes))
            return os.lseek(self._file, 0, os.SEEK_CUR) // RECORD.size - 1

    def transfer(self, number: int) -> Transfer:
        """The transfer with this number. The receiver requests it once. Its end is known after `project`."""
        self._read()
        return self._transfers.pop(number)

    def project(self) -> None:
        """Set the end of each transfer, assuming that no other transfer begins."""
        self._read()
        self._links.project()

    def remove(self) -> None:
        """Remove the file after the run. Processes that have it open can still read it."""
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
    """Open the file at this path, create it if missing, and lock it to mark it as used."""
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
