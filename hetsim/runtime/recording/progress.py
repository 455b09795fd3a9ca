"""The progress bar of a run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from hetsim.coordination.bookkeeping.contributions import mean_loss
from hetsim.coordination.state import State
from hetsim.effects import Contribution
from hetsim.runtime.experiment import Experiment
from hetsim.runtime.recording.recorder import Recorder

DELAY = 0.5
"""Seconds that a notebook's cell runs before it shows a bar, so that a thousand short runs do not show a thousand bars."""


def bar(**options: Any) -> Any:
    """A bar of tqdm, which disappears when it is closed. None if standard error is neither a terminal nor the output of a notebook.

    Args:
        options: arguments of tqdm.
    """
    if sys.stderr.isatty():
        from tqdm import tqdm

        return tqdm(leave=False, **options)
    if _is_notebook():
        from tqdm.auto import tqdm

        return tqdm(leave=False, delay=DELAY, **options)
    return None


def _is_notebook() -> bool:
    """Whether this process is the kernel of a notebook, as tqdm.auto asks."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and "IPKernelApp" in shell.config


LAYOUT = "{l_bar}{bar}| {n:.0f}/{total:.0f} {unit} [{elapsed}<{remaining}{postfix}]"


class ProgressBar(Recorder):
    """Shows the run's clock, loss and updates per second."""

    def __init__(self, shown: Any, unit: str) -> None:
        self._tqdm, self._unit = shown, unit
        self._loss: float | None = None

    def commit(self, seconds: float, rank: int, state: State, applied: Sequence[Contribution]) -> None:
        if applied:
            loss = mean_loss(applied)
            self._loss = loss if self._loss is None else 0.9 * self._loss + 0.1 * loss
        progress = {"samples": state.num_samples, "updates": state.version, "s": seconds}[self._unit]
        if progress - self._tqdm.n >= self._tqdm.total / 1000 or progress >= self._tqdm.total:
            rate = state.version / seconds if seconds else 0.0
            loss_text = "" if self._loss is None else f", loss {self._loss:.4f}"
            self._tqdm.set_postfix_str(f"t = {seconds:.2f} s{loss_text}, {rate:.1f} updates/s", refresh=False)
            self._tqdm.update(min(progress, self._tqdm.total) - self._tqdm.n)

    def close(self, last: State) -> None:
        self._tqdm.close()


def progress_bars(experiment: Experiment, num_positions: int | None) -> list[Recorder]:
    """A bar, or an empty list if no terminal or notebook shows it."""
    budget = experiment.budget
    limits = ((num_positions, "samples"), (budget.updates, "updates"), (budget.seconds, "s"))
    total, unit = next(limit for limit in limits if limit[0] is not None)
    shown = bar(total=total, unit=unit, desc=experiment.method, bar_format=LAYOUT)
    return [] if shown is None else [ProgressBar(shown, unit)]
