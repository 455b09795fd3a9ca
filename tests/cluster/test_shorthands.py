"""What is said shortly means what it says at length: a network that is a rate, a card of a node, the size of the model."""

from __future__ import annotations

from typing import Any

import pytest
from cluster_runs import FREE, built, timed, world
from hydra.errors import ConfigCompositionException
from worlds import by_hydra, experiment, node, simulate

from hetsim.cluster.parse.cluster import parse_cluster
from hetsim.config.build import build_experiment
from hetsim.config.compose import entries_of
from hetsim.config.errors import sentence
from hetsim.config.resolved import resolved

GBIT = 1.25e8
ONE = {"seconds_per_sample": "1 ms", "network": "1 Gbit/s"}
PHANTOM = {"_target_": "hetsim.workloads.phantom.PhantomWorkload", "num_samples": 60_000}


@pytest.mark.parametrize("rate", [GBIT, "1 Gbit/s", "0.125 GB/s"])
def test_a_network_may_be_a_rate_alone(rate: Any) -> None:
    """A message then has the latency that it has between two machines."""
    at_length = {"latency_seconds": 50e-6, "bytes_per_second": GBIT}

    assert built(node(1.0), network=rate) == built(node(1.0), network=at_length)
    assert built(node(1.0), network={"bytes_per_second": rate}) == built(node(1.0), network=at_length)


def test_machines_may_take_their_card_from_a_network_that_is_a_rate() -> None:
    one = {"seconds_per_sample": 1e-3}

    assert parse_cluster({"name": "a", "machines": [one], "network": "1 Gbit/s"}) == parse_cluster({"name": "a", "machines": [ONE]})


def test_a_run_is_the_same_however_its_network_is_written() -> None:
    """Its config has the mapping."""
    short, long = (resolved({"cluster": {"network": network}}) for network in ("1 Gbit/s", {"bytes_per_second": GBIT}))

    assert short == long
    assert short["cluster"]["network"] == {"bytes_per_second": GBIT, "sharing": "max_min"}


@pytest.mark.parametrize("card", ["1 Gbit/s", {"up": "1 Gbit/s", "down": GBIT}])
def test_nodes_and_the_server_may_have_a_network_instead_of_two_links(card: Any) -> None:
    links = {"uplink_bytes_per_second": GBIT, "downlink_bytes_per_second": GBIT}

    assert built(node(1.0, network=card)) == built(node(1.0, **links))
    assert built(node(1.0), server={"network": card}) == built(node(1.0), server=links)


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ({"network": "10 Gb/s"}, "cluster.network must be bytes per second, such as 1.25 GB/s or 10 Gbit/s, not '10 Gb/s': b may be bits"),
        ({"network": "fast"}, "cluster.network must be bytes per second, such as 1.25 GB/s or 10 Gbit/s, not 'fast'"),
        ({"network": "5 ms"}, "cluster.network must be bytes per second, such as 1.25 GB/s or 10 Gbit/s, not '5 ms'"),
        ({"network": 0}, "cluster.network.bytes_per_second must be a finite number above zero, not 0"),
        ({"network": [1]}, "cluster.network must be a mapping, such as 1 Gbit/s or {latency_seconds: "),
        ({"server": {"network": "1 Gbit/s", "uplink_bytes_per_second": 1}}, "cluster.server has a network and uplink_bytes_per_second, "),
    ],
)  # fmt: skip
def test_what_is_no_rate_is_one_sentence(parts: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$") as refused:
        parse_cluster(world(node(1.0), **parts))

    assert str(refused.value).startswith(sentence)


def sized(model: Any, **workload: Any) -> dict[str, Any]:
    """The workload of a config whose cluster has this model."""
    found: dict[str, Any] = resolved({"cluster": {"model": model}, "workload": {**PHANTOM, **workload}})["workload"]
    return found


def test_a_model_beside_the_machines_is_the_size_of_a_phantom() -> None:
    """The workload completes it, and a phantom without any has a million parameters."""
    model = {"parameters": "25.6 M", "bytes_per_parameter": 2}

    assert sized(model) == {**PHANTOM, "num_parameters": 25_600_000, "bytes_per_parameter": 2}
    assert sized({"parameters": 8}, bytes_per_parameter=2) == {**PHANTOM, "num_parameters": 8, "bytes_per_parameter": 2}
    assert sized(None) == sized(None, num_parameters=1_000_000) == {**PHANTOM, "num_parameters": 1_000_000, "bytes_per_parameter": None}


@pytest.mark.parametrize("machines", [False, True])
def test_its_messages_take_the_time_of_its_bytes(machines: bool) -> None:
    """Two nodes, one second of computing, a ring of 64 bytes."""
    cluster = world(node(1.0, count=2), network={"latency_seconds": 0.0, "bytes_per_second": 64.0})
    if machines:
        cluster = {"name": "two", "machines": [{"count": 2, "seconds_per_sample": 1.0, "network": 64.0, "latency_seconds": 0.0}]}
        cluster["network"] = {"latency_seconds": 0.0}
    made = experiment(
        "method=ssgd", "workload=phantom", cluster={**cluster, "model": {"parameters": 32, "bytes_per_parameter": 2}},
        workload={"num_parameters": None}, budget={"updates": 1}, batch_size=2,
    )  # fmt: skip

    assert simulate(made).seconds == [2.0]


@pytest.mark.parametrize(
    ("words", "keys", "model", "sentence"),
    [
        (
            ["workload=phantom"], {"workload": {"num_parameters": 9}}, {"parameters": 8},
            "cluster.model.parameters is 8 and workload.num_parameters is 9: leave workload.num_parameters out, or type cluster.model.",
        ),
        (["workload=quadratic"], {}, {"parameters": 8}, "cluster.model is the size of workload=phantom, and workload=quadratic has a "),
        (["workload=phantom"], {}, {"parameters": "many"}, "cluster.model.parameters must be a number, such as 60000, 25.6 M or 7 B, not "),
        (["workload=phantom"], {}, {"parameters": 0}, "cluster.model.parameters must be at least 1, not 0"),
        (["workload=phantom"], {}, {"size": 8}, "cluster.model.size is unknown: known are parameters, bytes_per_parameter"),
        (["workload=phantom"], {}, {"bytes_per_parameter": 2}, "cluster.model.parameters is missing: give it a value"),
        (["workload=phantom"], {}, 8, "cluster.model must be a mapping, such as {parameters: 25.6 M}, not 8"),
    ],
)  # fmt: skip
def test_a_model_that_contradicts_the_workload_is_refused(words: list[str], keys: Any, model: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$") as refused:
        experiment("method=ssgd", *words, cluster={**world(node(1.0), server=FREE), "model": model}, **keys)

    assert str(refused.value).startswith(sentence)


def test_a_run_whose_cluster_has_a_model_times_as_one_whose_workload_has_it() -> None:
    workers = world(node(1.0, count=2), network=64.0)

    assert (
        timed("asgd", workers={**workers, "model": {"parameters": 8}}, updates=3).seconds
        == timed("asgd", workers=workers, updates=3).seconds
    )


def test_a_shipped_cluster_whose_nodes_were_replaced_has_another_name() -> None:
    """Otherwise results of other machines would be called by its name."""
    typed = by_hydra("cluster.nodes=[{count: 2, seconds_per_sample: 1 ms, overhead_seconds: 0}]")

    assert build_experiment(entries_of(typed))[0].cluster.name == "mixed4 with other nodes"
    assert build_experiment(entries_of(by_hydra("cluster.nodes.0.seconds_per_sample=1ms")))[0].cluster.name == "mixed4 with other nodes"
    assert build_experiment(entries_of(by_hydra("cluster.nodes.0.seconds_per_sample=0.8ms")))[0].cluster.name == "mixed4"
    assert build_experiment(entries_of(by_hydra("+cluster.leave_out=[0]")))[0].cluster.name == "mixed4"


def test_typed_machines_are_a_cluster_of_their_own() -> None:
    words = [
        "cluster.machines=[{count: 3, seconds_per_sample: 1 ms, network: 1 Gbit/s}]",
        "workload=phantom",
        "cluster.model={parameters: 8}",
    ]
    made, _ = build_experiment(entries_of(by_hydra("cluster=machines", *words)))

    assert (made.cluster.name, made.cluster.num_workers) == ("machines", 3)
    for typed in (words[0], f"+{words[0]}"):
        with pytest.raises((ValueError, ConfigCompositionException)) as refused:
            build_experiment(entries_of(by_hydra(typed)))
        assert "cluster=machines 'cluster.machines=[…]'" in sentence(refused.value)
