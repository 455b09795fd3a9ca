"""What can go wrong in a run, by whose fault it is."""

from __future__ import annotations


class RunFailed(Exception):
    """A run that could not go on, with one sentence that says why."""
