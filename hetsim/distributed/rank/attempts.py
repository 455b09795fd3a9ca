"""Gradients that can be given up, in real time: with padding at the described time, otherwise between micro-batches or at the end.

A real backward pass cannot be interrupted. With padding, a gradient's described time is known when it begins, so it is given up exactly
at the described time. Without padding, the rank checks the mailbox and the clock after each micro-batch. An undivided gradient is computed
to its end and then discarded.
"""

from __future__ import annotations

from hetsim import effects as fx
from hetsim.distributed.communication.mailbox import Mailbox
from hetsim.distributed.pacing.padding import Pace
from hetsim.vector import Vector
from hetsim.workloads.task import Task, divided, in_passes

Attempted = tuple[fx.Computed | None, float]
"""The result or None, and the time at which it was computed or given up, in seconds of the host's clock."""


class Attempts:
    """Computes gradients of `task`, and gives them up. `micro_batch` is the maximum number of samples that are computed at a time."""

    def __init__(self, task: Task, mailbox: Mailbox, pace: Pace, micro_batch: int | None) -> None:
        self.task = task
        self.mailbox = mailbox
        self.pace = pace
        self.micro_batch = micro_batch

    def attempt(self, effect: fx.Attempt, at: float, described: float) -> Attempted:
        """Attempt a gradient at time `at`. `described` are the cluster's described seconds for the whole gradient."""
        if self.mailbox.due_before(at, wait=False) is not None:
            return None, at
        return self._padded(effect, at, described) if self.pace.pad else self._measured(effect, at, described)

    def _padded(self, effect: fx.Attempt, at: float, described: float) -> Attempted:
        in_time = described <= effect.within
        moment = at + min(described, effect.within)
        gradient, loss = in_passes(self.task, effect.at, effect.batch, self.micro_batch) if in_time else (None, 0.0)
        self.task.device.synchronise()
        ready = self.pace.clock()
        if (came := self.mailbox.due_before(moment, wait=True)) is not None:
            return None, max(at, came)
        if not in_time:
            return None, moment
        self.pace.record("gradient", ready - moment)
        end = max(ready, moment)
        return fx.Computed(gradient, loss, effect.batch.samples, end - at), end

    def _measured(self, effect: fx.Attempt, at: float, described: float) -> Attempted:
        samples = effect.batch.samples
        total: Vector = None
        mean_loss = 0.0
        for piece in divided(effect.batch, self.micro_batch):
            gradient, loss = self.task.gradient(effect.at, piece)
            self.task.device.synchronise()
            share = piece.samples / samples
            total = gradient if share == 1 else gradient * share if total is None else total + gradient * share
            mean_loss += loss * share
            now = self.pace.clock()
            if now - at > effect.within or self.mailbox.has_message(None):
                return None, now
        end = self.pace.due("gradient", at, described)
        return fx.Computed(total, mean_loss, samples, end - at), end
