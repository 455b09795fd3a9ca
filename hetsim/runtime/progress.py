"""A progress bar on standard error."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from hetsim.coordination.contributions import mean_loss
from hetsim.coordination.state import State
from hetsim.effects import Contribution
from hetsim.runtime.experiment import Experiment
from hetsim.runtime.recorder import Recorder


class ProgressBar(Recorder):
    """Shows the run's clock, loss and updates per second."""

    def __init__(self, experiment: Experiment, num_positions: int | None) -> None:
        from tqdm import tqdm

        budget = experiment.budget
        limits = ((num_positions, "samples"), (budget.updates, "updates"), (budget.seconds, "s"))
        total, self._unit = next(limit for limit in limits if limit[0] is not None)
        self._loss: float | None = None
        layout = "{l_bar}{bar}| {n:.0f}/{total:.0f} {unit} [{elapsed}<{remaining}{postfix}]"
        self._tqdm: Any = tqdm(total=total, unit=self._unit, desc=experiment.method, leave=False, bar_format=layout)

    def commit(self, seconds: float, rank: int, state: State, applied: Sequence[Contribution]) -> None:
        if applied:
            loss = mean_loss(applied)
            self._loss = loss if self._loss is None else 0.9 * self._loss + 0.1 * loss
        done = {"samples": state.num_samples, "updates": state.version, "s": seconds}[self._unit]
        if done - self._tqdm.n >= self._tqdm.total / 1000 or done >= self._tqdm.total:
            rate = state.version / seconds if seconds else 0.0
            loss_text = "" if self._loss is None else f", loss {self._loss:.4f}"
            self._tqdm.set_postfix_str(f"t = {seconds:.2f} s{loss_text}, {rate:.1f} updates/s", refresh=False)
            self._tqdm.update(min(done, self._tqdm.total) - self._tqdm.n)

    def close(self, last: State) -> None:
        self._tqdm.close()


def progress_bars(experiment: Experiment, num_positions: int | None) -> list[Recorder]:
    """A bar, or an empty list if standard error is not a terminal."""
    return [ProgressBar(experiment, num_positions)] if sys.stderr.isatty() else []
