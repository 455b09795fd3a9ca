"""What is drawn by a law: noise, speeds and streams of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from itertools import islice
from math import sqrt
from statistics import fmean, variance
from typing import Any

import pytest
from cluster_runs import built, play, times, world
from worlds import node

from hetsim.cluster import distributions
from hetsim.cluster.model import Cluster
from hetsim.effects import Batch, Gradient, Node, Now, Receive, Send, Update

LAWS: dict[str, dict[str, float]] = {
    "expon": {"loc": 0.25, "scale": 0.75},
    "gamma": {"a": 2.5, "loc": 0.5, "scale": 0.25},
    "lognorm": {"s": 0.4, "loc": 0.125, "scale": 0.875},
    "pareto": {"b": 9.0, "loc": 0.5, "scale": 0.5},
    "uniform": {"loc": 0.5, "scale": 1.5},
    "weibull_min": {"c": 1.5, "loc": 0.25, "scale": 2.0},
    "invgauss": {"mu": 0.5, "loc": 0.25, "scale": 2.0},  # which NumPy alone does not draw
}


def test_every_law_that_numpy_draws_is_tested():
    """The table above names them all, and one more."""
    assert set(LAWS) == {*distributions.COMMON, "invgauss"}


@pytest.mark.parametrize("name", LAWS)
def test_noise_multiplies_a_gradient_s_time_by_its_law(name: str):
    """Mean and variance of SciPy's law of that name and those parameters, within 4.5 standard errors; and Kolmogorov–Smirnov.

    The standard error of a mean of n is σ/√n, that of a variance σ²·√((kurtosis + 2)/n), with the excess kurtosis.
    """
    from scipy import stats

    law, n = getattr(stats, name)(**LAWS[name]), 20_000
    its = times(node(0.5, 0.5, noise={"distribution": name, **LAWS[name]}))
    factors = [its.seconds(3) / 2.0 for _ in range(n)]

    mean, var, _, kurtosis = law.stats(moments="mvsk")
    assert abs(fmean(factors) - mean) < 4.5 * sqrt(var / n)
    assert abs(variance(factors) - var) < 4.5 * var * sqrt((kurtosis + 2) / n)
    assert stats.kstest(factors, law.cdf).pvalue > 1e-3


IMPORTS = """
import sys
from hetsim.cluster import distributions
from hetsim.cluster.compute_times import StepTimes
from hetsim.cluster.parse.cluster import parse_cluster

def draw(**law):
    row = {"count": 1, "seconds_per_sample": 1.0, "overhead_seconds": 0.0, "noise": law}
    parts = {"network": {"latency_seconds": 0, "bytes_per_second": 1, "jitter_seconds": law}, "server": {"seconds_per_update": 0}}
    node = parse_cluster({"name": "n", "nodes": [row], **parts}).nodes[0]
    return StepTimes(node, seed=0, rank=0).seconds(1)

for name, (shapes, _) in distributions.COMMON.items():
    assert draw(distribution=name, **{shape: 1.5 for shape in shapes}) > 0
print("scipy.stats" in sys.modules, "torch" in sys.modules)
draw(distribution="invgauss", mu=1.0)
print("scipy.stats" in sys.modules)
"""


@pytest.mark.slow
def test_the_common_laws_are_drawn_without_scipy():
    """Which takes half a second to import; any other law imports it. Torch is not needed for times at all."""
    said = subprocess.run([sys.executable, "-c", IMPORTS], check=True, capture_output=True, text=True)

    assert said.stdout.split() == ["False", "False", "True"]


@pytest.mark.parametrize("name", LAWS)
def test_how_many_numbers_are_drawn_at_a_time_changes_none(name: str, monkeypatch: pytest.MonkeyPatch):
    """A block is for speed alone."""
    law, streams = distributions.Distribution(name, LAWS[name]), []
    for block in (64, 1, 37, 1000):
        monkeypatch.setattr(distributions, "BLOCK", block)
        streams.append(list(islice(law.draws(3, 1, 4), 300)))

    assert streams == [streams[0]] * 4
    assert law.sample(300, 3, 1, 4) == streams[0]
    assert len(set(streams[0])) == 300


def test_a_node_s_chance_does_not_hang_on_how_many_others_there_are():
    """Noise, slow spells, jitter on the way to the server, and the server's own noise."""
    jitter = {"distribution": "expon", "scale": 0.25}
    noisy = node(1.0, noise={"distribution": "lognorm", "s": 0.5}, slow_spells={"factor": 3.0, "seconds_between": 2, "seconds_lasting": 2})

    def seen(num_workers: int) -> tuple[dict[int, list[float]], list[float], list[float]]:
        computed: dict[int, list[float]] = {0: [], 1: []}
        arrived: list[float] = []
        served: list[float] = []

        def asks(its: Node, x: Any) -> Generator[Any, Any, Any]:
            if its.rank < 2:
                for _ in range(5):
                    computed[its.rank].append((yield from Gradient(at=x, batch=Batch(0, 1), version=0)).seconds)
                    yield from Send(its.server)
            if its.rank == its.server:
                for _ in range(10):
                    yield from Receive()
                    arrived.append((yield from Now()))
                    yield from Update(at=x, gradient=x)
                    served.append((yield from Now()) - arrived[-1])

        network = {"latency_seconds": 0.5, "bytes_per_second": 64.0, "jitter_seconds": jitter}
        server = {"seconds_per_update": 2.0**-20, "noise": {"distribution": "gamma", "a": 2.0}}
        play(asks, world({**noisy, "count": num_workers}, network=network, server=server))
        return computed, arrived, served

    two = seen(2)

    assert two == seen(3) == seen(9)
    assert len({*two[0][0], *two[0][1]}) == len(set(two[1])) == len(set(two[2])) == 10


def test_what_is_drawn_for_the_nodes_of_a_row_is_no_node_s_noise():
    """Speeds drawn by a law, and noise by the same one: every number is of a stream of its own, whatever row and rank."""
    law = {"distribution": "lognorm", "s": 0.5}
    row = {"count": 16, "seconds_per_sample": law, "overhead_seconds": law, "seconds_per_update": law, "latency_seconds": law, "noise": law}
    cluster = built(*([row] * 12))

    drawn = {round(n, 9) for node in cluster.nodes for n in (node.seconds_per_sample, node.overhead_seconds, node.seconds_per_update)}
    noise = {round(next(node.noise.draws(0, rank, 1)), 9) for rank, node in enumerate(cluster.nodes) if node.noise}
    assert len(drawn) == 3 * 16 * 12
    assert len(noise) == 16 * 12
    assert not drawn & noise


def test_a_row_s_law_is_drawn_for_each_of_its_nodes():
    """Mean within 4.5 standard errors of the law's; another row, another seed and another quantity draw others; more nodes, the same."""
    law = {"distribution": "gamma", "a": 4.0, "scale": 0.25}
    row = {"count": 4000, "seconds_per_sample": law, "overhead_seconds": law}

    def speeds(cluster: Cluster) -> list[float]:
        return [node.seconds_per_sample for node in cluster.nodes]

    cluster = built(row, {**row, "count": 10})
    assert abs(fmean(speeds(cluster)[:4000]) - 1.0) < 4.5 * 0.5 / sqrt(4000)
    assert built({**row, "count": 5000}).nodes[:4000] == cluster.nodes[:4000] != built(row, seed=1).nodes
    assert len({n for node in cluster.nodes for n in (node.seconds_per_sample, node.overhead_seconds)}) == 2 * 4010
