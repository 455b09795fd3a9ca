"""Property tests try the same examples every time, and no test is timed."""

from hypothesis import settings

settings.register_profile("hetsim", derandomize=True, database=None, deadline=None)
settings.load_profile("hetsim")
