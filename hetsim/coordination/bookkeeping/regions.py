"""Regions: groups of workers that have a local server each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Regions:
    """The region of each worker. With N workers the global server is rank N, and the local server of region r rank N + 1 + r."""

    of: tuple[int, ...]
    """The region of each worker: 0, 1, …; no region is empty."""

    @classmethod
    def consecutive(cls, num_workers: int, num_regions: int) -> Regions:
        """`num_regions` regions of consecutive workers. Their sizes differ by at most one."""
        return cls(tuple(rank * num_regions // num_workers for rank in range(num_workers)))

    @property
    def num_regions(self) -> int:
        """The number of regions."""
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
        """The ranks with which a rank exchanges messages."""
        if rank < len(self.of):
            return [self.server_of(rank)]
        return self.servers if rank == len(self.of) else [len(self.of), *self.members(rank)]
