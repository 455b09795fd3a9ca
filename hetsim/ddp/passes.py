"""The forward and backward passes of the wrapped model: which step they belong to, what its gradients weigh, how long it takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from hetsim.ddp.exchange import Balance
from hetsim.ddp.schedule import Schedule
from hetsim.ddp.tokens import Normalised, Tokens
from hetsim.ddp.used import Given, Used
from hetsim.ddp.windows import Windows


class Passes:
    """What the model and its communication hook tell a Team."""

    schedule: Schedule
    model: DistributedDataParallel

    def __init__(self, rank: int, used: Used, windows: Windows, balance: Balance, tokens: Tokens, trace: Any) -> None:
        self._rank, self._used, self._windows, self._balance, self._tokens, self._trace = rank, used, windows, balance, tokens, trace
        self._kept: list[tuple[int, ...]] = []
        """Of the steps since the last reduction whose gradients were kept: the ranks' samples."""

    @property
    def device(self) -> torch.device:
        """Of the model."""
        device: torch.device = next(self.model.module.parameters()).device
        return device

    @property
    def shares(self) -> tuple[int, ...]:
        """The samples of each rank in the step whose gradients arrive."""
        return self._present.step.shares

    @property
    def factor(self) -> float:
        """By which this rank's gradients are multiplied before they are averaged."""
        step, own = self._present.step, self._tokens.own
        return step.weight(self._rank) if own is None else len(step.shares) * own / step.samples

    def begin_window(self) -> None:
        """The clock starts."""
        mark = self._windows.clock.mark()
        if self._trace is not None:
            self._trace.updated(mark)
        self._windows.begin(mark)

    def begin_forward(self, inputs: Any, *, is_kept: bool) -> None:
        """The model is called; the gradients are kept on this rank (`no_sync`), or reduced together with what was kept."""
        before, was_computing = self._used.present, self._used.computes
        is_new = self._used.begin(inputs, measures=self._balance.measures)
        is_over = self._windows.is_over or (was_computing and not self._kept)
        if is_new and is_over and before is not None and before.step.ends_window:  # the batch was drawn before the window began
            self.begin_window()
        if is_kept:
            self._kept.append(self._used.keep().step.shares)
        self.check_window(self._present)
        self._windows.begin_forward()

    def check_window(self, given: Given) -> None:
        """ValueError with one sentence if no weight would be right for what was kept and for this batch."""
        if self._kept and self._tokens.own is not None and self._tokens.number == given.number:
            raise ValueError(
                "count is for the tokens of one step, and no_sync adds up the gradients of several: leave no_sync out, or do not wrap the "
                "model and take team.scale(loss, tokens)"
            )
        if any(kept != given.step.shares for kept in self._kept):
            raise ValueError(
                "no_sync has kept gradients of steps with other shares, and one weight cannot be right for all of them: "
                f"give the Team accumulate={len(self._kept) + 1}, so that the split changes only between windows"
            )

    def first_bucket(self) -> Normalised | None:
        """The first gradients are ready."""
        if self._windows.begin_reduction():
            self._balance.begin_exchange(self._windows.clock)
        if self._tokens.number != self._present.number:
            self._tokens.own = None
        if self._tokens.own is None and (size := other_size(self._present, self._rank)) is not None:
            raise ValueError(
                f"the batch has {size} samples where the Team assigned {self._present.step.shares[self._rank]}, so its mean would count "
                "wrongly: call team.count(len(batch)) on all ranks before backward"
            )
        return self._tokens.begin(self._present.step.samples, self.model.process_group, self.device)

    def last_bucket(self) -> Callable[[], None]:
        """All gradients are ready."""
        number, step, *_ = self._used.end()
        self._kept.clear()
        num_steps = number - self.schedule.window_of(number) + 1
        window = self._windows.end(number, step, num_steps, self.schedule.at(number + 1)[0])
        self._balance.end_window(window)

        def reduced() -> None:
            mark = self._windows.reduced()
            if self._trace is not None:
                self._trace.reduced(window, mark, self._windows.clock)

        return reduced

    @property
    def _present(self) -> Given:
        assert self._used.present is not None
        return self._used.present


def other_size(given: Given, rank: int) -> int | None:
    """The samples of a batch if they are clearly not as many as the rank's share, as where a collate function drops some."""
    assigned = len(given.step.range_of(rank))
    shapes = [tensor.shape for tensor in given.tensors if tensor.ndim]
    sizes = {shape[0] for shape in shapes}
    return None if len(sizes) != 1 or any(assigned in shape for shape in shapes) else int(sizes.pop())
