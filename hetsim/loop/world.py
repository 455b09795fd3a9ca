"""The world of a user's loop: the loop computes the gradients, and everything else is as in processes of hetsim's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

from hetsim import effects as fx
from hetsim.coordination.state import State
from hetsim.distributed.rank.world import MAIN, Answered, ProcessWorld, Request, Turn
from hetsim.loop.model import ModelTask, UsersOptimizer
from hetsim.runtime.rank import RankState
from hetsim.runtime.recording.recorder import ALL_REDUCE, GRADIENT
from hetsim.vector import nbytes
from hetsim.workloads.task import Optimizer


class Asked(Request):
    """A gradient that a program asks for, and what the loop has done about it."""

    def __init__(self, batch: fx.Batch, version: int, computed: Callable[[Asked], Answered]) -> None:
        self.batch = batch
        self.version = version
        self._computed = computed
        self.gradient: Any = None
        """The mean gradient, a vector of the model's."""
        self.ended = 0.0
        """When its gradients were complete, by the host's clock."""
        self.reduced = 0.0
        """When they were reduced, in a model that reduces them itself."""
        self.seconds = 0.0
        """The seconds that this took, without those in which the loop waited."""

    def answer(self) -> Answered:
        """The effect's answer, after the loop has computed the gradient."""
        return self._computed(self)


class LoopWorld(ProcessWorld):
    """One rank whose gradients the user's loop computes. Its optimizer steps on the model's own parameters."""

    name: ClassVar[str] = "a Team"
    task: ModelTask

    def __init__(self, *parts: Any, committed: Callable[[float, State, Sequence[Any]], None] | None, **more: Any) -> None:
        super().__init__(*parts, **more)
        self._committed = committed

    def gradient(self, state: RankState, effect: fx.Gradient, turn: Turn) -> Any:
        """A request to the loop."""
        assert turn.thread == MAIN, "a started effect computes no gradient"
        state.version = effect.version
        self.task.place(effect.at)
        return Asked(effect.batch, effect.version, partial(self._computed, effect.batch))

    def gradient_sum(self, state: RankState, effect: fx.GradientSum, turn: Turn) -> Any:
        """A request to the loop. The model adds up its gradients itself, or else they are added up afterwards."""
        state.version = effect.version
        self._num_collectives[turn.thread] += 1
        self.task.place(effect.at)
        return Asked(effect.batch, effect.version, partial(self._summed, effect))

    def attempt(self, state: RankState, effect: fx.Attempt, turn: Turn) -> Any:
        """A request to the loop, whose gradient is dropped if a message came before its end, or the time was over."""
        state.version = effect.version
        if self.mailbox.due_before(turn.at, wait=False) is not None:
            return None, turn.at

        def computed(asked: Asked) -> Answered:
            in_time = asked.seconds <= effect.within and not self.mailbox.has_message(None)
            answer, end = self._computed(effect.batch, asked)
            return (answer if in_time else None), end

        self.task.place(effect.at)
        return Asked(effect.batch, effect.version, computed)

    def _computed(self, batch: fx.Batch, asked: Asked) -> Answered:
        end = asked.ended - self.began
        begin = end - asked.seconds  # without waits
        self.record[GRADIENT]((begin, end, self.rank, GRADIENT, asked.version, batch.samples, 0, 0))
        return fx.Computed(asked.gradient, 0.0, batch.samples, asked.seconds), asked.ended

    def _summed(self, effect: fx.GradientSum, asked: Asked) -> Answered:
        computed, end = self._computed(effect.batch, asked)
        if not self.task.reduces:
            factor = effect.factor() if effect.batch else 0.0
            computed.gradient = self.reduction.main(computed.gradient.mul_(factor), in_place=True)
            end = self.pace.clock()
        else:
            end = asked.reduced
        self.record[ALL_REDUCE](
            (asked.ended - self.began, end - self.began, self.rank, ALL_REDUCE, asked.version, 0, 0, nbytes(computed.gradient))
        )
        return computed, end

    def update(self, state: RankState, effect: fx.Update, turn: Turn) -> Answered:
        """A step of the user's optimizer, or of the method's."""
        optimizer = self.prepared.optimizer_of(self.rank)
        return self._stepped(optimizer, effect.tentative, partial(state.update, optimizer, effect), turn)

    def local_update(self, state: RankState, effect: fx.LocalUpdate, turn: Turn) -> Answered:
        """A step of the user's optimizer, or of the method's."""
        local = self.optimizers.local
        if local is None:
            return effect.at, turn.at
        return self._stepped(local, False, partial(state.local_update, local, effect.at, effect.gradient, effect.epoch), turn)

    def _stepped(self, optimizer: Optimizer, tentative: bool, step: Callable[[], Any], turn: Turn) -> Answered:
        if tentative and isinstance(optimizer, UsersOptimizer):
            with optimizer.tentatively():
                weights = step()
        else:
            weights = step()
        self.task.device.synchronise()
        return weights, self._end_of_update(0.0, turn.version, turn)

    def commit(self, state: RankState, effect: fx.Commit, turn: Turn) -> Answered:
        """The loop continues to the end of its epoch."""
        self.last = committed = effect.state
        state.set_commit(effect.version, self.prepared.epoch(committed))
        state.num_gradients += sum(c.num_gradients for c in effect.applied if c.rank == self.rank)
        if self._committed is not None:
            self._committed(turn.at, committed, effect.applied)
        return True, turn.at

    @property
    def _agrees(self) -> bool:
        return False
