"""One run of a search: compose it, run it in its own folder unless it is finished there, and return its objective."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hetsim.config.compose import composed
from hetsim.config.errors import in_one_sentence
from hetsim.config.start import start
from hetsim.files.identity import finished_summary
from hetsim.files.lock import folder_lock, remove_if_empty
from hetsim.pool.pool import Pool
from hetsim.pool.process import Answer, Reply
from hetsim.runtime.recording.curve import Point
from hetsim.searches.objective import objective_value

Watch = Callable[[float, float | None, float | None], bool]
"""Called with the seconds, training loss and test accuracy of each evaluation in a simulation. Returns whether the run continues."""


Watching = Callable[[], Watch]
"""Called when a run begins, and again if it begins on another node because the first was lost."""
PRUNED = "pruned"
"""The answer of a process whose run was ended."""


class Pruned(Exception):
    """A run was ended because its trial cannot be the best."""


@dataclass(frozen=True)
class Place:
    """The folders of a search's runs and configs, and its objective."""

    folder: str
    config_dir: str | None
    objective: str


def run(words: Sequence[str], place: Place, watching: Watching) -> float | None:
    """Run these arguments, and return the objective; None if the run lacks this number.

    Raises Pruned if the watch ends the run, ValueError if the arguments are invalid, and RunFailed if the run began and failed.
    """
    config = composed(words, config_dir=place.config_dir, sweep=place.folder)
    if config.folder.is_symlink():
        raise ValueError(f"{config.folder} is a link, and would be written through: remove it")
    watch = watching()

    def observe(point: Point) -> None:
        if not watch(point.seconds, point.evaluation.train_loss, point.evaluation.test_accuracy):
            raise Pruned

    try:
        with folder_lock(config.folder):
            summary = finished_summary(config.folder, config.identity) or start(config, watch=observe, goes_on=True)
        return objective_value(place.objective, summary or {}, config.folder)
    except Pruned:
        raise
    except Exception as error:  # also of a module of the user's own
        raise in_one_sentence(error) from None
    finally:
        remove_if_empty(config.folder)


ANSWERING = f"{__name__}:answering"
"""The function of a process that runs trials."""


def run_in(pool: Pool, place: Place, words: Sequence[str], watching: Watching) -> float | None:
    """The same as `run`, in a process of this pool."""

    def replying() -> Reply:
        watch = watching()
        return lambda point: watch(*point)

    answer = pool.ask({"words": list(words), **asdict(place)}, replying)
    if answer == PRUNED:
        raise Pruned
    return None if answer is None else float(answer)


def answering(_: None) -> Answer:
    """In a process of the pool: the function that runs a trial, and asks after each evaluation whether to continue."""

    def answer(question: dict[str, Any], ask: Reply) -> float | str | None:
        words = question.pop("words")
        try:
            return run(words, Place(**question), lambda: lambda *point: bool(ask(point)))
        except Pruned:
            return PRUNED

    return answer
