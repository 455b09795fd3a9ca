"""Which batch the model computes on: a loop may draw batches ahead of it, leave some out, or use one twice."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

from hetsim.ddp.schedule import Step

AMBIGUOUS = (
    "the loop has drawn several batches that the model has not used, and the model's input is none of their tensors, so the weight of its "
    "gradient is unknown: let team.loader(…, device=…) move batches, or draw each batch after the backward pass of the one before"
)
ANOTHER_THREAD = (
    "batches are drawn in another thread than the model's, where the ranks cannot agree on a new split: iterate over team.loader in the "
    "model's thread (num_workers draws ahead), or give the Team allocation='even'"
)


class Given(NamedTuple):
    """A batch that the loop was given: the number of its step since the start, the step, and its tensors."""

    number: int
    step: Step
    tensors: tuple[torch.Tensor, ...]
    """They are kept while the batch is not used, so that no other tensor is in their place in memory."""
    during: bool
    """Whether the loop was given it between a forward pass and the reduction of its gradients."""


class Used:
    """The batch whose gradients arrive next, and those that the loop was given after it."""

    def __init__(self) -> None:
        self.number = 0
        """Of the step after the last one whose gradients were reduced."""
        self.present: Given | None = None
        """The batch of the last forward pass."""
        self.reduced = False
        """Whether the gradients of the present batch were reduced."""
        self._waiting: list[Given] = []
        self._given_since = False
        self._ended = 0
        self._thread = 0
        self._lock = threading.Lock()
        """Another thread may draw batches."""

    @property
    def computes(self) -> bool:
        """Whether a forward pass has begun whose gradients are not reduced yet."""
        return self.present is not None and not self.reduced

    @property
    def is_last_word(self) -> bool:
        """Whether the script means the present batch: its gradients are computed, or the loop was given no batch since they were."""
        return self.present is not None and (self.computes or not self._given_since)

    def give(self, number: int, step: Step, batch: Any, *, is_used: bool = False) -> None:
        """The loop gets this batch. Without a wrapped model, nobody says when it is used: it is at once."""
        given = Given(number, step, tuple(tensors(batch)), self.computes)
        if is_used:
            self.present, self.reduced, self.number = given, True, number + 1
        else:
            with self._lock:
                self._waiting.append(given)
        self._given_since |= not self.computes
        self._thread = threading.get_ident()

    def take_back(self) -> None:
        """A new iterator begins: what the model has not used of one that did not end is drawn again."""
        with self._lock:
            self._waiting = [given for given in self._waiting if given.number < self.next_to_draw]

    def end_loop(self, number: int) -> None:
        """The loop has had all batches of an iterator, up to this number: a new one does not draw them again, used or not."""
        self._ended = number

    def keep(self) -> Given:
        """The gradients of the present batch are kept on this rank: a new iterator does not draw it again."""
        assert self.present is not None
        self._ended = max(self._ended, self.present.number + 1)
        return self.present

    @property
    def next_to_draw(self) -> int:
        """The number of the step with which a new iterator begins."""
        return max(self.number, self._ended)

    def given(self) -> Given | None:
        """The batch that the script means when it does not call the model; None before the first one."""
        later = self._later()
        return later[0] if later else self.present

    @property
    def is_ambiguous(self) -> bool:
        """Whether the script may mean one of several batches whose gradients weigh differently."""
        return any(given.step.shares != self._later()[0].step.shares for given in self._later())

    def _later(self) -> list[Given]:
        return [given for given in self._waiting if not (self.computes and given.during)]

    def begin(self, inputs: Any, *, measures: bool) -> bool:
        """The model is called. Whether it is with another batch than before. ValueError with one sentence if it is unknown with which."""
        if not self._waiting:
            return False
        if measures and self._thread != threading.get_ident():
            raise ValueError(ANOTHER_THREAD)
        places = {tensor.untyped_storage().data_ptr() for tensor in tensors(inputs)}
        given = [*([self.present] if self.present is not None else []), *self._waiting]
        found = [each for each in given if any(tensor.untyped_storage().data_ptr() in places for tensor in each.tensors)]
        if not found and len(self._waiting) > 1 and (measures or any(w.step.shares != self._waiting[0].step.shares for w in self._waiting)):
            raise ValueError(AMBIGUOUS)
        used = found[-1] if found else self._waiting[0]
        if used is self.present:
            return False
        with self._lock:
            self._waiting = [given for given in self._waiting if given.number > used.number]
        self.present, self.reduced = used, False
        return True

    def end(self) -> Given:
        """All gradients of the present batch are ready."""
        assert self.present is not None
        self.reduced, self._given_since = True, False
        self.number = max(self.number, self.present.number + 1)
        return self.present


def tensors(value: Any, *, within: bool = True) -> Iterator[torch.Tensor]:
    """The dense tensors in a value, such as a batch or a module's output: in mappings and sequences, and `within` an object's attributes.

    Objects in the attributes of an object are left out: they may contain each other.
    """
    if isinstance(value, torch.Tensor):
        if value.layout == torch.strided and value.numel():
            yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors(part, within=within)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors(part, within=within)
    elif within and hasattr(value, "__dict__") and not isinstance(value, type | torch.nn.Module):
        for part in vars(value).values():
            yield from tensors(part, within=False)
