"""The processes of a sweep, a search or an advice on the nodes of a Ray cluster.

If a node is lost, its processes are lost too. Other processes answer their questions, and a new process starts as soon as there is room.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import math
import os
import signal
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from hetsim.errors import RunFailed
from hetsim.files.temporary import temporary_folder
from hetsim.files.writing import write_text
from hetsim.pool.pool import NodeLost, Pool, PoolEnded
from hetsim.pool.process import Process, Reply, converse
from hetsim.pool.sent_files import Sent, pack, unpack
from hetsim.version import __version__

MISSING = "Ray is not installed: install hetsim[ray], as in pip install 'hetsim[ray]'"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals whose handlers Ray replaces, or may replace."""
CLOSE_SECONDS = 3.5
"""The maximum time for processes to end their current runs."""
MAX_LOSSES = 20
"""The number of consecutively lost processes without an answer that ends the pool, because the cause is then no node."""
MAX_FOLDER = 40
"""The maximum length of the folder of Ray's sockets, because the system limits their names."""


def check_installed() -> None:
    """Raise ValueError if Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise ValueError(MISSING)


@contextlib.contextmanager
def connected(num_cpus: float = 0) -> Iterator[None]:
    """A connection for a block: to the cluster of RAY_ADDRESS, or else to a local Ray with at least `num_cpus` CPUs.

    A script that has connected by itself stays connected. Raises ValueError if the cluster does not exist.
    """
    check_installed()
    with _variable("RAY_DEDUP_LOGS_SKIP_REGEX", "."):  # Ray would print between the results that a node was lost
        import ray

    if ray.is_initialized():
        yield
        return
    address = os.environ.get("RAY_ADDRESS")
    if address and address.startswith("ray://"):
        raise ValueError(f"RAY_ADDRESS={address} is Ray's client: start the command on a node of the cluster, with its HOST:PORT or auto")
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    options: dict[str, Any] = {"configure_logging": False, "log_to_driver": False}
    with contextlib.ExitStack() as stack:
        logger = logging.getLogger("ray")
        stack.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.CRITICAL)
        if not address:
            stack.enter_context(_variable("RAY_USAGE_STATS_ENABLED", "0"))
            usual = tempfile.gettempdir()
            folder = stack.enter_context(temporary_folder("hetsim-ray-", Path(usual if len(usual) < MAX_FOLDER else "/tmp")))
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
            own_options = {"num_cpus": max(cores, math.ceil(num_cpus)), "include_dashboard": False, "_temp_dir": str(folder)}
            options.update(own_options, _node_ip_address="127.0.0.1")
        stack.callback(ray.shutdown)
        try:
            with contextlib.chdir(os.sep):  # Ray lets its processes import from the current folder, which may be a stranger's
                ray.init(**options)
        except (ConnectionError, RuntimeError, ValueError) as error:
            place = f"the Ray cluster of RAY_ADDRESS={address}" if address else "Ray on this machine"
            raise ValueError(f"{place} cannot be used ({' '.join(str(error).split())[:300]}): see its logs, or start it again") from None
        except SystemExit:  # what Ray makes of SIGTERM
            _restore(handlers)
            signal.raise_signal(signal.SIGTERM)
            raise
        finally:
            _restore(handlers)
        yield


@contextlib.contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    """Within this context, this environment variable has this value, unless it has one."""
    if name in os.environ:
        yield
        return
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name, None)


def _restore(handlers: Mapping[signal.Signals, Any]) -> None:
    if threading.current_thread() is threading.main_thread():
        for number, handler in handlers.items():
            signal.signal(number, handler)


class Seat:
    """An actor that Ray starts on a node. It owns a process, the same as a local one, and passes JSON lines to it and back.

    The process ends when the actor ends, in any way, because a pipe closes.
    """

    def __init__(self) -> None:
        self._process: Process | None = None
        self._scratch: str | None = None
        self._stack = contextlib.ExitStack()

    def start(self, function: str, of: str, first: object, version: str, where: str, imports_there: bool, mark: str | None) -> str | None:
        """Start the process. Returns a sentence if this node cannot run it.

        Args:
            function: the function that the process calls first.
            of: the user of the processes, in words.
            first: the first message to each process.
            version: the user's version of hetsim.
            where: the user's current folder, which is current here if this node has it.
            imports_there: whether Python imports modules from that folder.
            mark: a file in the folder of the runs; None if there are no such runs. A node without it sends the files of its runs.
        """
        if version != __version__:
            return f"a node of the Ray cluster has hetsim {__version__}, and this is {version}: install the same version on all nodes"
        with contextlib.suppress(OSError):
            os.chdir(where)
            if imports_there:
                sys.path.append(os.getcwd())
        if mark is not None and not Path(mark).exists():
            self._scratch = str(self._stack.enter_context(temporary_folder("hetsim-ray-")))
        self._process = Process(function, of=of, first=first)
        return None

    def exchange(self, message: Any, begins: bool) -> tuple[str | None, str | None, list[Sent]]:
        """The process's next message as JSON, or the reason without one, and the files of the finished run."""
        assert self._process is not None
        if begins and self._scratch is not None and "folder" in message:
            message = {**message, "folder": self._scratch}
        try:
            answer = self._process.exchange(message, begins)
            ended = self._scratch is not None and "asked" not in answer
            return json.dumps(answer), None, pack(Path(self._scratch)) if ended and self._scratch else []
        except (RunFailed, OSError) as error:
            return None, str(error), []

    def close(self) -> None:
        """End the process and its current run, which removes its unfinished files."""
        if self._process is not None:
            self._process.close()
        self._stack.close()


class RayProcess:
    """A process on a node, with the interface of a local one."""

    def __init__(self, actor: Any, folder: Path | None) -> None:
        self.actor = actor
        self._folder = folder

    def ask(self, question: object, reply: Reply | None = None) -> Any:
        """The same as `Asked.ask`. The files of a finished run are then in the folder."""
        return converse(self._exchange, question, reply)

    def _exchange(self, message: object, begins: bool) -> dict[str, Any]:
        import ray

        try:
            answer, failure, files = ray.get(self.actor.exchange.remote(message, begins))
        except ray.exceptions.RayTaskError as error:
            raise RunFailed(f"a Ray node failed in hetsim's own code ({' '.join(str(error.cause).split())[:300]})") from None
        except ray.exceptions.RayError as error:
            raise NodeLost(f"a Ray node was lost ({type(error).__name__})") from None
        if answer is None:
            raise RunFailed(str(failure))
        if files:
            assert self._folder is not None
            unpack(files, self._folder)
        next_message: dict[str, Any] = json.loads(answer)
        return next_message


class RayPool(Pool):
    """One process for each CPU of the cluster, or the given number as far as there is room."""

    def __init__(
        self,
        function: str,
        size: int | None,
        *,
        of: str,
        folder: Path | None,
        first: object = None,
        num_cpus: float = 1,
        num_gpus: float = 0,
    ) -> None:
        import ray

        self.size = size or _num_processes(num_cpus, num_gpus)
        self._folder = None if folder is None else folder.absolute()
        self._mark = None if self._folder is None else self._folder / f".hetsim-ray-{uuid.uuid4().hex}"
        where, imports_there = os.getcwd(), bool({"", os.getcwd()} & set(sys.path))
        mark = None if self._mark is None else str(self._mark)
        self._started = (function, of, ray.put(first), __version__, where, imports_there, mark)
        self._needs = {"num_cpus": num_cpus, "num_gpus": num_gpus, "max_concurrency": 2, "max_restarts": 0}
        self._idle: SimpleQueue[RayProcess | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._actors: set[Any] = set()
        self._placed: set[Any] = set()
        """The actors with a process. The others wait for room."""
        self._losses = 0
        self.ended: Exception | None = None
        """The reason why there are no further conversations; None while there are."""
        if self._mark is not None:
            write_text(self._mark, "")
        for _ in range(self.size):
            self._start()

    def _start(self) -> None:
        import ray

        with self._lock:
            if self.ended is not None:
                return
            actor = ray.remote(Seat).options(**self._needs).remote()
            self._actors.add(actor)
        ready = actor.start.remote(*self._started)
        ready.future().add_done_callback(lambda future: self._ready(actor, future))

    def _ready(self, actor: Any, future: Any) -> None:
        """Called when an actor has its process, or has failed to start it."""
        import ray

        try:
            refusal = future.result()
        except ray.exceptions.RayTaskError as error:
            refusal = f"a process cannot be started on a Ray node ({' '.join(str(error.cause).split())[:300]})"
        except Exception:
            threading.Thread(target=self._lost, args=(actor,), daemon=True).start()  # this one is Ray's, which starts actors
            return
        if refusal is None:
            with self._lock:
                self._placed.add(actor)
            self._idle.put(RayProcess(actor, self._folder))
        else:
            self._end(ValueError(refusal))

    def _lost(self, actor: Any) -> None:
        with self._lock:
            self._actors.discard(actor)
            self._placed.discard(actor)
            self._losses += 1
        if self._losses > MAX_LOSSES + self.size:
            self._end(RunFailed(f"{self._losses} processes were lost on Ray nodes, one after the other: see Ray's logs"))
        else:
            self._start()

    def _end(self, error: Exception) -> None:
        with self._lock:
            self.ended = self.ended or error
        self._idle.put(None)

    @contextlib.contextmanager
    def borrowed(self) -> Iterator[RayProcess]:
        """The same as `Pool.borrowed`. A process that is lost in the block is replaced."""
        process = self._idle.get()
        if process is None or self.ended is not None:
            self._idle.put(None)  # for the next
            raise self.ended or PoolEnded("the processes were ended")
        try:
            yield process
        except NodeLost:
            self._lost(process.actor)
            raise
        except BaseException as error:
            self._idle.put(process)
            if isinstance(error, RunFailed) and self.ended is not None:
                raise self.ended from None
            raise
        self._losses = 0
        self._idle.put(process)

    def kill(self) -> None:
        """The same as `Pool.kill`."""
        import ray

        self._end(PoolEnded("the processes were ended"))
        for actor in self._actors:
            ray.kill(actor)

    def close(self) -> None:
        """The same as `Pool.close`."""
        import ray

        self._end(PoolEnded("the processes were ended"))
        with contextlib.suppress(Exception):  # the cluster may be lost, too
            if closing := [actor.close.remote() for actor in self._placed]:
                ray.wait(closing, num_returns=len(closing), timeout=CLOSE_SECONDS)
            for actor in self._actors:
                ray.kill(actor)
        self._actors.clear()
        self._placed.clear()
        if self._mark is not None:
            self._mark.unlink(missing_ok=True)


def _num_processes(num_cpus: float, num_gpus: float) -> int:
    """How many processes fit on the nodes. Raises ValueError if none fits."""
    import ray

    total = 0
    for node in ray.nodes():
        if node["Alive"]:
            has = node["Resources"]
            total += int(min(has.get(kind, 0.0) / need for kind, need in (("CPU", num_cpus), ("GPU", num_gpus)) if need > 0))
    if not total:
        raise ValueError(f"no Ray node has the {num_cpus:g} CPUs and {num_gpus:g} GPUs of a run: lower num_cpus or num_gpus")
    return total
