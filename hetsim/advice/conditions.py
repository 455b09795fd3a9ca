"""The seconds of a training on a cluster that changes at known seconds, from the rate in each of the cluster's conditions.

A condition that lasts is simulated for as long as a cluster that does not change. Steps that begin in one condition and end in another
count as parts of both. A lost node costs a collective its detection and the regroup. If all nodes are lost without a server, the training
continues from its newest checkpoint, or from its beginning.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from hetsim.cluster.model import Cluster
from hetsim.cluster.schedule import Condition, Schedule

MOST = 32
"""The maximum number of conditions to simulate."""
GRID = math.log(1.1)
"""If there are more, factors count as equal in steps of 10 %."""
LOOKED_AT = 5_000
"""The number of changes that are looked at for conditions."""
MOST_CHANGES = 20_000
"""The maximum number of changes of a training that are followed. Later, the mean rate until then holds."""

Key = tuple[object, ...]


class Course(NamedTuple):
    """The seconds of a training, and the condition in which it is for longest; or a second whose condition has no rate yet."""

    seconds: float = math.inf
    longest: Key | None = None
    missing: float | None = None


@dataclass(frozen=True, eq=False)
class Conditions:
    """The conditions of a cluster. `many` is true if they are too many to simulate each."""

    schedule: Schedule
    grid: bool
    many: bool

    @classmethod
    def of(cls, cluster: Cluster) -> Conditions:
        """Look at the cluster's changes."""
        schedule, now = Schedule(cluster), 0.0
        seen: set[Condition] = set()
        for _ in range(LOOKED_AT if schedule.changes else 0):
            condition, now = schedule.at(now)
            seen.add(condition)
            if now == math.inf:
                break
        grid = len(seen) > MOST
        return cls(schedule, grid, len({_key(condition, grid=grid) for condition in seen}) > MOST)

    def key(self, second: float) -> Key:
        """The condition at a second. Conditions with equal keys have one rate."""
        return _key(self.schedule.at(second)[0], grid=self.grid)

    def course(self, samples: float, per_sample: Mapping[Key, float], leave_out: Collection[int], *, collective: bool) -> Course:
        """The course of a training on `samples` samples without these nodes, with the seconds for a sample in each known condition."""
        out, num = frozenset(leave_out), self.schedule.cluster.num_workers
        spent: dict[Key, float] = {}
        now, remaining = 0.0, samples
        checkpoint = self.schedule.cluster.faults.checkpoint
        saved, since, restart = samples, 0.0, 0.0
        for _ in range(MOST_CHANGES):
            condition, until = self.schedule.at(now)
            all_absent = len(out | condition.absent) == num
            if all_absent or (collective and condition.stopped - out):
                if all_absent and collective and remaining < samples:
                    remaining, restart = saved, checkpoint.restart_seconds if checkpoint is not None else 0.0
                now = self.schedule.next_return(now)
                if now == math.inf:
                    return Course()
                continue
            key = _key(condition, grid=self.grid)
            if key not in per_sample:
                return Course(missing=now)
            begin = min(until, now + restart + (self.schedule.interruption(now, out) if collective else 0.0))
            if restart and begin < until:
                restart, since = 0.0, begin
            lasting = min(until - begin, remaining * per_sample[key])
            spent[key] = spent.get(key, 0.0) + lasting
            remaining -= lasting / per_sample[key]
            if checkpoint is not None and (last := since + (begin + lasting - since) // checkpoint.every * checkpoint.every) > since:
                saved, since = remaining + (begin + lasting - max(begin, last)) / per_sample[key], last
            if begin + lasting < until:
                return Course(begin + lasting, max(spent, key=spent.__getitem__))
            now = until
        return Course(now * samples / (samples - remaining), max(spent, key=spent.__getitem__)) if remaining < samples else Course()


def _key(condition: Condition, *, grid: bool) -> Key:
    factors = [round(math.log(factor) / GRID) for factor in condition.factors] if grid else condition.factors
    return (*factors, condition.absent)
