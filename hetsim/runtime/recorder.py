"""What watches a run: the trace, the metrics, the learning curve and the progress bar are recorders."""

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
    """Is told of the intervals and the commits of a run; each method does nothing unless a recorder defines it."""

    takes_back: bool = False
    """Whether it implements `take_back`; to others an interval on a node that may crash is reported when it is over."""

    def begin(self, start: State) -> None:
        """The run begins at this state."""

    def on(self, kind: int) -> RecordInterval | None:
        """The function to call with each interval of this kind; None: it does not want them."""
        return None

    def take_back(self, rank: int, seconds: float) -> None:
        """What this rank was doing after this moment did not happen: its node crashed then."""

    def commit(self, seconds: float, rank: int, state: State, applied: Sequence[Contribution]) -> None:
        """The leader, this rank, has committed a version, made of these contributions."""

    def close(self, last: State) -> None:
        """The run is over, and this was its last commit."""


def interval_recorder(recorders: Collection[Recorder], kind: int) -> RecordInterval | None:
    """One function that reports an interval of this kind to all that want it: with one of them, its own; with none, None."""
    wanted = [record for recorder in recorders if (record := recorder.on(kind)) is not None]
    if len(wanted) < 2:
        return wanted[0] if wanted else None

    first, *others = wanted
    if len(others) == 1:
        second = others[0]

        def both(row: Row) -> None:
            first(row)
            second(row)

        return both

    def each(row: Row) -> None:
        for record in wanted:
            record(row)

    return each


def ignore(row: Row) -> None:
    """Record nothing."""
