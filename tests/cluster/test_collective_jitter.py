"""Jitter in collectives: each message of each step has one, and no rank waits for more than its own."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from cluster_runs import built, timed, world
from processes import run_in_processes
from rings import ring_seconds
from worlds import experiment, node, simulate

from hetsim.cluster.distributions import COLLECTIVES
from hetsim.cluster.model import Cluster
from hetsim.cluster.network.collectives import ALGORITHMS, Collectives
from hetsim.sim.network.links import Link, Route

LAW = {"distribution": "expon", "scale": 0.05}
STEADY = {"latency_seconds": 0.02, "bytes_per_second": 1e6}
SHAKY = {**STEADY, "jitter_seconds": LAW}
Messages = list[tuple[int, int]]
Step = tuple[Messages, float]
"""Who sends to whom, and the bytes of each message."""


def jitters(cluster: Cluster, num: int, *number: int) -> Any:
    """The numbers that a collective of this number draws, for as many messages; of seed 0."""
    assert cluster.network.jitter_seconds is not None
    return cluster.network.jitter_seconds.draw(np.random.default_rng((0, COLLECTIVES, *number)), num)


@pytest.mark.parametrize("num", [2, 3, 4, 9])
def test_a_ring_ends_when_all_its_transfers_have(num: int):
    """As simulated transfer by transfer, with the same jitters, on equal links."""
    cluster = built(node(1.0, count=num), network=SHAKY)
    late = []
    for number in range(20):
        drawn = jitters(cluster, 2 * (num - 1) * num, number).reshape(-1, num).tolist()
        routes = [Route(own=(Link(1e6),)) for _ in range(num)]

        seconds = Collectives(cluster).all_reduce_seconds(400_000, (number,))

        assert seconds == pytest.approx(ring_seconds(routes, [0.02] * num, 400_000, drawn), rel=1e-12)
        late.append(seconds)
    assert min(late) > Collectives(built(node(1.0, count=num), network=STEADY)).all_reduce_seconds(400_000)


def test_a_ring_of_four_waits_for_a_chain_of_messages_and_not_for_the_slowest_of_each_step():
    """50 ms in the mean: 0.457 s later, where a barrier after each of the six steps would cost 0.625 s; within 5 standard errors."""
    collectives = Collectives(built(node(1.0, count=4), network={**SHAKY, "latency_seconds": 0.0}))

    late = [collectives.all_reduce_seconds(4, (number,)) - 6e-6 for number in range(4000)]

    assert fmean(late) == pytest.approx(0.457, abs=0.01)


def ended(steps: Sequence[Step], num: int, drawn: Any, *, latency: float, rate: float) -> float:
    """When the last rank has what it is sent, each going on by itself, but none before the closed form has it: written out rank by rank."""
    at, place, described = [0.0] * num, 0, 0.0
    for messages, nbytes in steps:
        arrivals = {}
        for sender, receiver in messages:
            arrivals[receiver] = at[sender] + nbytes / rate + latency + drawn[place]
            place += 1
        sent = {sender: at[sender] + nbytes / rate for sender, _ in messages}
        described += nbytes / rate + latency if messages else 0.0
        at = [max(sent.get(rank, at[rank]), arrivals.get(rank, described)) for rank in range(num)]
    assert place == len(drawn)
    return max(at)


def exchanges(num: int, nbytes: float) -> list[Step]:
    """Recursive halving and doubling among a power of two, and what the others send and receive."""
    power = num.bit_length() - 1
    core = 2**power
    there: Messages = [(rank, rank - core) for rank in range(core, num)]
    halving: list[Step] = [([(rank ^ 2**k, rank) for rank in range(core)], nbytes / 2 ** (k + 1)) for k in range(power)]
    return [(there, nbytes), *halving, *reversed(halving), ([(receiver, sender) for sender, receiver in there], nbytes)]


@pytest.mark.parametrize("num", [2, 4, 6, 8])
def test_halving_and_doubling_ends_when_its_exchanges_have(num: int):
    """Also with ranks beyond a power of two. The drawn numbers are by sender."""
    cluster = built(node(1.0, count=num), network={**SHAKY, "all_reduce": "halving_doubling"})
    steps = exchanges(num, 400_000)
    by_sender = [(sorted(messages), nbytes) for messages, nbytes in steps]

    for number in range(5):
        drawn = jitters(cluster, sum(len(messages) for messages, _ in steps), number).tolist()
        seconds = Collectives(cluster).all_reduce_seconds(400_000, (number,))
        assert seconds == pytest.approx(ended(by_sender, num, drawn, latency=0.02, rate=1e6), rel=1e-9)


def test_two_levels_end_when_their_rings_have():
    """Two racks of two: in each a step there and a step back, in between two rings of two. Drawn rack by rack, ring by ring."""
    racks = {"a": {}, "b": {}}
    cluster = built(*(node(1.0, rack=rack) for rack in "abab"), network={**SHAKY, "all_reduce": "two_level", "racks": racks})
    a, b = [(0, 2), (2, 0)], [(1, 3), (3, 1)]
    one, other = [(0, 1), (1, 0)], [(2, 3), (3, 2)]
    inside, among = 200_000, 100_000
    steps: list[Step] = [(a + b, inside), (one + other, among), (one + other, among), (a + b, inside)]

    for number in range(5):
        drawn = jitters(cluster, 16, number)[[0, 1, 2, 3, 4, 5, 8, 9, 6, 7, 10, 11, 12, 13, 14, 15]].tolist()
        seconds = Collectives(cluster).all_reduce_seconds(400_000, (number,))
        assert seconds == pytest.approx(ended(steps, 4, drawn, latency=0.02, rate=1e6), rel=1e-9)


def test_a_tree_waits_for_all_below_and_then_for_its_parent():
    """Two nodes, each the root of one tree. Three: the middle one waits for both others, and they for it. So does the last one."""
    for number in range(5):
        two, three = (built(node(1.0, count=num), network={**SHAKY, "all_reduce": "tree"}) for num in (2, 3))
        a, b, c, d = jitters(two, 4, number).tolist()
        up_0, up_2, down_2, down_0, up_1, other, down_other, down_1 = jitters(three, 8, number).tolist()

        late_two, late_three = (
            Collectives(cluster).all_reduce_seconds(400_000, (number,)) - Collectives(cluster).tree(400_000) for cluster in (two, three)
        )

        assert late_two == pytest.approx(max(a + b, c + d))
        middle, last = max(up_0, up_2), max(up_1, other)
        assert late_three == pytest.approx(max(middle + max(down_2, down_0), last + max(down_other, down_1)))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_jitter_of_nearly_nothing_adds_nearly_nothing(algorithm: str):
    """Also on unequal links and racks: what is added grows with the jitter from the closed form on, and is never less."""
    rows = [node(1.0, rack="a", count=3), node(1.0, rack="b", count=2, uplink_bytes_per_second=2e5, latency_seconds=0.1)]
    racks = {"a": {}, "b": {"uplink_bytes_per_second": 3e5}}

    def seconds(scale: float) -> tuple[float, float]:
        network = {**STEADY, "all_reduce": algorithm, "racks": racks}
        network |= {"jitter_seconds": {**LAW, "scale": scale}} if scale else {}
        its = Collectives(built(*rows, network=network))
        return its.all_reduce_seconds(400_000), its.gather_seconds()

    for steady, tiny, small, large in zip(*map(seconds, (0.0, 1e-12, 1e-3, 1.0)), strict=True):
        assert steady <= tiny < steady + 1e-9 < small < steady + 0.5 < large


METHODS: dict[str, tuple[str, ...]] = {
    "ssgd": (),
    "overlapped": ("method=ssgd", "coordination=overlapped_all_reduce"),
    "local_sgd": (),
    "sparse_loco": (),
    "streaming_diloco": (),
    "hetgrad": (),
    "dbs": (),
    "pipe_sgd": (),
}


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_method_that_reduces_feels_jitter_and_the_same_at_the_same_seed(method: str):
    """Later with more of it; with as much and the same seed, the same."""
    keys: dict[str, Any] = {"coordination": {"period": 2}} if method == "local_sgd" else {}
    keys |= {"coordination": {"bucket_bytes": 24}} if method == "overlapped" else {}

    def end(scale: float) -> float:
        network = {**STEADY, "jitter_seconds": {**LAW, "scale": scale}}
        own, *more = METHODS[method] or (f"method={method}",)
        workers = world(*(node(seconds) for seconds in (0.002, 0.001, 0.003)), network=network)
        return timed(own.removeprefix("method="), *more, workers=workers, updates=6, batch_size=12, **keys).seconds[-1]

    assert end(1e-9) < end(0.05) == end(0.05) < end(1.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "choices", [("method=dbs",), ("method=pipe_sgd",), ("method=ssgd", "coordination=overlapped_all_reduce")], ids=" ".join
)
def test_real_ranks_are_held_for_the_same_jitters(choices: tuple[str, ...]):
    """They draw the same on every rank without a message: a collective takes what it takes in virtual time, or longer."""
    workers = world(
        *(node(1e-4, 2e-3) for _ in range(3)), network={"latency_seconds": 1e-3, "bytes_per_second": 1e8, "jitter_seconds": LAW}
    )
    made = experiment(*choices, "workload=digits", cluster=workers, batch_size=48, budget={"updates": 4}, seed=1)

    parts, run = run_in_processes(made), simulate(made, trace="full")

    def lasted(rows: Sequence[Any]) -> dict[tuple[str, int, int], float]:
        """By kind, version and bytes: from the last entry to the end; of buckets, all together."""
        kinds = [row for row in rows if row.kind in ("all_reduce", "gather")]
        keys = {(row.kind, row.version, row.nbytes) for row in kinds}
        return {
            key: max(row.end for row in its) - max(row.start for row in its)
            for key in keys
            if (its := [row for row in kinds if (row.kind, row.version, row.nbytes) == key])
        }

    real, described = lasted([row for part in parts for row in part.rows]), lasted(run.rows())
    assert real.keys() == described.keys()
    assert len(real) >= 4
    assert all(real[key] >= described[key] - 1e-9 for key in real)
    assert sum(real.values()) < 1.5 * sum(described.values())


@pytest.mark.parametrize("method", ["ssgd", "local_sgd", "dbs"])
def test_a_run_that_goes_on_draws_what_it_would_have_drawn(method: str):
    """The numbers of collectives go by versions, so no position of a stream has to be kept."""
    workers = world(*(node(seconds) for seconds in (0.002, 0.001, 0.003)), network=SHAKY)
    made = experiment(
        f"method={method}", "workload=phantom", workload={"num_parameters": 8, "num_samples": 240}, batch_size=12, budget={"updates": 8},
        cluster=workers, **({"coordination": {"period": 2}} if method == "local_sgd" else {}),
    )  # fmt: skip
    whole = simulate(made, saved=True)

    resumed = simulate(made, checkpoint=whole.checkpoints[3])

    assert resumed.seconds == whole.seconds[4:]
