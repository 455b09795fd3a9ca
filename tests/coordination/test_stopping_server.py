"""Gradients that are given up: who is stopped when, that no position is lost by it, and that the seconds count."""

from __future__ import annotations

from typing import Any

import pytest
from methods import num_given_up
from test_programs_by_hand import PLAIN, exchange, gradient, ready
from worlds import NO_NETWORK, NOISE, UNEVEN, Run, cluster, experiment, node, simulate, tiles

from hetsim.coordination.plan import Plan
from hetsim.coordination.stopping_server import StoppingServer
from hetsim.effects import Attempt, Batch, Computed, Message, Node, Receive, Send, Update
from hetsim.policies.admission import RennalaStops, RingmasterStops
from hetsim.vector import Phantom

WORLD_Q = cluster(*(node(seconds) for seconds in (4.0, 4.0, 2.0, 1.0)))


def on_q(name: str, *, updates: int = 600, where: dict[str, Any] = WORLD_Q, **admission: int) -> Run:
    """A method in World Q: workers of 4, 4, 2 and 1 s, free communication, a sample each."""
    keys = {"cluster": where, "batch_size": 4, "admission": admission, "budget": {"updates": updates}}
    return simulate(experiment(f"method={name}", "workload=phantom", **keys), trace="full")


@pytest.mark.parametrize(("max_delay", "rate"), [(1, 1.0), (2, 4 / 3), (3, 1.5), (4, 1.5), (8, 2.0), (16, 2.0)])
def test_ringmaster_makes_so_many_versions_a_second_in_world_q(max_delay: int, rate: float):
    """With R = 2 a third more than without stops, as the worker of 2 s begins where the one of 1 s has ended, and is not late."""
    run = on_q("ringmaster_stops", max_delay=max_delay)

    assert len(run.seconds) / run.seconds[-1] == pytest.approx(rate, rel=0.005)
    assert max(c.staleness for group in run.applied for c in group) < max_delay


@pytest.mark.parametrize(("max_delay", "rate"), [(1, 1.0), (2, 1.0), (3, 1.5), (4, 1.5), (8, 2.0)])
def test_ringmaster_that_only_drops_makes_fewer(max_delay: int, rate: float):
    """By the same event loop, without stops."""
    run = on_q("ringmaster", max_delay=max_delay)

    assert len(run.seconds) / run.seconds[-1] == pytest.approx(rate, rel=0.005)


@pytest.mark.parametrize(("batch", "rate"), [(1, 1.0), (3, 1 / 2), (4, 1 / 3), (8, 1 / 4)])
def test_rennala_makes_so_many_versions_a_second_in_world_q(batch: int, rate: float):
    """By hand: B gradients at one version take 1, 2, 3 and 4 s."""
    run = on_q("rennala_stops", batch=batch)

    assert len(run.seconds) / run.seconds[-1] == pytest.approx(rate, rel=0.005)
    assert {c.staleness for group in run.applied for c in group} == {0}


def test_a_new_version_stops_the_others_with_r_of_one():
    """Two seconds of World Q with R = 1: the worker of 1 s alone gets to an end, and the others begin again with it."""
    run = on_q("ringmaster_stops", max_delay=1, updates=2)

    shown = [(round(row.start), round(row.end), row.rank, row.version, row.samples) for row in run.rows("gradient") if row.end <= 2]
    assert sorted(shown) == [
        *((0, 1, 0, 0, 0), (0, 1, 1, 0, 0), (0, 1, 2, 0, 0), (0, 1, 3, 0, 1)),
        (1, 2, 3, 1, 1),
    ]


@pytest.mark.parametrize("name", ["ringmaster_stops", "rennala_stops"])
def test_no_position_is_lost(name: str):
    """In whatever order: each is applied once, although workers are stopped all the time; nothing is discarded."""
    keys = {"workload": {"num_parameters": 8, "num_samples": 90}, "batch_size": 31, "cluster": UNEVEN}
    run = simulate(experiment(f"method={name}", "workload=phantom", **keys, budget={"epochs": 5.5}), trace="full")

    assert tiles([c.batch for group in run.applied for c in group], 495)
    assert run.simulation.history.last.num_samples_discarded == 0
    assert num_given_up(run) > 0


def test_what_is_given_up_counts_as_computing_and_as_no_iteration():
    """World Q, R = 1, four seconds: all compute all the time, but one alone has something to show."""
    run = on_q("ringmaster_stops", max_delay=1, updates=4)

    workers = run.simulation.metrics.summary()["per_worker"]
    assert [worker["compute_seconds"] for worker in workers] == pytest.approx([4.0] * 4)
    assert [(worker["iterations"], worker["samples"]) for worker in workers] == [(0, 0)] * 3 + [(4, 4)]


def test_a_push_that_crosses_a_stop_is_ignored_and_its_range_computed_again():
    """By hand: worker 1 is stopped at version 1, its gradient of version 0 comes after that, and then the one of version 1."""
    method = StoppingServer(**{**PLAIN, "admission": RingmasterStops(max_delay=1)})
    plan = Plan(num_workers=2, batch_size=4)
    program = method.program(Node(2, 2), plan, method.initial(plan, 10.0))

    asked = exchange(
        program,
        *(ready(0), None, ready(1), None),
        *(gradient(0, 1.0, version=0), 9.0, True, None, None),
        *(gradient(1, 5.0, version=0), gradient(1, 2.0, version=1), 7.0, True, None, None),
    )

    assert asked[-10:] == [
        ("commit", 1, 9.0, 4, 2, [(0, 2, 0)]),
        ("send", 0, 9.0, {"version": 1, "batch": Batch(4, 2)}),
        ("send", 1, 9.0, {"version": 1, "batch": Batch(2, 2)}),
        Receive(),
        Receive(),
        Update(at=9.0, gradient=2.0),
        ("commit", 2, 7.0, 6, 4, [(1, 2, 0)]),
        ("send", 0, 7.0, {"version": 2, "batch": Batch(4, 2)}),
        ("send", 1, 7.0, {"version": 2, "batch": Batch(6, 2)}),
        Receive(),
    ]


def test_a_stopped_worker_pushes_nothing_and_begins_with_what_it_receives():
    """By hand: an attempt at version 3 is given up, the next message has the same range at version 5."""
    method = StoppingServer(**{**PLAIN, "admission": RennalaStops(batch=2)})
    plan = Plan(num_workers=1, batch_size=4)
    worker = method.program(Node(0, 1), plan, method.initial(plan, 10.0))
    old, new = (Message(1, {"version": version, "batch": Batch(0, 4)}, float(version)) for version in (3, 5))

    asked = [next(worker), *(worker.send(answer) for answer in (None, old, None, new, Computed(1.5, 0.0, 4, 2.0), None))]

    assert [type(effect) for effect in asked] == [Send, Receive, Attempt, Receive, Attempt, Send, Receive]
    assert (asked[2], asked[4]) == (Attempt(3.0, Batch(0, 4), 3), Attempt(5.0, Batch(0, 4), 5))
    assert isinstance(asked[5], Send)
    assert (asked[5].payload, asked[5].header["version"]) == (1.5, 5)


def test_a_node_that_crashes_in_an_attempt_loses_it():
    """Nodes of 4 and 1 s, R = 3; the first is away from 2.5 to 6.5 s, and takes its range up again; all seconds are accounted for."""
    where = cluster(node(4.0), node(1.0))
    faults = {"detection_seconds": 0.1, "schedule": [{"nodes": [0], "crash": 2.5, "repair": 6.5}]}
    keys = {"cluster": {**where, "faults": faults}, "batch_size": 2, "admission": {"max_delay": 3}}
    run = simulate(experiment("method=ringmaster_stops", "workload=phantom", **keys, budget={"updates": 20}), trace="full")

    first = [(row.start, row.end, row.samples) for row in run.rows("gradient") if row.rank == 0]
    assert first[0][:2] == pytest.approx((0.0, 2.5))
    assert [its[:2] for its in first[1:4]] == [pytest.approx(its) for its in ((6.5, 9.0), (9.0, 12.0), (12.0, 15.0))]
    assert {its[2] for its in first[1:4]} == {0}
    seconds = run.seconds[-1]
    worker = run.simulation.metrics.summary()["per_worker"][0]
    assert worker["compute_seconds"] + worker["down_seconds"] == pytest.approx(seconds)
    assert (worker["iterations"], worker["down_seconds"]) == (0, pytest.approx(4.0))


def test_a_real_gradient_that_is_given_up_is_never_computed_in_virtual_time():
    """Each position of the epochs once, although one in three gradients is stopped: with no latency no push crosses a stop."""
    keys = {"workload": {"num_parameters": 8, "num_samples": 100}, "batch_size": 30, "dtype": "float64"}
    workers = cluster(*(node(seconds, noise=NOISE) for seconds in (4e-3, 1e-3, 2e-3)), network=NO_NETWORK)
    run = simulate(
        experiment("method=rennala_stops", "workload=quadratic", **keys, cluster=workers, budget={"epochs": 4}),
        trace="full",
    )

    assert tiles(run.computed, 400)
    assert 3 * num_given_up(run) > len(run.computed)


@pytest.mark.parametrize(
    ("choices", "sentence"),
    [
        (
            ("method=ringmaster_stops", "coordination=parameter_server"),
            "admission is RingmasterStops, but coordination is ParameterServer: take coordination=stopping_server",
        ),
        (
            ("method=asgd", "coordination=stopping_server"),
            "admission is EveryGradient, but coordination is StoppingServer: take coordination=parameter_server",
        ),
        (("method=rennala_stops", "discount=inverse_staleness"), "which lets no gradient be late"),
    ],
)
def test_what_does_not_fit_is_one_sentence(choices: tuple[str, ...], sentence: str):
    """Before the run, with what to take."""
    with pytest.raises(ValueError, match=sentence):
        experiment(*choices, "workload=phantom")


def test_payloads_that_are_phantoms_are_stopped_alike():
    """The same rows as for the vectors that they stand for, by the table of laws; here, that one is stopped at all."""
    run = on_q("rennala_stops", batch=3, updates=5)

    assert isinstance(run.weights, Phantom)
    assert num_given_up(run) > 0
