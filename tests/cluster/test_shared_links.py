"""Transfers in real time over shared links end when the simulator's do, also when they become known late and out of order."""

from __future__ import annotations

import random
from collections.abc import Generator
from typing import Any, NamedTuple

import pytest
from cluster_runs import built, play, world
from worlds import node

from hetsim.cluster.parse.cluster import parse_cluster
from hetsim.distributed.pacing.shared_links import HORIZON, SharedLinks, Transfer
from hetsim.effects import Batch, Gradient, Node, Now, Receive, Send
from hetsim.vector import Phantom

WORKERS = 5


class Sent(NamedTuple):
    """A message in the order of its connection."""

    at: float
    sender: int
    receiver: int
    nbytes: int


def described(chance: random.Random) -> dict[str, Any]:
    """A cluster without latencies, in which some links are described, and some nodes are in racks."""

    def ends() -> dict[str, Any]:
        names = ("uplink_bytes_per_second", "downlink_bytes_per_second")
        return {name: float(chance.choice([500, 1000, 3000])) for name in names if chance.random() < 0.6}

    racks = {name: {**ends(), "downlink_bytes_per_second": 1500.0} for name in "ab"}
    nodes = [node(1e-3, **ends(), **({} if rack == "-" else {"rack": rack})) for rack in ("a", "b", *chance.choices("ab-", k=WORKERS - 2))]
    network = {"latency_seconds": 0.0, "bytes_per_second": 2000.0, "racks": racks}
    if chance.random() < 0.5:
        network["sharing_noise"] = {"distribution": "lognorm", "s": 0.5}
    return world(*nodes, network=network, server={**ends(), "uplink_bytes_per_second": 2500.0, "downlink_bytes_per_second": 2500.0})


def simulated(workers: dict[str, Any], chance: random.Random) -> tuple[list[Sent], list[tuple[float, ...]]]:
    """Messages of random sizes to the server and from it, at random moments; and (sent, sender, bytes, arrived) of each."""
    sent: list[Sent] = []

    def message(its: Node, to: int, at: float) -> Send:
        size = chance.choice([0, chance.randrange(1, 400), chance.randrange(1, 4000)])
        sent.append(Sent(at, its.rank, to, size))
        return Send(to, Phantom(size))

    def asks(its: Node, _: Any) -> Generator[Any, Any, Any]:
        for _ in range(8 if its.rank < its.server else 8 * WORKERS):
            if its.rank < its.server:
                yield from Gradient(at=Phantom(8), batch=Batch(0, chance.randrange(1, 900)), version=0)
                yield from message(its, its.server, (yield from Now()))
            else:
                yield from Receive()
                yield from message(its, chance.randrange(WORKERS), (yield from Now()))

    rows = play(asks, workers, trace="full").rows("message")
    return sent, sorted((row.start, row.rank, row.nbytes, row.end) for row in rows)


@pytest.mark.parametrize("seed", range(12))
def test_transfers_end_when_the_simulator_s_do(seed: int) -> None:
    """Whatever is known late, by less than the horizon, and out of order but for that of its connection."""
    chance = random.Random(seed)
    workers = described(chance)
    sent, arrived = simulated(workers, chance)
    links = SharedLinks(parse_cluster(workers), seed=0)
    known: dict[tuple[int, int], float] = {}
    late = []
    for row in sent:
        moment = max(row.at + chance.uniform(0.0, 0.9 * HORIZON), known.get((row.sender, row.receiver), 0.0))
        known[row.sender, row.receiver] = moment
        late.append((moment, row))
    late.sort(key=lambda each: each[0])
    assert [row for _, row in late] != sent
    transfers = []

    for place, (_, row) in enumerate(late):
        if links.carries(row.sender, row.receiver):
            transfers.append((row, Transfer(row.at, row.nbytes)))
            links.begin(row.sender, row.receiver, transfers[-1][1])
        if place % 3 == 0:
            links.project()
    links.project()

    ends = sorted((row.at, row.sender, row.nbytes, transfer.ends) for row, transfer in transfers)
    assert len(arrived) == len(ends) == 2 * 8 * WORKERS
    for end, arrival in zip(ends, arrived, strict=True):
        assert end == pytest.approx(arrival, rel=1e-12)


def test_what_becomes_known_after_the_horizon_begins_there() -> None:
    """What flowed before stays as it was: 1,000 bytes at 1,000 bytes per second have half a second to themselves."""
    links = SharedLinks(built(node(1.0, count=3), server={"downlink_bytes_per_second": 1000.0}), seed=0)
    first, marks, second = Transfer(0.0, 1000.0), [Transfer(0.5, 0), Transfer(0.5 + 2 * HORIZON, 0)], Transfer(0.0, 1000.0)

    links.begin(0, 3, first)
    links.project()
    assert first.ends == 1.0
    for mark in marks:
        links.begin(2, 3, mark)
    links.begin(1, 3, second)
    links.project()

    assert (first.ends, second.ends) == pytest.approx((1.5, 2.0))
    assert [links.carries(*way) for way in ((0, 3), (3, 0))] == [True, False]
