"""The simulations of an advice, in a pool of processes. Their answers may be stored in a folder, to resume from."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from functools import cached_property, partial
from pathlib import Path
from threading import Lock
from time import process_time
from types import TracebackType
from typing import Any, Self

from hetsim.advice.candidates import LeaveOut
from hetsim.advice.progress import Progress, StoppedEarly
from hetsim.advice.simulated import SimulatedRun, simulate, sizes
from hetsim.advice.variants import Variant, least_seconds, simulate_variant
from hetsim.config.errors import sentence
from hetsim.config.typed import check_folder
from hetsim.errors import RunFailed
from hetsim.files.outputs import check_outputs_in
from hetsim.files.writing import part_from_hard_links
from hetsim.pool.engines import check_engine, check_processes, opened_pool
from hetsim.pool.pool import Pool
from hetsim.pool.process import Answer
from hetsim.sweeps.space import meant
from hetsim.version import __version__

Refused = str
"""The error sentence of a run that is impossible."""
TOGETHER = 6
"""The number of a method's variants that one process times one by one, because it composes the method only once."""
SECONDS_ALONE = 3.0
"""The CPU-seconds after which an advice starts other processes, which first import and compose for about as long."""
FILE = "answers.jsonl"
"""The file with the stored answers, in the folder of an advice."""
WORDS = ("run", "words", "sizes")
"""The parts of a question that are hetsim arguments, which may have several spellings."""


def num_processes(requested: int | None, engine: str = "local") -> int | None:
    """The number of processes: `requested`, or one for each usable core, at most eight. With Ray, None means all CPUs.

    Raises ValueError for more processes than cores, or for an unknown engine.
    """
    check_engine(engine)
    if requested is not None:
        check_processes(requested, engine)
        return requested
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(8, cores) if engine == "local" else None


class StoredAnswers:
    """Earlier answers to the same questions about the same experiment, as JSON lines. Every new answer is stored, too."""

    def __init__(self, folder: Path, described: str) -> None:
        check_folder("folder", folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"--folder {folder} cannot be made ({error.strerror}): give the name of another folder") from None
        self._file = folder / FILE
        check_outputs_in("--folder", folder, [FILE], "hetsim-advise")
        part_from_hard_links(self._file)
        self._described = f"{__version__} {described}"
        self._answers: dict[str, dict[str, Any]] = {}
        text = self._file.read_text(encoding="utf-8") if self._file.exists() else ""
        for line in text.splitlines():
            with suppress(ValueError, KeyError, TypeError):  # the last one of a command that was killed
                entry = json.loads(line)
                self._answers[entry["question"]] = entry["answer"]
        self._separator = "" if not text or text.endswith("\n") else "\n"
        self._lock = Lock()

    def get(self, question: Mapping[str, Any]) -> dict[str, Any] | None:
        """The answer; None if the question is new."""
        return self._answers.get(self._key(question))

    def keep(self, question: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        """Write the answer to the file."""
        with self._lock, self._file.open("a", encoding="utf-8") as file:
            file.write(f"{self._separator}{json.dumps({'question': self._key(question), 'answer': answer})}\n")
            self._separator = ""

    def _key(self, question: Mapping[str, Any]) -> str:
        """The hash of a question, which is the same for each spelling of its arguments."""
        spelled = {key: meant(value) if key in WORDS else value for key, value in question.items()}
        return hashlib.sha256(f"{self._described} {json.dumps(spelled, sort_keys=True)}".encode()).hexdigest()


class Simulations:
    """Asks a pool of processes to simulate. With `alone`, this process answers, and starts the pool after `SECONDS_ALONE`."""

    def __init__(
        self,
        processes: int | None,
        config_dir: str | None,
        *,
        progress: Progress | None = None,
        answers: StoredAnswers | None = None,
        engine: str = "local",
        alone: bool = False,
    ) -> None:
        self.num_runs = 0
        self.progress = progress or Progress(shown=False)
        self._answers = answers
        self._stack = ExitStack()
        self._opened_pool = opened_pool(engine, f"{__name__}:answering", processes, of="the simulations", first=config_dir)
        self._answering = answering(config_dir)
        self._seconds_alone = SECONDS_ALONE if alone else 0.0
        """The CPU-seconds for which this process still answers."""

    @cached_property
    def _pool(self) -> Pool:
        """The other processes, which start when they are first needed."""
        pool = self._stack.enter_context(self._opened_pool)
        self.progress.on_stop(pool.kill)
        return pool

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    def run_all(self, runs: Iterable[Sequence[str]], units: float = 1.0) -> list[SimulatedRun | Refused]:
        """Simulate these runs, each given by its arguments. Returns the outcomes in order."""
        return [_outcome(answer) for answer in self._map([{"run": list(words)} for words in runs], units)]

    def time_all(self, words: Sequence[str], runs: Sequence[tuple[str, Variant]]) -> list[tuple[SimulatedRun, str] | Refused]:
        """Time these pairs (method, variant). Returns each outcome, and the text on which the time depends (`variants.timing_of`)."""
        questions, numbers = [], []
        for method, of_method in _indices_by_method(runs):
            for first in range(0, len(of_method), TOGETHER):
                together = of_method[first : first + TOGETHER]
                numbers += together
                questions.append({"words": list(words), "method": method, "timed": [asdict(runs[number][1]) for number in together]})
        outcomes: dict[int, tuple[SimulatedRun, str] | Refused] = {}
        answers = (one for answer in self._map(questions) for one in answer["timed"])
        for number, answer in zip(numbers, answers, strict=True):
            outcome = _outcome(answer)
            outcomes[number] = outcome if isinstance(outcome, str) else (outcome, answer["timing"])
        return [outcomes[number] for number in range(len(runs))]

    def least_seconds(self, words: Sequence[str], runs: Sequence[tuple[str, Variant]], subsets: Sequence[LeaveOut]) -> list[list[float]]:
        """A lower bound of a sample's seconds, for each (method, variant) on each set of nodes (`bounds`)."""
        questions = [{"words": list(words), "method": method, "bounds": asdict(variant), "subsets": subsets} for method, variant in runs]
        return [answer["bounds"] if "bounds" in answer else [0.0] * len(subsets) for answer in self._map(questions)]

    def sizes(self, words: Sequence[str]) -> tuple[int, int]:
        """The same as `simulated.sizes`. Raises ValueError for an unknown workload."""
        answer = self._answer({"sizes": list(words)})
        if "refused" in answer:
            raise ValueError(answer["refused"] if self.progress.reason is None else self.progress.too_early)
        return answer["sizes"][0], answer["sizes"][1]

    def _map(self, questions: Sequence[dict[str, Any]], units: float = 1.0) -> list[dict[str, Any]]:
        """Return the answers, in the order of the questions. Each run moves the bar by `units`."""
        answers: dict[int, dict[str, Any]] = {}
        for number, answer in self._each_answer(questions):
            question = questions[number]
            num_runs = len(question.get("timed", ())) or int("run" in question)
            self.num_runs += num_runs
            self.progress.advance(num_runs * units)
            refused = "timed" in question and "timed" not in answer
            answers[number] = {"timed": [answer] * num_runs} if refused else answer
        return [answers[number] for number in range(len(questions))]

    def _each_answer(self, questions: Sequence[dict[str, Any]]) -> Iterator[tuple[int, dict[str, Any]]]:
        """The number and the answer of each question, as they come."""
        first = 0
        while first < len(questions) and self._seconds_alone > 0:
            yield first, self._answer(questions[first])
            first += 1
        if first < len(questions):
            yield from ((first + number, answer) for number, answer in self._pool.map(self._answer, questions[first:]))

    def _answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """The stored answer, or a process's answer. It is a refusal if there is none, for example if the advice ends early."""
        if self._answers is not None and (stored := self._answers.get(question)) is not None:
            return stored
        try:
            self.progress.check()
            answer = self._simulate(question)
        except StoppedEarly:
            return {"refused": f"stopped {self.progress.reason}"}
        except RunFailed as error:  # an advice that ends early kills its processes
            return {"refused": str(error) if self.progress.reason is None else f"stopped {self.progress.reason}"}
        if self._answers is not None:
            self._answers.keep(question, answer)
        return answer

    def _simulate(self, question: dict[str, Any]) -> dict[str, Any]:
        """The answer of a process. Raises RunFailed if the process was killed."""
        alone, begin = self._seconds_alone > 0, process_time()
        answer: dict[str, Any] = self._answering(question, lambda _: None) if alone else self._pool.ask(question)
        self._seconds_alone -= process_time() - begin
        return answer


def _indices_by_method(runs: Sequence[tuple[str, Variant]]) -> Iterable[tuple[str, list[int]]]:
    """The indices of each method's runs."""
    numbers: dict[str, list[int]] = {}
    for number, (method, _) in enumerate(runs):
        numbers.setdefault(method, []).append(number)
    return numbers.items()


def _outcome(answer: dict[str, Any]) -> SimulatedRun | Refused:
    if "refused" in answer:
        return Refused(answer["refused"])
    curve = tuple((seconds, loss, accuracy) for seconds, loss, accuracy in answer["curve"])
    return SimulatedRun(answer["numbers"], curve, tuple(answer["applied"]))


def answering(config_dir: str | None) -> Answer:
    """In a process of the pool: the function that simulates."""

    def answer(question: dict[str, Any], _: object) -> dict[str, Any]:
        if "sizes" in question:
            return _answer_or_refusal(lambda: {"sizes": sizes(question["sizes"], config_dir)})
        if "run" in question:
            return _answer_or_refusal(lambda: asdict(simulate(question["run"], config_dir)))
        words, method = question["words"], question["method"]
        if "bounds" in question:
            variant, subsets = _variant(question["bounds"]), [tuple(subset) for subset in question["subsets"]]
            return _answer_or_refusal(lambda: {"bounds": least_seconds(words, method, variant, subsets, config_dir)})

        def timing(variant: Variant) -> dict[str, Any]:
            outcome, text = simulate_variant(words, method, variant, config_dir)
            return {**asdict(outcome), "timing": text}

        return {"timed": [_answer_or_refusal(partial(timing, _variant(entries))) for entries in question["timed"]]}

    return answer


def _variant(entries: dict[str, Any]) -> Variant:
    slower = tuple((rank, factor) for rank, factor in entries["slower"])
    return Variant(**{**entries, "leave_out": tuple(entries["leave_out"]), "slower": slower})


def _answer_or_refusal(simulate: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return simulate()
    except (ValueError, RunFailed) as error:
        return {"refused": str(error)}
    except Exception as error:
        return {"refused": f"{type(error).__name__}: {sentence(error)}"}
