"""The processes that simulate for an advice. A run is a line of JSON to one of them, and what became of it a line back."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self

from hetsim.advice.simulated import Outcome, simulated, sizes
from hetsim.config.errors import sentence
from hetsim.errors import RunFailed
from hetsim.sweeps.json_process import JsonProcess

Refused = str
"""The sentence of a run that there cannot be."""


def counted(asked: int | None) -> int:
    """How many processes: as many as are asked for, or as there are cores that this one may use, at most eight.

    ValueError with one sentence for more than there are cores.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if asked is None:
        return min(8, cores)
    if not 1 <= asked <= cores:
        raise ValueError(f"processes must be from 1 to the {cores} cores of this machine, not {asked}")
    return asked


class Processes:
    """Several processes, each of which runs one simulation at a time."""

    def __init__(self, count: int, config_dir: str | None) -> None:
        self.config_dir = config_dir
        self.num_runs = 0
        self._all = [JsonProcess("hetsim.advice.processes", of="the simulations") for _ in range(count)]
        self._idle: SimpleQueue[JsonProcess] = SimpleQueue()
        for process in self._all:
            self._idle.put(process)
        self._threads = ThreadPoolExecutor(count)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for process in self._all:
            process.close()
        self._threads.shutdown(cancel_futures=True)

    def run_all(self, runs: Iterable[Sequence[str]]) -> list[Outcome | Refused]:
        """Simulate these runs, each given by its words; what became of each, in their order."""
        found = list(self._threads.map(self._run, runs))
        self.num_runs += len(found)
        return found

    def sizes(self, words: Sequence[str]) -> tuple[int, int]:
        """As `simulated.sizes`. ValueError with one sentence if there is no such workload."""
        answer = self._asked({"sizes": list(words)})
        if "refused" in answer:
            raise ValueError(answer["refused"])
        return answer["sizes"][0], answer["sizes"][1]

    def _run(self, words: Sequence[str]) -> Outcome | Refused:
        answer = self._asked({"run": list(words)})
        if "refused" in answer:
            return Refused(answer["refused"])
        curve = tuple((seconds, loss, accuracy) for seconds, loss, accuracy in answer["curve"])
        return Outcome(answer["numbers"], curve, tuple(answer["applied"]))

    def _asked(self, question: dict[str, Any]) -> dict[str, Any]:
        process = self._idle.get()
        try:
            process.fresh()
            process.write({**question, "config_dir": self.config_dir})
            return process.read()
        except RunFailed as error:
            return {"refused": str(error)}
        finally:
            self._idle.put(process)


def answered(question: dict[str, Any]) -> dict[str, Any]:
    """What a line of the input is answered by."""
    asked: Callable[[], dict[str, Any]]
    if "sizes" in question:
        asked = lambda: {"sizes": sizes(question["sizes"], question["config_dir"])}  # noqa: E731
    else:
        asked = lambda: asdict(simulated(question["run"], question["config_dir"]))  # noqa: E731
    try:
        return asked()
    except (ValueError, RunFailed) as error:
        return {"refused": str(error)}
    except Exception as error:
        return {"refused": f"{type(error).__name__}: {sentence(error)}"}


def main() -> None:
    """The other end: each line of the input is a question."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a user's own code prints is no answer
    os.environ["TQDM_DISABLE"] = "1"
    for line in sys.stdin:
        print(json.dumps(answered(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
