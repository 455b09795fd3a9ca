"""Python's collector of reference cycles, while a run is simulated."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

THRESHOLD = 50_000
"""Objects allocated before Python looks for reference cycles: a run on ten thousand nodes allocates ten times as many."""


@contextlib.contextmanager
def of_this_run() -> Iterator[None]:
    """While this lasts Python looks for cycles seldom, and only among what is made meanwhile; at the end it looks there once more.

    A world is a cycle, and holds the task with its data. Python's own full collections are rare: with these alone, a sweep over MNIST in
    one process kept the images of more than a hundred runs. Older objects are not looked at, which would take a tenth of a second.
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
