"""A link that carries what is sent and what is received together, as a radio does."""

from __future__ import annotations

from typing import Any

import pytest
from cluster_runs import Asking, built, play, timed, world
from worlds import node

from hetsim.cluster.network.collectives import Collectives
from hetsim.distributed.pacing.shared_links import SharedLinks, Transfer
from hetsim.effects import Now, Receive, Send

RADIO = {"uplink_bytes_per_second": 32.0, "half_duplex": True}
CABLE = {"uplink_bytes_per_second": 32.0, "downlink_bytes_per_second": 32.0}
FAST = {"latency_seconds": 0.0, "bytes_per_second": 1e9}


def crossing(found: list[float]) -> Asking:
    """Node 0 and the server send each other 32 bytes at the same moment."""

    def asks(node: Any, weights: Any) -> Any:
        other = {0: node.server, node.server: 0}.get(node.rank)
        if other is not None:
            yield from Send(other, weights)
            yield from Receive()
            found.append((yield from Now()))

    return asks


@pytest.mark.parametrize(("link", "seconds"), [(RADIO, 2.0), (CABLE, 1.0)])
def test_a_radio_sends_or_receives(link: dict[str, Any], seconds: float) -> None:
    """At 32 bytes per second, 32 bytes each way take two seconds; by a cable, one."""
    ends: list[float] = []
    play(crossing(ends), world(node(1.0, **link), network=FAST))

    assert ends == [seconds, seconds]


def test_padding_holds_messages_as_long() -> None:
    """The rates of real messages are those of the simulator."""
    links = SharedLinks(built(node(1.0, **RADIO), network=FAST), seed=0)
    transfers = [Transfer(0.0, 32), Transfer(0.0, 32)]
    for way, transfer in zip(((0, 1), (1, 0)), transfers, strict=True):
        links.begin(*way, transfer)
    links.project()

    assert [transfer.ends for transfer in transfers] == [2.0, 2.0]


def test_a_ring_over_radios_takes_twice_as_long() -> None:
    """Each node sends and receives in each step; so does each machine, and each rack."""
    cables = Collectives(built(node(1.0, count=4, **CABLE), network=FAST)).all_reduce_seconds(96)
    in_rack = {"racks": {"a": {**RADIO}, "b": {**RADIO}}}

    assert Collectives(built(node(1.0, count=4, **RADIO), network=FAST)).all_reduce_seconds(96) == 2 * cables
    assert Collectives(built(node(1.0, rack="a"), node(1.0, rack="b"), network={**FAST, **in_rack})).all_reduce_seconds(32) == 2.0
    workers = world(node(1.0, count=2, **RADIO), network=FAST)
    assert timed("ssgd", workers=workers, updates=1, batch_size=2).seconds == [1 + 2.0]


def test_a_machine_may_have_a_radio() -> None:
    """Its GPUs share it for both directions; inside they do not."""
    from test_machines import built as of_machines
    from test_machines import way

    cluster = of_machines(
        {"gpus": {"count": 2, "seconds_per_sample": 1}, "inside": 1e9, "network": 1e6, "half_duplex": True},
        {"seconds_per_sample": 1, "network": 1e6, "half_duplex": True},
    )

    assert [link for link, _ in way(cluster, 0, 2)[1]] == ["up 0", "up rack machine0", "up 2"]
    assert [link for link, _ in way(cluster, 2, 0)[1]] == ["up 2", "up rack machine0", "down 0"]


@pytest.mark.parametrize(
    ("parts", "who"),
    [
        (world(node(1.0, half_duplex=True)), "node 0"),
        (world(node(1.0, **{**CABLE, "downlink_bytes_per_second": 64.0}, half_duplex=True)), "node 0"),
        (world(node(1.0), server={"half_duplex": True}), "the server"),
        (world(node(1.0, rack="a"), network={**FAST, "racks": {"a": {"half_duplex": True}}}), "cluster.network.racks.a"),
    ],
)
def test_a_radio_has_one_rate(parts: dict[str, Any], who: str) -> None:
    """It is named what is missing, or what is too much."""
    with pytest.raises(
        ValueError, match=f"^{who} is half_duplex, so its uplink carries both directions: give it uplink_bytes_per_second, and"
    ):
        built(*parts.pop("nodes"), **{key: part for key, part in parts.items() if key != "name"})
