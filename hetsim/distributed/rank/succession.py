"""The succession in a run without a server: each rank copies the leader's record, and the senior remaining rank continues it.

All ranks make the same versions, so a copy needs no messages. A rank that does not lead records a version `LAG` commits later. By then
every rank has it, and no restart rolls it back. Values that only the leader has, such as times and losses, differ between records.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from hetsim.coordination.state import State
from hetsim.distributed.membership.losses import Ledger
from hetsim.distributed.rank.run import RankRun
from hetsim.effects import Contribution
from hetsim.runtime.recording.metrics import RankActivity
from hetsim.runtime.recording.progress import progress_bars
from hetsim.runtime.recording.recorder import Recorder
from hetsim.runtime.recording.run_record import activity_of
from hetsim.runtime.recording.trace import Trace, TracePart, append_received

TOLD, COPIED = "told", "copied"
NONE = -1.0
LAG = 2
"""The maximum distance of two ranks in versions. Between two commits an all-reduce ends, which may begin before the first commit."""


class Told(NamedTuple):
    """A commit, as recorded."""

    seconds: float
    state: State
    applied: Sequence[Contribution]


class Rows(Recorder):
    """The rows of versions, in a separate part until this rank leads."""

    def __init__(self, detail: str) -> None:
        self.part = TracePart(detail)
        self.trace: Trace = self.part
        self.bars: list[Recorder] = []

    def begin(self, start: State) -> None:
        self.trace.begin(start)

    def commit(self, seconds: float, rank: int, state: State, applied: Sequence[Contribution]) -> None:
        for recorder in (self.trace, *self.bars):
            recorder.commit(seconds, rank, state, applied)

    def close(self, last: State) -> None:
        """Close the progress bars. The traces are closed with the files of the run."""
        for bar in self.bars:
            bar.close(last)


class Succession:
    """One rank's part: its copy of the record until it leads.

    `take_over(self)` is called when it begins to lead, and gives it the run's files. `absent` are the ranks that were absent at the run's
    begin or resume, and the begins of their absences. `ledger` contains later losses.
    """

    def __init__(
        self, run: RankRun, rows: Rows, *, absent: dict[int, float], ledger: Ledger, take_over: Callable[[Succession], None]
    ) -> None:
        experiment = run.experiment
        self.run = run
        self.record = run.record
        self.absent = absent
        self.ledger = ledger
        self.rows = rows
        self.saved: int | None = None
        """The version of the run's newest checkpoint, as far as a rank that does not lead knows."""
        self._recent: deque[Told] = deque(maxlen=LAG + 1)
        """The last commits. A rank that does not lead has not recorded all of them."""
        self._take_over = take_over
        self._handed_in: int | None = None
        self._handed_to = run.parts.leader
        self.goes_on = True
        """Whether the run continues after the recorded commits if this rank leads."""
        self._activity_before = activity_of(run.prepared.checkpoint, experiment.num_workers, experiment.coordination.num_ahead)
        """Each worker's activity before the run was resumed."""

    @property
    def known(self) -> tuple[float, float, float]:
        """The record's last versions, without and with the last commit, and the newest checkpoint's version or -1."""
        recorded = self.record.history.last.version
        saved = self.run.saving.saver.newest if self.record.leads else self.saved
        newest = max([recorded, *(told.state.version for told in self._recent)])
        return float(recorded), float(newest), NONE if saved is None else float(saved)

    def commits(self, told: Told) -> None:
        """This rank commits a version."""
        if not self.record.leads:
            self._settle(told.state.version - LAG, self.run.parts.leader)
        self._recent.append(told)

    def _settle(self, version: float, leader: int) -> None:
        """Record the commits up to this version, which all ranks have."""
        for seconds, state, applied in self._recent:
            if self.record.history.last.version < state.version <= version:
                self.goes_on = self.record.history.commit(seconds, leader, state, applied)

    def hands_in(self, version: int) -> None:
        """This rank sends its state at this version, after the leader's decision."""
        self.decided(version)
        self._handed_in, self._handed_to = version, self.run.parts.leader

    def decided(self, version: int) -> None:
        """The leader has decided on this version. Data that were sent before are saved."""
        if self._handed_in is not None and self._handed_in < version:
            self.has_saved(self._handed_in)

    def has_saved(self, version: int) -> None:
        """The run has a checkpoint at this version that was unknown to this rank. It contains the data that were sent until then."""
        self._settle(version, self.run.parts.leader)
        self.rows.part.drain()
        self.saved = version
        if self._handed_in is not None and self._handed_in <= version:
            self._handed_in = None

    def go_on_from(self, version: int, saved: float) -> None:
        """All ranks continue from this version. The leader's newest known complete checkpoint is at version `saved`, or -1."""
        while self._recent and self._recent[-1].state.version > version:
            self._recent.pop()
        if not self.record.leads and saved not in (NONE, self.saved):
            self.has_saved(int(saved))
        self._take_back()

    def _take_back(self) -> None:
        """Append the unsaved rows again that this rank sent to a lost leader."""
        run, trace = self.run, self.run.trace
        if self._handed_in is not None and run.parts.leader != self._handed_to and isinstance(trace, TracePart):
            append_received(trace, iter(run.saving.given), rank=run.rank)
        self._handed_in = None

    def record_for(self, known: Sequence[float]) -> tuple[str, Any]:
        """On the leader: the data for a rank whose record ends with these versions."""
        run, lacking = self.run, [told for told in self._recent if told.state.version > known[1]]
        if lacking and lacking[0].state.version == known[1] + 1:
            return TOLD, [told._replace(applied=tuple(told.applied)) for told in lacking]
        return COPIED, {
            **self.record.progress(), "num_gradients": self.record.num_gradients(), "ledger": self.ledger.saved(), "absent": self.absent,
            "activity": [its.as_numbers() for its in self._activity_before], "begun": run.begun - self.ledger.shift,
        }  # fmt: skip

    def catch_up(self, state: State, record: tuple[str, Any]) -> None:
        """Update to the leader's record at this state, from the data that it has sent."""
        kind, what = record
        if kind == TOLD:
            for told in what:
                self.commits(told)
            return
        self.record.restore(what, what["num_gradients"])
        self.record.history.last = state
        self.rows.part.drain()
        self.rows.begin(state)
        self._recent.clear()
        self.run.begun = what["begun"] + self.ledger.shift
        self.absent.clear()
        self.absent.update(what["absent"])
        self.ledger.restore(what["ledger"])
        self._know_before(what["activity"])

    def _know_before(self, activity: Sequence[Mapping[str, Any]]) -> None:
        """Set each worker's activity before the resume, which a joining rank does not know."""
        run = self.run
        if run.joined:
            run.joined = False
            self._activity_before = [RankActivity.of_numbers(numbers, run.experiment.coordination.num_ahead) for numbers in activity]
            for mine, before in zip(run.metrics.activity, self._activity_before, strict=True):
                mine.add(before)
            run.saving.joined = False

    def lead(self) -> None:
        """This rank leads from now on."""
        self.run.parts.leader = self.run.rank
        self._take_over(self)
        self._take_back()
        self.record.leads = True

    def writes(self, trace: Trace) -> None:
        """Write later rows to this trace of the run, after the unwritten ones."""
        self._settle(math.inf, self.run.rank)
        self.rows.part.close()
        trace.begin(self.record.history.last)
        self.rows.trace = trace
        self.rows.bars = progress_bars(self.run.experiment, self.run.prepared.plan.num_positions)
