"""Processes of one run in containers or on hosts of their own: forked from this process, which has imported what they need.

A container is a cgroup with a quota of one core, in which its process is from the beginning; a host is a network namespace. It needs root.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import itertools
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hosts import namespaces

CPU = Path("/sys/fs/cgroup/cpu")
PERIOD_US = 100_000
"""That of containers."""
CLONE_NEWNET = 0x40000000
NUMBERS = itertools.count()
"""Of cgroups."""


@contextlib.contextmanager
def quotas(shares: Sequence[float]) -> Iterator[list[Path]]:
    """A cgroup for each share of a core (cgroup v1)."""
    made: list[Path] = []
    try:
        for share in shares:
            made.append(CPU / f"study{os.getpid()}-{next(NUMBERS)}")
            made[-1].mkdir()
            (made[-1] / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (made[-1] / "cpu.cfs_quota_us").write_text(str(round(share * PERIOD_US)))
        yield made
    finally:
        for group in made:
            group.rmdir()


@contextlib.contextmanager
def busy(share: float) -> Iterator[None]:
    """Another program that computes all the time, on so much of one core; none if it is 0."""
    if not share:
        yield
        return
    with quotas([share]) as (group,):
        program = os.fork()
        if not program:
            (group / "tasks").write_text(str(os.getpid()))
            while True:
                sum(range(10_000))
        try:
            yield
        finally:
            os.kill(program, 9)
            os.waitpid(program, 0)


def run_in_containers(shares: Sequence[float], module: str, words: Sequence[str]) -> None:
    """A command's `main`, a process in each of as many containers; RuntimeError with what the processes said if one fails."""
    with quotas(shares) as groups:
        _run(len(shares), "127.0.0.1", lambda rank: _write(groups[rank] / "tasks", str(os.getpid())), module, words)


def run_on_hosts(mbits: Sequence[int], module: str, words: Sequence[str]) -> None:
    """The same on hosts with links of these rates."""
    with namespaces(mbits) as names:
        _run(len(mbits), "10.78.0.1", lambda rank: _enter(names[rank]), module, words)


def _write(path: Path, text: str) -> None:
    path.write_text(text)


def _enter(namespace: str) -> None:
    handle = os.open(f"/var/run/netns/{namespace}", os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(handle, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")


def _run(world: int, address: str, place: Callable[[int], None], module: str, words: Sequence[str]) -> None:
    main = importlib.import_module(module).main
    importlib.import_module("hetsim.distributed.backend")
    here = address == "127.0.0.1"
    with tempfile.TemporaryDirectory() as folder:
        said = [Path(folder, str(rank)) for rank in range(world)]
        processes = []
        for rank in range(world):
            if process := os.fork():
                processes.append(process)
                continue
            status = 1
            try:
                for stream in (1, 2):
                    os.dup2(os.open(said[rank], os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
                place(rank)
                variables = {
                    "RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank if here else 0, "LOCAL_WORLD_SIZE": world if here else 1,
                    "MASTER_ADDR": address, "MASTER_PORT": 29500,
                }  # fmt: skip
                os.environ.update({key: str(value) for key, value in variables.items()})
                sys.argv = [module, *words]
                main()
                status = 0
            except SystemExit as left:
                status = left.code if isinstance(left.code, int) else int(left.code is not None)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        statuses = [os.waitpid(process, 0)[1] for process in processes]
        if any(statuses):
            raise RuntimeError("\n".join(path.read_text() for path in said))
