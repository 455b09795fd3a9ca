"""Property tests try the same examples every time, no test is timed, and torch takes one thread: the worlds are small."""

import os

from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
settings.register_profile("hetsim", derandomize=True, database=None, deadline=None)
settings.load_profile("hetsim")
