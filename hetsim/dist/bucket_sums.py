"""The buckets of one gradient in real time: a second thread adds up each of them while the others are computed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future

from hetsim.dist.reduction import AddUp
from hetsim.vector import Vector
from hetsim.workloads.device import Device


class BucketSums:
    """Begun in the same order on all ranks, in the thread that computes, or in the one that its backward pass runs in."""

    def __init__(self, second: Executor, bucket: AddUp, device: Device, clock: Callable[[], float]) -> None:
        self._second = second
        self._bucket = bucket
        self._device = device
        self._clock = clock
        self._begun: list[tuple[float, Future[float]]] = []

    def begin(self, k: int, numbers: Vector) -> None:
        """The numbers of bucket `k` are there: let the sum over all ranks take their place."""
        assert k == len(self._begun)
        self._begun.append((self._clock(), self._second.submit(self._reduce, self._bucket(numbers))))

    def wait(self) -> list[tuple[float, float]]:
        """When each bucket was there, and when it was added up, once all are; PeerLost if a rank is lost."""
        return [(since, over.result()) for since, over in self._begun]

    def _reduce(self, reduce: Callable[[], None]) -> float:
        reduce()
        self._device.synchronise()
        return self._clock()
