"""What is described is felt: each property of a cluster, made worse, changes the time of each method, or the run says that it does not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from methods import SHIPPED
from worlds import experiment, node, simulate

from hetsim.results.writing.remarks import remarks
from hetsim.runtime.experiment import Experiment

PERIODS: dict[str, tuple[str, ...]] = {
    "warm_up": ("od_sgd", "pipe_sgd", "cd_sgd", "abs_sgd", "ssd_sgd"),
    "period": ("local_sgd", "diloco", "muloco", "sparse_loco", "fedbuff", "fedasync", "async_local_sgd", "mla", "heloco", "cgad", "halos"),
}
SHORT: dict[str, dict[str, Any]] = {
    **{name: {key: 2} for key, names in PERIODS.items() for name in names},
    **{name: {"period": 4} for name in ("streaming_diloco", "decoupled_diloco")},
}
"""A few versions are to enter a method's own phase."""
SAMPLE = ("ssgd", "asgd", "pipe_sgd", "local_sgd", "od_sgd")
"""Of each way to communicate one."""


def lognormal(s: float) -> dict[str, Any]:
    """A law around 1."""
    return {"distribution": "lognorm", "s": s}


NOTHING: Mapping[str, Any] = {}


def world(
    *, nodes: Mapping[str, Any] = NOTHING, network: Mapping[str, Any] = NOTHING, server: Mapping[str, Any] = NOTHING, **more: Any
) -> dict[str, Any]:
    """Four unequal nodes in two racks, in which every message takes time."""
    speeds = zip((2e-3, 1e-3, 1.5e-3, 5e-4), "aabb", strict=True)
    rows = [{**node(seconds, 1e-3, seconds_per_update=1e-3, rack=rack), **nodes} for seconds, rack in speeds]
    wires = {"latency_seconds": 1e-3, "bytes_per_second": 1e6, "racks": {"a": {}, "b": {}}, **network}
    return {"name": "felt", "nodes": rows, "network": wires, "server": {"seconds_per_update": 1e-3, **server}, **more}


@dataclass(frozen=True)
class Worse:
    """A cluster, and one in which a property is worse."""

    before: dict[str, Any]
    after: dict[str, Any]
    key: str
    """What a run that does not feel it has to name."""


def spells(factor: float) -> dict[str, Any]:
    """Half of the time."""
    return {"slow_spells": {"factor": factor, "seconds_between": 5e-3, "seconds_lasting": 5e-3}}


def crash(until: float) -> dict[str, Any]:
    """Of one node, early on."""
    return {"faults": {"detection_seconds": 1e-3, "schedule": [{"nodes": [1], "crash": 5e-3, "repair": until}]}}


def on_hosts(cold: float, first: float = 0.0, program: float = 0.0) -> dict[str, Any]:
    """Each node on a machine of its own. Caches get cold, kernels are prepared for each number of samples, and programs take time."""
    its = world(hosts={f"h{rank}": {"cores": 1} for rank in range(4)})
    for rank, row in enumerate(its["nodes"]):
        row |= {"host": f"h{rank}", "cold_seconds": cold, "cooling_seconds": 1e-3, "first_seconds": first, "program_seconds": program}
    return its


def jitter(mean: float) -> dict[str, Any]:
    """Exponential."""
    return {"jitter_seconds": {"distribution": "expon", "scale": mean}}


def racks(up: float, **more: Any) -> dict[str, Any]:
    """Both with a link of so many bytes per second."""
    return {"racks": {name: {"uplink_bytes_per_second": up, **more} for name in "ab"}}


def between(file: str) -> dict[str, Any]:
    """A way between the racks whose rate changes."""
    return {"between": [{"racks": ["a", "b"], "link_slowdown": file}]}


RECORDED = {"fast.csv": 1, "slow.csv": 30}
"""Files of slowdowns, and their factors."""
PLAIN = world()
BOTH = ("uplink_bytes_per_second", "downlink_bytes_per_second")
PROPERTIES = {
    "noise of gradients": Worse(world(nodes={"noise": lognormal(0.01)}), world(nodes={"noise": lognormal(0.9)}), "noise"),
    "slow spells": Worse(world(nodes=spells(1)), world(nodes=spells(4)), "slow_spells"),
    "recorded slowdowns": Worse(*(world(nodes={"slowdown": file}) for file in RECORDED), "slowdown"),
    "overhead": Worse(PLAIN, world(nodes={"overhead_seconds": 4e-3}), "overhead_seconds"),
    "a quota": Worse(PLAIN, world(nodes={"cpu_quota": 0.5}), "cpu_quota"),
    "cold caches": Worse(on_hosts(1e-6), on_hosts(3e-3), "cold_seconds"),
    "new numbers of samples": Worse(on_hosts(1e-6), on_hosts(1e-6, first=3e-3), "first_seconds"),
    "own programs": Worse(on_hosts(1e-6), on_hosts(1e-6, program=3e-3), "program_seconds"),
    "jitter": Worse(world(network=jitter(1e-9)), world(network=jitter(5e-3)), "jitter_seconds"),
    "latency": Worse(PLAIN, world(network={"latency_seconds": 5e-3}), "latency_seconds"),
    "latency of nodes": Worse(PLAIN, world(nodes={"latency_seconds": 5e-3}), "latency_seconds"),
    "latency of racks": Worse(world(network=racks(1e9)), world(network=racks(1e9, latency_seconds=5e-3)), "latency_seconds"),
    "rate of cards": Worse(PLAIN, world(network={"bytes_per_second": 2e5}), "bytes_per_second"),
    "links of nodes": Worse(PLAIN, world(nodes=dict.fromkeys(BOTH, 2e5)), "uplink_bytes_per_second"),
    "links of racks": Worse(world(network=racks(1e9)), world(network=racks(1e5)), "uplink_bytes_per_second"),
    "slowdowns of nodes' links": Worse(*(world(nodes={"link_slowdown": file}) for file in RECORDED), "link_slowdown"),
    "slowdowns of racks' links": Worse(*(world(network=racks(1e6, link_slowdown=file)) for file in RECORDED), "link_slowdown"),
    "slowdowns between racks": Worse(*(world(network=between(file), server={"rack": "b"}) for file in RECORDED), "link_slowdown"),
    "slowdowns of the server's links": Worse(*(world(server={"link_slowdown": file}) for file in RECORDED), "server.link_slowdown"),
    "unequal shares": Worse(*(world(network={"sharing_noise": lognormal(s)}) for s in (0.01, 0.9)), "network.sharing_noise"),
    "time of the server": Worse(PLAIN, world(server={"seconds_per_update": 0.02}), "server.seconds_per_update"),
    "noise of the server": Worse(*(world(server={"seconds_per_update": 0.02, "noise": lognormal(s)}) for s in (0.01, 0.9)), "server.noise"),
    "bytes at the server": Worse(PLAIN, world(server={"seconds_per_byte": 1e-6}), "server.seconds_per_byte"),
    "shards": Worse(*(world(server={"seconds_per_update": 0.02, "shards": shards}) for shards in (4, 1)), "server.shards"),
    "links of the server": Worse(PLAIN, world(server=dict.fromkeys(BOTH, 1e5)), "server.uplink_bytes_per_second"),
    "a crash": Worse(world(**crash(6e-3)), world(**crash(0.2)), "faults"),
}


def described(method: str, cluster: dict[str, Any]) -> Experiment:
    """Timing alone, until a few versions are made."""
    keys = {"coordination": SHORT[method]} if method in SHORT else {}
    return experiment(
        f"method={method}", "workload=phantom", workload={"num_parameters": 1000, "num_samples": 10_000}, batch_size=32,
        budget={"updates": 12}, cluster=cluster, **keys,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the recorded slowdowns."""
    monkeypatch.chdir(tmp_path)
    for name, factor in RECORDED.items():
        Path(name).write_text(f"seconds,factor\n0,1\n0.002,{factor}\n")


def ended(method: str, cluster: dict[str, Any]) -> tuple[float, list[str]]:
    """When the last version is made, and what the run remarks."""
    run = simulate(described(method, cluster))
    return run.seconds[-1], remarks(run.simulation.outcome)


@pytest.mark.parametrize("name", PROPERTIES)
@pytest.mark.parametrize("method", [each if each in SAMPLE else pytest.param(each, marks=pytest.mark.long) for each in SHIPPED])
@pytest.mark.sampled(65)
def test_a_worse_property_changes_the_time_or_the_run_says_that_its_method_does_not_feel_it(method: str, name: str) -> None:
    """No cell is silent. A method that feels it does not say that it does not. Local servers on hosts are refused."""
    worse = PROPERTIES[name]
    if method == "halos" and name in ("cold caches", "new numbers of samples", "own programs"):
        with pytest.raises(ValueError, match="are not described for local servers"):
            described(method, worse.before)
        return
    (before, said), (after, then) = ended(method, worse.before), ended(method, worse.after)

    names_it = any(f"method={method} has no server, so it does not feel " in remark and worse.key in remark for remark in (*said, *then))
    assert (before != after) != names_it
