"""A process that has imported hetsim and torch once, and runs each config that it is sent in a fork of itself.

So every run begins in the same state, whatever the runs before did: a config's outcome is a function of its words and files. The fork
calls `main()` as the command `hetsim` does, in a folder of its own, with its output in files and its memory bounded. The server
adopts the processes that a run leaves behind, and so sees them.
"""

from __future__ import annotations

import copy
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

CPU_SECONDS, SECONDS = 20.0, 60.0
"""A run that computes for longer, or takes longer by the clock, hangs. The machine may have other work to do."""
MORE_BYTES = 4 * 2**30
"""The address space that a run may take beyond what the imports took."""
GRACE_SECONDS = 30.0
"""What processes that a run started may take to end after it: a server of forks first finishes its imports."""

PR_SET_CHILD_SUBREAPER = 36
PROXY = "http://127.0.0.1:9"  # nobody listens there: what would download something cannot


def serve() -> None:
    """Read requests {folder, words} from standard input, one a line, and write the outcome of each to standard output."""
    _import_everything()
    _warm_up()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    os.environ.update(dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), PROXY))
    gc.collect()
    gc.freeze()
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(outcome(Path(request["folder"]), request["words"])), flush=True)


def _import_everything() -> None:
    """All that any run imports, so that it is imported once."""
    import hetsim

    for module in (
        "matplotlib.backends.backend_agg",
        "pyarrow.parquet",
        "pyarrow.dataset",
        "scipy.stats",
        "torch._dynamo",
        "torchvision",
    ):
        importlib.import_module(module)
    for module in pkgutil.walk_packages(hetsim.__path__, "hetsim."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def _warm_up() -> None:
    """Let Hydra find its plugins and compose a config, and keep the shipped files of conf/ as they were read."""
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    from hetsim.trust.shipped import configs

    load = OmegaConf.load
    shipped = {str(path): load(path) for path in configs().rglob("*.yaml")}

    def load_once(file: Any) -> Any:
        known = shipped.get(getattr(file, "name", ""))
        return load(file) if known is None else copy.deepcopy(known)

    OmegaConf.load = staticmethod(load_once)  # type: ignore[method-assign]
    with initialize_config_dir(version_base="1.3", config_dir=str(configs())):
        compose("config", overrides=["++a.b={c: [1, 1.5, 'd e', null, true]}", "++b=[1]", "+seed2=${seed}", "optimizer=adam"])


def outcome(folder: Path, words: list[str]) -> dict[str, Any]:
    """Run `hetsim` with these words in this folder; status None if it had to be killed, negative if a signal ended it."""
    begun = time.monotonic()
    pid = os.fork()
    if pid == 0:
        _run(folder, words)
    status = None
    while status is None and time.monotonic() - begun < SECONDS and _cpu_seconds(pid) < CPU_SECONDS:
        done, code = os.waitpid(pid, os.WNOHANG)
        status = os.waitstatus_to_exitcode(code) if done else None
        time.sleep(0.005)
    seconds = time.monotonic() - begun
    if status is None:
        os.kill(pid, signal.SIGUSR1)  # faulthandler writes where it is
        time.sleep(0.2)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return {"status": status, "seconds": seconds, "left": _left_behind(GRACE_SECONDS if status is not None else 0.0)}


def _cpu_seconds(pid: int) -> float:
    """What a process has computed so far."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


def _run(folder: Path, words: list[str]) -> None:
    """What the fork does; it never returns."""
    import atexit
    import faulthandler
    import threading
    import traceback

    from hetsim.cli.main import main

    status = 1
    try:
        os.chdir(folder / "cwd")
        for name, number in (("stdout", 1), ("stderr", 2)):
            os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        with (folder / "stuck").open("w") as stuck:
            faulthandler.register(signal.SIGUSR1, file=stuck)
            bytes_now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (bytes_now + MORE_BYTES, bytes_now + MORE_BYTES))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            sys.argv = ["hetsim", *words]
            try:
                main()
                status = 0
            except SystemExit as ended:
                status = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
            except BaseException:
                traceback.print_exc()
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _left_behind(patience: float) -> list[str]:
    """The command lines of processes that are still there after a while; they are killed."""
    until = time.monotonic() + patience
    while (left := _children()) and time.monotonic() < until:
        time.sleep(0.01)
    described = []
    while left:
        for pid in left:
            described.append(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:300])
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        left = _children()  # a killed process may have had children of its own
    return described


def _children() -> list[int]:
    """The processes whose parent is this one, without those that have ended."""
    while True:
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return []
        if not ended:
            return [int(pid) for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()]


if __name__ == "__main__":
    serve()
