"""A process that runs trials for a search, one after the other: lines of JSON in both directions, so nothing is unpickled."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from types import TracebackType
from typing import Any

from hetsim.cli.errors import sentence
from hetsim.cli.search import trial
from hetsim.cli.search.trial import Place, Pruned, Watch
from hetsim.errors import RunFailed


class Process:
    """The end of it that the search holds. If it was killed, the next run is in a new one."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._process = self._started()

    def _started(self) -> subprocess.Popen[str]:
        safe = [] if {"", os.getcwd()} & set(sys.path) else ["-P"]
        command = [sys.executable, *safe, "-m", "hetsim.cli.search.process"]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the process, and the run that is under way in it."""
        self._process.kill()
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate()

    def run(self, words: Sequence[str], watch: Watch) -> float | None:
        """As `trial.run`, there."""
        if self._process.poll() is not None:
            self.close()
            self._process = self._started()
        self._write({"words": list(words), "place": asdict(self.place)})
        while "point" in (answer := self._read()):
            self._write(watch(*answer["point"]))
        if "pruned" in answer:
            raise Pruned
        if "refused" in answer:
            raise ValueError(answer["refused"])
        if "failed" in answer:
            raise RunFailed(answer["failed"])
        value = answer["value"]
        return None if value is None else float(value)

    def _write(self, message: object) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # then there is no answer
            print(json.dumps(message), file=self._process.stdin, flush=True)

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            raise RunFailed("a process of the search was killed, perhaps for lack of memory")
        answer: dict[str, Any] = json.loads(line)
        return answer


def main() -> None:
    """The other end: each line of the input is a run, each line of the output an evaluation of it or what became of it."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a user's own code prints is no answer
    os.environ["TQDM_DISABLE"] = "1"

    def tell(**message: object) -> None:
        print(json.dumps(message), file=answers, flush=True)

    def watch(*point: float | None) -> bool:
        tell(point=point)
        return bool(json.loads(sys.stdin.readline()))

    for line in sys.stdin:
        task = json.loads(line)
        try:
            tell(value=trial.run(task["words"], Place(**task["place"]), watch))
        except Pruned:
            tell(pruned=True)
        except ValueError as error:
            tell(refused=str(error))
        except Exception as error:
            tell(failed=f"{type(error).__name__}: {sentence(error)}" if not isinstance(error, RunFailed) else str(error))


if __name__ == "__main__":
    main()
