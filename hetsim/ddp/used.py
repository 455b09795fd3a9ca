"""Find the batch on which the model computes. A loop may draw batches ahead, leave some out, or use one twice."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from hetsim.ddp.schedule import Step

AMBIGUOUS = (
    "the loop draws batches ahead of the model, and the model's input is none of their tensors, so the weight of its gradient is unknown: "
    "let team.loader(…, device=…) move batches, or draw each batch after the backward pass of the one before"
)
SCALED_AHEAD = (
    "the loop has drawn several batches since the last scaled loss, and their gradients have different weights: draw each batch after the "
    "backward pass of the one before, or add drop_last=True to the loader, so that all steps have the same weight"
)
ANOTHER_THREAD = (
    "batches are drawn in another thread than the model's, where the ranks cannot agree on a new split: iterate over team.loader in the "
    "model's thread (num_workers draws ahead), or give the Team allocation='even'"
)


ANOTHER_BATCH = (
    "the model's input is not of the batch that team.loader gave last, but of an earlier one, or of none, so the weight of its gradient is "
    "unknown: iterate over team.loader(…) in each epoch, instead of itertools.cycle or a list of its batches"
)
TWO_ITERATORS = (
    "two iterators over team.loader(…) are in use at a time, such as in zip(loader, loader), and a Team has one position in its epoch: "
    "draw all batches from one iterator, as in batches = iter(loader), and other samples from a DataLoader of your own"
)
ASKED_AHEAD = (
    "the loop has drawn several batches whose shares differ, so it is unknown which of them you mean: use team.samples, own, count, scale "
    "and mean between the model's forward pass and backward"
)
MAX_PLACES = 2**12
"""The number of stored memory addresses of earlier batches at which freed ones are removed."""


class Given(NamedTuple):
    """A batch that the loop received: its step's number since the start, the step, and its tensors' memory and shapes."""

    number: int
    step: Step
    storages: Mapping[int, Any]
    """Weak references to storages, by address. If a storage was freed, another tensor may be at its address."""
    shapes: tuple[torch.Size, ...]

    @property
    def places(self) -> set[int]:
        """The addresses of tensors that still exist."""
        return {place for place, storage in self.storages.items() if not storage.expired()}


class Used:
    """The batch whose gradients arrive next, and the batches that the loop received after it."""

    def __init__(self) -> None:
        self.number = 0
        """The number of the step after the last one with reduced gradients."""
        self.present: Given | None = None
        """The batch of the last forward pass."""
        self.reduced = False
        """Whether the gradients of the present batch were reduced."""
        self._waiting: list[Given] = []
        self._unscaled: list[Given] = []
        """Without a wrapped model: the batches since the last scaled loss, at most two."""
        self._given_since = False
        self._is_next = False
        """Whether the model's next call uses the waiting batches: the loop received them after the model's calls in earlier windows."""
        self._is_kept = False
        """Whether the gradients of the present batch stay on this rank."""
        self.is_another = False
        """Whether the model was called, since the last reduction, with an input that is not from a batch that the loop received last."""
        self.is_taken_back = False
        """Whether this input came from a batch that a later iterator has drawn again."""
        self._taken_back: dict[int, Any] = {}
        """The addresses of the batches that the current iterator draws again."""
        self._earlier: dict[int, Any] = {}
        """The addresses of all batches that the loop still has, such as batches in a list."""
        self._is_over = False
        """Whether the loop has received all batches of its iterator."""
        self._ended = 0
        self._thread = 0
        self._lock = threading.Lock()
        """A lock, because another thread may draw batches."""

    @property
    def computes(self) -> bool:
        """Whether a forward pass has begun whose gradients are not reduced yet."""
        return self.present is not None and not self.reduced

    @property
    def is_last_word(self) -> bool:
        """Whether the script refers to the current batch: its gradients are not reduced yet, or no batch followed their reduction."""
        return self.present is not None and (self.computes or not self._given_since)

    def give(self, number: int, step: Step, batch: Any, *, is_used: bool = False) -> None:
        """The loop receives this batch. `is_used`: without a wrapped model, the batch counts as used at once."""
        given = Given(number, step, storages_of(tensors(batch)), tuple(tensor.shape for tensor in tensors(batch)))
        if len(self._earlier) > MAX_PLACES:
            self._earlier = {place: storage for place, storage in self._earlier.items() if not storage.expired()}
        self._earlier |= given.storages
        self.is_another = self.is_taken_back = self._is_over = False
        if is_used:
            self.present, self.reduced, self.number = given, True, number + 1
            self._unscaled = [*self._unscaled[-1:], given]
        else:
            with self._lock:
                self._waiting.append(given)
                self._is_next = True
        self._given_since |= not self.computes
        self._thread = threading.get_ident()

    def take_back(self) -> None:
        """A new iterator begins. It draws the unused batches of an unfinished iterator again."""
        with self._lock:
            again = [given for given in self._waiting if given.number >= self.next_to_draw]
            self._waiting = [given for given in self._waiting if given.number < self.next_to_draw]
        self._taken_back = {place: storage for given in again for place, storage in given.storages.items()}
        self._unscaled.clear()

    def scaled(self, given: Given, *, varies: bool) -> Given:
        """The loss of this batch is scaled. Raises ValueError if the loss may belong to another batch."""
        if varies and len(self._unscaled) > 1:
            raise ValueError(SCALED_AHEAD)
        self._unscaled.clear()
        return given

    def end_loop(self, number: int) -> None:
        """The loop has received all batches of an iterator, up to this number. A new iterator does not draw them again, used or not."""
        self._ended, self._is_over = number, True

    def keep(self) -> Given:
        """The gradients of the current batch are kept on this rank. So a new iterator does not draw it again."""
        assert self.present is not None
        self._ended = max(self._ended, self.present.number + 1)
        self._is_kept = True
        return self.present

    @property
    def next_to_draw(self) -> int:
        """The number of the step with which a new iterator begins."""
        return max(self.number, self._ended)

    def given(self) -> Given | None:
        """The batch whose gradients are being computed, or else the next batch for the model; None before the first batch."""
        return self._waiting[0] if self._waiting and not self.computes else self.present

    @property
    def is_ambiguous(self) -> bool:
        """Whether the script may refer to one of several batches whose gradients have different weights."""
        return not self.computes and any(given.step.shares != self._waiting[0].step.shares for given in self._waiting)

    def begin(self, inputs: Any, *, measures: bool, varies: bool) -> bool:
        """The model is called. Returns whether it uses another batch than before. Raises ValueError if the batch is unknown.

        `measures`: whether the split may change. `varies`: whether steps may have different weights.
        """
        used = self._found(inputs)
        if used is None and self._is_another(inputs):
            self.is_another = True
            self.is_taken_back |= is_among(inputs, self._taken_back)
            return False
        if not self._waiting:
            return False
        if measures and self._thread != threading.get_ident():
            raise ValueError(ANOTHER_THREAD)
        if used is None and self.computes and any(tensor.grad_fn is not None for tensor in tensors(inputs)):
            used = self.present  # what another model has made of it
        if used is None:
            is_next = self._is_next and (self._is_kept or not self.computes)
            if varies and not (is_next and is_one_window(self._waiting)):
                raise ValueError(AMBIGUOUS)
            used = self._waiting[0]
        if used is self.present:
            return False
        with self._lock:
            self._waiting = [given for given in self._waiting if given.number > used.number]
        self._is_next &= self._goes_on_after(used)
        self.present, self.reduced, self._is_kept = used, False, False
        return True

    def _found(self, inputs: Any) -> Given | None:
        """The last batch with a tensor of these inputs that no other batch has; None without such a batch."""
        given, places = self._recent, set(storages_of(tensors(inputs)))
        of_each = [each.places for each in given]
        own = [place for of_one in of_each for place in of_one & places]
        found = [each for each, of_one in zip(given, of_each, strict=True) if any(own.count(place) == 1 for place in of_one & places)]
        return found[-1] if found else None

    def _is_another(self, inputs: Any) -> bool:
        """Whether these inputs, which belong to no single recent batch, come from an earlier batch, or from none after the loop's end."""
        recent = set[int]().union(*(each.places for each in self._recent))
        if is_among(inputs, {place: storage for place, storage in self._earlier.items() if place not in recent}):
            return True
        is_new = self._is_over and self.reduced and not self._waiting
        return is_new and all(tensor.grad_fn is None for tensor in tensors(inputs))

    @property
    def _recent(self) -> list[Given]:
        """The current batch and the waiting batches."""
        return [*([self.present] if self.present is not None else []), *self._waiting]

    def _goes_on_after(self, given: Given) -> bool:
        """Whether waiting batches are in the same window as this one, and so have the same weight."""
        return bool(self._waiting) and is_one_window([given, *self._waiting])

    def end(self) -> Given:
        """All gradients of the current batch are ready."""
        assert self.present is not None
        self.reduced, self._given_since, self.is_another, self.is_taken_back = True, False, False, False
        self._is_next &= self._goes_on_after(self.present)
        self.number = max(self.number, self.present.number + 1)
        return self.present


def is_one_window(batches: Sequence[Given]) -> bool:
    """Whether these consecutive batches belong to one window."""
    return not any(given.step.ends_window for given in batches[:-1])


def is_among(inputs: Any, storages: Mapping[int, Any]) -> bool:
    """Whether a tensor of these inputs is at one of these addresses."""
    return any(place in storages and not storages[place].expired() for place in storages_of(tensors(inputs)))


def storages_of(of: Iterable[torch.Tensor]) -> dict[int, Any]:
    """Weak references to the memory of these tensors, by address."""
    storages = [tensor.untyped_storage() for tensor in of]
    return {storage.data_ptr(): StorageWeakRef(storage) for storage in storages}  # type: ignore[no-untyped-call]


def tensors(value: Any, *, within: bool = True) -> Iterator[torch.Tensor]:
    """The dense tensors in a value, such as a batch or a module's output.

    Mappings and sequences are searched, and with `within` also an object's attributes. Objects in these attributes are left out, because
    they may contain each other.
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
