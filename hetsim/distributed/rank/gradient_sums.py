"""Sums of gradients in real time. A second thread sums each bucket while the rest of a gradient is computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Any, Protocol

from hetsim import effects as fx
from hetsim.cluster.compute_times import share_ready
from hetsim.cluster.network.collectives import Collectives
from hetsim.distributed.communication.reduction import AddUp, Reduction
from hetsim.distributed.communication.transport import Transport
from hetsim.distributed.pacing.padding import Pace
from hetsim.runtime.buckets import reduction_intervals
from hetsim.runtime.nonfinite import NonfiniteGradients, is_finite
from hetsim.runtime.preparation import Preparation
from hetsim.runtime.recording.recorder import ALL_REDUCE, GRADIENT
from hetsim.vector import Phantom, Vector, piece, scaled, zeros_like
from hetsim.workloads.device import Device
from hetsim.workloads.task import Bucket, Task, terms_in_passes


class Rank(Protocol):
    """The parts of a rank's world that are needed here."""

    rank: int
    began: float
    prepared: Preparation
    task: Task
    pace: Pace
    second: Executor
    reduction: Reduction
    collectives: Collectives
    nonfinite: NonfiniteGradients
    record: dict[int, Any]

    @property
    def gradient_seconds(self) -> Callable[[int, float], float]:
        """The described seconds of a gradient over `samples` samples that starts at a second of the run."""


def summed(
    world: Rank, effect: fx.GradientSum, number: Sequence[int], *, at: float, transport: Transport, committed: int
) -> tuple[fx.Computed, float]:
    """The answer to this rank's GradientSum at time `at`, after version `committed`, and the time of the answer.

    `number` identifies the collective.
    """
    batch, version, began = effect.batch, effect.version, world.began
    node = world.prepared.experiment.cluster.nodes[world.rank]
    described = world.gradient_seconds(batch.samples, at - began) if batch else 0.0
    buckets = world.prepared.buckets(effect.bucket_bytes)
    sums = BucketSums(world.second, world.reduction.bucket, world.task.device, world.pace.clock)
    if batch:
        most = node.micro_batch
        total, loss = terms_in_passes(world.task, effect.at, batch, most, effect.factor(), buckets, sums.begin)
    else:
        total, loss = zeros_like(effect.at), 0.0
        for k, bucket in enumerate(buckets):
            sums.begin(k, piece(total, bucket.start, bucket.stop))
    world.task.device.synchronise()
    end = at
    if batch:
        end = world.pace.due("gradient", at, described)
        world.record[GRADIENT]((at - began, end - began, world.rank, GRADIENT, version, batch.samples, 0, 0))
    intervals = sums.wait()
    total = finite(world, effect, total)
    sizes = [(bucket.stop - bucket.start) * total.itemsize for bucket in buckets]
    over = world.pace.clock()
    if world.pace.pad:
        ready = [at + share_ready(node, batch.samples, bucket.ready) * (end - at) for bucket in buckets]
        ranks = transport.gather_numbers(*ready)

        def taking(size: int, bucket: Bucket) -> Callable[[float], float]:
            return lambda begin: world.collectives.all_reduce_seconds(size, (*number, bucket.start), begin - began)

        planned = list(reduction_intervals(map(max, zip(*ranks, strict=True)), map(taking, sizes, buckets)))
        begin, end_of_last = planned[-1]
        over = world.pace.due("all_reduce", begin, end_of_last - begin)
        intervals = [(since, until) for since, (_, until) in zip(ready, planned, strict=True)]
    for (since, until), size in zip(intervals, sizes, strict=True):
        world.record[ALL_REDUCE]((since - began, until - began, world.rank, ALL_REDUCE, committed, 0, 0, size))
    return fx.Computed(total, loss, batch.samples, end - at), over


def finite(world: Rank, effect: fx.GradientSum, total: Vector) -> Vector:
    """The sum of all ranks' terms. If it is not finite, all ranks compute and sum again, without terms that are not finite."""
    if isinstance(total, Phantom) or is_finite(total):
        return total
    term = zeros_like(total)
    if effect.batch:
        gradient, _ = world.prepared.gradient(world.rank, effect.at, effect.batch)
        gradient = world.nonfinite.check(gradient, rank=world.rank, version=effect.version, batch=effect.batch)
        term = scaled(gradient, effect.factor)
    return world.reduction.main(term)


class BucketSums:
    """Sums of buckets, begun in the same order on all ranks, in the computing thread or in the thread of its backward pass."""

    def __init__(self, second: Executor, bucket: AddUp, device: Device, clock: Callable[[], float]) -> None:
        self._second = second
        self._bucket = bucket
        self._device = device
        self._clock = clock
        self._begun: list[tuple[float, Future[float]]] = []

    def begin(self, k: int, numbers: Vector) -> None:
        """Bucket `k` is complete: begin to replace its entries by the sum over all ranks."""
        assert k == len(self._begun)
        self._begun.append((self._clock(), self._second.submit(self._reduce, self._bucket(numbers))))

    def wait(self) -> list[tuple[float, float]]:
        """Wait for all buckets. Returns when each was complete, and when its sum was. Raises PeerLost if a rank is lost."""
        return [(since, over.result()) for since, over in self._begun]

    def _reduce(self, reduce: Callable[[], None]) -> float:
        reduce()
        self._device.synchronise()
        return self._clock()
