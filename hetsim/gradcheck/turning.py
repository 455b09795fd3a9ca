"""What a Team needs to know of `hetsim-ddp-check`: whether it runs, and shares that are uneven, and others after each step."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hetsim.policies.allocation.base import Allocation, proportional

VARIABLE = "HETSIM_GRADIENT_CHECK"
"""The folder of the check that has started this process."""
REFUSED = "refused.txt"
"""The file with the sentence why a script cannot be checked."""

_teams = itertools.count()


def is_checked() -> bool:
    """Whether `hetsim-ddp-check` has started this process."""
    return VARIABLE in os.environ


def refused(sentence: str) -> ValueError:
    """The error with this sentence. The command prints the sentence."""
    (Path(os.environ[VARIABLE]) / REFUSED).write_text(sentence, encoding="utf-8")
    return ValueError(sentence)


def batch_of_all(batch_size: int, num_ranks: int) -> int:
    """The batch size of this process' next Team in several processes, also in one: scripts may multiply it by the number of processes."""
    path = Path(os.environ[VARIABLE]).parent / f"batch-{next(_teams)}"
    if num_ranks > 1:
        path.write_text(str(batch_size), encoding="utf-8")
    return int(path.read_text(encoding="utf-8")) if path.is_file() else batch_size


@dataclass(frozen=True)
class Turning(Allocation):
    """Uneven parts (N … 1), which rotate among the ranks after each step, so that the shares change as often as measured ones may."""

    keeps_gradients = False

    def initial(self, num_workers: int, batch_size: int, max_samples: Sequence[int] | None = None) -> Any:
        """The parts, the batch and the bounds."""
        return tuple(range(num_workers, 0, -1)), batch_size, max_samples

    def shares(self, state: Any) -> tuple[int, ...]:
        """Shares in proportion to the parts."""
        parts, batch_size, max_samples = state
        return proportional(parts, batch_size, max_samples=max_samples)

    def observe(self, state: Any, timings: Sequence[Any], epoch: int = 0) -> Any:
        """The parts, rotated by one rank."""
        (first, *others), batch_size, max_samples = state
        return (*others, first), batch_size, max_samples
