"""The server: shards, updates, and a queue with open arrivals."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev
from typing import Any

import pytest
from cluster_runs import WIRE, built, play, timed, world
from worlds import node

from hetsim.effects import Batch, Gradient, Node, Now, Receive, Send, Update


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


def test_a_server_s_update_takes_its_operations_on_vectors():
    """None for one gradient, 2k − 1 for the mean of k, and those of a correction for each; a shard makes its part of them."""
    server = {"seconds_per_update": 0.5, "seconds_per_vector_operation": 0.125, "shards": 2}
    corrected = {"compensation": {"strength": 0.04}}
    methods: list[tuple[tuple[str, ...], dict[str, Any]]] = [
        (("asgd",), {}),
        (("ssgd", "coordination=parameter_server"), {}),
        (("dc_asgd",), corrected),
        (("softsync", "admission.n=1", "compensation=dc"), corrected),
    ]

    runs = [timed(*words, workers=world(node(1.0), node(1.0), server=server), updates=1, batch_size=2, **keys) for words, keys in methods]

    assert [run.seconds[0] - 1.0 for run in runs] == [0.25, (0.5 + 3 * 0.125) / 2, (0.5 + 5 * 0.125) / 2, (0.5 + (3 + 2 * 5) * 0.125) / 2]


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
            gap, now = Gradient(at=x, batch=Batch(0, 1), version=0), Now()
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


@pytest.mark.slow
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
