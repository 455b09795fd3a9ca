"""The processes that simulate for an advice. They receive each question as a JSON line, and answer with a line."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from types import TracebackType
from typing import Any, Self

from hetsim.advice.answers import Answers
from hetsim.advice.progress import Progress, StoppedEarly
from hetsim.advice.simulated import Outcome, simulated, sizes
from hetsim.advice.subsets import LeaveOut
from hetsim.advice.variants import Variant, least_seconds, timed
from hetsim.config.errors import sentence
from hetsim.errors import RunFailed
from hetsim.pool.engines import check_engine, check_processes, opened_pool
from hetsim.pool.json_process import answering
from hetsim.pool.pool import despite_losses

Refused = str
"""The error sentence of a run that is impossible."""
TOGETHER = 6
"""The number of a method's variants that one process times one by one, because it composes the method only once."""


MODULE = "hetsim.advice.processes"


def counted(asked: int | None, engine: str = "local") -> int | None:
    """The number of processes: `asked`, or one for each usable core, at most eight. With Ray, None means all CPUs.

    Raises ValueError for more processes than cores, or for an unknown engine.
    """
    check_engine(engine)
    if asked is not None:
        check_processes(asked, engine)
        return asked
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(8, cores) if engine == "local" else None


class Processes:
    """Several processes; each runs one simulation at a time."""

    def __init__(
        self, count: int | None, config_dir: str | None, *, progress: Progress | None = None, answers: Answers | None = None,
        engine: str = "local",
    ) -> None:  # fmt: skip
        self.config_dir = config_dir
        self.num_runs = 0
        self.progress = progress or Progress(shown=False)
        self._answers = answers
        self._stack = ExitStack()
        self._pool = self._stack.enter_context(opened_pool(engine, MODULE, count, of="the simulations"))
        self.progress.on_stop(self._pool.kill)
        self._threads = ThreadPoolExecutor(max(1, self._pool.size))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            self.progress.stop("by an error")  # or the threads would have processes answer the other questions
        self._pool.close()
        self._threads.shutdown(cancel_futures=True)
        self._stack.close()

    def run_all(self, runs: Iterable[Sequence[str]], units: float = 1.0) -> list[Outcome | Refused]:
        """Simulate these runs, each given by its arguments. Returns the outcomes in order."""
        return [_outcome(answer) for answer in self._map([{"run": list(words)} for words in runs], units)]

    def time_all(self, words: Sequence[str], runs: Sequence[tuple[str, Variant]]) -> list[tuple[Outcome, str] | Refused]:
        """Time these pairs (method, variant). Returns each outcome, and the text on which the time depends (`variants.timing_of`)."""
        questions, places = [], []
        for method, its in _by_method(runs):
            for first in range(0, len(its), TOGETHER):
                places += its[first : first + TOGETHER]
                variants = [asdict(runs[place][1]) for place in its[first : first + TOGETHER]]
                questions.append({"words": list(words), "method": method, "timed": variants})
        answers: dict[int, tuple[Outcome, str] | Refused] = {}
        for place, answer in zip(places, (one for bundle in self._map(questions) for one in _each(bundle)), strict=True):
            found = _outcome(answer)
            answers[place] = found if isinstance(found, str) else (found, answer["timing"])
        return [answers[place] for place in range(len(runs))]

    def least_seconds(self, words: Sequence[str], runs: Sequence[tuple[str, Variant]], subsets: Sequence[LeaveOut]) -> list[list[float]]:
        """A lower bound of a sample's seconds, for each (method, variant) on each set of nodes (`bounds`)."""
        questions = [{"words": list(words), "method": method, "bounds": asdict(its), "subsets": subsets} for method, its in runs]
        return [answer["bounds"] if "bounds" in answer else [0.0] * len(subsets) for answer in self._map(questions)]

    def sizes(self, words: Sequence[str]) -> tuple[int, int]:
        """The same as `simulated.sizes`. Raises ValueError for an unknown workload."""
        answer = self._asked({"sizes": list(words)})
        if "refused" in answer:
            raise ValueError(answer["refused"])
        return answer["sizes"][0], answer["sizes"][1]

    def _map(self, questions: Sequence[dict[str, Any]], units: float = 1.0) -> list[dict[str, Any]]:
        """Return the answers, in the order of the questions. Each moves the bar by `units`."""
        found = []
        for question, answer in zip(questions, self._threads.map(self._asked, questions), strict=True):
            num = len(question.get("timed", ())) or int("run" in question)
            self.num_runs += num
            self.progress.did(num * units)
            found.append(answer if "timed" not in question or "timed" in answer else {"timed": [answer] * len(question["timed"])})
        return found

    def _asked(self, question: dict[str, Any]) -> dict[str, Any]:
        """The stored answer, or a process's answer. It is a refusal if there is none, for example if the advice ends early."""
        if self._answers is not None and (known := self._answers.get(question)) is not None:
            return known
        try:
            self.progress.check()
            answer = despite_losses(lambda: self._answer(question))
        except StoppedEarly:
            return {"refused": f"stopped {self.progress.reason}"}
        except RunFailed as error:
            return {"refused": str(error)}
        if self._answers is not None:
            self._answers.keep(question, answer)
        return answer

    def _answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """The answer of the next idle process. Raises RunFailed if the process is killed."""
        with self._pool.borrowed() as process:
            self.progress.check()
            process.fresh()
            process.write({**question, "config_dir": self.config_dir})
            return process.read()


def _by_method(runs: Sequence[tuple[str, Variant]]) -> Iterable[tuple[str, list[int]]]:
    """The indices of each method's runs."""
    places: dict[str, list[int]] = {}
    for place, (method, _) in enumerate(runs):
        places.setdefault(method, []).append(place)
    return places.items()


def _each(answer: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = answer["timed"]
    return found


def _outcome(answer: dict[str, Any]) -> Outcome | Refused:
    if "refused" in answer:
        return Refused(answer["refused"])
    curve = tuple((seconds, loss, accuracy) for seconds, loss, accuracy in answer["curve"])
    return Outcome(answer["numbers"], curve, tuple(answer["applied"]))


def answered(question: dict[str, Any]) -> dict[str, Any]:
    """The answer to an input line."""
    config_dir = question["config_dir"]
    if "sizes" in question:
        return _or_refused(lambda: {"sizes": sizes(question["sizes"], config_dir)})
    if "run" in question:
        return _or_refused(lambda: asdict(simulated(question["run"], config_dir)))
    words, method = question["words"], question["method"]
    if "bounds" in question:
        its, subsets = _variant(question["bounds"]), [tuple(subset) for subset in question["subsets"]]
        return _or_refused(lambda: {"bounds": least_seconds(words, method, its, subsets, config_dir)})

    def one(its: Variant) -> dict[str, Any]:
        outcome, timing = timed(words, method, its, config_dir)
        return {**asdict(outcome), "timing": timing}

    return {"timed": [_or_refused(partial(one, _variant(each))) for each in question["timed"]]}


def _variant(entries: dict[str, Any]) -> Variant:
    slower = tuple((rank, factor) for rank, factor in entries["slower"])
    return Variant(**{**entries, "leave_out": tuple(entries["leave_out"]), "slower": slower})


def _or_refused(asked: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return asked()
    except (ValueError, RunFailed) as error:
        return {"refused": str(error)}
    except Exception as error:
        return {"refused": f"{type(error).__name__}: {sentence(error)}"}


def main() -> None:
    """The process's main function: each input line is a question."""
    with answering() as answers:
        for line in sys.stdin:
            print(json.dumps(answered(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
