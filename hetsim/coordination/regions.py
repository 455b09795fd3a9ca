"""Regions: groups of workers with a local server each, and which rank is whose server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Regions:
    """The region of each worker. With N workers the global server is rank N, and the local server of region r rank N + 1 + r."""

    of: tuple[int, ...]
    """By worker: 0, 1, …, each of which some worker is in."""

    @classmethod
    def consecutive(cls, num_workers: int, num_regions: int) -> Regions:
        """So many regions of consecutive workers, whose sizes differ by at most one."""
        return cls(tuple(rank * num_regions // num_workers for rank in range(num_workers)))

    @property
    def num_regions(self) -> int:
        """How many there are."""
        return max(self.of) + 1

    @property
    def servers(self) -> Sequence[int]:
        """The ranks of the local servers."""
        return range(len(self.of) + 1, len(self.of) + 1 + self.num_regions)

    def server_of(self, worker: int) -> int:
        """The rank of a worker's local server."""
        return len(self.of) + 1 + self.of[worker]

    def members(self, server: int) -> list[int]:
        """The workers of a local server."""
        return [worker for worker in range(len(self.of)) if self.server_of(worker) == server]

    def peers(self, rank: int) -> Sequence[int]:
        """The ranks that a rank exchanges messages with."""
        if rank < len(self.of):
            return [self.server_of(rank)]
        return self.servers if rank == len(self.of) else [len(self.of), *self.members(rank)]
