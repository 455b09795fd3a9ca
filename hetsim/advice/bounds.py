"""A lower bound of a candidate's time for a sample. A set of nodes with a bound above the best time is not simulated.

Times are expected times, without slow spells. Symbols:

    t_i(b)      the seconds of node i for b samples
    B           the global batch, in samples
    R(n)        the seconds of the network's all-reduce of n bytes
    T           the least max_i t_i(b_i) over all splits of B; for methods with equal batches, over those alone

    all_reduce           B samples take at least max_i(t_i + update_i) + R(n)
    overlapped           at least f_0 T + Σ R(n_k), and T + R(n_K), for buckets 0 … K, of which the first is ready after f_0 of a gradient
    a delay of one step  at least T, and R(n) without a server
    local_steps          H B samples take at least H T + R(n), or H T if changes are compressed
    any other            a second has at most Σ_i max_b b / t_i(b) samples; on a server that answers each gradient, a worker's messages
                         come to each t_i(b), and the server's links carry all of them
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from hetsim.advice.candidates import LeaveOut
from hetsim.cluster.compute_times import interpolate
from hetsim.cluster.fewer import without
from hetsim.cluster.model import Cluster, NodeSpec
from hetsim.cluster.network.collectives import Collectives, shared_collectives
from hetsim.coordination.all_reduce import SynchronousAllReduce
from hetsim.coordination.delayed_all_reduce import DelayedAllReduce
from hetsim.coordination.delayed_server import DelayedParameterServer
from hetsim.coordination.local_steps import LocalSteps
from hetsim.coordination.overlapped_all_reduce import OverlappedAllReduce
from hetsim.coordination.parameter_server import ParameterServer
from hetsim.coordination.stopping_server import StoppingServer
from hetsim.coordination.table_server import TableServer
from hetsim.policies.allocation import Even
from hetsim.policies.compression import NoCompression
from hetsim.runtime.buckets import buckets_of
from hetsim.runtime.experiment import Experiment
from hetsim.vector import nbytes
from hetsim.workloads.task import Bucket, Task

ON_A_SERVER = (ParameterServer, TableServer, StoppingServer)
"""Coordinations in which a worker pushes each gradient and waits for the answer."""
DRAWN = 4096
"""The number of draws to estimate a mean noise factor. Three standard errors are subtracted from it."""


@dataclass(frozen=True)
class TimeBound:
    """A lower bound of a node's gradient times: overhead + b · per_sample seconds for b samples."""

    overhead: float
    per_sample: float

    def seconds(self, samples: float) -> float:
        """Return the bound for this many samples."""
        return self.overhead + samples * self.per_sample


def time_bound(node: NodeSpec, batch_size: int) -> TimeBound:
    """Return a node's lower bound for batches up to `batch_size`. A measured table counts with its best rate."""
    factor = _least_factor(node)
    node = node.on_its_share
    if not node.table:
        return TimeBound(node.overhead_seconds * factor, node.seconds_per_sample * factor)
    sizes = {1, batch_size, *(samples for samples, _ in node.table if 1 <= samples <= batch_size)}
    return TimeBound(0.0, factor * min(interpolate(node.table, samples) / samples for samples in sizes))


def _least_factor(node: NodeSpec) -> float:
    """A lower bound of the factor on a node's times: of the noise's mean, and of the slowdowns at any time."""
    factor = 1.0
    if node.noise is not None:
        draws = node.noise.sample(DRAWN, 0)
        mean = math.fsum(draws) / DRAWN
        factor = max(0.0, mean - 3 * math.sqrt(math.fsum((draw - mean) ** 2 for draw in draws)) / DRAWN)
    if node.slow_spells is not None:
        factor *= min(1.0, node.slow_spells.factor)
    return factor * min((slow_factor for _, slow_factor in node.slowdown), default=1.0)


def least_step(lines: Sequence[TimeBound], batch_size: int, least_share: int = 1) -> float:
    """Return the least max_i t_i(b_i) over real b_i with Σ b_i = B. It is at least max_i t_i(1) if every node gets a sample."""
    least = max(line.seconds(1) for line in lines) if least_share else 0.0
    if any(line.per_sample == 0 for line in lines):
        return least
    by_overhead = sorted(lines, key=lambda line: line.overhead)
    rate = held = 0.0
    step = math.inf
    for line in by_overhead:  # by the overhead, a node joins those that share the batch as soon as that ends the step earlier
        if line.overhead >= step:
            break
        rate += 1 / line.per_sample
        held += line.overhead / line.per_sample
        step = (batch_size + held) / rate
    return max(least, step)


def most_rate(lines: Sequence[TimeBound], batch_size: int) -> float:
    """The maximum samples per second, Σ b_i / t_i(b_i), over real splits with Σ b_i = B. There, all derivatives are equal."""
    if any(line.per_sample == 0 for line in lines):
        return math.inf
    free = [line for line in lines if line.overhead == 0]  # their rate does not depend on their share
    others = [line for line in lines if line.overhead > 0]
    rate = math.fsum(1 / line.per_sample for line in free)
    if not others:
        return rate

    def shares(derivative: float) -> list[float]:
        return [max(0.0, math.sqrt(line.overhead / derivative) - line.overhead) / line.per_sample for line in others]

    low, high = 0.0, max(1 / line.overhead for line in others)
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if math.fsum(shares(middle)) > batch_size else (low, middle)
    split = shares(low) if low else [float(batch_size)] * len(others)
    return rate + math.fsum(share / line.seconds(share) for share, line in zip(split, others, strict=True))


class Bounds:
    """Lower bounds of times on sets of nodes of one cluster, for vectors of one task."""

    def __init__(self, cluster: Cluster, task: Task, batch_size: int) -> None:
        self.cluster = cluster
        self.batch_size = batch_size
        self.nbytes = nbytes(task.initial())
        self.buckets = buckets_of(task)
        self.itemsize = self.nbytes // max(1, self.buckets(2**62)[0].stop)
        distinct = {id(node): node for node in cluster.nodes}
        lines = {key: time_bound(node, batch_size) for key, node in distinct.items()}
        self.lines = [lines[id(node)] for node in cluster.nodes]
        self._collectives: dict[LeaveOut, Collectives] = {}

    def least_seconds(self, experiment: Experiment, leave_out: LeaveOut) -> float:
        """The lower bound for one sample, with this method on these nodes. `experiment.cluster` is ignored."""
        kept = [rank for rank in range(self.cluster.num_workers) if rank not in leave_out]
        lines = [self.lines[rank] for rank in kept]
        kind, batch_size = type(experiment.coordination), self.batch_size
        if kind in (SynchronousAllReduce, OverlappedAllReduce):
            updates = [self.cluster.nodes[rank].seconds_per_update * _slowdown(self.cluster.nodes[rank]) for rank in kept]
            step = self._step(
                experiment, [TimeBound(line.overhead + more, line.per_sample) for line, more in zip(lines, updates, strict=True)]
            )
            if kind is SynchronousAllReduce:
                return (step + self._reduction(leave_out, self.nbytes)) / batch_size
            overlapped = experiment.coordination.overlapped_bytes
            assert overlapped is not None
            reductions = [self._reduction(leave_out, self._size(bucket)) for bucket in self.buckets(overlapped)]
            first = self.buckets(overlapped)[0].ready * self._step(experiment, lines) + min(updates)
            return max(first + math.fsum(reductions), step + reductions[-1]) / batch_size
        if kind is DelayedAllReduce:
            return max(self._step(experiment, lines), self._reduction(leave_out, self.nbytes)) / batch_size
        if type(experiment.coordination) is LocalSteps:
            period = experiment.coordination.period
            reduction = self._reduction(leave_out, self.nbytes) if type(experiment.coordination.compression) is NoCompression else 0.0
            return (period * self._step(experiment, lines) + reduction) / (period * batch_size)
        if kind is DelayedParameterServer:
            return self._step(experiment, lines) / batch_size
        return 1 / self._rate(experiment, kept, answered=kind in ON_A_SERVER)

    def _step(self, experiment: Experiment, lines: Sequence[TimeBound]) -> float:
        """The least time until all nodes have computed a batch, with equal batches or with the best split."""
        if type(experiment.coordination.allocation) is Even and self.cluster.max_samples is None:
            smaller, larger = divmod(self.batch_size, len(lines))
            return max(line.seconds(smaller + (place < larger)) for place, line in enumerate(lines))
        return least_step(lines, self.batch_size, 0 if experiment.coordination.allocation.leaves_out else 1)

    def _rate(self, experiment: Experiment, kept: Sequence[int], *, answered: bool) -> float:
        """The maximum samples per second of nodes that do not wait, except for the messages of each gradient."""
        pushed = type(experiment.coordination.compression) is NoCompression
        lines = []
        for rank in kept:
            line, waits = self.lines[rank], 0.0
            if answered:
                waits = self._pulls[rank] + (self._pushes[rank] if pushed else 0.0)
            lines.append(TimeBound(line.overhead + waits, line.per_sample))
        if type(experiment.coordination.allocation) is not Even or self.cluster.max_samples is not None:
            return most_rate(lines, self.batch_size)
        size = -(-self.batch_size // len(kept))
        rate = math.fsum(size / line.seconds(size) if line.seconds(size) else math.inf for line in lines)
        if answered:
            ways = [self.cluster.capacity(("up", "server")), self.cluster.capacity(("down", "server")) if pushed else math.inf]
            rate = min(rate, size * min(ways) / self.nbytes)
        return rate

    @cached_property
    def _pulls(self) -> list[float]:
        num = self.cluster.num_workers
        return [self.cluster.message_seconds(num, rank, self.nbytes) for rank in range(num)]

    @cached_property
    def _pushes(self) -> list[float]:
        num = self.cluster.num_workers
        return [self.cluster.message_seconds(rank, num, self.nbytes) for rank in range(num)]

    def _reduction(self, leave_out: LeaveOut, size: int) -> float:
        if leave_out not in self._collectives:
            self._collectives[leave_out] = shared_collectives(without(self.cluster, leave_out))
        return self._collectives[leave_out].all_reduce_seconds(size)

    def _size(self, bucket: Bucket) -> int:
        return (bucket.stop - bucket.start) * self.itemsize


def _slowdown(node: NodeSpec) -> float:
    """The least factor on a node's updates, which have no noise."""
    spells = min(1.0, node.slow_spells.factor) if node.slow_spells is not None else 1.0
    return spells * min((slow_factor for _, slow_factor in node.slowdown), default=1.0)
