"""The connections of a Team beside the user's process group, which does not know them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from hetsim.distributed.communication.gloo import LANES, RENDEZVOUS_TIMEOUT, GlooGroup

_num_teams: Counter[tuple[int, ...]] = Counter()
"""The number of Teams of each set of ranks in this process, which is the same on all of them."""


class Lanes:
    """The collectives of all ranks of a process group, and those of the `workers` alone."""

    def __init__(self, group: Any = None) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise ValueError("a Team needs a process group: call torch.distributed.init_process_group before it, in a single process too")
        ranks = tuple(dist.get_process_group_ranks(group or dist.group.WORLD))
        _num_teams[ranks] += 1
        self.name = f"hetsim/{'-'.join(map(str, ranks))}/{_num_teams[ranks]}"
        self._rank = ranks.index(dist.get_rank())
        self.store = dist.distributed_c10d._get_default_store()
        self.everyone = self._connect("everyone", range(len(ranks)), LANES)
        self.workers = self.everyone.control

    def set_workers(self, number: int) -> None:
        """Connect the first ranks, which are workers, among themselves."""
        if self._rank < number < self.everyone.size:
            self.workers = self._connect("workers", range(number), LANES[:1])

    def _connect(self, name: str, members: Sequence[int], lanes: Sequence[str]) -> GlooGroup:
        return GlooGroup.form(
            self.store, f"{self.name}/{name}", rank=self._rank, members=members, lanes=lanes, interruptible=False, within=RENDEZVOUS_TIMEOUT
        )

    def close(self) -> None:
        """End the connections, when nothing else uses them."""
        for group in (self.everyone, self.everyone.background, self.everyone.control, self.workers):
            vars(group).pop("_gloo", None)

    def check_agreed(self, what: str, number: int) -> None:
        """Raise ValueError, on every rank, if the ranks' numbers differ."""
        if len({other for (other,) in self.everyone.control.gather_numbers(float(number))}) > 1:
            raise ValueError(f"{what} must be the same on all ranks, and are not")
