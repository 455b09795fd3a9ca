"""The answer of a search: the best trial, the command that runs it, and all trials."""

from __future__ import annotations

import os

from hetsim.answers.answer import Answer, Sheet
from hetsim.config.typed import command_line
from hetsim.results.writing.describe import formatted
from hetsim.searches.search import Search
from hetsim.sweeps.space import chosen_words


def answer(search: Search, command: str = "") -> Answer:
    """The answer with the trials of this search so far. `command` has asked for it."""
    heads, *rows = search.table()
    return Answer(
        question="Which values are best?",
        answer=_sentences(search),
        sheets=[Sheet("Trials", heads, rows, max_printed=0)],
        command=command,
    )


def _sentences(search: Search) -> list[str]:
    best, question = search.best, search.question
    states = [trial.state.name for trial in search.trials]
    counts = f"{len(states)} trials, {states.count('PRUNED')} pruned, {states.count('FAIL')} failed, in {os.path.relpath(search.folder)}"
    if best is None:
        return [f"no trial has a number for {question.objective}: {counts}"]
    mean = f", the mean of {len(search.space.seeds)} seeds" if len(search.space.seeds) > 1 else ""
    return [
        f"best {question.objective}: {formatted(best.value)}{mean} ({counts})",
        f"  {' '.join(chosen_words(search.values(best)))}",
        f"  run it: {command_line(search.words(best), question.config_dir)}",
    ]
