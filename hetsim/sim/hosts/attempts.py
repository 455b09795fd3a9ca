"""Gradients that can be given up, on shared cores. Their end is not known at their begin."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

from hetsim import effects as fx
from hetsim.runtime.recording.recorder import GRADIENT, Row
from hetsim.sim.attempts import Compute, interruption
from hetsim.sim.clock import SUSPENDED, Callback, Clock
from hetsim.sim.hosts.cores import Work
from hetsim.sim.hosts.processors import Processors
from hetsim.sim.rank_process import RankProcess


class UnderWay:
    """An attempt in progress, and its work."""

    __slots__ = ("callback", "effect", "over", "process", "start", "work")

    def __init__(
        self, process: RankProcess, effect: fx.Attempt, start: float, callback: Callback, begin: Callable[[UnderWay], Work]
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
        self, env: Clock, compute: Compute, processors: Processors, seconds: Callable[[int, int], float], record: Callable[[Row], None]
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
        it = UnderWay(process, effect, self.env.now, callback, lambda it: self.processors.begin(rank, seconds, self._end, it))
        process.interrupt = interruption(self._give_up, it)
        if effect.within < inf:
            self.env.after(effect.within, self._time_is_over, it)
        return SUSPENDED

    def _end(self, it: UnderWay) -> None:
        effect = it.effect
        seconds = self._close(it, effect.batch.samples)
        gradient, loss = self.compute(it.process.rank, effect)
        it.callback(fx.Computed(gradient, loss, effect.batch.samples, seconds))

    def _time_is_over(self, it: UnderWay) -> None:
        if not it.over:
            self._give_up(it)

    def _give_up(self, it: UnderWay) -> None:
        self.processors.give_up(it.process.rank, it.work)
        self._close(it, 0)
        it.callback(None)

    def _close(self, it: UnderWay, samples: int) -> float:
        """Record the attempt, and return its seconds."""
        now = self.env.now
        it.over, it.process.interrupt = True, None
        self.record((it.start, now, it.process.rank, GRADIENT, it.effect.version, samples, 0, 0))
        return now - it.start
