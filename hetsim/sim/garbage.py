"""Python's collector of reference cycles during a simulation."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

THRESHOLD = 50_000
"""The number of allocated objects after which Python collects cycles. A run on ten thousand nodes allocates ten times as many."""


@contextlib.contextmanager
def of_this_run() -> Iterator[None]:
    """Within this context, Python collects cycles rarely, and only among new objects. At its end, it collects once more.

    A world is a cycle, and refers to the task with its data. Python's full collections are rare: with these alone, a sweep over MNIST in
    one process kept the images of more than a hundred runs. Older objects are not collected, because that would take a tenth of a second.
    """
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(max(THRESHOLD, thresholds[0]), *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.collect()
        gc.unfreeze()
