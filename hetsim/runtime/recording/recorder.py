"""The interface of recorders, which observe a run: the trace, the metrics, the learning curve and the progress bar."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from hetsim.coordination.state import State
from hetsim.effects import Contribution

Row = tuple[float, float, int, int, int, int, int, int]
"""An interval: start, end (in seconds of the run's clock), rank, kind, version, samples, staleness, nbytes."""
RecordInterval = Callable[[Row], object]

KINDS = ("gradient", "update", "message", "all_reduce", "gather", "apply", "commit", "profile", "down", "regroup")
GRADIENT, UPDATE, MESSAGE, ALL_REDUCE, GATHER, APPLY, COMMIT, PROFILE, DOWN, REGROUP = range(len(KINDS))


class Recorder:
    """Observes the intervals and the commits of a run. Each method does nothing unless a recorder overrides it."""

    takes_back: bool = False
    """Whether it implements `take_back`. If not, an interval on a node that may crash is reported only at its end."""

    def begin(self, start: State) -> None:
        """The run begins in this state."""

    def on(self, kind: int) -> RecordInterval | None:
        """The function to call with each interval of this kind; None if the recorder does not observe this kind."""
        return None

    def take_back(self, rank: int, seconds: float) -> None:
        """Remove the reports of this rank after this time, because its node crashed."""

    def commit(self, seconds: float, rank: int, state: State, applied: Sequence[Contribution]) -> None:
        """The leader, this rank, has committed a version with these contributions."""

    def close(self, last: State) -> None:
        """The run has ended with this last commit."""


def interval_recorder(recorders: Collection[Recorder], kind: int) -> RecordInterval | None:
    """A function that reports an interval of this kind to the recorders that observe it.

    With one such recorder, it is the recorder's own function. Without any, it is None. So hot paths are as fast as possible.
    """
    observing = [record for recorder in recorders if (record := recorder.on(kind)) is not None]
    if len(observing) < 2:
        return observing[0] if observing else None

    first, *others = observing
    if len(others) == 1:
        second = others[0]

        def both(row: Row) -> None:
            first(row)
            second(row)

        return both

    def each(row: Row) -> None:
        for record in observing:
            record(row)

    return each


def ignore(row: Row) -> None:
    """Record nothing."""
