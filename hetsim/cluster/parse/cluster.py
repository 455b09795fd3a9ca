"""Make a `Cluster` from the `cluster` of a config."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hetsim import checks
from hetsim.cluster.fewer import without
from hetsim.cluster.model import Cluster, NodeSpec, Server
from hetsim.cluster.network.changing import changes
from hetsim.cluster.network.racks import Rack
from hetsim.cluster.parse import values
from hetsim.cluster.parse.faults import add_pauses, parse_faults
from hetsim.cluster.parse.hosts import parse_hosts
from hetsim.cluster.parse.machines import translate_machines
from hetsim.cluster.parse.network import network_mapping, parse_between, parse_network, parse_racks, parse_server
from hetsim.cluster.parse.nodes import check_number_of_nodes, parse_nodes, replace_numbers
from hetsim.cluster.parse.validity import parse_calibration
from hetsim.cluster.parse.values import LINKS
from hetsim.cluster.quantities import convert_to_si

OF_MODEL = ("num_parameters", "parameters", "bytes_per_parameter")
"""Keys of the model that users write into a cluster by mistake."""


def parse_cluster(config: Any) -> Cluster:
    """The cluster that a config describes. Raises ValueError if the config is invalid."""
    if isinstance(config, Mapping) and (name := next((name for name in OF_MODEL if name in config), None)):
        raise ValueError(f"cluster.{name} is unknown: write model: {{parameters: 25.6 M, bytes_per_parameter: 4}}")
    described_by = ("nodes", "network", "server")
    optional: Sequence[str] = ("faults", "seed", "hosts", "calibrated", "leave_out", "machines", "reference", "model")
    required: Sequence[str] = ("name", *described_by)
    if of_machines := isinstance(config, Mapping) and config.get("machines") is not None:
        required, optional = ("name",), (*described_by, *optional)
    entries = checks.mapping("cluster", convert_to_si(config, "cluster"), required=required, optional=optional)
    entries["network"] = network_mapping(entries.get("network"))
    checks.name("cluster.name", entries["name"])
    assumed: frozenset[str] = frozenset()
    if of_machines:
        rows, entries["network"], entries["server"], assumed = translate_machines(entries)
    elif entries.get("reference") is not None:
        raise ValueError("cluster.reference is what the speed of machines refers to: give cluster.machines, or leave it out")
    else:
        rows = [(f"cluster.nodes.{index}", row) for index, row in enumerate(values.sequence("cluster.nodes", entries["nodes"], "nodes"))]
    seed = checks.whole("cluster.seed", 0 if entries.get("seed") is None else entries["seed"], least=0)
    network = parse_network(entries["network"])
    nodes: list[NodeSpec] = []
    for index, (key, row) in enumerate(rows):
        nodes += parse_nodes(key, row, seed, index)
        check_number_of_nodes("the number of cluster.nodes", len(nodes))
    if not nodes:
        raise ValueError("cluster.nodes is empty: describe at least one node")
    shared = entries["network"]
    defaults = {key: values.number("cluster.network", shared, key) for key in LINKS if shared.get(key) is not None}
    if defaults:
        nodes = [replace_numbers(node, {key: value for key, value in defaults.items() if getattr(node, key) is None}) for node in nodes]
    server = replace(parse_server(entries["server"]), assumed=assumed)
    card = None if network.sharing == "none" else network.bytes_per_second
    racks = parse_racks(shared.get("racks"), nodes, server, card)
    if network.all_reduce == "two_level" and any(node.rack is None for node in nodes):
        rank = next(rank for rank, node in enumerate(nodes) if node.rack is None)
        raise ValueError(f"cluster.network.all_reduce=two_level needs each node in a rack, and node {rank} is in none: give its row a rack")
    faults = parse_faults(entries.get("faults"), len(nodes))
    for rank, pauses in faults.pauses.items():
        nodes[rank] = add_pauses(nodes[rank], pauses)
    cluster = Cluster(
        name=entries["name"],
        nodes=tuple(nodes),
        network=replace(network, racks=racks, between=parse_between(shared.get("between"), racks)),
        server=server,
        faults=faults,
        hosts=parse_hosts(entries.get("hosts"), nodes, server),
        calibrated=parse_calibration(entries.get("calibrated")),
    )
    _check_together(cluster)
    return without(cluster, _parse_left_out(entries.get("leave_out"), len(nodes)))


def _parse_left_out(config: Any, num_nodes: int) -> Sequence[int]:
    """The ranks of nodes that take no part."""
    key = "cluster.leave_out"
    if config is None:
        return ()
    ranks = values.sequence(key, config, "nodes by their rank, such as [6, 7]")
    for rank in ranks:
        if checks.whole(key, rank, least=0) >= num_nodes:
            raise ValueError(f"{key}: there is no node {rank}, because the cluster has {num_nodes}: count from 0")
    if len(set(ranks)) < len(ranks):
        raise ValueError(f"{key} names a node twice: {list(ranks)}")
    if len(ranks) == num_nodes:
        raise ValueError(f"{key} names every node, which leaves none to train: leave some of them in")
    return ranks


def _check_together(cluster: Cluster) -> None:
    """Raise ValueError for parts that are valid alone, but not together."""
    if cluster.network.sharing_noise is not None and not cluster.shares_links:
        raise ValueError(
            "cluster.network.sharing_noise would do nothing, because no link is described that messages share: "
            f"take cluster.network.sharing=max_min, give {LINKS[0]} and {LINKS[1]}, or leave it out"
        )
    ends: list[tuple[str, NodeSpec | Rack | Server]] = [*((f"node {rank}", node) for rank, node in enumerate(cluster.nodes))]
    ends += [("the server", cluster.server), *((f"cluster.network.racks.{name}", rack) for name, rack in cluster.network.racks.items())]
    for label, end in ends:
        up, down = (getattr(end, name) for name in LINKS)
        if end.half_duplex and (up is None or down not in (None, up)):
            raise ValueError(f"{label} is half_duplex, so its uplink carries both directions: give it {LINKS[0]}, and no other {LINKS[1]}")
    if cluster.faults.nodes and (cluster.shares_cores or cluster.network.all_reduce_table):
        conflict = "cluster.hosts" if cluster.shares_cores else "cluster.network.all_reduce_table"
        raise ValueError(f"cluster.faults does not go with {conflict}, whose times are those of all nodes: leave one of them out")
    owners: list[int | str] = [*range(cluster.num_workers), "server", *(f"rack {name}" for name in cluster.network.racks)]
    for name, (label, end) in zip(owners, ends, strict=True):
        if end.link_slowdown and cluster.capacity(("up", name)) == cluster.capacity(("down", name)) == math.inf:
            raise ValueError(f"{label} has a link_slowdown and no link that it would slow down: give it {LINKS[0]}, or leave it out")
    changing = changes([*(end for _, end in ends), *cluster.network.between.values()])
    if changing and (cluster.shares_cores or cluster.network.all_reduce_table):
        conflict = "hosts or CPU work" if cluster.shares_cores else "a measured all_reduce_table"
        raise ValueError(f"link_slowdown does not go with {conflict}, whose times do not change: leave one of them out")
    for rank, node in enumerate(cluster.nodes if cluster.shares_cores else ()):
        if node.slow_spells or node.slowdown:
            raise ValueError(
                f"node {rank} has slow_spells or a slowdown in a cluster with hosts or CPU work, where other processes slow it down: "
                "leave one of them out"
            )
