"""The checkpoints that the simulated training writes of its weights, and the ranks that have the newest weights in memory.

A training without a server has lost its weights when the last of these ranks crashes. It restarts from the newest checkpoint, or from its
first version. A server never crashes, so that training has a holder at any time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from hetsim.cluster.faults import WeightCheckpoints
from hetsim.coordination.state import State
from hetsim.errors import RunFailed

MAX_RESTARTS = 200
"""The number of restarts without a higher version after which the run fails."""
HOW_TO_SAVE = "+cluster.faults.checkpoint.every=30min"
"""The words that save the weights, for a sentence."""


class SavedVersion(NamedTuple):
    """A commit, with the optimizer's memory and the recorders' progress at that commit."""

    state: State
    optimizer: Any
    progress: dict[str, Any]


@dataclass
class WeightStorage:
    """The newest checkpoint, and the times of the next ones. `since` is the end of the last one, or of the last restart."""

    settings: WeightCheckpoints | None
    newest: SavedVersion
    since: float
    num_restarts: int = 0
    """The number of restarts from a checkpoint, or from the first version."""

    def __post_init__(self) -> None:
        self.holders: set[int] = set()
        """The ranks with the newest weights. Empty before the first rank of a run has joined."""
        self.lost = False
        """Whether the last holder has crashed."""
        self._decided = self.newest.state.version
        self._due: set[int] = set()
        self._highest, self._num_vain = self._decided, 0

    def pause(self, version: int, now: float) -> float | None:
        """The seconds for which a rank that commits this version waits; None if it is not saved. The first rank decides for all."""
        if self.settings is None:
            return None
        if self._begins_at(version, now):
            self.since = now + self.settings.seconds
            self._due.add(version)
        self._decided = max(self._decided, version)
        return self.settings.seconds if version in self._due else None

    def seconds_if_due(self, version: int, now: float) -> float | None:
        """The result of `pause` for the next rank, without deciding."""
        if self.settings is None:
            return None
        return self.settings.seconds if version in self._due or self._begins_at(version, now) else None

    def _begins_at(self, version: int, now: float) -> bool:
        """Whether a checkpoint begins with a commit of this version now, because no rank has decided about this version yet."""
        return self.settings is not None and version > self._decided and now - self.since >= self.settings.every

    def hold(self, ranks: Iterable[int], now: float) -> None:
        """These ranks have the newest weights from now on, and no others."""
        self.holders = set(ranks)
        if self.lost:
            self.lost, self.since = False, now
            self.num_restarts += 1

    def lose(self, rank: int) -> None:
        """This rank has crashed."""
        if rank in self.holders:
            self.holders.remove(rank)
            self.lost = not self.holders

    @property
    def restart_seconds(self) -> float:
        """The seconds of the next regroup in which the weights are read."""
        return self.settings.restart_seconds if self.settings is not None and self.lost else 0.0

    def restore(self, last: State, now: float) -> SavedVersion:
        """The version from which all ranks restart after this last commit. Raises RunFailed if restarts do not help."""
        self._decided, self._due = self.newest.state.version, set()
        if last.version > self._highest:
            self._highest, self._num_vain = last.version, 0
        self._num_vain += 1
        if self._num_vain > MAX_RESTARTS:
            raise RunFailed(
                f"the weights were lost {self._num_vain - 1} times after version {self._highest} had been reached, and it was not reached "
                f"again until {now:g} s: save them more often, as with {HOW_TO_SAVE}, or crash fewer nodes"
            )
        return self.newest
