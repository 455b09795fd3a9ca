"""Configs of the fuzzer, run by servers and judged by the laws."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

from drawn_config import Config, drawn_config
from laws import Ran, findings

ROOT = Path(__file__).parents[2]
SERVER_SECONDS = 120.0
"""After so many seconds without an answer a server itself hangs."""


class Server:
    """A process of run_server.py. A context manager; the process is started when the first config is run, and again after it was lost."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Server:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.stop()

    def run(self, config: Config, *, keep: Path | None = None) -> Ran:
        """Write the config's files, run it and look at what it left. With `keep`, the folder stays there."""
        with tempfile.TemporaryDirectory(prefix="hetsim-fuzz-") as temporary:
            folder = keep or Path(temporary)
            home = folder / "cwd"
            home.mkdir(parents=True, exist_ok=True)
            for name, content in config.files.items():
                (home / name).parent.mkdir(parents=True, exist_ok=True)
                (home / name).write_bytes(content if isinstance(content, bytes) else content.encode(errors="surrogateescape"))
            answer = self._ask({"folder": str(folder), "words": list(config.words)})
            files = {str(path.relative_to(home)): path for path in sorted(home.rglob("*")) if "__pycache__" not in path.parts}
            printed = [_read(folder / name) for name in ("stdout", "stderr", "stuck")]
            ran = Ran(config, answer["status"], answer["seconds"], *printed, files, answer["left"])
            ran.found = findings(ran)
            return ran

    def _ask(self, request: dict[str, object]) -> dict[str, Any]:
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        alarm = threading.Timer(SERVER_SECONDS, process.kill)
        alarm.start()
        line = process.stdout.readline()
        alarm.cancel()
        if not line:
            self.stop()
            return {"status": None, "seconds": SERVER_SECONDS, "left": ["the server itself was lost"]}
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _start(self) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONIOENCODING": "utf-8:strict", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [sys.executable, str(Path(__file__).with_name("run_server.py"))]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment, start_new_session=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"
        return self._process

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _read(path: Path) -> str:
    return path.read_bytes().decode("utf-8", errors="replace") if path.exists() else ""


def run_all(seed: int, numbers: Sequence[int], *, processes: int) -> Iterator[Ran]:
    """The runs of these configs, in the order of their numbers, from so many servers at the same time."""
    servers = [Server() for _ in range(processes)]
    mine = threading.local()

    def run(number: int) -> Ran:
        if not hasattr(mine, "server"):
            mine.server = servers.pop()
            started.append(mine.server)
        ran: Ran = mine.server.run(drawn_config(seed, number))
        return ran

    started: list[Server] = []
    try:
        with ThreadPoolExecutor(processes) as pool:
            yield from pool.map(run, numbers)
    finally:
        for server in started:
            server.stop()
