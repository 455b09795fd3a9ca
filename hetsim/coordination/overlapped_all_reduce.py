"""Synchronous data-parallel SGD as in PyTorch's DDP: gradients are reduced in buckets during the backward pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hetsim import checks
from hetsim.coordination.all_reduce import SynchronousAllReduce, contributions
from hetsim.coordination.bookkeeping.contributions import SynchronousContributions
from hetsim.coordination.plan import Plan, Split
from hetsim.coordination.state import State
from hetsim.effects import Computed, GradientSum, Node, Program
from hetsim.vector import Vector

NOT_COMPUTED = Computed(None, 0.0, 0, 0.0)


@dataclass(frozen=True, kw_only=True)
class OverlappedAllReduce(SynchronousAllReduce):
    """SSGD whose reduction overlaps with the backward pass: Li et al. 2020, arXiv 2006.15704. The weights are those of SSGD.

    The parameters, from the last to the first, form buckets of `bucket_bytes` (the first of at most 1 MiB). These are reduced one after
    another, each as soon as all ranks have it. A rank's weight does not depend on the time of its gradient, which is not known yet.
    """

    same_on_every_rank: ClassVar[bool] = True
    begins_at_commits: ClassVar[bool] = True

    bucket_bytes: int

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.whole("coordination.bucket_bytes", self.bucket_bytes)

    @property
    def overlapped_bytes(self) -> int:
        return self.bucket_bytes

    def gradient_and_sum(
        self, node: Node, plan: Plan, state: State, batches: Split
    ) -> Program[tuple[Computed, SynchronousContributions, Vector]]:
        def factor() -> float:
            return self.factor(contributions(batches, state.version, NOT_COMPUTED), plan, node.rank)

        at, batch, version = state.weights, batches[node.rank], state.version
        computed = yield from GradientSum(at=at, batch=batch, version=version, factor=factor, bucket_bytes=self.bucket_bytes)
        return computed, contributions(batches, version, computed), computed.gradient
