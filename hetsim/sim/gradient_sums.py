"""Sums of gradients in virtual time. Buckets are reduced while the rest of a gradient is computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from hetsim import effects as fx
from hetsim.cluster.compute_times import share_ready
from hetsim.sim.clock import SUSPENDED, Callback
from hetsim.sim.collective_ops import PendingCollectives
from hetsim.sim.rank_process import LOST, MEMBERSHIP_CHANGED, RankProcess
from hetsim.vector import Vector, scaled, zeros_like
from hetsim.workloads.task import Bucket

Mark = tuple[float, Callback]
"""A share of a gradient's seconds, and a function to call with None at this share."""
Compute = Callable[[RankProcess, fx.Gradient, Callback, Sequence[Mark]], Any]


class GradientSums:
    """Answers GradientSum. A rank enters the reduction of a bucket when the node's model completes the bucket.

    While it computes, a rank waits for no other rank. So a change of the membership reaches it at the end of its gradient.
    """

    def __init__(self, collectives: PendingCollectives, buckets: Callable[[int], tuple[Bucket, ...]], compute: Compute) -> None:
        self.collectives = collectives
        self.buckets = buckets
        self.compute = compute

    def gradient_sum(self, process: RankProcess, effect: fx.GradientSum, callback: Callback) -> Any:
        """Takes the time of the node's model, and then the time until the last bucket is reduced."""
        *early, last = self.buckets(effect.bucket_bytes)
        gradient = fx.Gradient(effect.at, effect.batch, effect.version)
        num_dissolved, itemsize = self.collectives.num_dissolved, int(effect.at.itemsize)
        number = process.state.enter_collective()

        def enter(bucket: Bucket, _: Any = None, *, term: Vector = None, on_sum: Callback = lambda _: None) -> None:
            if process.status != LOST and num_dissolved == self.collectives.num_dissolved:
                self.collectives.bucket(process, (*number, bucket.start), (bucket.stop - bucket.start) * itemsize, term, on_sum)

        def finish(computed: fx.Computed) -> None:
            waits = process.waits_for is gradient
            if waits:
                process.waits_for = effect
            if num_dissolved == self.collectives.num_dissolved:
                term = scaled(computed.gradient, effect.factor)
                enter(last, term=term, on_sum=lambda total: callback(replace(computed, gradient=total)))
            elif waits:
                process.fail(fx.PeerLost(MEMBERSHIP_CHANGED))

        if not effect.batch:
            for bucket in early:
                enter(bucket)
            finish(fx.Computed(zeros_like(effect.at), 0.0, 0, 0.0))
            return SUSPENDED
        if process.waits_for is effect:  # and not for one that it has started
            process.waits_for = gradient
        node, samples = self.collectives.cluster.nodes[process.rank], effect.batch.samples
        marks = [(share_ready(node, samples, bucket.ready), partial(enter, bucket)) for bucket in early]
        return self.compute(process, gradient, finish, marks)
