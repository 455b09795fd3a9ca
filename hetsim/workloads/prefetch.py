"""The next batch that a rank will probably ask for, loaded in a thread while the gradient of this one is computed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from hetsim.effects import Batch
from hetsim.workloads.device import Device

T = TypeVar("T")


class Prefetch(Generic[T]):
    """Loads batches, at most one of them ahead of the request.

    The guess is that the next batch starts as far after the last one as that one after its predecessor, and has as many samples. This is
    true for a rank of a synchronous method, whose stride is a global batch. A guess is loaded only if the previous guess was right.
    A batch that was loaded in vain is discarded, with its errors. `load` must be a function of the batch alone: the program's thread and
    another may call it at the same time. So the returned batch does not depend on the guesses.
    """

    def __init__(self, load: Callable[[Batch], T], device: Device) -> None:
        self._load = load
        self._device = device
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="prefetch")
        self._last: Batch | None = None
        self._guess: Batch | None = None
        self._loading: Future[T] | None = None
        """The guess, if it is being loaded."""

    def take(self, batch: Batch) -> T:
        """What `load` gives for this batch. It may have been placed on the device `ahead`: see `Device.arrived`."""
        came_true = batch == self._guess
        loading, self._loading = self._loading, None
        if loading is not None and not came_true:
            loading.cancel()
        self._guess, self._last = _next(self._last, batch), batch
        found = loading.result() if loading is not None and came_true else self._load(batch)
        if came_true and self._guess is not None:
            self._loading = self._thread.submit(self._load_ahead, self._guess)
        return found

    def close(self) -> None:
        """End the thread, after what it is loading. No batch can be loaded ahead from then on."""
        self._guess = None
        self._thread.shutdown(cancel_futures=True)

    def _load_ahead(self, batch: Batch) -> T:
        with self._device.ahead():
            return self._load(batch)


def _next(last: Batch | None, batch: Batch) -> Batch | None:
    """The batch that follows these two at the same stride; None if they are not of one size and pool."""
    if last is None or last.samples != batch.samples or last.start > batch.start or last.pool != batch.pool:
        return None
    return Batch(2 * batch.start - last.start, batch.samples, batch.pool)
