"""The parts of a rank that last for the whole run, in every group of ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hetsim.distributed.pacing.padding import Pace
from hetsim.distributed.rank.checkpointing import Saving
from hetsim.runtime.nonfinite import NonfiniteGradients
from hetsim.runtime.preparation import Preparation
from hetsim.runtime.rank import RankState
from hetsim.runtime.recording.recorder import Recorder
from hetsim.runtime.recording.run_record import RunRecord


@dataclass(kw_only=True)
class RankParts:
    """One rank's preparation, state, records and checkpoints. `leader` is the current leader."""

    prepared: Preparation
    state: RankState
    leader: int
    pace: Pace
    record: RunRecord
    recorders: Sequence[Recorder]
    """The recorders of this rank's intervals."""
    saving: Saving
    nonfinite: NonfiniteGradients
    keep: Callable[[RankState], None] | None = None
    """Called with the rank's state at its commits."""
    micro_batch: int | None = None
    """The maximum number of samples that are computed at a time, for a gradient that can be given up."""
