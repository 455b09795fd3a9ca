"""Messages that share links unequally, each with a weight of its own."""

from __future__ import annotations

from collections.abc import Generator
from math import log, sqrt
from statistics import fmean, stdev
from typing import Any

import pytest
from cluster_runs import WIRE, built, play, timed, world
from worlds import node

from hetsim.cluster.compute_times import SharingWeights
from hetsim.effects import Batch, Gradient, Node, Now, Receive, Send
from hetsim.vector import Phantom

LAW = {"distribution": "lognorm", "s": 0.3}
NBYTES, CAPACITY = 4096, 1024.0


def pushed_at_once(rounds: int, *, cpu: dict[str, float] | None = None, **node_links: float) -> list[tuple[float, float]]:
    """How long two messages took that two workers sent to the server at the same time, through its link, round by round."""
    took: list[tuple[float, float]] = []

    def asks(its: Node, _: Any) -> Generator[Any, Any, Any]:
        for _ in range(rounds):
            if its.rank < its.server:
                yield from Gradient(at=Phantom(8), batch=Batch(0, 1), version=0)
                yield from Send(its.server, Phantom(NBYTES), sent=(yield from Now()))
            else:
                seconds = {}
                for _ in (0, 1):
                    message = yield from Receive()
                    seconds[message.source] = (yield from Now()) - message.sent
                took.append((seconds[0], seconds[1]))

    network = {**WIRE, "latency_seconds": 0.0, "bytes_per_second": 1e9, "sharing_noise": LAW, "cpu": cpu}
    play(asks, world(node(64.0, count=2, **node_links), network=network, server={"downlink_bytes_per_second": CAPACITY}))
    return took


@pytest.mark.parametrize("cpu", [None, {"send_seconds": 1e-9, "receive_seconds": 1e-9}])
def test_two_messages_get_shares_by_their_weights(cpu: dict[str, float] | None) -> None:
    """The heavier one ends at n(w₁ + w₂)/(c · max w), and the last at 2n/c, whatever the weights are."""
    cluster = built(node(1.0, count=2), network={**WIRE, "sharing_noise": LAW}, server={"downlink_bytes_per_second": CAPACITY})
    streams = [SharingWeights(cluster, rank, 2, seed=0) for rank in (0, 1)]

    took = pushed_at_once(20, cpu=cpu)

    for pair in took:
        weights = [stream.next() for stream in streams]
        assert sorted(pair) == pytest.approx([NBYTES * sum(weights) / CAPACITY / max(weights), 2 * NBYTES / CAPACITY], rel=1e-9)
        assert (pair[0] < pair[1]) == (weights[0] > weights[1])


def test_the_ratio_of_two_shares_has_the_law_s_width() -> None:
    """The logarithm of w₁/w₂ has mean 0 and deviation s·√2, within 4.5 standard errors of 600 rounds."""
    logs = []
    for one, other in pushed_at_once(600):
        lighter_to_heavier = min(one, other) * CAPACITY / NBYTES - 1
        logs.append(log(lighter_to_heavier) * (1 if one < other else -1))

    assert abs(fmean(logs)) < 4.5 * 0.3 * sqrt(2 / 600)
    assert stdev(logs) == pytest.approx(0.3 * sqrt(2), rel=4.5 / sqrt(2 * 600))


def test_a_message_alone_takes_what_it_did() -> None:
    """Where the workers' own links are the narrow ones, weights decide nothing."""
    assert pushed_at_once(5, uplink_bytes_per_second=256.0) == [(16.0, 16.0)] * 5


def test_equal_workers_fall_out_of_step() -> None:
    """Equal shares keep them so, and the server's link has one direction idle; unequal ones bring them apart, and both are used."""
    links = {"uplink_bytes_per_second": 1e6, "downlink_bytes_per_second": 1e6}
    rates = []
    for law in (None, LAW):
        network = {"latency_seconds": 0.0, "bytes_per_second": 1e9, "sharing_noise": law}
        workers = world(node(1e-9, count=2), network=network, server=links)
        rates.append(400 / timed("asgd", workers=workers, updates=400).seconds[-1])

    assert rates[0] == pytest.approx(1e6 / 32 / 2, rel=0.05)
    assert rates[1] > 1.2 * rates[0]
