"""The buckets of a vector that is reduced during the backward pass, and the times of their reductions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import chain

from hetsim.vector import length
from hetsim.workloads.task import FORWARD, Bucket, Piece, Task

FIRST_BYTES = 2**20
"""The size of the first bucket if the others are larger, so that the first reduction begins early, as in PyTorch's DDP."""


def buckets_of(task: Task) -> Callable[[int], tuple[Bucket, ...]]:
    """A function of the bucket size in bytes: the buckets of this task's vectors, in the order of their reductions."""
    initial = task.initial()
    num, itemsize = length(initial), int(initial.itemsize)

    @cache
    def buckets(bucket_bytes: int) -> tuple[Bucket, ...]:
        limits = [max(1, nbytes // itemsize) for nbytes in (min(FIRST_BYTES, bucket_bytes), bucket_bytes)]
        return make_buckets(num, even_pieces(num, *limits) if (pieces := task.pieces()) is None else pieces, *limits)

    return buckets


def even_pieces(num: int, first: int, others: int) -> Iterable[Piece]:
    """Divide a vector of `num` entries into pieces that the backward pass completes at an even pace."""
    for stop in chain([num], range(num - first, 0, -others)):
        size = min(first if stop == num else others, stop)
        yield Piece(size, FORWARD + (1 - FORWARD) * (num - stop + size) / num)


def make_buckets(num: int, pieces: Iterable[Piece], first: int, others: int) -> tuple[Bucket, ...]:
    """Make buckets of whole pieces, from the end of a vector of `num` entries. A bucket ends once it has `first` or `others` entries."""
    buckets: list[Bucket] = []
    start = stop = num
    ready = 0.0
    for piece in pieces:
        start, ready = start - piece.size, max(ready, piece.ready)
        if stop - start >= (others if buckets else first) or start == 0:
            buckets.append(Bucket(start, stop, ready if start else 1.0))
            stop = start
    assert start == 0, f"the pieces of a vector of {num} numbers leave out {start}"
    return tuple(buckets)


def reduction_intervals(
    ready: Sequence[float],
    seconds: Sequence[Callable[[float], float]],
    last_ready: Callable[[Sequence[tuple[float, float]]], float] | None = None,
) -> list[tuple[float, float]]:
    """The begin and end of each reduction. It begins when its bucket is ready and the previous reduction has ended.

    `last_ready` is a function of the earlier intervals. It returns when the last bucket is ready, if they delay it.
    """
    end, intervals = float("-inf"), list[tuple[float, float]]()
    for place, (moment, duration) in enumerate(zip(ready, seconds, strict=True), start=1):
        if last_ready is not None and place == len(ready):
            moment = max(moment, last_ready(intervals))
        begin = max(moment, end)
        end = begin + duration(begin)
        intervals.append((begin, end))
    return intervals
