"""The kinds of intervals of a run, and the interface of recorders: the trace, the metrics, the curve and the progress bar observe it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from hetsim.coordination.state import State
from hetsim.effects import Contribution

Row = tuple[float, float, int, int, int, int, int, int]
"""An interval: start, end (in seconds of the run's clock), rank, kind, version, samples, staleness, nbytes."""
RecordInterval = Callable[[Row], object]


@dataclass(frozen=True)
class Drawing:
    """How a timeline draws an interval: in the upper part of its rank's lane, or as a thin bar below for communication."""

    legend: str
    colour: str
    is_communication: bool = False
    edge_width: float = 0.0


@dataclass(frozen=True)
class IntervalKind:
    """A kind of interval. Each field says how one reader of traces shows it; None: not at all."""

    name: str
    """Its name in a trace."""
    of_workers: str | None = None
    """The name of workers' intervals in a comparison."""
    of_servers: str | None = None
    """The name of servers' intervals in a comparison."""
    track: str | None = None
    """The track of Perfetto that contains it."""
    drawing: Drawing | None = None
    is_collective: bool = False
    """Whether all ranks end it together, so that a rank waits until the last one has entered."""


MESSAGES = Drawing("message", "#6a9f58", is_communication=True)
COLLECTIVE = Drawing("all-reduce", "#967bb6", is_communication=True)
INTERVAL_KINDS = (
    IntervalKind("gradient", of_workers="gradient", track="computing", drawing=Drawing("gradient", "#4878a8", edge_width=0.6)),
    IntervalKind("update", "update of a worker", "update of the server", track="updating", drawing=Drawing("update", "#e49444")),
    IntervalKind("message", "message of a worker", "message of the server", track="sending", drawing=MESSAGES),
    IntervalKind("all_reduce", of_workers="all-reduce", track="reducing", drawing=COLLECTIVE, is_collective=True),
    IntervalKind("gather", of_workers="gather", track="reducing", drawing=COLLECTIVE, is_collective=True),
    IntervalKind("apply"),
    IntervalKind("commit"),
    IntervalKind("profile"),
    IntervalKind("down", track="absent"),
    IntervalKind("regroup", of_workers="regroup", track="reducing"),
)
"""Every kind of interval that a world records. Rows of a run contain the place in this table, so new kinds are appended."""
KINDS = tuple(kind.name for kind in INTERVAL_KINDS)
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

        def record_twice(row: Row) -> None:
            first(row)
            second(row)

        return record_twice

    def record_all(row: Row) -> None:
        for record in observing:
            record(row)

    return record_all


def ignore(row: Row) -> None:
    """Record nothing."""
