"""Starts of Python that are forks of a process in which torch, Hydra and hetsim are imported.

A fork has the arguments, variables, current folder, files, group and parent that a start would give it, and ends as a program does.
A test whose law is about what a start imports, and from where, has the marker `real_start`.
"""

from __future__ import annotations

import _posixsubprocess
import array
import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import logging
import os
import resource
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Iterator, Sequence
from multiprocessing import forkserver, process, resource_tracker, util
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from hetsim.distributed.launch import local as launch

PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 15, 36
NAME = "forks"
"""The name in /proc of a launcher's server, which a test does not count among the launcher's processes."""
MODULES = (
    "hetsim",
    "hetsim.cli.",
    "hetsim.pool.",
    "torch.distributed.run",
)
LAUNCHERS = ("hetsim.cli.launch", "torch.distributed.run")
"""Modules that start processes when they have threads: each of their processes has a server of its own, from before its first thread."""
CODE = ("from multiprocessing.forkserver import main;", "import sys; sys.path[:] = sys.argv[2:]; from hetsim.")
READ_AT_START = ("PYTHON", "OMP_", "OPENBLAS_", "MKL_", "LD_", "LC_", "LANG", "MPL", "CUDA_", "HOME")
"""How the names of variables begin that Python or a library reads once: a start with other values of these is no fork."""
READ_BY_FORKS = ("PYTHONPATH", "PYTHONSAFEPATH", "PYTHONDONTWRITEBYTECODE")
LIMITS = (resource.RLIMIT_AS, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE)
IMPORTED = (
    *("torch", "torch.distributed.run", "torch._dynamo", "hydra", "matplotlib.backends.backend_agg", "scipy.stats"),
    *("hetsim.cli.main", "hetsim.cli.launch", "hetsim.config.build", "hetsim.sim", "hetsim.distributed.launch.process"),
    *("hetsim.distributed.launch.host", "hetsim.workloads.tasks.classification", "hetsim.workloads.tasks.quadratic_task"),
    *("hetsim.workloads.own.task", "hetsim.workloads.own.loader_process"),
)

PYTHON = sys.executable
"""The Python of these tests: a test may put another command in its place."""

_fork_exec = _posixsubprocess.fork_exec
_server: Server | None = None
_kept: list[Any] = []
_starts_are_real = False
_one_at_a_time = threading.Lock()


class Server(NamedTuple):
    """Where it is asked, the process that it forks children for, with its session and group, and what it read when it was started."""

    address: str
    parent: int
    session: int
    group: int
    read: dict[str, str]


class Start(NamedTuple):
    """What a fork becomes; `files` are the numbers that its files are to have."""

    words: list[str]
    folder: str
    variables: dict[str, str]
    files: list[int]
    session: bool
    group: int
    mask: list[int]
    limits: list[tuple[int, int]]


@contextlib.contextmanager
def real_starts() -> Iterator[None]:
    """While this lasts, nothing is a fork."""
    global _starts_are_real
    before, _starts_are_real = _starts_are_real, True
    yield
    _starts_are_real = before


def install() -> None:
    """From now on, the starts of this process and of its forks."""
    _posixsubprocess.fork_exec = subprocess._fork_exec = _started  # type: ignore[attr-defined]


def _started(args: Any, executables: Any, close_fds: bool, keep: Any, cwd: Any, env: Any, *rest: Any) -> int:
    """What `fork_exec` is called with, and the id of the process."""
    errors, session, group, identity, prepare = rest[7], rest[9], rest[10], rest[11:15], rest[15]
    words = [os.fsdecode(word) for word in args]
    if close_fds and prepare is None and identity == (None, None, None, -1) and not _starts_are_real and is_forked(words):
        variables = dict(os.environ) if env is None else dict(os.fsdecode(each).split("=", 1) for each in env)
        ends = {0: rest[0], 1: rest[3], 2: rest[5]}
        files = {target: target if number == -1 else number for target, number in ends.items()}
        files |= {int(each): int(each) for each in keep if int(each) != errors}
        mask = [int(each) for each in signal.pthread_sigmask(signal.SIG_BLOCK, [])]
        with contextlib.suppress(FileNotFoundError):  # Popen says so
            folder = os.path.join(os.getcwd(), os.fsdecode(cwd or ""))
            Path(folder).stat()
            limits = [resource.getrlimit(limit) for limit in LIMITS]
            start = Start(words, folder, variables, list(files), bool(session), group, mask, limits)
            pid = _forked(start, list(files.values()))
            if pid is not None:
                return pid
    return int(_fork_exec(args, executables, close_fds, keep, cwd, env, *rest))


def _forked(start: Start, files: list[int]) -> int | None:
    """The id of a fork; None if none would be what a start is."""
    server = _serving()
    if _read_at_start(start.variables) != server.read or any(map(os.isatty, files)):
        return None
    if os.getpid() == server.parent and os.getsid(0) == server.session and os.getpgrp() == server.group:
        return _by_server(server.address, start, files)
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        return None  # what another thread does would be half done in the fork: a rank of hetsim-launch would wait for its store for ever
    pid = os.fork()
    if pid == 0:
        _become(start, files)
    return pid


def is_forked(words: list[str]) -> bool:
    """Whether a process with this command line is a fork."""
    if words[0] != PYTHON:
        return False
    rest = list(_without_options(words))
    if rest[:1] == ["-m"]:
        return rest[1] in MODULES or rest[1].startswith(tuple(name for name in MODULES if name.endswith(".")))
    return rest[:1] == ["-c"] and rest[1].startswith(CODE)


def _without_options(words: list[str]) -> list[str]:
    place = 1
    while place < len(words) and words[place] in ("-u", "-B", "-P"):
        place += 1
    return words[place:]


def _read_at_start(variables: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name.startswith(READ_AT_START) and name not in READ_BY_FORKS}


def _serving() -> Server:
    """The server of this process, or of the one that this is a fork of."""
    global _server
    if _server is None:
        address, listening = _listening()
        read, write = os.pipe()
        code = f"""
import os, sys
typed = [*filter(None, os.environ.get("PYTHONPATH", "").split(":"))]
base = [place for place in sys.path if place and place not in map(os.path.abspath, typed)]
sys.path.append({str(Path(__file__).parent)!r})
import forked
forked.serve({listening.fileno()}, {read}, {address!r}, base)"""
        with real_starts(), listening:
            quiet = {**os.environ, "TORCH_CPP_LOG_LEVEL": "ERROR"}  # which torch reads once, and hetsim-launch sets
            files = [listening.fileno(), read]
            process = subprocess.Popen([PYTHON, "-c", code], pass_fds=files, stdin=subprocess.DEVNULL, env=quiet)
        process.returncode = 0  # nobody waits for its end
        os.close(read)  # the other end is closed when this process ends
        _kept.append(write)
        _server = Server(address, os.getpid(), os.getsid(0), os.getpgrp(), _read_at_start(dict(os.environ)))
    return _server


def _listening() -> tuple[str, socket.socket]:
    address = f"\0hetsim-tests-{os.getpid()}"
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(address)
    listening.listen()
    return address, listening


def _fork_server() -> None:
    """A server of this process, which is a fork: it is a fork of it, and ends when it ends."""
    global _server
    assert _server is not None
    address, listening = _listening()
    read, write = os.pipe()
    server = Server(address, os.getpid(), os.getsid(0), os.getpgrp(), _server.read)
    if os.fork() == 0:
        _server = server
        os.close(write)
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(nothing, number)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _call_this_process(NAME)
        _serve_all(listening, read)
        os._exit(0)
    _server = server
    listening.close()
    os.close(read)
    _kept.append(write)


def _by_server(address: str, start: Start, files: Sequence[int]) -> int:
    """The server forks a process that forks one and ends, so that the latter becomes a child of this process."""
    libc = ctypes.CDLL(None)
    with _one_at_a_time, contextlib.ExitStack() as stack:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        stack.callback(libc.prctl, PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(address)
            connection.sendmsg([b"f"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))])
            connection.sendall(json.dumps(start).encode("utf-8", "surrogateescape"))
            connection.shutdown(socket.SHUT_WR)
            return int(connection.recv(100))


def serve(listening: int, alive: int, address: str, base: list[str]) -> None:
    """Fork a process for each request until `alive` is closed at its other end. A program imports from `base`, and from where it is."""
    global _server
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for module in IMPORTED:
        importlib.import_module(module)
    importlib.import_module("hetsim.config.compose").composed(["method=ssgd"])  # the first one takes longest
    sys.path[:] = base
    _server = Server(address, os.getppid(), os.getsid(0), os.getpgrp(), _read_at_start(dict(os.environ)))
    install()
    _kept.append((warnings.filters[:], warnings.showwarning, sys.excepthook, sys.meta_path[:], base))
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=listening) as asked:
        _serve_all(asked, alive)


def _serve_all(asked: socket.socket, alive: int) -> None:
    while True:
        ready, _, _ = select.select([asked, alive], [], [])
        if alive in ready:
            return
        connection, _ = asked.accept()
        with connection:
            _serve_one(connection)


def _serve_one(connection: socket.socket) -> None:
    _, ancillary, _, _ = connection.recvmsg(1, socket.CMSG_SPACE(4 * 64))
    files = array.array("i")
    for _, _, data in ancillary:
        files.frombytes(data[: len(data) - len(data) % files.itemsize])
    text = b""
    while part := connection.recv(1 << 16):
        text += part
    read, write = os.pipe()
    between = os.fork()
    if between == 0:
        between = os.getpid()
        start = Start(*json.loads(text.decode("utf-8", "surrogateescape")))
        signal.pthread_sigmask(signal.SIG_SETMASK, start.mask)  # before anybody knows whom to send a signal
        pid = os.fork()
        if pid == 0:
            while os.getppid() == between:
                time.sleep(0.0002)
            _become(start, files)
        os.write(write, str(pid).encode())
        os._exit(0)
    os.waitpid(between, 0)
    pid_of_fork = os.read(read, 100)
    for each in (read, write, *files):
        os.close(each)
    connection.sendall(pid_of_fork)


def _become(start: Start, files: Sequence[int]) -> NoReturn:
    """Be the process that `start` describes, to its end."""
    status = 1
    try:
        _call_this_process("python")
        _take_files(start.files, files)
        _forget()
        os.environ.clear()
        os.environ.update(start.variables)
        tempfile.tempdir = None  # of TMPDIR, which is another one
        os.chdir(start.folder)
        for limit, values in zip(LIMITS, start.limits, strict=True):
            resource.setrlimit(limit, values)
        if start.session:
            os.setsid()
        elif start.group >= 0:
            os.setpgid(0, start.group)
        status = _run(start)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stderr.flush()
        os._exit(status)


def _call_this_process(name: str) -> None:
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode(), 0, 0, 0)


def _take_files(targets: Sequence[int], files: Sequence[int]) -> None:
    """Have these files by these numbers, and no others."""
    above = max(targets) + 1000
    moved = [fcntl.fcntl(number, fcntl.F_DUPFD, above) for number in files]
    for target, number in zip(targets, moved, strict=True):
        os.dup2(number, target, inheritable=True)
    last = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    free = 3
    for target in sorted(number for number in targets if number > 2):
        os.closerange(free, target)
        free = target + 1
    os.closerange(free, last)


def _forget() -> None:
    """What a process does not inherit by a start."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    filters, warnings.showwarning, sys.excepthook, finders, _ = _kept[0]
    warnings.filters[:] = filters
    sys.meta_path[:] = finders
    for handler in logging.root.handlers[:]:
        logging.root.removeHandler(handler)
    logging.root.setLevel(logging.WARNING)
    util._finalizer_registry.clear()
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]
    process.current_process()._config = {"authkey": process.AuthenticationString(os.urandom(32)), "semprefix": "/mp"}  # type: ignore[attr-defined]
    for singleton in (forkserver._forkserver, resource_tracker._resource_tracker):  # type: ignore[attr-defined]
        _kept.append(dict(vars(singleton)))
        singleton.__init__()
    _kept.append(dict(launch._own))
    launch._own.update(vars(forkserver.ForkServer()))


def _run(start: Start) -> int:
    """The program, from its first line to its exit status."""
    rest = _without_options(start.words)
    options = start.words[1 : len(start.words) - len(rest)]
    if "-u" in options:
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(write_through=True)  # type: ignore[union-attr]
    sys.dont_write_bytecode = "-B" in options or bool(start.variables.get("PYTHONDONTWRITEBYTECODE"))
    sys.orig_argv = start.words
    safe = "-P" in options or bool(start.variables.get("PYTHONSAFEPATH"))
    base = [*map(os.path.abspath, filter(None, start.variables.get("PYTHONPATH", "").split(":"))), *_kept[0][-1]]
    sys.path[:] = base if safe else [os.getcwd() if rest[0] == "-m" else "", *base]
    importlib.invalidate_caches()
    try:
        if rest[0] == "-m":
            if rest[1] in LAUNCHERS:
                _fork_server()
            sys.argv = ["-m", *rest[2:]]
            sys.modules.pop(rest[1], None)
            runpy._run_module_as_main(rest[1])  # type: ignore[attr-defined]
        else:
            sys.argv = ["-c", *rest[2:]]
            exec(rest[1], sys.modules["__main__"].__dict__)
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
        if status == 1 and ended.code != 1:
            print(ended.code, file=sys.stderr)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        status = 1
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            sys.stdout.flush()
            os.kill(os.getpid(), signal.SIGINT)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        status = 120
    return status & 0xFF
