"""The end of a run for a rank that waits for others."""

from __future__ import annotations


class RunOver(Exception):
    """The leader's program has ended while this rank waited for others: so has the run."""
