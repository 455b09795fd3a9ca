"""A search for the best values of keys by Optuna, which learns from each trial where to look next."""

from __future__ import annotations

import contextlib
import csv
import io
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from hetsim import checks
from hetsim.errors import RunFailed
from hetsim.files.lock import only_run_in, remove_if_empty
from hetsim.files.outputs import check_outputs_in
from hetsim.files.reading import check_is_no_link
from hetsim.files.writing import part_from_hard_links, write_text
from hetsim.pool.engines import check_engine, check_processes, opened_pool
from hetsim.pool.pool import PoolEnded
from hetsim.results.writing.describe import formatted
from hetsim.searches import trial as trials
from hetsim.searches.journal import check_trials
from hetsim.searches.objective import direction_of, on_the_way
from hetsim.searches.trial import Place, Pruned, Watch, Watching
from hetsim.sweeps.space import Space, chosen_words, other_words, parsed, same_words

JOURNAL = "search.log"
"""The file in a search's folder in which Optuna stores its trials."""
MAX_TRIALS = 100_000
REFUSED = 3
"""The number of refused trials at the beginning that ends a search, because its common arguments are then wrong."""
SAMPLERS = ("tpe", "random")
MAX_POINTS = 10**6
"""The maximum number of evaluations of one run, because the steps of a trial's seeds are consecutive."""
LAST = 10**12
"""The step at which all trials without a number are compared."""
Run = Callable[[Sequence[str], Watching], float | None]
"""A function that runs a trial's arguments, in this process or another."""


@dataclass(frozen=True)
class SearchQuestion:
    """The options of a search. By default, the direction is the better one of the objective."""

    words: tuple[str, ...]
    objective: str
    direction: str | None = None
    trials: int = 50
    processes: int | None = None
    """The number of simultaneous trials. None: 1 on this machine, and with Ray one for each CPU of the cluster."""
    sampler: str = "tpe"
    prune: bool = True
    config_dir: str | None = None
    engine: str = "local"

    def __post_init__(self) -> None:
        object.__setattr__(self, "direction", direction_of(self.objective, self.direction))
        if not 1 <= self.trials <= MAX_TRIALS:
            raise ValueError(f"--trials must be from 1 to {MAX_TRIALS}, not {self.trials}")
        check_engine(self.engine)
        if self.engine == "local" and self.processes is None:
            object.__setattr__(self, "processes", 1)
        if self.processes is not None:
            check_processes(self.processes, self.engine, "--processes")


@dataclass
class Search:
    """A search in its folder: the space, and Optuna's study of it."""

    question: SearchQuestion
    folder: Path
    space: Space
    study: Any
    tell: Callable[[str], object] = print
    """Called with a line for each finished trial."""
    _lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def trials(self) -> list[Any]:
        """The finished trials by number."""
        return [one for one in self.study.get_trials(deepcopy=False) if one.state.is_finished()]

    @property
    def best(self) -> Any:
        """The best trial with a number; None if there is none."""
        counted = [one for one in self.trials if one.state.name == "COMPLETE"]
        pick = min if self.question.direction == "minimize" else max
        return pick(counted, key=lambda one: one.value) if counted else None

    @property
    def has_run(self) -> bool:
        """Whether any trial could run."""
        return any(one.state.name != "FAIL" for one in self.trials)

    def run(self) -> None:
        """Run trials until there are enough. Raises ValueError if none can run, because the common arguments are then wrong."""
        folder = self.folder if self.question.engine == "local" else self.folder.absolute()
        place = Place(str(folder), self.question.config_dir, self.question.objective)
        question = self.question
        if question.processes == 1 and question.engine == "local":
            self.run_here(lambda words, watching: trials.run(words, place, watching))
            return
        with opened_pool(question.engine, trials.ANSWERING, question.processes, of="the search", folder=self.folder) as pool:
            for _ in pool.map(partial(self._attempt, run=partial(trials.run_in, pool, place)), iter(self._ask, None)):
                pass

    def run_here(self, run: Run) -> None:
        """Run trials one by one in this process."""
        for trial in iter(self._ask, None):
            self._attempt(trial, run)

    def _ask(self) -> Any:
        with self._lock:
            enough = len(self.study.get_trials(deepcopy=False)) >= self.question.trials
            return None if enough else self.study.ask(dict(self.space.searched))

    def _attempt(self, trial: Any, run: Run) -> None:
        """Run a trial with every seed, and report the mean over the seeds to the study."""
        values: list[float] = []
        try:
            for index, seed in enumerate(self.space.seeds):
                words = self.space.words(self.values(trial), seed)
                value = run(words, partial(self._watch, trial, index, values))
                if value is None or not math.isfinite(value):
                    self._end(trial, "PRUNED", f"has no {self.question.objective}")
                    return
                values.append(value)
        except Pruned:
            self._end(trial, "PRUNED", "pruned")
        except ValueError as error:
            self._end(trial, "FAIL", f"failed: {error}")
            if not self.has_run and len(self.trials) >= min(REFUSED, self.question.trials):
                raise
        except PoolEnded:  # the search is interrupted, and this trial is left to it
            pass
        except RunFailed as error:
            self._end(trial, "FAIL", f"failed: {error}")
        else:
            self._end(trial, "COMPLETE", None, math.fsum(values) / len(values))

    def _watch(self, trial: Any, index: int, values: Sequence[float]) -> Watch:
        """Whether a trial's run should continue: its clock has not passed the best time, and Optuna does not prune it."""
        if not self.question.prune:
            return lambda *_: True
        best, objective, num_seeds = self.best, self.question.objective, len(self.space.seeds)
        error = 1 - float(objective.rpartition("_")[2]) if objective.startswith("seconds_to_") else None
        steps = iter(range(index * MAX_POINTS, (index + 1) * MAX_POINTS))

        def watch(seconds: float, loss: float | None, accuracy: float | None) -> bool:
            number = on_the_way(objective, loss, accuracy)
            if number is None:
                return True
            if not math.isfinite(number):
                return False
            if error is not None and best is not None and number > error and (math.fsum(values) + seconds) / num_seeds > best.value:
                return False  # this run reaches the accuracy later than the best, if at all
            with self._lock:
                trial.report(number, next(steps))
                return not trial.should_prune()

        return watch

    def _end(self, trial: Any, state: str, outcome: str | None, value: float | None = None) -> None:
        from optuna.trial import TrialState

        with self._lock:
            if state == "PRUNED" and (points := self.study.get_trials(deepcopy=False)[trial.number].intermediate_values):
                trial.report(points[max(points)], LAST)  # Optuna ranks trials without a number by their last points, the later the better
            best_before = self.best
            self.study.tell(trial, value, state=TrialState[state])
            best = " (the best so far)" if value is not None and (best_before is None or self.best.number == trial.number) else ""
            text = outcome or f"{self.question.objective} {formatted(value)}{best}"
            self.tell(checks.printable(f"trial {trial.number}: {text} with {' '.join(chosen_words(self.values(trial)))}"))

    def words(self, one: Any) -> tuple[str, ...]:
        """The arguments of a trial. The seed is chosen separately."""
        return (*self.space.fixed, *chosen_words(self.values(one)))

    def values(self, one: Any) -> dict[str, Any]:
        """A trial's value of each searched key."""
        return {key: one.params[key] for key in self.space.searched}

    def table(self) -> list[list[str]]:
        """The heads and the trials: number, state, objective, and the value of each key."""
        rows = [["trial", "state", self.question.objective, *self.space.searched]]
        for one in self.trials:
            values = [word.partition("=")[2] for word in chosen_words({key: one.params.get(key, "") for key in self.space.searched})]
            rows.append([str(one.number), one.state.name.lower(), repr(one.value) if one.state.name == "COMPLETE" else "", *values])
        return rows


@contextlib.contextmanager
def opened(question: SearchQuestion, folder: Path) -> Iterator[Search]:
    """The search in this folder, new or resumed. Its end writes trials.csv. Raises ValueError if the folder contains another search."""
    try:
        import optuna
    except ImportError:
        raise ValueError("a search needs Optuna: install hetsim[search], as in pip install 'hetsim[search]'") from None
    if int(optuna.__version__.split(".")[0]) < 5:
        raise ValueError(f"a search needs Optuna 5, and {optuna.__version__} is installed: install hetsim[search]")
    parsed(question.words)
    if question.sampler not in SAMPLERS:
        raise ValueError(f"--sampler must be {' or '.join(SAMPLERS)}, not {question.sampler}")
    with contextlib.ExitStack() as stack:
        stack.callback(optuna.logging.set_verbosity, optuna.logging.get_verbosity())
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        if folder.is_symlink():
            raise ValueError(f"{folder} is a link, and would be written through: give another --folder")
        stack.callback(remove_if_empty, folder)
        stack.enter_context(only_run_in(folder))
        check_is_no_link(folder / JOURNAL)
        check_outputs_in("--folder", folder, ["trials.csv"], "hetsim-search")
        if (folder / JOURNAL).exists() and not (folder / JOURNAL).is_file():
            raise ValueError(f"{folder / JOURNAL} is not a file: give another --folder")
        part_from_hard_links(folder / JOURNAL)
        (folder / f"{JOURNAL}.lock").unlink(missing_ok=True)  # Optuna's, of a search that was killed: no other one runs here
        study = _study(question, folder)
        space = parsed(study.user_attrs["words"])  # as at its first start: its trials have these texts as values
        search = Search(question, folder, space, study)
        check_trials(study, space, folder / JOURNAL)
        for interrupted in study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
            study.tell(interrupted.number, state=optuna.trial.TrialState.FAIL)  # of a search that was stopped
        try:
            yield search
        finally:
            if search.has_run:
                text = io.StringIO()
                csv.writer(text, lineterminator="\n").writerows(search.table())
                write_text(folder / "trials.csv", text.getvalue())
            else:
                (folder / JOURNAL).unlink()


def _study(question: SearchQuestion, folder: Path) -> Any:
    import optuna
    from optuna.storages.journal import JournalFileBackend
    from optuna.study import StudyDirection

    typed = {"words": list(question.words), "objective": question.objective, "direction": question.direction}
    pruner = optuna.pruners.MedianPruner() if question.prune else optuna.pruners.NopPruner()
    try:
        storage = optuna.storages.JournalStorage(JournalFileBackend(str(folder / JOURNAL)))
        study = optuna.create_study(
            storage=storage,
            study_name="hetsim",
            load_if_exists=True,
            direction=StudyDirection[str(question.direction).upper()],
            pruner=pruner,
        )
        held = study.user_attrs
        drawn = len(study.get_trials(deepcopy=False))  # a search that is resumed draws on, and not the same again
        if question.sampler == "tpe":
            study.sampler = optuna.samplers.TPESampler(seed=drawn, constant_liar=question.processes != 1)
        else:
            study.sampler = optuna.samplers.RandomSampler(seed=drawn)
    except OSError:
        raise
    except Exception as error:
        raise ValueError(
            f"{folder / JOURNAL} is not a search that can be resumed ({type(error).__name__}): give another --folder"
        ) from None
    agrees = set(held) == set(typed) and all(_agrees(key, held[key], typed[key]) for key in typed)
    if held != typed and (held or drawn) and not agrees:
        key = next((key for key in typed if not _agrees(key, held.get(key), typed[key])), "attributes")
        raise ValueError(f"{folder} holds another search ({key}: {_differing(held.get(key), typed.get(key))}): give another --folder")
    for key in (key for key in typed if key not in held):
        study.set_user_attr(key, typed[key])
    return study


def _differing(held: Any, typed: Any) -> str:
    """The journal's question and the new one, with only those arguments that differ."""
    if isinstance(held, list) and isinstance(typed, list) and all(isinstance(word, str) for word in held):
        held, typed = (" ".join(other_words(*pair)) or None for pair in ((held, typed), (typed, held)))
    return f"{checks.shown(held)}, not {checks.shown(typed)}"


def _agrees(key: str, held: Any, typed: Any) -> bool:
    """Whether the journal, which may come from somebody else, and the new question agree in this key."""
    return bool(held == typed) or (key == "words" and same_words(held, typed))
