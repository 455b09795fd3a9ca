"""HALoS: Delayed Nesterov, local servers around a global one, against the rule in a few lines of plain Python; crashes and restarts."""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from own_pools import Q
from test_every_method import short
from threads import run_in_threads
from worlds import NO_NETWORK, Run, cluster, experiment, node, rows_of, simulate

from hetsim.coordination.bookkeeping.regions import Regions
from hetsim.coordination.hierarchical import HierarchicalLocalSteps
from hetsim.coordination.plan import Plan
from hetsim.coordination.state import State
from hetsim.effects import Node, PeerLost, Program, Receive
from hetsim.workloads.delayed_nesterov import DelayedNesterov

SECONDS = (4.13, 3.71, 2.29, 1.03)
"""No two workers ever push at the same moment, in these runs."""
RATE = 0.05


def delayed_nesterov(*, lr: float, momentum: float, buffer_size: int, activation: float = 0.0) -> Callable[[Any, Any], Any]:
    """The rule as it is printed: a step from W along Δ."""
    memory: dict[str, Any] = {"t": 0, "m": 0.0, "d": 0.0}

    def step(w: Any, delta: Any) -> Any:
        memory["d"] = memory["d"] + delta
        if (memory["t"] + 1) % buffer_size == 0:
            memory["m"] = momentum * memory["m"] + memory["d"] / buffer_size
            memory["d"] = 0.0
            w = w - lr * ((1 - activation * buffer_size + activation) * momentum * memory["m"] + delta / buffer_size)
        else:
            w = w - lr * (activation * momentum * memory["m"] + delta / buffer_size)
        memory["t"] += 1
        return w

    return step


def stepped(deltas: Sequence[float], **options: Any) -> list[float]:
    """How far the torch class has gone after each of these Δ."""
    w = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer = DelayedNesterov([w], **options)
    gone = []
    for delta in deltas:
        w.grad = torch.tensor([delta], dtype=torch.float64)
        optimizer.step()
        gone.append(-w.item())
    return gone


def test_delayed_nesterov_takes_up_momentum_once_in_a_period():
    """Along Δ = 1 with ε = 1, β = 0.9, N = 4, c = 0."""
    assert stepped([1.0] * 8, lr=1.0, momentum=0.9, buffer_size=4) == pytest.approx(
        [0.25, 0.5, 0.75, 1.9, 2.15, 2.4, 2.65, 4.61], abs=1e-12
    )


@pytest.mark.parametrize(("buffer_size", "activation"), [(1, 0.0), (1, 1.0), (3, 0.0), (4, 0.25), (4, 0.1)])
def test_delayed_nesterov_is_its_equation(buffer_size: int, activation: float):
    """Written out, along random Δ."""
    deltas = np.random.default_rng(0).normal(size=30).tolist()
    step, w, theirs = delayed_nesterov(lr=0.7, momentum=0.8, buffer_size=buffer_size, activation=activation), 0.0, []
    for delta in deltas:
        w = step(w, delta)
        theirs.append(-w)

    assert stepped(deltas, lr=0.7, momentum=0.8, buffer_size=buffer_size, activation=activation) == pytest.approx(theirs, abs=1e-12)


def test_a_period_of_delayed_nesterov_is_a_nesterov_step_along_the_mean():
    """With c = 0: N pushes move W as one step of torch.optim.SGD does along their mean."""
    deltas = np.random.default_rng(1).normal(size=20)
    w = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    sgd, gone = torch.optim.SGD([w], lr=0.7, momentum=0.9, nesterov=True), []
    for mean in deltas.reshape(-1, 4).mean(axis=1):
        w.grad = torch.tensor([mean], dtype=torch.float64)
        sgd.step()
        gone.append(-w.item())

    assert stepped(deltas.tolist(), lr=0.7, momentum=0.9, buffer_size=4)[3::4] == pytest.approx(gone, abs=1e-12)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"activation": 0.6}, r"activation must be at most 1 / buffer_size, here 0\.5, not 0\.6"),
        ({"buffer_size": 0}, "buffer_size must be"),
        ({"momentum": 1.5}, "momentum must be"),
    ],
)
def test_delayed_nesterov_refuses_what_it_cannot_be(options: dict[str, Any], why: str):
    """From a config, in one sentence, before the run."""
    with pytest.raises(ValueError, match=r"^optimizer: hetsim\.workloads\.delayed_nesterov\.DelayedNesterov refuses .*" + why):
        simulate(short("halos", "workload=quadratic", optimizer=options))


Commit = tuple[float, float, list[int], int]
"""When, the new W, whose pushes reached it, and how many pushes have not reached any so far."""

REGIONAL = {"lr": 0.9, "momentum": 0.6, "buffer_size": 2, "activation": 0.1}
GLOBAL = {"lr": 0.8, "momentum": 0.5, "buffer_size": 2, "activation": 0.0}


def written_out(
    regions: Sequence[Sequence[int]], count: int, *, period: int, k: int, alpha: float, one_way: Sequence[float]
) -> list[Commit]:
    """The authors' simulation: `count` commits of workers on ½ (x − a_i)², whose U takes `one_way` seconds from its region, and W as many.

    A worker begins when its local server has asked for its first range.
    """
    above = delayed_nesterov(**GLOBAL)
    steps = [delayed_nesterov(**REGIONAL) for _ in regions]
    w = 2.0
    local, reference, pushed = [w] * len(regions), [w] * len(regions), [0] * len(regions)
    reaching: list[list[int]] = [[] for _ in regions]
    lost, commits, serial = 0, [], iter(range(10**9))
    queue: list[Any] = [
        (2 * one_way[r] + period * SECONDS[rank], next(serial), "push", r, (rank, w))
        for r, members in enumerate(regions)
        for rank in members
    ]
    heapq.heapify(queue)
    while len(commits) < count:
        now, _, what, r, about = heapq.heappop(queue)
        if what == "push":
            rank, used = about
            x = used
            for _ in range(period):
                x -= RATE * (x - (rank + 1))
            local[r] = steps[r](local[r], used - x)
            pushed[r] += 1
            if pushed[r] <= k:
                reaching[r].append(rank)
            else:
                lost += 1
            if pushed[r] == k:
                heapq.heappush(queue, (now + one_way[r], next(serial), "U", r, (reference[r] - local[r], reaching[r])))
                reaching[r] = []
            heapq.heappush(queue, (now + period * SECONDS[rank], next(serial), "push", r, (rank, local[r])))
        elif what == "U":
            w = above(w, about[0])
            commits.append((now, w, about[1], lost))
            heapq.heappush(queue, (now + one_way[r], next(serial), "W", r, w))
        else:
            local[r] = reference[r] = (1 - alpha) * local[r] + alpha * about
            pushed[r] = 0
    return commits


def on_q(*choices: str, racks: str = "aabb", one_way: Sequence[float] = (0.0, 0.0), updates: int = 40, **keys: Any) -> Run:
    """HALoS in World Q: a message from region r to the global server takes `one_way` seconds, one inside a region none."""
    ways = [{"racks": [rack, "top"], "bytes_per_second": 1e300, "latency_seconds": way} for rack, way in zip("ab", one_way, strict=True)]
    network = {
        **NO_NETWORK,
        "racks": {**{rack: {} for rack in racks}, "top": {}},
        "between": [way for way in ways if way["racks"][0] in racks],
    }
    workers = cluster(*(node(seconds, rack=rack) for seconds, rack in zip(SECONDS, racks, strict=True)), network=network)
    workers["server"]["rack"] = "top"
    settings = {
        "batch_size": 4,
        "dtype": "float64",
        "cluster": workers,
        "local_learning_rate": RATE,
        "budget": {"updates": updates},
        **keys,
    }
    made = experiment("method=halos", "workload=phantom", "partition=contiguous", *choices, data="owned", **settings)
    return simulate(replace(made, workload=Q()), trace="full")


COORDINATION = {"period": 2, "steps": "equal", "merge_every": 3, "merge_weight": 0.4}
RULES = {"optimizer": GLOBAL, "regional_optimizer": REGIONAL}


@pytest.mark.parametrize("one_way", [(0.0, 0.0), (0.31, 0.97)], ids=str)
@pytest.mark.parametrize("racks", ["aabb", "abbb", "abab", "aaaa"])
def test_halos_is_its_authors_simulation(racks: str, one_way: tuple[float, float]):
    """The same commits at the same moments, of the same pushes, with the same weights; the same pushes never reach one.

    A round trip that is no longer than a worker's steps lets no worker wait, but for its first range.
    """
    run = on_q(racks=racks, one_way=one_way, coordination=COORDINATION, **RULES)

    regions = [[rank for rank, name in enumerate(racks) if name == rack] for rack in sorted(set(racks))]
    theirs = written_out(regions, 40, period=2, k=3, alpha=0.4, one_way=one_way)
    assert run.seconds == pytest.approx([now for now, *_ in theirs], rel=1e-12)
    assert [[c.rank for c in group] for group in run.applied] == [ranks for _, _, ranks, _ in theirs]
    np.testing.assert_allclose([state.weights.item() for state in run.states], [w for _, w, *_ in theirs], rtol=0, atol=1e-12)
    assert (run.states[-1].num_samples_discarded > 0) == (theirs[-1][3] > 0) == (one_way != (0.0, 0.0))


def test_one_region_that_merges_every_push_is_asynchronous_local_sgd():
    """No latency, K = 1, α = 1 and plain steps of rate 1 above: W takes a step of Delayed Nesterov at every push."""
    keys = {"coordination": {**COORDINATION, "merge_every": 1, "merge_weight": 1.0}, "learning_rate": 1.0, "momentum": 0.0}
    run = on_q("optimizer=sgd", "~optimizer.buffer_size", racks="aaaa", updates=60, **keys, regional_optimizer=REGIONAL)

    step, w, theirs = delayed_nesterov(**REGIONAL), 2.0, []
    queue = [(2 * seconds, rank, w) for rank, seconds in enumerate(SECONDS)]
    heapq.heapify(queue)
    while len(theirs) < 60:
        now, rank, used = heapq.heappop(queue)
        x = used
        for _ in range(2):
            x -= RATE * (x - (rank + 1))
        w = step(w, used - x)
        theirs.append((now, rank, w))
        heapq.heappush(queue, (now + 2 * SECONDS[rank], rank, w))
    assert run.seconds == pytest.approx([now for now, *_ in theirs], rel=1e-12)
    assert [group[0].rank for group in run.applied] == [rank for _, rank, _ in theirs]
    np.testing.assert_allclose([state.weights.item() for state in run.states], [w for *_, w in theirs], rtol=0, atol=1e-12)
    assert run.states[-1].num_samples_discarded == 0


TRIP = 5.5


def lonely(k: int, *, updates: int) -> Run:
    """One worker of a second a step, whose U and W take 5.5 s together: five pushes are made meanwhile."""
    network = {**NO_NETWORK, "racks": {"a": {}, "top": {}}}
    network["between"] = [{"racks": ["a", "top"], "bytes_per_second": 1e300, "latency_seconds": TRIP / 2}]  # type: ignore[assignment]
    workers = cluster(node(1.0, rack="a"), network=network)
    workers["server"]["rack"] = "top"
    keys = {"coordination": {"period": 1, "merge_every": k}, "cluster": workers, "batch_size": 1, "budget": {"updates": updates}}
    return simulate(experiment("method=halos", "workload=phantom", **keys), trace="full")


@pytest.mark.parametrize("k", [1, 3, 8])
def test_the_share_of_pushes_that_reach_the_global_weights_is_k_of_k_and_those_of_a_round_trip(k: int):
    """K/(K + r), r = 5, once the worker waits no more."""
    run = lonely(k, updates=30)

    first, last = run.states[2], run.states[-1]
    reached, lost = (getattr(last, name) - getattr(first, name) for name in ("num_samples", "num_samples_discarded"))
    assert reached / (reached + lost) == k / (k + 5)
    assert run.seconds[-1] - run.seconds[2] == 27 * (k + 5)


def test_a_worker_waits_in_the_first_round_trips_at_most():
    """Then its local server holds as many ranges in advance as are computed in one, and its steps follow one another."""
    run = lonely(3, updates=10)
    steps = run.rows("gradient")
    pauses = [after.start for before, after in pairwise(steps) if after.start > before.end]

    sent = next(row.start for row in run.rows("message") if row.rank == 2 and row.nbytes and row.end > row.start)
    assert 0 < len(pauses) <= 3
    assert max(pauses) <= sent + TRIP < steps[-1].start / 2


def test_steps_go_by_measured_speed():
    """DyLU in World Q: one step before a worker is measured, then H = 8 of the fastest is (2, 2, 4, 8)."""
    workers = cluster(*(node(seconds) for seconds in (4.0, 4.0, 2.0, 1.0)))
    made = experiment("method=halos", "workload=phantom", coordination={"period": 8}, cluster=workers, batch_size=4, budget={"updates": 12})

    taken: dict[int, list[int]] = {rank: [] for rank in range(4)}
    for group in simulate(made).applied:
        for c in group:
            taken[c.rank].append(c.num_gradients)

    assert [counts[0] for counts in taken.values()] == [1, 1, 1, 1]
    assert [set(counts[3:]) for counts in taken.values()] == [{2}, {2}, {4}, {8}]


def test_a_region_that_dies_gives_its_ranges_back():
    """Both workers of a region leave: the other region computes what they had, and the budget is met exactly."""
    faults = {"schedule": [{"nodes": [2, 3], "leave": 7.3}], "detection_seconds": 0.5}
    workers = {**cluster(node(1.0), node(1.1), node(0.9), node(1.3), network=NO_NETWORK), "faults": faults}
    keys = {"coordination": {"period": 2, "num_regions": 2, "merge_every": 3}, "batch_size": 4, "workload": {"num_samples": 50}}
    run = simulate(experiment("method=halos", "workload=phantom", cluster=workers, budget={"epochs": 2}, **keys), trace="full")

    last = run.simulation.history.last
    assert last.num_samples + last.num_samples_discarded == 100
    assert last.num_samples_in_flight == 0
    assert len({p for group in run.applied for c in group for p in range(c.batch.start, c.batch.stop)}) == last.num_samples
    assert {c.rank for group in run.applied[-3:] for c in group} == {0, 1}


def test_a_resumed_run_keeps_both_tiers_momentum_and_begins_with_the_global_weights():
    """Each local server's memory is that of its checkpoint, and what it sends its workers first are the committed weights."""
    made = short("halos", "workload=quadratic", dtype="float64", budget={"epochs": 9})
    whole = simulate(made, saved=True)
    taken = whole.checkpoints[3]

    assert [rank.rank for rank in taken.ranks] == [0, 1, 2, 3, 4, 5]
    assert all(rank.optimizer["num_pushes"] > 0 and rank.optimizer["momentum_buffer"].abs().max() > 0 for rank in taken.ranks[3:])
    rest, fresh = (simulate(made, checkpoint=checkpoint, saved=True) for checkpoint in (taken, replace(taken, ranks=())))
    assert not torch.equal(rest.states[0].weights, fresh.states[0].weights)
    assert made.coordination.num_regions == 2


@dataclass(frozen=True, kw_only=True)
class Breaking(HierarchicalLocalSteps):
    """The local server of the first region is lost after its first message."""

    def local_server(self, node: Node, plan: Plan, state: State) -> Program[None]:
        if node.rank == plan.num_workers + 1:
            yield from Receive()
            raise PeerLost("its process was killed")
        yield from super().local_server(node, plan, state)


def test_a_local_server_that_is_lost_ends_a_real_run():
    """As the server does: its workers and the global server say who is gone."""
    made = short("halos", "workload=phantom")
    broken = Breaking(**{field.name: getattr(made.coordination, field.name) for field in fields(made.coordination)})

    ends = run_in_threads(replace(made, coordination=broken))

    assert [type(end) for end in ends] == [PeerLost] * 6
    assert "rank 4 is gone" in str(ends[0])
    assert "rank 4 is gone" in str(ends[3])


def test_real_ranks_do_what_the_simulation_does_where_time_decides_nothing():
    """One worker in each of two regions, K = 1: the pushes and their regions, each position once, and every program ends."""
    made = short("halos", "workload=quadratic", cluster=QUICK, budget={"epochs": 3})

    ends: Any = run_in_threads(made, finish=lambda run: run.close())

    last = ends[3].history.last
    assert last.num_samples + last.num_samples_discarded == 300
    assert last.num_samples_in_flight == 0
    assert torch.isfinite(last.weights).all()


def test_padded_ranks_share_links_with_local_servers():
    """As simulated ones do: the first weights of both workers of a region, 40 kB each, cross their local server's 1 MB/s in 80 ms."""
    cards = cluster(*[node(1e-3)] * 4, network={"latency_seconds": 1e-3, "bytes_per_second": 1e6, "sharing": "max_min"})
    options = {"cluster": cards, "workload": {"num_parameters": 10_000}, "budget": {"updates": 1}, "coordination": {"num_regions": 2}}
    made = short("halos", "workload=phantom", **options)

    padded: Any = run_in_threads(made, pad=True)

    simulated = simulate(made, trace="full").rows()
    rows = [row for end in padded for row in rows_of(end.trace)]
    for server in (5, 6):
        assert second_delivery(rows, server) >= second_delivery(simulated, server) - 1e-9 >= 0.08


def second_delivery(rows: Any, server: int) -> float:
    """When the second large message of this rank is delivered."""
    return sorted(row.end for row in rows if row.kind == "message" and row.nbytes and row.rank == server)[1]


QUICK = cluster(
    *(node(seconds, 1e-4) for seconds in (4e-6, 1e-6, 2e-6)), network={"latency_seconds": 1e-6, "bytes_per_second": 1e9, "sharing": "none"}
)


def test_regions_are_the_outermost_racks_or_as_many_as_one_asks_for():
    """Local servers follow the global one; who talks to whom."""
    regions = Regions.consecutive(5, 2)

    assert regions.of == (0, 0, 0, 1, 1)
    assert [regions.server_of(rank) for rank in range(5)] == [6, 6, 6, 7, 7]
    assert [list(regions.peers(rank)) for rank in (0, 4, 5, 6, 7)] == [[6], [7], [6, 7], [5, 0, 1, 2], [5, 3, 4]]
    assert experiment("method=halos", "cluster=two_racks", "workload=phantom").regions == Regions((0,) * 8 + (1,) * 8)
    assert experiment("method=halos", "workload=phantom").num_ranks == 6


@pytest.mark.parametrize(
    ("choices", "keys", "why"),
    [
        ((), {"coordination": {"num_regions": 5}}, "coordination.num_regions=5 is more than the cluster's 4 workers: lower it"),
        (("cluster=two_racks",), {"coordination": {"num_regions": 2}}, "coordination.num_regions=2, but the cluster has racks"),
        ((), {"coordination": {"merge_weight": 2}}, "coordination.merge_weight must be above 0 and at most 1, not 2"),
        ((), {"coordination": {"merge_weight": 0}}, "coordination.merge_weight must be a finite number above zero, not 0"),
        ((), {"coordination": {"merge_every": 0}}, "coordination.merge_every must be"),
        ((), {"coordination": {"steps": "fast"}}, "coordination.steps must be"),
        (("regional_optimizer=none",), {}, "regional_optimizer is none, but local servers step along what workers push"),
        (
            ("method=asgd", "regional_optimizer=sgd"),
            {},
            "regional_optimizer would do nothing, because ParameterServer has no local servers",
        ),
        (("discount=polynomial",), {}, "discount is Polynomial, but a local server steps along each push as it is"),
        (("admission=softsync",), {}, "admission is SoftSync, but a local server steps along each push as it is"),
        (("compression=two_bit",), {}, "compression is TwoBit, but a local server steps along each push as it is"),
        (("partition=even",), {"data": "owned", "epochs": "aligned"}, "epochs=aligned lets workers wait at the end of an epoch, but"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(choices: tuple[str, ...], keys: dict[str, Any], why: str):
    """Before anything runs."""
    with pytest.raises(ValueError, match="^" + re.escape(why)) as refused:
        experiment("method=halos", "workload=phantom", *choices, **keys)

    assert "\n" not in str(refused.value)
