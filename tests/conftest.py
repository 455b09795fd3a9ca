"""Property tests try the same examples every time, and others every time with --hypothesis-profile=long; no test is timed.

Torch takes one thread: the worlds are small. The processes of all runs of a test process are forked from one, which imports what any of
them needs.
"""

import gc
import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from hetsim.dist import launch

WORKLOADS = ("hetsim.workloads.classification", "hetsim.workloads.quadratic_task", "hetsim.workloads.own.task")
launch.PRELOAD += ["pytest", "hydra", "sklearn.datasets", "torch._dynamo", "hetsim.sim", *WORKLOADS]
os.environ.setdefault("OMP_NUM_THREADS", "1")
gc.set_threshold(50_000)  # all of torch and thousands of tests are there to be looked at, and a config alone allocates as many objects
settings.register_profile("hetsim", derandomize=True, database=None, deadline=None)
settings.register_profile("long", max_examples=2000, derandomize=False, database=None, deadline=None, print_blob=True)
settings.load_profile("hetsim")


@pytest.fixture(autouse=True)
def _same_level_of_logging() -> Iterator[None]:
    """hydra.verbose=true sets it for the whole process, and Hydra composes configs only to log them then."""
    root = logging.getLogger()
    before = root.level
    yield
    root.setLevel(before)
