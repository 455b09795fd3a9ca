"""Gradients that can be given up, on shared cores. Their end is not known at their begin."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

from hetsim import effects as fx
from hetsim.runtime.recording.recorder import GRADIENT, Row
from hetsim.sim.attempts import Compute, interruption
from hetsim.sim.clock import SUSPENDED, Callback, VirtualClock
from hetsim.sim.hosts.cores import Work
from hetsim.sim.hosts.processors import Processors
from hetsim.sim.rank_process import RankProcess


class HostAttempt:
    """An attempt in progress, and its work."""

    __slots__ = ("callback", "effect", "over", "process", "start", "work")

    def __init__(
        self, process: RankProcess, effect: fx.Attempt, start: float, callback: Callback, begin: Callable[[HostAttempt], Work]
    ) -> None:
        self.process = process
        self.effect = effect
        self.start = start
        self.callback = callback
        self.over = False
        self.work = begin(self)


class HostAttempts:
    """Answers Attempt by work on cores. `seconds(rank, samples)` is a gradient's time alone on its host. `record` receives intervals."""

    def __init__(
        self,
        env: VirtualClock,
        compute: Compute,
        processors: Processors,
        seconds: Callable[[int, int], float],
        record: Callable[[Row], None],
    ) -> None:
        self.env = env
        self.compute = compute
        self.processors = processors
        self.seconds = seconds
        self.record = record

    def attempt(self, process: RankProcess, effect: fx.Attempt, callback: Callback) -> Any:
        """Takes the time of its work, or the time until the rank gives up."""
        if process.messages:
            return None
        process.state.version = effect.version
        rank, seconds = process.rank, self.seconds(process.rank, effect.batch.samples)
        attempt = HostAttempt(
            process, effect, self.env.now, callback, lambda attempt: self.processors.begin(rank, seconds, self._end, attempt)
        )
        process.interrupt = interruption(self._give_up, attempt)
        if effect.within < inf:
            self.env.after(effect.within, self._time_is_over, attempt)
        return SUSPENDED

    def _end(self, attempt: HostAttempt) -> None:
        effect = attempt.effect
        seconds = self._close(attempt, effect.batch.samples)
        gradient, loss = self.compute(attempt.process.rank, effect)
        attempt.callback(fx.Computed(gradient, loss, effect.batch.samples, seconds))

    def _time_is_over(self, attempt: HostAttempt) -> None:
        if not attempt.over:
            self._give_up(attempt)

    def _give_up(self, attempt: HostAttempt) -> None:
        self.processors.give_up(attempt.process.rank, attempt.work)
        self._close(attempt, 0)
        attempt.callback(None)

    def _close(self, attempt: HostAttempt, samples: int) -> float:
        """Record the attempt, and return its seconds."""
        now = self.env.now
        attempt.over, attempt.process.interrupt = True, None
        self.record((attempt.start, now, attempt.process.rank, GRADIENT, attempt.effect.version, samples, 0, 0))
        return now - attempt.start
