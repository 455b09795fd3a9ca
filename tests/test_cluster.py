"""The cluster against its definition: nodes, slow spells, memory, links, racks, collectives, queues, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from itertools import islice, pairwise, permutations
from math import inf, sqrt
from pathlib import Path
from statistics import fmean, stdev, variance
from typing import Any, ClassVar

import numpy as np
import pytest
import worlds
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import NO_NETWORK, Run, experiment, node, simulate

from hetsim.cluster import distributions
from hetsim.cluster.collectives import Collectives
from hetsim.cluster.compute_times import Jitter, Slowdown, StepTimes
from hetsim.cluster.distributions import SPELLS
from hetsim.cluster.model import Cluster
from hetsim.cluster.outages import outages
from hetsim.cluster.parse.cluster import parse_cluster
from hetsim.coordination.base import Coordination
from hetsim.coordination.plan import Plan
from hetsim.coordination.state import State
from hetsim.effects import Batch, Commit, Gradient, Node, Now, Program, Receive, Send, Update
from hetsim.errors import RunFailed
from hetsim.policies.allocation.base import proportional
from hetsim.runtime.experiment import Experiment
from hetsim.sim.clock import Clock
from hetsim.sim.network.flows import Flows
from hetsim.sim.network.links import Link, Route
from hetsim.sim.network.ring import ring_seconds

SIZES = {"num_parameters": 8, "num_samples": 60_000}  # 32 bytes
FREE: dict[str, Any] = {"seconds_per_update": 0.0}
WIRE = {"latency_seconds": 0.125, "bytes_per_second": 64.0}


def world(*nodes: dict[str, Any], network: dict[str, Any] = NO_NETWORK, server: dict[str, Any] = FREE, **more: Any) -> dict[str, Any]:
    """A whole `cluster`, with all that a server and a network may have."""
    return {**worlds.cluster(*nodes, network=network), "server": {**FREE, **server}, **more}


def built(*nodes: dict[str, Any], **parts: Any) -> Cluster:
    """The cluster that these parts describe."""
    return parse_cluster(world(*nodes, **parts))


def times(row: dict[str, Any], *, seed: int = 0, rank: int = 0) -> StepTimes:
    """Of the one node that a row describes."""
    return StepTimes(built(row).nodes[0], seed=seed, rank=rank)


def timed(method: str, *choices: str, workers: dict[str, Any], updates: int, trace: str = "none", **keys: Any) -> Run:
    """A run of so many updates, on a workload that has sizes only."""
    described = experiment(
        f"method={method}", "workload=phantom", *choices, workload=SIZES, budget={"updates": updates}, cluster=workers, **keys
    )
    return simulate(described, trace=trace)


def certain(number: float) -> dict[str, Any]:
    """A law that always draws this number: what is added to it is too small to change it."""
    return {"distribution": "uniform", "loc": number, "scale": 1e-300}


Asking = Callable[[Node, Any], Generator[Any, Any, Any]]


@dataclass(frozen=True, kw_only=True)
class Script(Coordination):
    """What each rank asks, written in the test; the last rank serves, and the run ends with it."""

    needs_server: ClassVar[bool] = True
    asks: Asking

    def program(self, node: Node, plan: Plan, state: State) -> Program[None]:
        yield from self.asks(node, state.weights)
        if node.rank == node.server:
            yield from Commit(1, replace(state, version=1))


@cache
def base(*choices: str, batch_size: int, num_samples: int = 60_000, updates: int = 1) -> Experiment:
    """An experiment whose cluster is another in each test: that is the quicker part to make."""
    return experiment(
        *("workload=phantom", *choices),
        workload={"num_parameters": 8, "num_samples": num_samples},
        budget={"updates": updates},
        cluster=world(node(1.0, count=4)),
        batch_size=batch_size,
    )


def play(asks: Asking, workers: dict[str, Any], *, seed: int = 0) -> None:
    """Let every rank ask what is written in the test."""
    asgd = base("method=asgd", batch_size=64)
    axes = ("allocation", "weighting", "discount", "compensation", "admission", "compression")
    script = Script(asks=asks, **{axis: getattr(asgd.coordination, axis) for axis in axes})
    simulate(replace(asgd, cluster=parse_cluster(workers), coordination=script, seed=seed))


# Compute


def by_size(row: dict[str, Any], sizes: Sequence[int]) -> list[float]:
    """What the first gradient of so many samples takes, on a node of its own for each size."""
    workers = world({**row, "count": len(sizes)})
    run = timed("asgd", "allocation=fixed", workers=workers, updates=99, batch_size=sum(sizes), allocation={"parts": list(sizes)})
    first = {c.rank: c for group in reversed(run.applied) for c in group}
    assert [first[rank].samples for rank in range(len(sizes))] == list(sizes)
    return [first[rank].seconds for rank in range(len(sizes))]


def test_a_gradient_takes_an_overhead_and_its_samples():
    """overhead_seconds + b · seconds_per_sample."""
    assert by_size(node(0.25, 0.5), [1, 2, 5, 8]) == [0.75, 1.0, 1.75, 2.5]


def test_a_measured_gradient_takes_what_the_table_says():
    """Constant below the first point, linear between two, and on behind the last as between the last two."""
    row = {"count": 1, "table": [[4, 1.0], [8, 2.0], [16, 6.0]]}

    assert by_size(row, [1, 4, 5, 8, 10, 15, 16, 17, 24]) == [1.0, 1.0, 1.25, 2.0, 3.0, 5.5, 6.0, 6.5, 10.0]


def test_a_table_of_one_point_says_the_same_of_every_size():
    """There is no second point to go on by."""
    assert by_size({"count": 1, "table": [[4, 1.5]]}, [1, 4, 9]) == [1.5, 1.5, 1.5]


def test_a_table_may_fall_where_it_does_not_end():
    """A larger batch may have been measured to be faster; in between that is linear, too."""
    assert by_size({"count": 1, "table": [[2, 4.0], [4, 1.0], [8, 2.0]]}, [1, 3, 4, 6, 12]) == [4.0, 2.5, 1.0, 1.5, 3.0]


def test_a_measured_size_takes_exactly_what_was_measured():
    """To the last bit, whichever numbers: nothing is interpolated at a point."""
    table = [[1, 0.7], [10, 1.3], [33, 2.9]]

    assert by_size({"count": 1, "table": table}, [1, 10, 33]) == [0.7, 1.3, 2.9]
    assert by_size({"count": 1, "table": [table[0], [23, 2.9]]}, [1, 23]) == [0.7, 2.9]


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
    assert law.some(300, 3, 1, 4) == streams[0]
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
                    computed[its.rank].append((yield from Gradient(at=x, batch=Batch(0, 1))).seconds)
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


# Slow spells and recorded slowdown

SPELLS_OF_TWO = {"factor": 2.0, "seconds_between": certain(4.0), "seconds_lasting": certain(2.0)}
"""Slow from 4 to 6 s, from 10 to 12 s, and so on."""


def recorded(folder: Path, *points: tuple[float, float]) -> str:
    """The name of a file with this trace."""
    path = folder / "slowdown.csv"
    path.write_text("seconds,factor\n" + "".join(f"{seconds},{factor}\n" for seconds, factor in points))
    return str(path)


@pytest.mark.parametrize(
    ("start", "work", "took"),
    [
        (0.0, 4.0, 4.0),  # up to the spell
        (1.0, 2.0, 2.0),  # before it
        (6.0, 4.0, 4.0),  # between two
        (3.0, 1.5, 2.0),  # begins before it and ends in it
        (4.5, 0.5, 1.0),  # in it
        (4.0, 1.0, 2.0),  # all of it
        (5.0, 3.0, 3.5),  # begins in it and ends behind it
        (3.0, 3.0, 4.0),  # spans it
        (2.0, 9.0, 11.0),  # spans two: 2 + 1 in 2 + 4 + 1 in 2 + 1
        (11.0, 5.0, 6.0),  # begins in the second, ends in the third
    ],
)
def test_work_in_a_slow_spell_takes_factor_times_as_long(start: float, work: float, took: float, tmp_path: Path):
    """A gradient of so many seconds that begins then; spells by law, or the same recorded."""
    points = [(0.0, 1.0), *((6.0 * k + at, factor) for k in range(3) for at, factor in ((4.0, 2.0), (6.0, 1.0)))]

    assert times(node(0.5, slow_spells=SPELLS_OF_TWO)).seconds(int(2 * work), start) == took
    assert times(node(0.5, slowdown=recorded(tmp_path, *points))).seconds(int(2 * work), start) == took


def test_a_run_goes_through_slow_spells():
    """Steps of 3 s, slow by half from 4 to 6, 10 to 12 and 16 to 18 s: the second, fourth and fifth take a second longer."""
    run = timed("ssgd", workers=world(node(3.0, slow_spells=SPELLS_OF_TWO)), updates=6, batch_size=1)

    assert run.seconds == [3.0, 7.0, 10.0, 14.0, 18.0, 21.0]


def test_the_last_recorded_factor_holds_for_ever(tmp_path: Path):
    """Half as fast up to 2 s, then four times as slow, to the end of time."""
    its = times(node(1.0, slowdown=recorded(tmp_path, (0, 2), (2, 4))))

    assert [its.seconds(3, start) for start in (0.0, 1.0, 2.0, 1e6)] == [2 + 2 * 4.0, 1 + 2.5 * 4.0, 12.0, 12.0]


def test_a_factor_below_one_makes_work_shorter(tmp_path: Path):
    """A factor of a half from 2 s on: 3 s of work from the beginning take 2 + 1/2."""
    assert times(node(1.0, slowdown=recorded(tmp_path, (0, 1), (2, 0.5)))).seconds(3) == 2.5


def test_slow_spells_and_a_recorded_slowdown_multiply(tmp_path: Path):
    """By 4 from 2 s on, and by 2 from 4 to 6 and from 10 to 12 s: in all by 1, 4, 8, 4, 8, 4 from 0, 2, 4, 6, 10, 12 s on."""
    its = times(node(0.25, slow_spells=SPELLS_OF_TWO, slowdown=recorded(tmp_path, (0, 1), (2, 4))))

    assert [its.seconds(1, start) for start in (0.5, 2.0, 4.0, 6.0, 10.0)] == [0.25, 1.0, 2.0, 1.0, 2.0]
    assert its.seconds(9, 1.0) == 1 + 2 + 2 + 4 * 0.5  # 1, 1/2 and 1/4 of 9/4 are done by 2, 4 and 6 s
    assert its.seconds(8, 4.5) == 1.5 + 4 + 2 + 4 * 0.5625  # 3/16, 1 and 1/4 of 2 by 6, 10 and 12 s


def test_a_node_s_updates_are_slowed_down_too(tmp_path: Path):
    """Gradients of 3 s and updates of 2 s, all twice as slow from 4 s to 8 s: 3, 4 + 2, 8 + 2, 12, 15, 17."""
    slowdown = recorded(tmp_path, (0, 1), (4, 2), (8, 1))
    run = timed("ssgd", workers=world(node(3.0, seconds_per_update=2.0, slowdown=slowdown)), updates=3, batch_size=1, trace="full")

    ends = [(row.kind, row.end) for row in run.rows("gradient", "update")]
    assert ends == [("gradient", 3.0), ("update", 6.0), ("gradient", 10.0), ("update", 12.0), ("gradient", 15.0), ("update", 17.0)]


def test_a_node_s_slowdown_is_its_own(tmp_path: Path):
    """One of two nodes is slow from 1 s on: the other's gradients take what they took."""
    slow = node(1.0, slowdown=recorded(tmp_path, (0, 1), (1, 4)))
    run = timed("asgd", workers=world(slow, node(1.25)), updates=5, batch_size=2)

    assert [(seconds, group[0].rank) for seconds, group in zip(run.seconds, run.applied, strict=True)] == [
        (1.0, 0),
        (1.25, 1),
        (2.5, 1),
        (3.75, 1),
        (5.0, 0),
    ]


def test_what_lies_outside_of_every_spell_is_unchanged_to_the_last_bit(tmp_path: Path):
    """Noisy gradients and updates, and spells that begin when the run is over."""
    plain = node(0.0013, 0.0007, seconds_per_update=0.003, noise={"distribution": "lognorm", "s": 0.5})
    spells = {"factor": 3.0, "seconds_between": certain(1e6), "seconds_lasting": certain(1.0)}
    slowdown = recorded(tmp_path, (0, 1), (1e6, 7))

    runs = [
        timed("ssgd", workers=world(plain, {**plain, **more}), updates=40, batch_size=7)
        for more in ({}, {"slow_spells": spells}, {"slowdown": slowdown}, {"slow_spells": spells, "slowdown": slowdown})
    ]
    assert [run.seconds for run in runs] == [runs[0].seconds] * 4


def integral(pieces: Sequence[tuple[float, float]], start: float, end: float) -> Fraction:
    """∫ 1/factor from start to end, exactly, over (second, factor) pieces."""
    total = Fraction(0)
    for (since, factor), (until, _) in pairwise([*pieces, (max(end, pieces[-1][0]) + 1, 1.0)]):
        overlap = min(Fraction(end), Fraction(until)) - max(Fraction(start), Fraction(since))
        total += max(Fraction(0), overlap) / Fraction(factor)
    return total


SECONDS = st.floats(0.0, 50.0, allow_subnormal=False)
TRACES = st.lists(st.tuples(st.floats(0.01, 9.0), st.floats(0.1, 10.0)), min_size=1, max_size=8).map(
    lambda steps: tuple(zip(np.cumsum([0.0, *(seconds for seconds, _ in steps[:-1])]).tolist(), (f for _, f in steps), strict=True))
)


def sped(*, trace: tuple[tuple[float, float], ...] = (), spells: bool = False, seed: int = 0) -> Slowdown:
    """The slowdown of a node with this trace, and spells of a second or so that take three times as long."""
    slow = {"factor": 3.0, "seconds_between": 1.5, "seconds_lasting": 0.75} if spells else None
    return Slowdown(replace(built(node(1.0, slow_spells=slow)).nodes[0], slowdown=trace), seed=seed, rank=2)


def pieces_of(trace: tuple[tuple[float, float], ...], *, spells: bool, seed: int, until: float) -> list[tuple[float, float]]:
    """Where the factor changes, and to what, put together anew from the draws."""
    changes, now, slow = {0.0: 1.0}, 0.0, False
    if spells:
        between, lasting = (
            distributions.Distribution("expon", {"scale": mean}).draws(seed, 2, SPELLS, k) for k, mean in ((0, 1.5), (1, 0.75))
        )
        while now < until:
            now += next(lasting if slow else between)
            slow = not slow
            changes[now] = 3.0 if slow else 1.0
    moments = sorted({*changes, *(seconds for seconds, _ in trace)})

    def at(points: Sequence[tuple[float, float]], moment: float) -> float:
        return next((factor for seconds, factor in reversed(points) if seconds <= moment), 1.0)

    by_law = sorted(changes.items())
    return [(moment, at(by_law, moment) * at(trace, moment)) for moment in moments]


@settings(max_examples=60)
@given(trace=TRACES, spells=st.booleans(), seed=st.integers(0, 99), start=SECONDS, work=SECONDS)
def test_stretched_work_is_the_integral_of_the_rate(
    trace: tuple[tuple[float, float], ...], spells: bool, seed: int, start: float, work: float
):
    """∫ 1/factor over the time that work takes is the work, exactly but for the rounding of the sums."""
    took = sped(trace=trace, spells=spells, seed=seed).stretched(work, start)

    done = integral(pieces_of(trace, spells=spells, seed=seed, until=start + took + 1), start, start + took)
    assert float(done) == pytest.approx(work, rel=1e-12, abs=1e-12)


@given(trace=TRACES, seed=st.integers(0, 99), starts=st.lists(SECONDS, min_size=2, max_size=6), work=SECONDS)
def test_who_begins_later_ends_no_earlier(trace: tuple[tuple[float, float], ...], seed: int, starts: list[float], work: float):
    """The end does not go back as the start goes on, whichever order they are asked in; and no work takes less than no time."""
    slowdown = sped(trace=trace, spells=True, seed=seed)
    ends = {start: start + slowdown.stretched(work, start) for start in starts}

    for before, behind in pairwise(sorted(starts)):
        assert before <= ends[before] <= ends[behind] + 1e-9
    assert all(slowdown.stretched(0.0, start) == 0.0 for start in starts)


@given(trace=TRACES, seed=st.integers(0, 99), start=SECONDS, parts=st.lists(SECONDS, min_size=2, max_size=5))
def test_work_in_parts_ends_when_it_would_in_one_piece(trace: tuple[tuple[float, float], ...], seed: int, start: float, parts: list[float]):
    """No work is lost or done twice where one part ends and the next begins."""
    slowdown, now = sped(trace=trace, spells=True, seed=seed), start
    for work in parts:
        now += slowdown.stretched(work, now)

    assert now == pytest.approx(start + slowdown.stretched(sum(parts), start), rel=1e-12)


def test_spells_by_exponential_laws_are_slow_for_their_part_of_the_time():
    """A number of seconds is the mean of an exponential law: of a cycle of 3 + 1 s at factor 4, 3 + 1/4 s of work are done.

    The means of 40 nodes, within 3.6 of their standard errors: p < 1e-3 by Student's t with 39 degrees of freedom.
    """
    row = node(1.0, slow_spells={"factor": 4.0, "seconds_between": 3, "seconds_lasting": 1})
    rates = [2000 / times(row, rank=rank).seconds(2000) for rank in range(40)]

    assert abs(fmean(rates) - 3.25 / 4) < 3.6 * stdev(rates) / sqrt(40) < 0.01


# Memory

SPEEDS = (1.0, 1.0, 2.0, 4.0)
BOUNDS = (None, None, 30, 20)
"""A batch of 96 by speed is 12, 12, 24, 48; as far as memory allows, 20 to the last, then 19, 19, 38, and so 30 to the third."""
FITTED = (23, 23, 30, 20)
ALLOCATIONS: dict[str, tuple[str, ...]] = {
    "even": (),
    "fixed": ("allocation.parts=[1,1,2,4]",),
    "dbs": (),
    "dbs_per_epoch": (),
    "omnilearn": (),
    "lb_bsp": (),
    "static": (),
    "optperf": ("allocation.probes=2",),
}
COORDINATIONS = {"all_reduce": ("method=ssgd",), "barrier": ("method=ssgd", "coordination=parameter_server"), "server": ("method=asgd",)}


def bounded(coordination: str, allocation: str, *, s: float | None = None, bounds: Sequence[int | None] = BOUNDS) -> Run:
    """40 updates of 96 samples, an epoch of 480, on nodes with so much memory each."""
    noise = None if s is None else {"distribution": "lognorm", "s": s}
    rows = [node(1 / v, noise=noise, max_samples=bound) for v, bound in zip(SPEEDS, bounds, strict=True)]
    choices = (*COORDINATIONS[coordination], f"allocation={allocation}", *ALLOCATIONS[allocation])
    described = base(*choices, batch_size=96, num_samples=480, updates=40)
    return simulate(replace(described, cluster=built(*rows)), trace="full")


def split_of(run: Run, state: State) -> tuple[int, ...]:
    """The shares that are in force."""
    shares: tuple[int, ...] = run.simulation.experiment.coordination.allocation.shares(state.allocation)
    return shares


@pytest.mark.parametrize("coordination", COORDINATIONS)
@pytest.mark.parametrize("allocation", ALLOCATIONS)
def test_no_step_ever_has_more_samples_than_fit(allocation: str, coordination: str):
    """Under any allocation, with noise, in every gradient, also those that measure before the run; and the batch stays whole."""
    run = bounded(coordination, allocation, s=0.3)

    computed = [(row.rank, row.samples) for row in run.rows("gradient", "profile")]
    assert all(1 <= samples <= (BOUNDS[rank] or inf) for rank, samples in computed)
    assert {rank for rank, samples in computed if samples == BOUNDS[rank]} >= ({3} if allocation != "lb_bsp" else set())
    assert all(sum(split_of(run, state)) == 96 for state in run.states)
    if coordination != "server":
        assert {sum(c.samples for c in group) for group in run.applied} == {96}


@pytest.mark.parametrize("coordination", COORDINATIONS)
@pytest.mark.parametrize("allocation", ["fixed", "dbs", "dbs_per_epoch", "omnilearn", "optperf"])
def test_what_does_not_fit_goes_to_the_others_by_their_speed(allocation: str, coordination: str):
    """48, 24, 12, 12 by speed become 20, 30 and twice 23; where everything fits, they stay."""
    run, free = bounded(coordination, allocation), bounded(coordination, allocation, bounds=(None,) * 4)

    assert split_of(run, run.states[-1]) == FITTED
    assert split_of(free, free.states[-1]) == (12, 12, 24, 48)


def test_a_static_split_gives_what_does_not_fit_to_the_others_by_their_speed():
    """As every other one does: a step takes as long as its largest part per speed."""
    run, free = bounded("all_reduce", "static"), bounded("all_reduce", "static", bounds=(None,) * 4)

    assert split_of(free, free.states[-1]) == (12, 12, 24, 48)
    assert split_of(run, run.states[-1]) == FITTED


def test_an_even_split_gives_what_does_not_fit_to_the_others_evenly():
    """24 each, of which 20 fit: 26, 25, 25 for the rest, the lower rank first."""
    run = bounded("all_reduce", "even")

    assert split_of(run, run.states[-1]) == (26, 25, 25, 20)


def test_a_gradual_shift_fills_the_fast_ones_and_stops():
    """LB-BSP moves five samples at a time to the fastest until it is full, of the last ones only what fits; then to the others."""
    run = bounded("all_reduce", "lb_bsp", bounds=(None, None, None, 43))

    splits = [split_of(run, state) for state in run.states]
    assert [split[3] for split in splits[:5]] == [29, 34, 39, 43, 43]
    assert max(abs(a - b) for a, b in zip(splits[-1], (13, 13, 27, 43), strict=True)) <= 2


def test_what_a_lost_worker_held_goes_to_others_only_as_far_as_it_fits():
    """Twelve samples of a node that crashed are handed out again, to one that holds four at once: in parts, and none is left out."""
    faults = {"schedule": [{"nodes": [1], "crash": 5.0, "repair": 100.0}]}
    described = experiment(
        *("method=asgd", "workload=phantom", "allocation=fixed"),
        workload={"num_parameters": 8, "num_samples": 160},
        allocation={"parts": [1, 3]},
        budget={"epochs": 1},
        cluster=world(node(1.0, max_samples=4), node(0.25), faults=faults),
        batch_size=16,
    )

    run = simulate(described, trace="full")

    assert max(row.samples for row in run.rows("gradient") if row.rank == 0) == 4
    assert worlds.tiles([c.batch for group in run.applied for c in group], 160)


def test_a_node_without_a_bound_takes_whatever_is_left():
    """A thousand samples of 1020, where the other holds 20."""
    workers = world(node(1.0), node(1.0, max_samples=20))

    run = timed("ssgd", workers=workers, updates=2, batch_size=1020)

    assert [[c.samples for c in group] for group in run.applied] == [[1000, 20]] * 2
    assert built(node(1.0, count=3)).max_samples is None


@pytest.mark.parametrize("allocation", ALLOCATIONS)
def test_less_memory_than_a_batch_is_refused(allocation: str):
    """Whatever the allocation, in one sentence, before anything runs; exactly enough is enough."""
    with pytest.raises(ValueError, match=r"^the nodes' max_samples hold 95 samples in all, but batch_size=96: raise them, or lower it$"):
        bounded("all_reduce", allocation, bounds=(20, 25, 30, 20))

    run = bounded("all_reduce", allocation, bounds=(21, 25, 30, 20))
    assert {split_of(run, state) for state in run.states} == {(21, 25, 30, 20)}


WEIGHTS = st.lists(st.one_of(st.floats(1e-3, 1e3), st.sampled_from([1.0, 2.0, 3.0])), min_size=1, max_size=8)


@given(weights=WEIGHTS, extra=st.integers(0, 60), data=st.data())
def test_a_bounded_split_is_whole_and_keeps_to_its_bounds(weights: list[float], extra: int, data: st.DataObject):
    """Σ b_i = B and 1 ≤ b_i ≤ most_i for all bounds that hold B in all."""
    total = len(weights) + extra
    most = data.draw(st.lists(st.integers(1, total), min_size=len(weights), max_size=len(weights)).filter(lambda m: sum(m) >= total))

    split = proportional(weights, total, max_samples=most)

    assert sum(split) == total
    assert all(1 <= share <= bound for share, bound in zip(split, most, strict=True))


@given(weights=WEIGHTS, extra=st.integers(0, 60), data=st.data())
def test_a_bound_that_does_not_bind_changes_nothing(weights: list[float], extra: int, data: st.DataObject):
    """Where the split by weight fits, also just so, it is the split."""
    total = len(weights) + extra
    free = proportional(weights, total)
    room = data.draw(st.lists(st.sampled_from([0, 0, 1, 1000]), min_size=len(weights), max_size=len(weights)))

    assert proportional(weights, total, max_samples=[share + more for share, more in zip(free, room, strict=True)]) == free


@given(weights=WEIGHTS, extra=st.integers(0, 60), data=st.data())
def test_who_is_not_full_has_its_part_by_weight(weights: list[float], extra: int, data: st.DataObject):
    """b_i = min(most_i, max(1, λ w_i)) for one λ, each within one sample: no other of weight w may have less by two than one's own part."""
    total = len(weights) + extra
    most = data.draw(st.lists(st.integers(1, total), min_size=len(weights), max_size=len(weights)).filter(lambda m: sum(m) >= total))

    split = proportional(weights, total, max_samples=most)

    not_full = [(share, w) for share, bound, w in zip(split, most, weights, strict=True) if share < bound]
    some = [(share, w) for share, w in zip(split, weights, strict=True) if share > 1]
    for more, heavy in some:
        for less, light in not_full:
            assert (more - 1) / heavy <= (less + 1) / light * (1 + 1e-9)


# Crashes by law


def test_crashes_by_law_begin_behind_everything_that_is_scheduled():
    """Absences are in order and apart, also where a law would have had a node crash between two that are scheduled."""
    law = {"distribution": "expon", "scale": 1.0}
    rows = [
        {"nodes": [0], "join": 1, "crash": 90, "repair": 95},
        {"nodes": [0], "crash": 50, "repair": 60, "seconds_to_crash": law, "seconds_to_repair": law},
    ]
    away = list(islice(outages(built(node(1.0), faults={"schedule": rows}), 0, seed=0), 50))

    assert away[:3] == [(0.0, 1.0), (50.0, 60.0), (90.0, 95.0)]
    assert all(start < until < following for (start, until), (following, _) in pairwise(away))


# Links and racks


def told(run: Run) -> list[tuple[float, float, int, int]]:
    """(handed over, delivered, sender, bytes) of each message."""
    return [(row.start, row.end, row.rank, row.nbytes) for row in run.rows("message")]


NARROW: dict[str, tuple[dict[str, Any], float, float]] = {
    "no link": ({}, 64.0, 64.0),
    "a worker's uplink": ({"node": {"uplink_bytes_per_second": 16.0}}, 16.0, 64.0),
    "a worker's downlink": ({"node": {"downlink_bytes_per_second": 8.0}}, 64.0, 8.0),
    "the server's uplink": ({"server": {"uplink_bytes_per_second": 4.0}}, 64.0, 4.0),
    "the server's downlink": ({"server": {"downlink_bytes_per_second": 2.0}}, 2.0, 64.0),
    "a rack's uplink": ({"rack": {"uplink_bytes_per_second": 16.0, "downlink_bytes_per_second": 1024.0}}, 16.0, 64.0),
    "a rack's downlink": ({"rack": {"downlink_bytes_per_second": 8.0}}, 64.0, 8.0),
    "a rack's only number": ({"rack": {"uplink_bytes_per_second": 32.0}}, 32.0, 32.0),
    "everyone's uplink": ({"network": {"uplink_bytes_per_second": 16.0}}, 16.0, 64.0),
    "links that are wider": (
        {"node": {"uplink_bytes_per_second": 128.0}, "server": {"downlink_bytes_per_second": 65.0, "uplink_bytes_per_second": 1e9}},
        64.0,
        64.0,
    ),
}


@pytest.mark.parametrize("narrow", NARROW)
def test_a_message_takes_the_latencies_on_its_way_and_its_bytes_at_the_narrowest_link(narrow: str):
    """Latencies of the network, the node, its rack and the server add up; a worker in a rack, a server in none, 32 bytes."""
    more, up, down = NARROW[narrow]
    workers = world(
        node(1.0, latency_seconds=0.25, rack="a", **more.get("node", {})),
        network={**WIRE, "racks": {"a": {"latency_seconds": 0.5, **more.get("rack", {})}}, **more.get("network", {})},
        server={"latency_seconds": 1.0, **more.get("server", {})},
    )
    latency = 0.125 + 0.25 + 0.5 + 1.0

    run = timed("asgd", workers=workers, updates=2, batch_size=1, trace="full")

    assert told(run)[:3] == [
        (0.0, latency, 0, 0),  # ready
        (latency, 2 * latency + 32 / down, 1, 32),  # weights
        (1.0 + 2 * latency + 32 / down, 1.0 + 3 * latency + 32 / down + 32 / up, 0, 32),  # a gradient
    ]
    cluster = run.simulation.cluster
    assert (cluster.message_seconds(0, 1, 32), cluster.message_seconds(1, 0, 32)) == (latency + 32 / up, latency + 32 / down)


def test_a_row_s_own_link_goes_before_everyone_s():
    """What the network says of all nodes' links holds for those that say nothing; the server has its own."""
    cluster = built(node(1.0, uplink_bytes_per_second=4.0), node(1.0), network={**WIRE, "uplink_bytes_per_second": 8.0})

    assert [cluster.capacity(("up", end)) for end in (0, 1, "server")] == [4.0, 8.0, inf]
    assert [cluster.capacity(("down", end)) for end in (0, 1, "server")] == [inf] * 3


def test_messages_may_be_in_each_other_s_way_where_any_link_is_described():
    """A node's, the server's or a rack's, up or down; what one message gets at most is no link."""
    plain = built(node(1.0), network=WIRE)
    of_node = built(node(1.0), node(1.0, downlink_bytes_per_second=8.0))
    of_server = built(node(1.0), server={"uplink_bytes_per_second": 8.0})
    of_rack = built(node(1.0, rack="a"), network={**WIRE, "racks": {"a": {"downlink_bytes_per_second": 8.0}}})

    assert [its.shares_links for its in (plain, of_node, of_server, of_rack)] == [False, True, True, True]


def test_two_that_push_at_once_share_the_server_s_downlink():
    """Weights in 1/2 s, gradients of 1 s, two pushes of 32 bytes at 16 bytes per second each: a round takes 3.5 s."""
    workers = world(node(1.0, count=2), network={**WIRE, "latency_seconds": 0.0}, server={"downlink_bytes_per_second": 32.0})

    run = timed("asgd", workers=workers, updates=6, batch_size=2)

    assert run.seconds == [3.5, 3.5, 7.0, 7.0, 10.5, 10.5]


def test_pushes_that_overlap_share_the_link_while_they_do():
    """From 1.5 s one has 32 bytes per second, from 2 s both have 16; the first is through at 3 s, the other, alone again, at 3.5 s.

    Then the first pushes from 4.5 s to 5.5 s, alone, when the other begins.
    """
    workers = world(node(1.0), node(1.5), network={**WIRE, "latency_seconds": 0.0}, server={"downlink_bytes_per_second": 32.0})

    run = timed("asgd", workers=workers, updates=4, batch_size=2)

    history = [(seconds, group[0].rank) for seconds, group in zip(run.seconds, run.applied, strict=True)]
    assert history == [(3.0, 0), (3.5, 1), (5.5, 0), (6.5, 1)]


def test_weights_to_several_at_once_share_the_server_s_uplink():
    """Four replies of 32 bytes at 128 bytes per second in all, of which no one message gets more than 64: 1 s, not 1/2 s."""
    workers = world(node(1.0, count=4), network={**WIRE, "latency_seconds": 0.0}, server={"uplink_bytes_per_second": 128.0})

    run = timed("asgd", workers=workers, updates=4, batch_size=4)

    assert run.seconds == [1.0 + 1.0 + 0.5] * 4


def test_messages_on_one_way_go_one_after_another_where_links_are_shared():
    """Three of 32 bytes handed over at once at 16 bytes per second arrive every 2 s, and an empty one behind them with the last."""
    arrived: list[tuple[float, int]] = []

    def asks(its: Node, x: Any) -> Generator[Any, Any, Any]:
        if its.rank == 0:
            for number, payload in enumerate((x, x, x, None)):
                yield from Send(1, payload, number=number)
        if its.rank == 1:
            for _ in range(4):
                message = yield from Receive(0)
                arrived.append(((yield from Now()), message.number))

    play(asks, world(node(1.0, uplink_bytes_per_second=16.0), node(1.0), network=WIRE))

    assert arrived == [(2.125, 0), (4.125, 1), (6.125, 2), (6.125, 3)]


def test_who_is_in_the_server_s_rack_does_not_pass_its_uplink():
    """Two workers in its rack push in 1/2 s; two in another share that one's 32 bytes per second up, and down each has 64."""
    racks = {"a": {"uplink_bytes_per_second": 128.0}, "b": {"uplink_bytes_per_second": 32.0, "downlink_bytes_per_second": 128.0}}
    workers = world(
        node(1.0, count=2, rack="a"),
        node(1.0, count=2, rack="b"),
        network={**WIRE, "latency_seconds": 0.0, "racks": racks},
        server={"rack": "a"},
    )

    run = timed("asgd", workers=workers, updates=4, batch_size=4)

    assert list(zip(run.seconds, [group[0].rank for group in run.applied], strict=True)) == [(2.0, 0), (2.0, 1), (3.5, 2), (3.5, 3)]


NESTED: dict[str, Any] = {
    "row": {"latency_seconds": 0.5, "uplink_bytes_per_second": 32.0},
    "a": {"within": "row", "latency_seconds": 0.25, "uplink_bytes_per_second": 16.0},
    "b": {"within": "row", "latency_seconds": 0.125},
}


def nested(**server: Any) -> dict[str, Any]:
    """Nodes 0 and 1 in rack a and 2 in b, both in a row in which 3 stands; 4 in none."""
    rows = [node(1.0, rack=rack, uplink_bytes_per_second=64.0) for rack in ("a", "a", "b", "row", None)]
    return world(*rows, network={"latency_seconds": 0.0, "bytes_per_second": 64.0, "racks": NESTED}, server=server)


def test_a_message_leaves_only_the_racks_that_its_receiver_is_not_in():
    """Nearest first on the way out, farthest first on the way in; what no number is given for carries everything."""
    cluster = parse_cluster(nested(rack="b"))

    def way(sender: int, receiver: int) -> tuple[float, list[str]]:
        path = cluster.path(sender, receiver)
        return path.latency_seconds, [" ".join(map(str, link)) for link in path.links]

    assert way(0, 1) == (0.0, ["up 0"])
    assert way(0, 2) == (0.375, ["up 0", "up rack a"])
    assert way(2, 0) == (0.375, ["up 2", "down rack a"])
    assert way(0, 3) == (0.25, ["up 0", "up rack a"])
    assert way(3, 0) == (0.25, ["up 3", "down rack a"])
    assert way(0, 4) == (0.75, ["up 0", "up rack a", "up rack row"])
    assert way(4, 0) == (0.75, ["up 4", "down rack row", "down rack a"])
    assert way(2, 5) == (0.0, ["up 2"])
    assert way(5, 4) == (0.625, ["up rack row"])


def test_nodes_of_two_racks_share_the_link_of_the_one_around_them():
    """From a at 16, from b at what is left of the row's 32 bytes per second, 8 each of two, when three push 32 bytes at once."""
    arrived: dict[int, float] = {}

    def asks(its: Node, x: Any) -> Generator[Any, Any, Any]:
        if its.rank in (0, 2, 3):
            yield from Send(its.server, x)
        if its.rank == its.server:
            for _ in range(3):
                message = yield from Receive()
                arrived[message.source] = yield from Now()

    play(asks, nested())

    third = 32 / (32 / 3)
    assert arrived == {0: 0.75 + third, 2: 0.625 + third, 3: 0.5 + third}


def test_an_oversubscribed_rack_carries_a_part_of_its_nodes_links():
    """The sum of its nodes' links, and of those in racks in it, over k, each way; not of the server's."""
    racks = {"a": {"oversubscription": 4, "within": "row"}, "row": {"oversubscription": 8}, "c": {"oversubscription": 0.5}}
    rows = [
        node(1.0, rack="a", uplink_bytes_per_second=8.0),
        node(1.0, rack="a", uplink_bytes_per_second=24.0, downlink_bytes_per_second=48.0),
        node(1.0, rack="row"),
        node(1.0, rack="c", count=3),
    ]
    both = {"uplink_bytes_per_second": 32.0, "downlink_bytes_per_second": 16.0}
    cluster = built(*rows, network={**WIRE, **both, "racks": racks}, server={"rack": "a", "uplink_bytes_per_second": 1e6})

    carried = {name: (rack.uplink_bytes_per_second, rack.downlink_bytes_per_second) for name, rack in cluster.network.racks.items()}
    assert carried == {"a": (8.0, 16.0), "row": (8.0, 10.0), "c": (192.0, 96.0)}


@pytest.mark.parametrize("shared", [False, True])
def test_jitter_delays_each_message_and_lets_none_overtake(shared: bool):
    """Sent every 1/64 s with a jitter of 1/2 s in the mean: each arrives at its own moment or with the one before it, in order."""
    law = {"distribution": "expon", "scale": 0.5}
    sent: list[float] = []
    arrived: list[tuple[float, int]] = []

    def asks(its: Node, x: Any) -> Generator[Any, Any, Any]:
        if its.rank == 0:
            for number in range(300):
                yield from Gradient(at=x, batch=Batch(0, 1))
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
                yield from Gradient(at=x, batch=Batch(0, 1))
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


def test_shards_divide_service_and_the_server_s_part_of_a_message():
    """Each of k machines has 1/k of the weights and links of its own: an update, and what passes the server's links, takes 1/k."""
    server = {"seconds_per_update": 1.0, "seconds_per_byte": 0.125, "uplink_bytes_per_second": 16.0, "downlink_bytes_per_second": 8.0}

    for shards in (1, 2, 4):
        run = timed("asgd", workers=world(node(1.0), network=WIRE, server={**server, "shards": shards}), updates=1, batch_size=1)
        weights, gradient, update = 0.125 + 32 / (16 * shards), 0.125 + 32 / (8 * shards), (1 + 32 * 0.125) / shards
        assert run.seconds == [0.125 + weights + 1 + gradient + update]
        run = timed("asgd", workers=world(node(1.0), network=WIRE, server={"shards": shards}), updates=1, batch_size=1)
        assert run.seconds == [0.125 + 2 * (0.125 + 32 / (64 * shards)) + 1]


def test_a_worker_s_own_link_is_not_divided_by_the_server_s_shards():
    """All k parts pass it, whatever they are for."""
    workers = world(node(1.0, uplink_bytes_per_second=16.0), network=WIRE, server={"shards": 2})

    run = timed("asgd", workers=workers, updates=1, batch_size=1)

    assert run.seconds == [0.125 + (0.125 + 32 / 128) + 1 + (0.125 + 32 / 16)]


def test_a_message_between_workers_is_not_divided_by_the_server_s_shards():
    """Shards are the server's."""
    cluster = built(node(1.0, count=2), network=WIRE, server={"shards": 4})

    assert [cluster.message_seconds(*ends, 32) for ends in ((0, 1), (0, 2), (2, 0))] == [0.625, 0.25, 0.25]


def test_a_server_s_update_takes_its_bytes():
    """seconds_per_update + nbytes · seconds_per_byte, one after the other; a barrier makes one update of all."""
    server = {"seconds_per_update": 0.5, "seconds_per_byte": 0.0625}

    run = timed("asgd", workers=world(node(1.0), node(1.5), server=server), updates=4, batch_size=2)
    together = timed("ssgd", "coordination=parameter_server", workers=world(node(1.0), node(1.5), server=server), updates=2, batch_size=2)

    assert run.seconds == [3.5, 6.0, 8.5, 11.0]
    assert together.seconds == [4.0, 8.0]


# Collectives


def collective(algorithm: str, *nodes: dict[str, Any], members: Sequence[int] | None = None, **network: Any) -> Collectives:
    """The collectives of these nodes on a network of 1/8 s and 64 bytes per second."""
    return Collectives(built(*nodes, network={**WIRE, "all_reduce": algorithm, **network}), members)


@pytest.mark.parametrize(
    ("algorithm", "num_workers", "seconds"),
    [
        ("ring", 1, 0.0),
        ("ring", 2, 2 * 1 * (0.125 + 64 / 2 / 64)),
        ("ring", 8, 2 * 7 * (0.125 + 64 / 8 / 64)),
        ("halving_doubling", 1, 0.0),
        ("halving_doubling", 2, 2 * (0.125 + 0.5)),
        ("halving_doubling", 3, 2 * (0.125 + 0.5) + 2 * (0.125 + 1)),
        ("halving_doubling", 4, 2 * (0.125 + 0.5 + 0.125 + 0.25)),
        ("halving_doubling", 6, 2 * (0.125 + 0.5 + 0.125 + 0.25) + 2 * (0.125 + 1)),
        ("halving_doubling", 8, 2 * (0.125 + 0.5 + 0.125 + 0.25 + 0.125 + 0.125)),
        ("halving_doubling", 64, 2 * (6 * 0.125 + 63 / 64)),
    ],
)
def test_a_collective_on_equal_links_takes_its_closed_form(algorithm: str, num_workers: int, seconds: float):
    """64 bytes at 64 bytes per second and 1/8 s; in a run, what a step takes on top of the gradient; and the same on links as wide."""
    assert collective(algorithm, node(1.0, count=num_workers)).all_reduce_seconds(64) == seconds
    linked = collective(algorithm, node(1.0, count=num_workers), uplink_bytes_per_second=64.0, downlink_bytes_per_second=64.0)
    assert linked.all_reduce_seconds(64) == seconds

    workers = world(node(1.0, count=num_workers), network={"latency_seconds": 0.125, "bytes_per_second": 32.0, "all_reduce": algorithm})
    run = timed("ssgd", workers=workers, updates=2, batch_size=num_workers)
    assert run.seconds == [1.0 + seconds, 2.0 + 2 * seconds]


RACKED = {"a": {}, "b": {}, "c": {}}


@pytest.mark.parametrize(
    ("sizes", "racks", "seconds"),
    [
        ((4,), {}, 2 * 3 * (0.125 + 0.25)),  # one rack: its ring
        ((1, 1, 1), {}, 2 * 2 * (0.125 + 1 / 3)),  # one node each: the ring of racks
        ((2, 2), {}, 2 * (0.125 + 0.5) + 2 * (0.125 + 0.25)),
        ((4, 4), {}, 2 * 3 * (0.125 + 0.25) + 2 * (0.125 + 0.125)),
        ((2, 4), {}, 2 * 3 * (0.125 + 0.25) + 2 * (0.125 + 0.25)),  # the larger rack within, the smaller one's rings among
        ((4, 4), {"uplink_bytes_per_second": 32.0}, 2 * 3 * (0.125 + 0.25) + 2 * (0.125 + 8 / (32 / 4))),  # 4 rings on one uplink
        ((2, 2, 2), {"latency_seconds": 0.25}, 2 * (0.125 + 0.5) + 4 * (0.125 + 2 * 0.25 + 64 / 6 / 64)),
    ],
)
def test_a_two_level_all_reduce_takes_its_closed_form(sizes: Sequence[int], racks: dict[str, float], seconds: float):
    """2(m−1)(latency + n/(m·B)) within the racks, and among R of them 2(R−1) steps of M rings of 1/(M·R) each, that share the uplinks."""
    rows = [node(1.0, count=size, rack=rack) for size, rack in zip(sizes, RACKED, strict=False)]
    described = dict.fromkeys(list(RACKED)[: len(sizes)], racks)

    assert collective("two_level", *rows, racks=described).all_reduce_seconds(64) == pytest.approx(seconds, rel=1e-15)


@pytest.mark.parametrize(
    ("algorithm", "seconds"),
    [
        ("ring", 2 * 3 * (0.125 + 16 / 8)),
        ("halving_doubling", 2 * (0.125 + 32 / 8 + 0.125 + 16 / 8)),
        ("two_level", 2 * (0.125 + 32 / 8) + 2 * (0.125 + 16 / 8)),
    ],
)
@pytest.mark.parametrize("link", ["uplink_bytes_per_second", "downlink_bytes_per_second"])
def test_one_slow_link_decides(algorithm: str, seconds: float, link: str):
    """One of four nodes sends, or gets, 8 bytes per second: everyone waits for it in each step."""
    rows = [node(1.0, rack="a"), node(1.0, rack="a", **{link: 8.0}), node(1.0, rack="b", count=2)]

    assert collective(algorithm, *rows, racks={"a": {}, "b": {}}).all_reduce_seconds(64) == seconds


@pytest.mark.parametrize(
    ("algorithm", "seconds"),
    [
        ("ring", 2 * 3 * (0.125 + 2 + 0.25)),
        ("halving_doubling", 2 * (0.125 + 2 + 0.5 + 0.125 + 2 + 0.25)),
        ("two_level", 2 * (0.125 + 2 + 0.5) + 2 * (0.125 + 2 + 0.25)),
    ],
)
def test_one_long_latency_decides(algorithm: str, seconds: float):
    """One of four nodes is 2 s away: everyone waits for it in each step. A server's latency is no matter."""
    rows = [node(1.0, rack="a"), node(1.0, rack="a", latency_seconds=2.0), node(1.0, rack="b", count=2)]

    assert collective(algorithm, *rows, racks={"a": {}, "b": {}}).all_reduce_seconds(64) == seconds
    far = Collectives(built(node(1.0, count=4), network=WIRE, server={"latency_seconds": 2.0}))
    assert far.all_reduce_seconds(64) == 2 * 3 * (0.125 + 0.25)


def test_in_a_step_the_largest_of_latency_and_bytes_together_decides():
    """A near node on a slow link and a far one on a fast link: at 4 bytes the far one is waited for, at 1024 the slow one."""
    near, far = node(1.0, uplink_bytes_per_second=8.0), node(1.0, latency_seconds=2.0)
    ring = collective("ring", near, node(1.0), far, node(1.0))

    assert ring.all_reduce_seconds(4) == 6 * (2.125 + 1 / 64)
    assert ring.all_reduce_seconds(1024) == 6 * (0.125 + 256 / 8)


def test_who_is_left_over_is_answered_on_the_way_back():
    """The third of three hands 64 bytes over at 32 bytes per second up, and gets the sum at 8 down: 2 s there, 8 s back."""
    rows = [node(1.0, count=2), node(1.0, uplink_bytes_per_second=32.0, downlink_bytes_per_second=8.0)]

    assert collective("halving_doubling", *rows).all_reduce_seconds(64) == 2 * (0.125 + 0.5) + (0.125 + 2) + (0.125 + 8)


def test_a_ring_that_goes_to_and_fro_between_racks_shares_their_uplinks():
    """a a b b crosses each uplink once, a b a b twice; within a rack no uplink is passed."""
    racks = {"a": {"uplink_bytes_per_second": 64.0}, "b": {"uplink_bytes_per_second": 64.0}}

    def ring(*order: str) -> float:
        return collective("ring", *(node(1.0, rack=rack) for rack in order), racks=racks).all_reduce_seconds(64)

    assert ring("a", "a", "b", "b") == 6 * (0.125 + 16 / 64)
    assert ring("a", "b", "a", "b") == 6 * (0.125 + 16 / 32)
    assert ring("a", "b", "b", "a") == 6 * (0.125 + 16 / 64)


def test_a_collective_is_among_those_who_take_part():
    """Of five, three: the ring of three, without the slow one; and two of one rack, one of another."""
    rows = [node(1.0, rack="a", count=2), node(1.0, rack="a", uplink_bytes_per_second=1.0), node(1.0, rack="b", count=2)]

    for algorithm, seconds in (("ring", 4 * (0.125 + 1 / 4)), ("halving_doubling", 2 * (0.125 + 3 / 8) + 2 * (0.125 + 3 / 4))):
        assert collective(algorithm, *rows, members=[0, 1, 4], racks={"a": {}, "b": {}}).all_reduce_seconds(48) == seconds
    two_level = collective("two_level", *rows, members=[0, 1, 4], racks={"a": {}, "b": {}})
    assert two_level.all_reduce_seconds(48) == 2 * (0.125 + 3 / 8) + 2 * (0.125 + 3 / 8)


@pytest.mark.parametrize("algorithm", ["ring", "halving_doubling", "two_level"])
def test_a_gather_goes_around_the_ring(algorithm: str):
    """Eight bytes of each in N−1 steps, by the slowest link, whatever the network's all-reduce; nothing for one alone."""
    rows = [node(1.0, rack="a", count=3), node(1.0, rack="a", uplink_bytes_per_second=16.0)]

    assert collective(algorithm, *rows, racks={"a": {}}).gather_seconds() == 3 * (0.125 + 0.5)
    assert collective(algorithm, *rows, racks={"a": {}}, members=[3]).gather_seconds() == 0.0


# Collectives, transfer by transfer


class Wires:
    """The links of a cluster, as transfers share them."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.links: dict[tuple[str, int | str], Link] = {}

    def route(self, sender: int, receiver: int) -> Route:
        path = self.cluster.path(sender, receiver)
        links = tuple(self.links.setdefault(link, Link(self.cluster.capacity(link))) for link in path.links)
        return Route(shared=links, limit=path.bytes_per_second)

    def ring(self, nbytes: float) -> float:
        """The twin of the closed form: each node goes on when it can."""
        num = self.cluster.num_workers
        if num == 1:
            return 0.0
        hops = [(rank, (rank + 1) % num) for rank in range(num)]
        latencies = [self.cluster.path(*hop).latency_seconds for hop in hops]
        return ring_seconds([self.route(*hop) for hop in hops], latencies, nbytes)

    def step(self, messages: Sequence[tuple[int, int]], nbytes: float) -> float:
        """All of these at once, until the last has arrived."""
        clock, ended = Clock(), [0.0]
        flows = Flows(clock)
        for sender, receiver in messages:
            arrive = self.cluster.path(sender, receiver).latency_seconds
            flows.start(self.route(sender, receiver), nbytes, lambda latency: ended.append(clock.now + latency), arrive)
        clock.play()
        return max(ended)


@pytest.mark.parametrize("num_workers", [8, 64])
@pytest.mark.parametrize("latency", [0.0, 0.125])
def test_a_ring_of_equal_links_takes_what_its_transfers_take(num_workers: int, latency: float):
    """To the last bit; the links are the nodes' own, or no link is described."""
    for links in ({}, {"uplink_bytes_per_second": 2.0**16, "downlink_bytes_per_second": 2.0**15}):
        cluster = built(node(1.0, count=num_workers), network={"latency_seconds": latency, "bytes_per_second": 2.0**17, **links})

        twin = Wires(cluster).ring(2.0**20)

        assert Collectives(cluster).all_reduce_seconds(2**20) == twin
        assert twin == 2 * (num_workers - 1) * (latency + 2.0**20 / num_workers / (2.0**15 if links else 2.0**17))


@pytest.mark.parametrize("num_workers", [8, 64])
def test_a_ring_with_one_slow_link_and_no_latency_takes_what_its_transfers_take(num_workers: int):
    """The slow link is busy from the first moment to the last."""
    rows = [node(1.0, count=num_workers - 3), node(1.0, uplink_bytes_per_second=2.0**13), node(1.0, count=2)]
    cluster = built(*rows, network={"latency_seconds": 0.0, "bytes_per_second": 2.0**17})

    twin = Wires(cluster).ring(2.0**20)

    assert Collectives(cluster).all_reduce_seconds(2**20) == twin == 2 * (num_workers - 1) * 2.0**20 / num_workers / 2.0**13


def test_a_ring_with_unequal_latencies_takes_less_than_the_closed_form():
    """Which is a bound where a step ends at different times: here a latency of 2 s is waited for twice, and not in each of 4 steps."""
    cluster = built(node(1.0, latency_seconds=2.0), node(1.0, count=2), network={"latency_seconds": 0.0, "bytes_per_second": 4.0})

    assert Wires(cluster).ring(12.0) < Collectives(cluster).all_reduce_seconds(12) == 4 * (2.0 + 1.0)


RATES = st.one_of(st.none(), st.sampled_from([16.0, 100.0]), st.floats(1.0, 1000.0))
LATENCIES = st.sampled_from([0.0, 0.0, 0.01, 0.3, 2.0])


@st.composite
def clusters(draw: st.DrawFn, *, max_nodes: int, algorithm: str, latencies: st.SearchStrategy[float] = LATENCIES) -> Cluster:
    """Nodes of unequal links in racks of unequal links, some in others, in no order."""
    names = ["a", "b", "c"][: draw(st.integers(1, 3))]
    racks = {
        name: {
            "uplink_bytes_per_second": draw(RATES),
            "downlink_bytes_per_second": draw(RATES),
            "latency_seconds": draw(latencies),
            "within": draw(st.sampled_from([None, *names[:place]])),
        }
        for place, name in enumerate(names)
    }
    stands = [*names, *draw(st.lists(st.sampled_from(names), max_size=max_nodes - len(names)))]
    rows = [
        node(1.0, rack=rack, uplink_bytes_per_second=draw(RATES), downlink_bytes_per_second=draw(RATES), latency_seconds=draw(latencies))
        for rack in draw(st.permutations(stands))
    ]
    return built(*rows, network={"latency_seconds": 0.1, "bytes_per_second": 500.0, "racks": racks, "all_reduce": algorithm})


@settings(max_examples=40)
@given(cluster=clusters(max_nodes=9, algorithm="ring"), nbytes=st.integers(1, 10**6))
def test_a_ring_s_transfers_never_take_longer_than_its_closed_form(cluster: Cluster, nbytes: int):
    """As max-min sharing gives each transfer at least what it has in a step in which all are under way."""
    assert Wires(cluster).ring(nbytes) <= Collectives(cluster).all_reduce_seconds(nbytes) * (1 + 1e-12)


def steps(cluster: Cluster) -> Iterator[tuple[list[tuple[int, int]], Fraction]]:
    """Which messages each step of the network's all-reduce has, and what part of the vector each of them is."""
    num, algorithm = cluster.num_workers, cluster.network.all_reduce
    if algorithm == "ring" and num > 1:
        yield from [([(rank, (rank + 1) % num) for rank in range(num)], Fraction(1, num))] * (2 * (num - 1))
    if algorithm == "halving_doubling" and num > 1:
        power = 1
        while 2 * power <= num:
            power *= 2
        over = list(range(power, num))
        yield [(rank, rank - power) for rank in over], Fraction(1)
        distance, part = 1, Fraction(1, 2)
        exchanges = []
        while distance < power:
            exchanges.append(([(rank, rank ^ distance) for rank in range(power)], part))
            distance, part = 2 * distance, part / 2
        yield from exchanges + exchanges[::-1]
        yield [(rank - power, rank) for rank in over], Fraction(1)


@pytest.mark.parametrize("algorithm", ["ring", "halving_doubling"])
def test_a_step_takes_as_long_as_its_transfers_where_latencies_are_equal(algorithm: str):
    """Step by step, each one max-min shared, on any links and racks; where latencies are unequal never longer."""

    @settings(max_examples=50)
    @given(data=st.data(), nbytes=st.integers(1, 10**6), equal=st.booleans())
    def check(data: st.DataObject, nbytes: int, equal: bool) -> None:
        cluster = data.draw(clusters(max_nodes=9, algorithm=algorithm, latencies=st.just(0.0) if equal else LATENCIES))
        wires = Wires(cluster)
        taken = sum(wires.step(messages, float(nbytes * part)) for messages, part in steps(cluster))
        said = Collectives(cluster).all_reduce_seconds(nbytes)
        if equal:
            assert said == pytest.approx(taken, rel=1e-12)
        else:
            assert taken <= said * (1 + 1e-12)

    check()


@settings(max_examples=40)
@given(cluster=clusters(max_nodes=9, algorithm="two_level", latencies=st.just(0.0)), nbytes=st.integers(1, 10**6))
def test_two_levels_take_as_long_as_their_transfers(cluster: Cluster, nbytes: int):
    """Each rack's ring for itself, then side by side as many rings around the racks as the smallest has nodes, then back."""
    racks: dict[str | None, list[int]] = {}
    for rank, its in enumerate(cluster.nodes):
        racks.setdefault(its.rack, []).append(rank)
    places, wires = list(racks.values()), Wires(cluster)
    within = [
        (len(its) - 1) * wires.step([(one, its[(k + 1) % len(its)]) for k, one in enumerate(its)], nbytes / len(its))
        for its in places
        if len(its) > 1
    ]
    rings = min(map(len, places))
    around = [(its[k], places[(place + 1) % len(places)][k]) for place, its in enumerate(places) for k in range(rings)]
    among = 2 * (len(places) - 1) * wires.step(around, nbytes / (rings * len(places))) if len(places) > 1 else 0.0

    assert Collectives(cluster).all_reduce_seconds(nbytes) == pytest.approx(2 * max(within, default=0.0) + among, rel=1e-12)


@pytest.mark.parametrize("algorithm", ["ring", "halving_doubling", "two_level"])
def test_who_takes_part_is_looked_at_once(algorithm: str, monkeypatch: pytest.MonkeyPatch):
    """However often, and for how many sizes, a collective is asked for: each message's path once, and none where no link is described."""
    asked: list[tuple[int, int]] = []
    path = Cluster.path
    monkeypatch.setattr(Cluster, "path", lambda its, *ends: asked.append(ends) or path(its, *ends))
    rows = [node(1.0, count=32, rack=rack) for rack in ("a", "b")]

    def ask(collectives: Collectives) -> int:
        for nbytes in (64, 64, 128, 1):
            assert collectives.all_reduce_seconds(nbytes) > collectives.gather_seconds() / 64 > 0
        return len(asked)

    assert ask(collective(algorithm, *rows, racks={"a": {}, "b": {}})) == 0
    of_steps = {"ring": 64, "halving_doubling": 6 * 64 + 64, "two_level": 64 + 64 + 64}
    assert ask(collective(algorithm, *rows, racks={"a": {"uplink_bytes_per_second": 8.0}, "b": {}})) == of_steps[algorithm]


@pytest.mark.parametrize("algorithm", ["ring", "halving_doubling", "two_level"])
def test_a_size_that_is_known_costs_nothing(algorithm: str, monkeypatch: pytest.MonkeyPatch):
    """No step is looked at again, however many unequal links it has."""
    looked_at: list[int] = []
    seconds = Collectives._seconds
    monkeypatch.setattr(Collectives, "_seconds", staticmethod(lambda step, *of: looked_at.append(len(step)) or seconds(step, *of)))
    its = collective(algorithm, *(node(1.0, rack="a", uplink_bytes_per_second=1.0 + rank) for rank in range(32)), racks={"a": {}})

    once = its.all_reduce_seconds(64), its.gather_seconds()
    assert max(looked_at) == 32
    looked_at.clear()

    assert (its.all_reduce_seconds(64), its.gather_seconds()) == once
    assert looked_at == []


# Queues with open arrivals


@dataclass
class Visit:
    """When a message arrived, when the server began with it, and when it was done."""

    source: int
    arrived: float
    initial_within: float
    done: float


def visits(*, load: float, senders: int, until: float, seed: int, noise: dict[str, Any] | None) -> list[Visit]:
    """So many senders that never wait, exponential times apart, and a server of mean service 1 s, in the order of service.

    They end at a moment, not after a number of messages: then the slower ones would be alone at the end.
    """
    seen: list[Visit] = []

    def asks(its: Node, x: Any) -> Generator[Any, Any, Any]:
        if its.rank < its.server:
            gap, now = Gradient(at=x, batch=Batch(0, 1)), Now()
            yield from gap
            while (moment := (yield from now)) < until:
                yield from Send(its.server, at=moment)
                yield from gap
            yield from Send(its.server, at=None)
        else:
            message, service, now, ended = Receive(), Update(at=x, gradient=x), Now(), 0
            while ended < senders:
                its = yield from message
                if its.at is None:
                    ended += 1
                    continue
                initial_within = yield from now
                yield from service
                seen.append(Visit(its.source, its.at, initial_within, (yield from now)))

    gaps = node(senders / load, count=senders, noise={"distribution": "expon"})
    play(asks, world(gaps, server={"seconds_per_update": 1.0, "noise": noise}), seed=seed)
    return seen


QUEUES: dict[str, tuple[dict[str, Any] | None, Callable[[float], float]]] = {
    "M/D/1": (None, lambda rho: rho / (2 * (1 - rho))),
    "M/M/1": ({"distribution": "expon"}, lambda rho: rho / (1 - rho)),
    "M/G/1": ({"distribution": "gamma", "a": 4.0, "scale": 0.25}, lambda rho: rho * (1 + 0.25) / (2 * (1 - rho))),
}
"""Noise of the service, and the mean waiting time in services: Pollaczek and Khinchine's ρ(1 + c²)/(2(1 − ρ)), c² its squared variation."""


@pytest.mark.parametrize("load", [0.5, 0.8])
@pytest.mark.parametrize("queue", QUEUES)
def test_gradients_wait_at_the_server_as_queueing_theory_says(queue: str, load: float):
    """The mean waiting time of Poisson arrivals, from 8 independent runs, each without its first 200 arrivals.

    A queue forgets at the rate (1 − √ρ)² per service, so at ρ = 0.8 those 200 leave exp(−200/0.8 · 0.011) = 6 % of what an empty
    beginning takes off the first one's wait, and less than 0.3 % of the mean of 2800. By Student's t with 7 degrees of freedom
    the mean of 8 is beyond 5.41 of its standard errors with p = 1e-3.
    """
    noise, waits = QUEUES[queue]

    runs = [visits(load=load, senders=4, until=3000 / load, seed=seed, noise=noise)[200:] for seed in range(8)]
    means = [fmean(visit.initial_within - visit.arrived for visit in run) for run in runs]

    error = stdev(means) / sqrt(8)
    assert abs(fmean(means) - waits(load)) < 5.41 * error
    assert error < 0.1 * waits(load)  # so that one law is told from another


def test_a_queue_is_first_come_first_served_and_never_rests_while_someone_waits():
    """Each service begins at its arrival, or where the one before it ends: Lindley's recursion, exactly; the server keeps its pace."""
    seen = visits(load=0.9, senders=3, until=2000.0, seed=1, noise={"distribution": "lognorm", "s": 1.0})

    assert [visit.arrived for visit in seen] == sorted(visit.arrived for visit in seen)
    assert [visit.initial_within for visit in seen] == [
        max(now.arrived, before) for before, now in zip([0.0, *(v.done for v in seen)], seen, strict=False)
    ]
    assert 0.4 < fmean(now.initial_within > now.arrived for now in seen) < 1.0
    assert {visit.source for visit in seen} == {0, 1, 2}


# The order of rows


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32), order=st.permutations(range(5)), method=st.sampled_from(["ssgd", "asgd", "ssp", "local_sgd"]))
def test_the_order_of_the_rows_is_no_matter(seed: int, order: list[int], method: str):
    """Without noise the same commits at the same times, to the last bit; by whom, but for its rank. No two are at one moment."""
    rng = np.random.default_rng(seed)
    rows = [
        node(*rng.uniform(0.5, 2.0, 2).tolist(), uplink_bytes_per_second=rate, downlink_bytes_per_second=2 * rate)
        for rate in rng.uniform(20.0, 100.0, 5).tolist()
    ]

    def history(order: Sequence[int]) -> list[tuple[float, list[int]]]:
        workers = built(*(rows[place] for place in order), network=WIRE, server={"seconds_per_update": 0.3})
        run = simulate(replace(base(f"method={method}", batch_size=20, updates=12), cluster=workers))
        return [(seconds, sorted({order[c.rank] for c in group})) for seconds, group in zip(run.seconds, run.applied, strict=True)]

    assert history(order) == history(range(5))


# What is refused

RACK = {"racks": {"a": {}}}
IN_A = node(1.0, rack="a")


def crash(**fault: Any) -> dict[str, Any]:
    """Faults of one row."""
    return {"faults": {"schedule": [{"nodes": [0], **fault}]}}


REFUSED: dict[str, tuple[list[dict[str, Any]], dict[str, Any], str]] = {
    "no nodes": ([], {}, "cluster.nodes is empty: describe at least one node"),
    "count": ([node(1.0, count=0)], {}, "cluster.nodes[0].count must be at least 1, not 0"),
    "too many": (
        [node(1.0, count=10**9)],
        {},
        "cluster.nodes[0].count must be at most 1000000, not 1000000000: so many nodes would not fit into memory",
    ),
    "no name": ([node(1.0)], {"name": " "}, "cluster.name must be a name, not ' '"),
    "a list of names": ([node(1.0)], {"name": [1]}, "cluster.name must be a name, not [1]"),
    "no faults": (
        [node(1.0)],
        {"faults": 3},
        "cluster.faults must be a mapping of keys such as detection_seconds, regroup_seconds, schedule, not 3",
    ),
    "faults of the same one": (
        [node(1.0), node(1.0)],
        {"faults": {"schedule": [{"nodes": [1, 1], "crash": 1}]}},
        "cluster.faults.schedule[0].nodes names a node twice: [1, 1]",
    ),
    "a crash in the moment of the join": (
        [node(1.0)],
        {"faults": {"schedule": [{"nodes": [0], "join": 1, "crash": 1}]}},
        "cluster.faults.schedule: node 0 is to go at 1 s, but is not there until 1 s: correct its rows",
    ),
    "free samples": ([node(0.0)], {}, "cluster.nodes[0].seconds_per_sample must be a finite number above zero, not 0.0"),
    "second row": ([node(1.0), node(-1.0)], {}, "cluster.nodes[1].seconds_per_sample must be a finite number above zero, not -1.0"),
    "a key": ([node(1.0, speed=3)], {}, "cluster.nodes[0].speed is unknown: known are count, seconds_per_sample, overhead_seconds"),
    "a typo": ([node(1.0, max_sample=3)], {}, "cluster.nodes[0].max_sample is unknown: known are "),
    "max_samples": ([node(1.0, max_samples=0)], {}, "cluster.nodes[0].max_samples must be at least 1, not 0"),
    "max_samples in parts": ([node(1.0, max_samples=1.5)], {}, "cluster.nodes[0].max_samples must be a whole number, not 1.5"),
    "no capacity": (
        [node(1.0, uplink_bytes_per_second=0)],
        {},
        "cluster.nodes[0].uplink_bytes_per_second must be a finite number above zero, not 0",
    ),
    "no capacity for all": (
        [node(1.0)],
        {"network": {**WIRE, "downlink_bytes_per_second": 0}},
        "cluster.network.downlink_bytes_per_second must be a finite number above zero, not 0",
    ),
    "no capacity of the server": (
        [node(1.0)],
        {"server": {"uplink_bytes_per_second": 0.0}},
        "cluster.server.uplink_bytes_per_second must be a finite number above zero, not 0.0",
    ),
    "no capacity of a rack": (
        [IN_A],
        {"network": {**WIRE, "racks": {"a": {"uplink_bytes_per_second": 0}}}},
        "cluster.network.racks.a.uplink_bytes_per_second must be a finite number above zero, not 0",
    ),
    "no network": (
        [node(1.0)],
        {"network": {"latency_seconds": 0.0, "bytes_per_second": 0}},
        "cluster.network.bytes_per_second must be a finite number above zero, not 0",
    ),
    "negative latency": (
        [node(1.0, latency_seconds=-1)],
        {},
        "cluster.nodes[0].latency_seconds must be a finite number of at least zero, not -1",
    ),
    "shards": ([node(1.0)], {"server": {"shards": 0}}, "cluster.server.shards must be at least 1, not 0"),
    # tables
    "a table and a rate": (
        [node(1.0, table=[[1, 1.0]])],
        {},
        "cluster.nodes[0] has a table and seconds_per_sample, which the table replaces: leave one of them out",
    ),
    "a table that does not rise": (
        [{"count": 1, "table": [[4, 1.0], [4, 2.0]]}],
        {},
        "cluster.nodes[0].table must rise in samples, but 4 comes after 4: sort it, each size once",
    ),
    "a table that goes back": (
        [{"count": 1, "table": [[1, 1.0], [8, 1.0], [4, 2.0]]}],
        {},
        "cluster.nodes[0].table must rise in samples, but 4 comes after 8: sort it",
    ),
    "a table that ends falling": (
        [{"count": 1, "table": [[1, 1.0], [8, 0.5]]}],
        {},
        "cluster.nodes[0].table must not fall between its last two points, as that line goes on beyond them: measure a larger batch",
    ),
    "an empty table": ([{"count": 1, "table": []}], {}, "cluster.nodes[0].table is empty: give at least one [samples, seconds]"),
    "a point": ([{"count": 1, "table": [[1, 1.0], [2]]}], {}, "cluster.nodes[0].table[1] must be [samples, seconds], not [2]"),
    "a point in no time": (
        [{"count": 1, "table": [[1, 0.0]]}],
        {},
        "cluster.nodes[0].table[0][1] must be a finite number above zero, not 0.0",
    ),
    # laws
    "an unknown law": (
        [node(1.0, noise={"distribution": "lognormal", "s": 1.0})],
        {},
        "cluster.nodes[0].noise.distribution must be a continuous distribution of scipy.stats, not 'lognormal'; did you mean 'lognorm'?",
    ),
    "a function of scipy": (
        [node(1.0, noise={"distribution": "kstest"})],
        {},
        "cluster.nodes[0].noise.distribution must be a continuous distribution of scipy.stats, not 'kstest'",
    ),
    "a law of whole numbers": (
        [node(1.0, noise={"distribution": "poisson", "mu": 1.0})],
        {},
        "cluster.nodes[0].noise.distribution must be a continuous distribution of scipy.stats, not 'poisson'",
    ),
    "a law below zero": (
        [node(1.0, noise={"distribution": "norm", "loc": 1.0, "scale": 0.01})],
        {},
        "cluster.nodes[0].noise must never be negative, but norm with these parameters starts at -inf: choose others",
    ),
    "a law that begins below zero": (
        [node(1.0, noise={"distribution": "invgauss", "mu": 1.0, "loc": -0.5})],
        {},
        "cluster.nodes[0].noise must never be negative, but invgauss with these parameters starts at -0.5: choose others",
    ),
    "a common law below zero": (
        [node(1.0, noise={"distribution": "lognorm", "s": 1.0, "loc": -0.5})],
        {},
        "cluster.nodes[0].noise.loc must be a finite number of at least zero, not -0.5",
    ),
    "a law without its shape": ([node(1.0, noise={"distribution": "gamma"})], {}, "cluster.nodes[0].noise.a is missing: give it a value"),
    "a law with another's shape": (
        [node(1.0, noise={"distribution": "expon", "s": 1.0})],
        {},
        "cluster.nodes[0].noise.s is unknown: known are distribution, loc, scale",
    ),
    "a shape of nothing": (
        [node(1.0, noise={"distribution": "gamma", "a": 0.0})],
        {},
        "cluster.nodes[0].noise.a must be a finite number above zero, not 0.0",
    ),
    "a shape that its law does not have": (
        [node(1.0, noise={"distribution": "invgauss", "mu": -1.0})],
        {},
        "cluster.nodes[0].noise: invgauss has no such parameters as {'mu': -1.0}: see scipy.stats.invgauss",
    ),
    "a number for a law": (
        [node(1.0, noise=0.1)],
        {},
        "cluster.nodes[0].noise must be null or a mapping such as {distribution: lognorm, s: 0.1}, not 0.1",
    ),
    "jitter": (
        [node(1.0)],
        {"network": {**WIRE, "jitter_seconds": {"distribution": "norm"}}},
        "cluster.network.jitter_seconds must never be negative, but norm with these parameters starts at -inf: choose others",
    ),
    "the server's noise": (
        [node(1.0)],
        {"server": {"noise": {"distribution": "laplace"}}},
        "cluster.server.noise must never be negative, but laplace with these parameters starts at -inf: choose others",
    ),
    "speeds by a law below zero": (
        [node({"distribution": "weibull_min", "c": 1e-4}, count=20)],  # type: ignore[arg-type]
        {},
        "cluster.nodes[0].seconds_per_sample must be above zero, but its distribution drew 0.0: give it a loc above zero",
    ),
    # slow spells
    "spells without a factor": (
        [node(1.0, slow_spells={"seconds_between": 1, "seconds_lasting": 1})],
        {},
        "cluster.nodes[0].slow_spells.factor is missing: give it a value",
    ),
    "spells of no time": (
        [node(1.0, slow_spells={"factor": 2, "seconds_between": 1, "seconds_lasting": 0})],
        {},
        "cluster.nodes[0].slow_spells.seconds_lasting must be a finite number above zero, not 0",
    ),
    "spells by no law": (
        [node(1.0, slow_spells={"factor": 2, "seconds_between": {"distribution": "expo"}, "seconds_lasting": 1})],
        {},
        "cluster.nodes[0].slow_spells.seconds_between.distribution must be a continuous distribution of scipy.stats, not 'expo'",
    ),
    # racks
    "a rack that is not there": (
        [node(1.0, rack="b")],
        {"network": {**WIRE, **RACK}},
        "node 0 is in rack 'b', which cluster.network.racks does not describe",
    ),
    "no racks at all": ([node(1.0, rack="b")], {}, "node 0 is in rack 'b', which cluster.network.racks does not describe: add it there"),
    "the server's rack": (
        [IN_A],
        {"network": {**WIRE, **RACK}, "server": {"rack": "aa"}},
        "the server is in rack 'aa', which cluster.network.racks does not describe: add it there; did you mean 'a'?",
    ),
    "a rack within none": (
        [IN_A],
        {"network": {**WIRE, "racks": {"a": {"within": "row"}}}},
        "cluster.network.racks.a is in rack 'row', which cluster.network.racks does not describe: add it there",
    ),
    "a rack within itself": (
        [IN_A],
        {"network": {**WIRE, "racks": {"a": {"within": "a"}}}},
        "cluster.network.racks has a circle, a in a: leave out the within of one of them",
    ),
    "a circle of racks": (
        [IN_A],
        {"network": {**WIRE, "racks": {"a": {"within": "b"}, "b": {"within": "c"}, "c": {"within": "b"}}}},
        "cluster.network.racks has a circle, a in b in c in b: leave out the within of one of them",
    ),
    "an empty rack": (
        [IN_A],
        {"network": {**WIRE, "racks": {"a": {}, "b": {}}}},
        "cluster.network.racks.b has nothing in it: give rows of cluster.nodes rack: b, or leave it out",
    ),
    "a list of racks": (
        [IN_A],
        {"network": {**WIRE, "racks": ["a"]}},
        "cluster.network.racks must be a mapping from names to racks, such as {a: {uplink_bytes_per_second: 1e9}}, not ['a']",
    ),
    "oversubscription of nothing": (
        [IN_A],
        {"network": {**WIRE, "racks": {"a": {"oversubscription": 4}}}},
        "cluster.network.racks.a.oversubscription needs uplink_bytes_per_second of each of its nodes: add cluster.network.uplink",
    ),
    "oversubscription of uplinks alone": (
        [IN_A],
        {"network": {**WIRE, "uplink_bytes_per_second": 8, "racks": {"a": {"oversubscription": 4}}}},
        "cluster.network.racks.a.oversubscription needs downlink_bytes_per_second of each of its nodes: "
        "add cluster.network.downlink_bytes_per_second",
    ),
    "oversubscription by none": (
        [IN_A],
        {"network": {**WIRE, "racks": {"a": {"oversubscription": 0}}}},
        "cluster.network.racks.a.oversubscription must be a finite number above zero, not 0",
    ),
    "oversubscription and a link": (
        [IN_A],
        {"network": {**WIRE, "racks": {"a": {"oversubscription": 2, "downlink_bytes_per_second": 8}}}},
        "cluster.network.racks.a has an oversubscription and a link of its own: leave one of them out",
    ),
    # collectives
    "an unknown all-reduce": (
        [node(1.0)],
        {"network": {**WIRE, "all_reduce": "tree"}},
        "cluster.network.all_reduce must be ring or halving_doubling or two_level, not 'tree'",
    ),
    "two levels without racks": (
        [node(1.0)],
        {"network": {**WIRE, "all_reduce": "two_level"}},
        "cluster.network.all_reduce=two_level needs each node in a rack, and node 0 is in none: give its row a rack",
    ),
    "two levels with a node in no rack": (
        [IN_A, node(1.0)],
        {"network": {**WIRE, **RACK, "all_reduce": "two_level"}},
        "cluster.network.all_reduce=two_level needs each node in a rack, and node 1 is in none: give its row a rack",
    ),
    # faults
    "faults of no node": (
        [node(1.0)],
        {"faults": {"schedule": [{"nodes": [], "crash": 1}]}},
        "cluster.faults.schedule[0].nodes names no node: list some by their rank, or say all",
    ),
    "faults of anyone": (
        [node(1.0)],
        {"faults": {"schedule": [{"crash": 1}]}},
        "cluster.faults.schedule[0].nodes is missing: give it a value",
    ),
    "faults of one that is not there": (
        [node(1.0, count=2)],
        {"faults": {"schedule": [{"nodes": [0], "crash": 1}, {"nodes": [2], "crash": 1}]}},
        "cluster.faults.schedule[1].nodes: there is no node 2, as the cluster has 2: count from 0",
    ),
    "faults of one from the end": (
        [node(1.0)],
        {"faults": {"schedule": [{"nodes": [-1], "crash": 1}]}},
        "cluster.faults.schedule[0].nodes must be at least 0, not -1",
    ),
    "faults of a number": (
        [node(1.0)],
        {"faults": {"schedule": [{"nodes": 0, "crash": 1}]}},
        "cluster.faults.schedule[0].nodes must be a list of nodes by their rank, such as [0, 3], or all, not 0",
    ),
    "a fault that is none": (
        [node(1.0)],
        crash(),
        "cluster.faults.schedule[0] describes no fault: give it join, crash, repair, leave in seconds, or a drawn seconds_to_crash",
    ),
    "repair without crash": ([node(1.0)], crash(repair=2), "cluster.faults.schedule[0].repair does nothing without a crash: add it"),
    "repair before crash": (
        [node(1.0)],
        crash(crash=3, repair=2),
        "cluster.faults.schedule[0]: repair at 2 s must come after crash at 3 s",
    ),
    "repair at crash": ([node(1.0)], crash(crash=3, repair=3), "cluster.faults.schedule[0]: repair at 3 s must come after crash at 3 s"),
    "absences that overlap": (
        [node(1.0)],
        {"faults": {"schedule": [{"nodes": [0], "crash": 1, "repair": 4}, {"nodes": "all", "crash": 3, "repair": 5}]}},
        "cluster.faults.schedule: node 0 is to go at 3 s, but is not there until 4 s: correct its rows",
    ),
    "leaving and crashing": (
        [node(1.0)],
        crash(crash=4, leave=2),
        "cluster.faults.schedule: node 0 is to go at 4 s, but left for good: correct its rows",
    ),
    "a crash before joining": (
        [node(1.0)],
        crash(join=4, crash=2, repair=6),
        "cluster.faults.schedule: node 0 is to go at 2 s, but is not there until 4 s: correct its rows",
    ),
    "repair by law without crash": (
        [node(1.0)],
        crash(crash=1, seconds_to_repair={"distribution": "expon"}),
        "cluster.faults.schedule[0].seconds_to_repair does nothing without seconds_to_crash: add it, or give crash and repair in seconds",
    ),
    "two laws": (
        [node(1.0)],
        {"faults": {"schedule": [{"nodes": [0], "seconds_to_crash": {"distribution": "expon"}}] * 2}},
        "cluster.faults.schedule[1]: node 0 has a distribution of crashes already: give it one",
    ),
    "a law behind the end": (
        [node(1.0)],
        crash(leave=1, seconds_to_crash={"distribution": "expon"}),
        "cluster.faults.schedule: node 0 cannot crash at drawn times, as it leaves for good: leave one of them out",
    ),
    "a fault by the name of another": (
        [node(1.0)],
        crash(crashes=1),
        "cluster.faults.schedule[0].crashes is unknown: known are nodes, join,",
    ),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_a_mistake_is_one_sentence_that_names_its_key(mistake: str):
    """Where it is, what it says, and what to do."""
    rows, parts, sentence = REFUSED[mistake]

    with pytest.raises(ValueError, match=r".") as caught:
        built(*rows, **parts)

    said = str(caught.value)
    assert said.startswith(sentence)
    assert "\n" not in said


TRACE_FILES: dict[str, tuple[str | bytes | None, str]] = {
    "missing": (None, " cannot be read ([Errno 2] No such file or directory"),
    "empty": ("", " must begin with the line seconds,factor, not ''"),
    "without a head": ("0,1\n", " must begin with the line seconds,factor, not '0,1'"),
    "of other columns": ("seconds,speed\n0,1\n", " must begin with the line seconds,factor, not 'seconds,speed'"),
    "without rows": ("seconds,factor\n", " has no rows: give at least 0,1"),
    "that begins late": (
        "seconds,factor\n0.5,1\n",
        ", line 2: a trace must start at 0 seconds, not 0.5: add the factor that holds from there",
    ),
    "that begins early": ("seconds,factor\n-1,1\n0,2\n", ", line 2: a trace must start at 0 seconds, not -1: add the factor"),
    "that goes back": ("seconds,factor\n0,1\n4,2\n3,1\n", ", line 4: time goes back from 4 to 3 s: sort the rows"),
    "that stands still": ("seconds,factor\n0,1\n\n4,2\n4,1\n", ", line 5: there are two factors from 4 s on: leave one of them out"),
    "of words": ("seconds,factor\n0,1\n4,slow\n", ", line 3: needs two numbers, not '4,slow'"),
    "of three columns": ("seconds,factor\n0,1,2\n", ", line 2: needs two numbers, not '0,1,2'"),
    "of no factor": ("seconds,factor\n0,1\n4,0\n", ", line 3: seconds must be finite and the factor above zero, not '4,0'"),
    "without end": ("seconds,factor\n0,1\ninf,2\n", ", line 3: seconds must be finite and the factor above zero, not 'inf,2'"),
    "that is not text": (b"\xff\xfe\x00", " cannot be read ('utf-8' codec can't decode byte 0xff"),
}


@pytest.mark.parametrize("mistake", TRACE_FILES)
def test_a_recorded_slowdown_that_is_none_is_one_sentence_with_its_line(mistake: str, tmp_path: Path):
    """The key, the file, the line as an editor counts it, and what to do."""
    text, sentence = TRACE_FILES[mistake]
    path = tmp_path / "slowdown.csv"
    if text is not None:
        path.write_bytes(text.encode() if isinstance(text, str) else text)

    with pytest.raises(ValueError, match=r".") as caught:
        built(node(1.0), node(1.0, slowdown=str(path)))

    assert str(caught.value).startswith(f"cluster.nodes[1].slowdown={path}{sentence}")


def test_slow_spells_too_short_to_be_added_up_are_one_sentence():
    """A second that changes a node's speed a billion times would never end."""
    its = built(node(1.0, slow_spells={"factor": 2, "seconds_between": 1e-9, "seconds_lasting": 1e-9})).nodes[0]

    with pytest.raises(RunFailed, match="one step meets over 100000 slow spells: make slow_spells' seconds_between"):
        StepTimes(its, seed=0, rank=0).seconds(1)


def test_a_recorded_slowdown_may_have_spaces_and_empty_lines(tmp_path: Path):
    """As spreadsheets write them."""
    path = tmp_path / "slowdown.csv"
    path.write_text("\ufeffseconds, factor\r\n0, 1\r\n\r\n2, 3\r\n", encoding="utf-8")

    assert built(node(1.0, slowdown=str(path))).nodes[0].slowdown == ((0.0, 1.0), (2.0, 3.0))


def test_a_mistake_is_found_before_anything_runs():
    """From the config of a run, too."""
    with pytest.raises(ValueError, match=r"^cluster\.nodes\[0\]\.max_samples must be at least 1, not 0$"):
        timed("ssgd", workers=world(node(1.0, max_samples=0)), updates=1)
