"""Random delays of messages."""

from __future__ import annotations

from collections.abc import Generator
from itertools import pairwise, permutations
from math import sqrt
from statistics import fmean, stdev
from typing import Any

import pytest
from cluster_runs import WIRE, built, play, world
from worlds import node

from hetsim.cluster.compute_times import Jitter
from hetsim.cluster.model import Cluster
from hetsim.effects import Batch, Gradient, Node, Now, Receive, Send


@pytest.mark.parametrize("shared", [False, True])
def test_jitter_delays_each_message_and_lets_none_overtake(shared: bool):
    """Sent every 1/64 s with a jitter of 1/2 s in the mean: each arrives at its own moment or with the one before it, in order."""
    law = {"distribution": "expon", "scale": 0.5}
    sent: list[float] = []
    arrived: list[tuple[float, int]] = []

    def asks(its: Node, x: Any) -> Generator[Any, Any, Any]:
        if its.rank == 0:
            for number in range(300):
                yield from Gradient(at=x, batch=Batch(0, 1), version=0)
                sent.append((yield from Now()))
                yield from Send(its.server, x, number=number)
        if its.rank == its.server:
            for _ in range(300):
                message = yield from Receive()
                arrived.append(((yield from Now()), message.number))

    link = {"uplink_bytes_per_second": 2.0**20} if shared else {}
    network = {"latency_seconds": 0.25, "bytes_per_second": 2.0**20, "jitter_seconds": law}
    play(asks, world(node(1 / 64, **link), network=network))

    moments = [moment for moment, _ in arrived]
    assert [number for _, number in arrived] == list(range(300))
    assert moments == sorted(moments)
    assert all(moment > now + 0.25 + 2.0**-15 for moment, now in zip(moments, sent, strict=True))
    assert 0 < sum(a == b for a, b in pairwise(moments)) < 299  # some are held by the one before, some are not
    assert fmean(moment - now for moment, now in zip(moments, sent, strict=True)) > 0.25 + 0.5


def test_the_mean_of_jitter_adds_to_the_latency():
    """Messages 8 s apart, of which none is held by another: latency + jitter, by its law within 4.5 standard errors."""
    delays: dict[int, list[float]] = {0: [], 1: []}

    def asks(its: Node, x: Any) -> Generator[Any, Any, Any]:
        if its.rank < 2:
            for _ in range(1500):
                yield from Gradient(at=x, batch=Batch(0, 1), version=0)
                yield from Send(its.server, sent=(yield from Now()))
        if its.rank == its.server:
            for _ in range(3000):
                message = yield from Receive()
                delays[message.source].append((yield from Now()) - message.sent - 0.25)

    jitter = {"distribution": "gamma", "a": 4.0, "scale": 0.125}
    play(asks, world(node(8.0, count=2), network={**WIRE, "latency_seconds": 0.25, "jitter_seconds": jitter}))

    assert all(abs(fmean(its) - 0.5) < 4.5 * 0.25 / sqrt(1500) for its in delays.values())
    assert all(abs(stdev(its) - 0.25) < 0.03 for its in delays.values())
    assert not {round(delay, 9) for delay in delays[0]} & {round(delay, 9) for delay in delays[1]}


def test_every_way_has_a_jitter_of_its_own():
    """By sender and receiver, there and back, and by the seed; the server's ways are the same however many workers there are."""
    network = {**WIRE, "jitter_seconds": {"distribution": "expon"}}
    cluster, larger = built(node(1.0, count=3), network=network), built(node(1.0, count=4), network=network)

    def first(of: Cluster, sender: int, receiver: int, seed: int = 0) -> float:
        return Jitter(of, sender, receiver, seed=seed).next()

    assert len({first(cluster, *ends, seed=seed) for ends in permutations(range(4), 2) for seed in (0, 1)}) == 2 * 4 * 3
    assert [first(larger, *ends) for ends in ((0, 1), (0, 4), (4, 2))] == [first(cluster, *ends) for ends in ((0, 1), (0, 3), (3, 2))]
