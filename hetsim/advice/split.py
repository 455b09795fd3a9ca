"""A candidate's split of each batch: the samples of each kind of node in a sentence, and the Python that sets them in a script."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hetsim.advice.candidates import Candidate
from hetsim.advice.decision import numbered
from hetsim.cluster.model import Cluster
from hetsim.policies.allocation.base import proportional

MOST_KINDS = 8
"""The maximum number of kinds of nodes to list. For more kinds, only the smallest and the largest share are given."""


@dataclass(frozen=True)
class Split:
    """An unequal split of each batch."""

    batch_sizes: tuple[int, ...]
    """The samples of each participating node, in rank order."""
    sentence: str
    """A sentence with the samples of each kind of node."""
    script: str | None
    """Python code that fixes the split in a DistributedDataParallel script; None if the method does not train as DDP does."""


def split_of(candidate: Candidate, batch_sizes: Sequence[int], cluster: Cluster, names: Mapping[str, Sequence[int]]) -> Split | None:
    """The split of a candidate; None if all nodes take equally many samples, give or take one.

    Args:
        candidate: what was simulated.
        batch_sizes: the samples of each node that took part, in rank order, at the end of the simulated run.
        cluster: all nodes.
        names: the ranks of each GPU that is named on the command line.
    """
    batch = sum(batch_sizes)
    if not batch_sizes or tuple(batch_sizes) == proportional([1.0] * len(batch_sizes), batch):
        return None
    kept = [rank for rank in range(cluster.num_workers) if rank not in candidate.leave_out]
    shares = dict(zip(kept, batch_sizes, strict=True))
    listed = list(_kinds(cluster, shares, names))
    if len(listed) > MOST_KINDS:
        few, many = min(kept, key=shares.__getitem__), max(kept, key=shares.__getitem__)
        listed = [f"{shares[few]} (node {few}) to {shares[many]} (node {many})"]
    script = None
    if candidate.synchronous and min(batch_sizes) > 0:
        script = (
            "from hetsim.ddp import Team; from hetsim.policies.allocation import Fixed; "
            f"team = Team(batch_size={batch}, allocation=Fixed(parts={_listed(batch_sizes)}))"
        )
    return Split(tuple(batch_sizes), f"Of each batch of {batch} samples: {', '.join(listed)}.", script)


def _kinds(cluster: Cluster, shares: Mapping[int, int], names: Mapping[str, Sequence[int]]) -> Iterator[str]:
    """The share of each kind of node. A kind is a named GPU, or nodes with equal descriptions."""
    left = dict.fromkeys(shares)
    for name, ranks in names.items():
        if some := [rank for rank in ranks if rank in left]:
            yield f"{_amount(shares, some)} for {'each' if len(some) > 1 else 'the'} {name}"
        left = {rank: None for rank in left if rank not in some}
    while left:
        its = replace(cluster.nodes[next(iter(left))], rack=None)
        some = [rank for rank in left if replace(cluster.nodes[rank], rack=None) == its]
        yield f"{_amount(shares, some)} for {'each of ' if len(some) > 1 else ''}{numbered('node', some)}"
        left = {rank: None for rank in left if rank not in some}


def _amount(shares: Mapping[int, int], ranks: Sequence[int]) -> str:
    low, high = (pick(shares[rank] for rank in ranks) for pick in (min, max))
    return str(low) if low == high else f"{low} {'or' if high == low + 1 else 'to'} {high}"


def _listed(numbers: Sequence[int]) -> str:
    """Numbers as Python code. Equal neighbours are combined if that is shorter."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][0] == number:
            runs[-1].append(number)
        else:
            runs.append([number])
    by_run = " + ".join(f"[{run[0]}] * {len(run)}" if len(run) > 1 else str(run) for run in runs)
    return min(str([*numbers]), by_run, key=len)
