"""The forward and backward passes of wrapped models: their step, the weights of their gradients, and their times."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hetsim.ddp.exchange import Balance
from hetsim.ddp.forwards import GATHERS, TWO_BATCHES, Forward, check_divisors, check_parts, samples_in
from hetsim.ddp.hook import GLOBAL, MEAN
from hetsim.ddp.nodes import GATHERED, Divisor
from hetsim.ddp.schedule import Schedule, Step
from hetsim.ddp.tokens import Normalised, Tokens
from hetsim.ddp.used import ANOTHER_BATCH, TWO_ITERATORS, Given, Used
from hetsim.ddp.windows import Window, Windows

NO_BATCH = (
    "gradients have arrived before team.loader gave a batch, by whose samples they would count: iterate over team.loader(…), and let the "
    "Team of this loader wrap all models that it trains"
)
NOT_LEFT_OUT = (
    "the last step of this epoch has {} samples for {} ranks, and a rank without one computes one of others, which a number of all ranks "
    "must not count: add drop_last=True to the loader, or sum up team.own(number) over the ranks instead of the number"
)
COUNTED_FOR_ANOTHER = (
    "team.count was called for another batch than that of the gradients, as the loop draws batches ahead: call it between the model and "
    "backward"
)

PASSES = itertools.count()


class Passes:
    """Receives the events of the models and their communication hooks for a Team."""

    schedule: Schedule
    device: torch.device
    group: Any
    """The models' process group. The models are not stored, because an object that DDP's hooks refer to would keep them alive forever."""
    _window: Window

    def __init__(self, rank: int, used: Used, windows: Windows, balance: Balance, tokens: Tokens, trace: Any) -> None:
        self._rank, self._used, self._windows, self._balance, self._tokens, self._trace = rank, used, windows, balance, tokens, trace
        self.owned = self.scaled = -1
        """The last steps in which the script called `own` and `scale`."""
        self._kept: dict[int, Step] = {}
        """The steps since the last reduction whose gradients were kept by `no_sync`, by number."""

    def use(self, model: DistributedDataParallel) -> None:
        """Set the device and the group from the first model. All models have the same."""
        self.device, self.group = next(model.module.parameters()).device, model.process_group

    @property
    def present(self) -> Given:
        """The batch whose gradients arrive."""
        if self._used.present is None:
            raise ValueError(NO_BATCH)
        return self._used.present

    def factor(self, loss: str) -> float:
        """The factor on this rank's gradients before they are averaged."""
        number, step, *_ = self.present
        if loss == GLOBAL:
            return float(step.shares[self._rank] > 0 or self.scaled == number)
        own = self._tokens.own
        return step.weight(self._rank) if own is None else len(step.shares) * own / step.samples

    @property
    def _varies(self) -> bool:
        """Whether steps may have different weights."""
        return self._balance.measures or not self.schedule.weighs_alike()

    def begin_window(self) -> None:
        """Start the clock of a window."""
        mark = self._windows.clock.mark()
        if self._trace is not None:
            self._trace.updated(mark)
        self._windows.begin(mark)

    def begin_forward(self, inputs: Any, loss: str, *, is_kept: bool) -> None:
        """A model is called. `is_kept`: its gradients stay on this rank (`no_sync`). Otherwise they are reduced with the kept ones."""
        before, was_computing = self._used.present, self._used.computes
        is_new = self._used.begin(inputs, measures=self._balance.measures, varies=self._varies)
        is_over = self._windows.is_over or (was_computing and not self._kept)
        if is_new and is_over and before is not None and before.step.ends_window:  # the batch was drawn before the window began
            self.begin_window()
        if is_kept or self._used.present is None:
            self._check_batch()
        if is_kept:
            given = self._used.keep()
            self._kept[given.number] = given.step
        self.check_window(self.present, loss)

    def check_window(self, given: Given, loss: str = MEAN) -> None:
        """Raise ValueError if the kept gradients and this batch need different weights."""
        if self._kept.keys() - {given.number} and self._tokens.own is not None and self._tokens.number == given.number:
            raise ValueError(
                "count is for the tokens of one step, and no_sync adds up the gradients of several: leave no_sync out, or do not wrap the "
                "model and take team.scale(loss, tokens)"
            )
        if any(weights(kept, loss) != weights(given.step, loss) for kept in self._kept.values()):
            raise ValueError(
                "no_sync has kept gradients of steps with other shares, and one weight cannot be right for all of them: "
                f"give the Team accumulate={len({*self._kept, given.number})}, so that the split changes only between windows"
            )

    def _check_batch(self) -> None:
        if self._used.is_taken_back:
            raise ValueError(TWO_ITERATORS)
        if self._used.is_another and self._varies:
            raise ValueError(ANOTHER_BATCH)

    def first_bucket(self, loss: str) -> Normalised | None:
        """The first gradients of a model are ready. Returns how to average them if tokens are counted, else None."""
        self._check_batch()
        number, step, *_ = given = self.present
        if self._windows.begin_reduction(backward_pass()):
            self._balance.begin_exchange(self._windows.clock)
        if loss == GLOBAL:
            if (fewest := self.schedule.fewest_samples()) < len(step.shares) and number not in (self.owned, self.scaled):
                raise ValueError(NOT_LEFT_OUT.format(fewest, len(step.shares)))
            return None
        if self._tokens.number != number:
            if self._tokens.is_new:
                raise ValueError(COUNTED_FOR_ANOTHER)
            self._tokens.own = None
        if self._tokens.own is None and (size := other_size(given, self._rank)) is not None:
            raise ValueError(
                f"the batch has {size} samples where the Team assigned {step.shares[self._rank]}, so its mean would count "
                "wrongly: call team.count(len(batch)) on all ranks before backward"
            )
        return self._tokens.begin(step.samples, self.group, self.device)

    def called(self, inputs: Any) -> Forward | None:
        """The forward pass of the current batch with these inputs; None without a batch."""
        given = self._used.present
        if given is None:
            return None
        assigned = len(given.step.range_of(self._rank))
        return Forward(given, samples_in(inputs, given, assigned), assigned)

    def arrive(self, forward: Forward, loss: str) -> None:
        """Raise ValueError if the gradients of this forward pass need another weight than the current batch."""
        if not self._is_counted(loss) and weights(forward.given.step, loss) != weights(self.present.step, loss):
            raise ValueError(TWO_BATCHES.format(forward.given.step.shares, self.present.step.shares))

    def divided(self, forward: Forward, loss: str, divisors: Sequence[Divisor]) -> None:
        """Raise ValueError if a loss with these divisors would be weighted wrongly.

        Divisors in a GPU's memory are read only in steps 0, 1, 2, 4, 8, …, because reading waits for the GPU.
        """
        number, step, *_ = forward.given
        if divisors and divisors[0] is GATHERED:
            is_plain = not self._varies and len(set(step.shares)) == 1
            if loss == MEAN and len(step.shares) == dist.get_world_size() and not is_plain:  # otherwise it may be a group of other ranks
                raise ValueError(GATHERS)
            return
        if len(step.shares) == 1 or self._is_counted(loss):
            return
        is_read = number & (number - 1) == 0
        if is_read or all(isinstance(each.number, int) or each.number.device.type == "cpu" for each in divisors):
            try:
                check_divisors(divisors, forward.assigned, forward.samples)
            except ValueError:
                if not self._used.is_another and other_size(forward.given, self._rank) is None:  # refused by another sentence
                    raise

    def _is_counted(self, loss: str) -> bool:
        """Whether the script determines the divisor of the current loss."""
        counted = self._tokens.own is not None and self._tokens.number == self.present.number
        return counted or loss == GLOBAL or self.scaled == self.present.number

    def last_bucket(self, arrived: Sequence[Forward], loss: str) -> Callable[[], None]:
        """All gradients of these forward passes are ready. Call the returned function when they are reduced."""
        if not self._is_counted(loss):
            for each in {forward.given.number: forward.given for forward in arrived}.values():
                parts = [forward for forward in arrived if forward.given.number == each.number]
                check_parts(parts, len(each.step.range_of(self._rank)))
        number, step, *_ = self._used.end()
        self._kept.clear()
        num_steps = number - self.schedule.window_of(number) + 1
        self._window = self._windows.end(number, step, num_steps, self.schedule.at(number + 1)[0])
        self._balance.end_window(self._window)

        def reduced() -> None:
            mark = self._windows.reduced()
            if self._trace is not None:
                self._trace.reduced(self._window, mark, self._windows.clock)

        return reduced


def backward_pass() -> int:
    """The number of the current backward pass. Without torch's private function, each model's gradients count as a separate pass.

    If one pass then contains two models, the reduction of the first model's gradients does not count as work. No gradient depends on it.
    """
    number = getattr(torch._C, "_current_graph_task_id", None)
    return int(number()) if number is not None else next(PASSES)


def weights(step: Step, loss: str) -> tuple[float, ...]:
    """The weights of the ranks' gradients of this loss in this step."""
    return tuple(float(share > 0) for share in step.shares) if loss == GLOBAL else step.weights


def other_size(given: Given, rank: int) -> int | None:
    """The samples of a batch if they clearly differ from the rank's share, for example because a collate function drops some; else None."""
    assigned = len(given.step.range_of(rank))
    shapes = [shape for shape in given.shapes if shape]
    sizes = {shape[0] for shape in shapes}
    return None if len(sizes) != 1 or any(assigned in shape for shape in shapes) else int(sizes.pop())
