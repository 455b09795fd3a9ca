"""Load the next batch that a rank will probably request, in a thread, during the current batch's gradient."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from hetsim.effects import Batch
from hetsim.workloads.device import Device

T = TypeVar("T")


class Prefetch(Generic[T]):
    """Loads batches, at most one of them ahead of the request.

    It guesses that the stride to the next batch, and its size, are those of the last one. This is true for a rank of a synchronous method,
    whose stride is a global batch. It loads a guess only if the previous guess was right. An unused batch is discarded, with its errors.

    `load` must be a function of the batch alone, because the program's thread and another may call it at the same time. So the returned
    batch does not depend on the guesses.
    """

    def __init__(self, load: Callable[[Batch], T], device: Device) -> None:
        self._load = load
        self._device = device
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="prefetch")
        self._last: Batch | None = None
        self._guess: Batch | None = None
        self._loading: Future[T] | None = None
        """The guess, while it is being loaded."""

    def take(self, batch: Batch) -> T:
        """The result of `load` for this batch. It may have been placed on the device `ahead`: see `Device.arrived`."""
        came_true = batch == self._guess
        loading, self._loading = self._loading, None
        if loading is not None and not came_true:
            loading.cancel()
        self._guess, self._last = _next(self._last, batch), batch
        result = loading.result() if loading is not None and came_true else self._load(batch)
        if came_true and self._guess is not None:
            self._loading = self._thread.submit(self._load_ahead, self._guess)
        return result

    def close(self) -> None:
        """End the thread after its current batch. Later batches are not loaded ahead."""
        self._guess = None
        self._thread.shutdown(cancel_futures=True)

    def _load_ahead(self, batch: Batch) -> T:
        with self._device.ahead():
            return self._load(batch)


def _next(last: Batch | None, batch: Batch) -> Batch | None:
    """The next batch after these two, at the same stride; None if they differ in size or pool."""
    if last is None or last.samples != batch.samples or last.start > batch.start or last.pool != batch.pool:
        return None
    return Batch(2 * batch.start - last.start, batch.samples, batch.pool)
