"""Property tests try the same examples every time, and others every time with --hypothesis-profile=long; no test is timed.

Torch takes one thread: the worlds are small.
"""

import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
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
