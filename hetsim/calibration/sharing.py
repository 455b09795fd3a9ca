"""How unequally simultaneous messages share a link: the workers to measure, and the noise of messages' weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import log, sqrt
from statistics import fmean, median
from typing import Any

from hetsim.calibration.fit import four_digits
from hetsim.calibration.readings import RankReadings
from hetsim.cluster.model import Cluster
from hetsim.cluster.network.connections import described_rates

PUSH, PULL = "push at once", "pull at once"
CONTENDED = 0.9
"""Two messages contend for a link if each gets less than this fraction of its rate alone."""
MOST_CONSIDERED = 8
"""The largest number of workers that are considered."""
LEAST_GIVEN = 0.05
"""The minimum fraction of a message's bytes that must arrive before the other message ends. Less would be a lost packet."""
DEVIATION_OVER_MEDIAN = 1.4826
"""For a normal distribution: the standard deviation divided by the median distance from its median."""
LEAST_NOISE = 0.02
"""The smallest noise of a weight's logarithm that counts."""


def contending_group(cluster: Cluster) -> tuple[int, ...]:
    """The smallest group of workers in which exactly two contend for the same described link; empty if there is no such group."""
    ranks = range(min(cluster.num_workers, MOST_CONSIDERED)) if cluster.describes_links else range(0)
    for size in range(2, len(ranks) + 1):
        for group in combinations(ranks, size):
            if any(contending_pair(cluster, group, kind) for kind in (PUSH, PULL)):
                return group
    return ()


def contending_pair(cluster: Cluster, group: Sequence[int], kind: str) -> tuple[int, int] | None:
    """The two messages of a group with equal rates that are below their rates alone. Other messages are limited by other links."""
    together = described_rates(cluster, ways(cluster, group, kind))
    slower = [
        rank
        for rank, rate in zip(group, together, strict=True)
        if rate < CONTENDED * described_rates(cluster, ways(cluster, [rank], kind))[0]
    ]
    if len(slower) != 2:
        return None
    first_rate, second_rate = (together[group.index(rank)] for rank in slower)
    return (slower[0], slower[1]) if abs(first_rate / second_rate - 1) < 1e-6 else None


def ways(cluster: Cluster, group: Sequence[int], kind: str) -> list[tuple[int, int]]:
    """The sender and receiver of each message."""
    return [(rank, cluster.num_workers) if kind == PUSH else (cluster.num_workers, rank) for rank in group]


def sharing_noise(cluster: Cluster, around: RankReadings) -> dict[str, Any]:
    """The key `sharing_noise` of the network, from the times between the ends of two messages. Empty if they share equally.

    Two messages with weights w₁ > w₂ begin at once. When the heavier one ends, w₂/w₁ of the lighter one's bytes have arrived. The standard
    deviation of log(w₁/w₂) is √2 times a logarithm's of one weight. A constant preference for one message is not noise, and is left out.
    """
    group = contending_group(cluster)
    nbytes = max((reading.size for rank in group for reading in around.of(rank, "message")), default=0)
    variances = []
    for kind in (PUSH, PULL):
        pair = contending_pair(cluster, group, kind) if group else None
        by_rank = [[reading.seconds for reading in around.of(cluster.num_workers, kind) if reading.size == rank] for rank in group]
        if pair is not None and all(by_rank):
            ratios = [
                log_ratio(cluster, pair, kind, dict(zip(group, seconds, strict=True)), nbytes) for seconds in zip(*by_rank, strict=True)
            ]
            middle = median(ratios)
            variances.append((DEVIATION_OVER_MEDIAN * median(abs(ratio - middle) for ratio in ratios)) ** 2 / 2)
    deviation = sqrt(fmean(variances)) if variances else 0.0
    return {"sharing_noise": {"distribution": "lognorm", "s": four_digits(deviation)}} if deviation >= LEAST_NOISE else {}


def log_ratio(cluster: Cluster, pair: tuple[int, int], kind: str, ends: Mapping[int, float], nbytes: int) -> float:
    """The logarithm of the ratio of two messages' weights (first over second), from the messages' sizes and seconds."""
    heavier, lighter = sorted(pair, key=lambda rank: ends[rank])
    remaining = [lighter, *(rank for rank in ends if rank not in pair and ends[rank] > ends[heavier])]
    rate = described_rates(cluster, ways(cluster, remaining, kind))[0]
    fraction = max(LEAST_GIVEN, 1 - (ends[lighter] - ends[heavier]) * rate / nbytes)
    return -log(fraction) if heavier == pair[0] else log(fraction)
