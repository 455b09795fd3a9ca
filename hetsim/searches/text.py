"""The result of a search as text."""

from __future__ import annotations

import os
import shlex

from hetsim import checks
from hetsim.results.writing.describe import formatted
from hetsim.searches.search import Search
from hetsim.sweeps.space import chosen_words


def told(search: Search) -> str:
    """The result of a search: its best trial, and the command that runs it."""
    best, question = search.best, search.question
    states = [one.state.name for one in search.trials]
    counts = f"{len(states)} trials, {states.count('PRUNED')} pruned, {states.count('FAIL')} failed, in {os.path.relpath(search.folder)}"
    if best is None:
        return f"no trial has a number for {question.objective}: {counts}"
    mean = f", the mean of {len(search.space.seeds)} seeds" if len(search.space.seeds) > 1 else ""
    return (
        f"best {question.objective}: {formatted(best.value)}{mean} ({counts})\n"
        f"  {checks.printable(' '.join(chosen_words(search.values(best))))}\n"
        f"  run it: hetsim {checks.printable(shlex.join(search.words(best)))}"
    )
