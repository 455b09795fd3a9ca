"""Gradients that can be given up, in virtual time. Their end is known at their begin, but a message may arrive first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hetsim import effects as fx
from hetsim.cluster.compute_times import StepTimes
from hetsim.runtime.recording.recorder import GRADIENT, RecordInterval, Row
from hetsim.sim.clock import Callback, VirtualClock
from hetsim.sim.membership import Membership
from hetsim.sim.rank_process import LOST, RankProcess
from hetsim.vector import Vector

Compute = Callable[[int, fx.Attempt], tuple[Vector, float]]
"""A function that computes a rank's gradient and its loss."""


class TimedAttempt:
    """An attempt in progress."""

    __slots__ = ("callback", "effect", "over", "process", "row", "seconds")

    def __init__(self, process: RankProcess, effect: fx.Attempt, seconds: float | None, row: Row, callback: Callback) -> None:
        self.process = process
        self.effect = effect
        self.seconds = seconds
        """The seconds of the gradient; None if the time limit comes first."""
        self.row = row
        """The interval without a message."""
        self.callback = callback
        self.over = False

    def close(self) -> tuple[fx.Attempt, Callback]:
        """End the attempt, and release its objects, because its end may stay in the clock's queue for long."""
        effect, callback = self.effect, self.callback
        self.over, self.process.interrupt = True, None
        del self.effect, self.callback
        return effect, callback


class Attempts:
    """Answers Attempt. An attempt that is given up becomes an interval without samples. Its gradient is never computed."""

    def __init__(
        self, env: VirtualClock, compute: Compute, times: Sequence[StepTimes], membership: Membership, record: RecordInterval
    ) -> None:
        self.env = env
        self.compute = compute
        self.times = times
        self.membership = membership
        self.record = record
        self._may_crash = membership.faults.nodes
        self._begin, self._when_done = membership.recorders(GRADIENT)

    def attempt(self, process: RankProcess, effect: fx.Attempt, callback: Callback) -> Any:
        """Takes the time of the node's model, or the time until the rank gives up. The gradient is computed when it is due."""
        if process.messages:
            return None
        rank, now, samples = process.rank, self.env.now, effect.batch.samples
        process.state.version = effect.version
        seconds = self.times[rank].seconds(samples, now)
        in_time = seconds <= effect.within
        end = now + (seconds if in_time else effect.within)
        row = (now, end, rank, GRADIENT, effect.version, samples if in_time else 0, 0, 0)
        if rank in self._may_crash:
            self._begin(row)
            callback = self._when_done(row, callback)
        timed = TimedAttempt(process, effect, seconds if in_time else None, row, callback)
        process.interrupt = interruption(self._interrupt, timed)
        return self.env.far(end, self._end, timed)

    def _end(self, attempt: TimedAttempt) -> None:
        if attempt.over or attempt.process.status == LOST:
            return
        effect, callback = attempt.close()
        if attempt.row[2] not in self._may_crash:
            self.record(attempt.row)
        if attempt.seconds is None:
            callback(None)
        else:
            gradient, loss = self.compute(attempt.process.rank, effect)
            callback(fx.Computed(gradient, loss, effect.batch.samples, attempt.seconds))

    def _interrupt(self, attempt: TimedAttempt) -> None:
        """Called when a message arrives."""
        _, callback = attempt.close()
        now, row = self.env.now, attempt.row
        if row[2] in self._may_crash:
            self.membership.give_up(row, now)
        elif row[0] < now:
            self.record((row[0], now, *row[2:5], 0, 0, 0))
        callback(None)


def interruption(act: Callable[[Any], None], attempt: Any) -> Callable[[], None]:
    """The function that a message calls during an attempt."""

    def interrupt() -> None:
        act(attempt)

    return interrupt
