"""The command in processes of its own, to be interrupted, killed and waited for."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import forked

STARTED = 19
"""The field of when a process was started, after that of its command."""
LONG = ("-m", "hetsim", "backend=dist", "workload=quadratic", "budget.epochs=1000", "pictures=false", "trace=none")

_commands: list[subprocess.Popen[str]] = []


def hetsim(*arguments: str, folder: Path) -> subprocess.Popen[str]:
    """The command, in a process group of its own."""
    command = [sys.executable, *arguments, f"hydra.run.dir={folder}"]
    _commands.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True))
    return _commands[-1]


def end_all() -> None:
    """Kill what is left of the commands that were started."""
    while _commands:
        command = _commands.pop()
        for pid in family(command.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        command.communicate()


def family(parent: int) -> dict[int, str]:
    """The living processes of the session that `parent` leads, with their state."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = path.read_text().rpartition(")")
        except OSError:
            continue
        fields = rest.split()
        if int(fields[3]) == parent and fields[0] != "Z" and not name.endswith(f"({forked.NAME}"):
            found[int(path.parent.name)] = fields[0]
    return found


def wait_for(condition: object, seconds: float = 120.0) -> None:
    """Until it holds."""
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it never came to hold"
        time.sleep(0.05)


def free_port() -> int:
    """A port that is free, and below those (from 32768 on) that Linux gives to a program that asks for any."""
    while True:
        port = random.SystemRandom().randrange(20000, 32768)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def started(command: subprocess.Popen[str], folder: Path) -> list[int]:
    """The processes of a run that is under way, oldest first."""
    wait_for(lambda: (folder / ".config.yaml.unfinished").exists() or command.poll() is not None)
    assert command.poll() is None, command.stderr.read()  # type: ignore[union-attr]
    time.sleep(0.5)
    return oldest_first(family(command.pid))


def oldest_first(processes: Iterable[int]) -> list[int]:
    """By when they were started: the system's numbers begin anew once they are used up."""
    return sorted(processes, key=lambda pid: (int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[STARTED]), pid))
