"""How unequally messages share links, from when those of two end that begin at once."""

from __future__ import annotations

from typing import Any

import pytest
from worlds import cluster as described
from worlds import node

from hetsim.calibration.readings import RankReadings, Reading
from hetsim.calibration.sharing import PULL, PUSH, contending_group, sharing_noise
from hetsim.cluster.model import Cluster
from hetsim.cluster.parse.cluster import parse_cluster
from hetsim.distributed.pacing.shared_links import SharedLinks, Transfer

NBYTES = 431_080
PROCESS = [0.0, 2.0, 0.0, 0.1, 0.004]


def built(*nodes: dict[str, Any], **parts: Any) -> Cluster:
    """The cluster of these nodes."""
    return parse_cluster({**described(*nodes), **parts})


def hosts(*mbits: int, server: int, **network: Any) -> Cluster:
    """Workers with links of so many Mbit/s, and a server with one."""

    def links(mbit: int) -> dict[str, float]:
        return {f"{way}_bytes_per_second": mbit * 1.25e5 for way in ("uplink", "downlink")}

    wire = {"latency_seconds": 0.0, "bytes_per_second": 1e9, **network}
    return built(*(node(1.0, **links(mbit)) for mbit in mbits), network=wire, server={"seconds_per_update": 0.0, **links(server)})


def readings(cluster: Cluster, rounds: int, *, favoured: float = 1.0) -> RankReadings:
    """Of messages in the simulator's own times; those of worker 0 take `favoured` times as long as they should."""
    links, group, server = SharedLinks(cluster, seed=0), contending_group(cluster), cluster.num_workers
    found = []
    for place in range(rounds):
        for kind in (PUSH, PULL):
            began = 1000.0 * (2 * place + (kind == PULL))
            transfers = [Transfer(began, NBYTES) for _ in group]
            for rank, transfer in zip(group, transfers, strict=True):
                links.begin(*((rank, server) if kind == PUSH else (server, rank)), transfer)
            links.project()
            ends = {rank: transfer.ends - began for rank, transfer in zip(group, transfers, strict=True)}
            found += [
                Reading(kind, rank, ends[rank] * (favoured if rank == 0 else 1.0), 0.0) for rank in sorted(ends, key=ends.__getitem__)
            ]
    alone = [[Reading("message", NBYTES, 0.1, 0.001)] for _ in cluster.nodes]
    return RankReadings([*alone, found], [PROCESS] * (server + 1))


@pytest.mark.parametrize(
    ("cluster", "group"),
    [
        (hosts(120, 120, 30, server=80), (0, 1)),
        (hosts(200, 100, 50, server=200), (0, 1, 2)),
        (hosts(100, 100, 100, server=150), (0, 1)),
        (hosts(30, 40, server=100), ()),
        (hosts(100, server=50), ()),
        (built(node(1.0, count=3)), ()),
    ],
)
def test_two_are_found_that_contend_for_a_link(cluster: Cluster, group: tuple[int, ...]) -> None:
    """With as few others as there may be: the third one's 50 Mbit/s leave the first two 75 of 200 each; 30 + 40 of 100 are no matter."""
    assert contending_group(cluster) == group


@pytest.mark.parametrize("mbits", [(120, 120, 30, 80), (200, 100, 50, 200)])
def test_the_width_of_weights_is_found_again(mbits: tuple[int, ...]) -> None:
    """Drawn by the simulator: 0.25, within 4 standard errors of a median distance of 2 · 400 messages."""
    law = {"distribution": "lognorm", "s": 0.25}

    found = sharing_noise(cluster := hosts(*mbits[:-1], server=mbits[-1], sharing_noise=law), readings(cluster, 400))

    assert found["sharing_noise"]["distribution"] == "lognorm"
    assert found["sharing_noise"]["s"] == pytest.approx(0.25, rel=4 * 1.17 / 800**0.5)


def test_equal_shares_are_no_noise() -> None:
    """Nor are shares that are always unequal in the same way."""
    cluster = hosts(120, 120, 30, server=80)

    assert sharing_noise(cluster, readings(cluster, 20)) == {}
    assert sharing_noise(cluster, readings(cluster, 20, favoured=0.8)) == {}


def test_without_shared_links_nothing_is_found() -> None:
    """There is nothing to share."""
    cluster = built(node(1.0, count=2))

    assert sharing_noise(cluster, RankReadings([[], [], []], [PROCESS] * 3)) == {}
