"""One run of a search: composed, run in a folder of its own unless that holds it already, and its objective."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hetsim.config.compose import composed
from hetsim.config.errors import in_one_sentence
from hetsim.config.start import start
from hetsim.config.written_config import entries_of, identity
from hetsim.results.reading.identity import finished_summary, folder_name
from hetsim.results.reading.lock import folder_lock, remove_if_empty
from hetsim.runtime.curve import Point
from hetsim.searches.objective import objective_value

Watch = Callable[[float, float | None, float | None], bool]
"""Told the seconds, training loss and test accuracy of each evaluation of a simulated run; whether the run should continue."""


class Pruned(Exception):
    """A run was ended, as its trial will not be the best."""


@dataclass(frozen=True)
class Place:
    """Where the runs of a search go, where their configs come from, and the number that the search is after."""

    folder: str
    config_dir: str | None
    objective: str


def run(words: Sequence[str], place: Place, watch: Watch) -> float | None:
    """The objective of the run that these words describe; None if it has no such number.

    Raises Pruned if `watch` ends the run, ValueError if the words describe none, and RunFailed if it began and failed.
    """
    config, _, typed = composed(words, config_dir=None if place.config_dir is None else Path(place.config_dir))
    entries = entries_of(config)
    named = identity(entries)
    folder = Path(place.folder) / folder_name(Path(place.folder), entries, named)
    if folder.is_symlink():
        raise ValueError(f"{folder} is a link, and would be written through: remove it")

    def observe(point: Point) -> None:
        if not watch(point.seconds, point.evaluation.train_loss, point.evaluation.test_accuracy):
            raise Pruned

    try:
        with folder_lock(folder):
            summary = finished_summary(folder, named) or start(config, folder, typed, watch=observe, goes_on=True)
        return objective_value(place.objective, summary or {}, folder)
    except Pruned:
        raise
    except Exception as error:  # also of a module of the user's own
        raise in_one_sentence(error) from None
    finally:
        remove_if_empty(folder)
