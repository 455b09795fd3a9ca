"""Processes that share the cores of a host, and budgets of CPU-seconds: closed forms."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Generator
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from cluster_runs import built, play, timed, world
from worlds import NO_NETWORK, node

from hetsim.cluster.distributions import PERIODS
from hetsim.cluster.hosts import Host
from hetsim.effects import Batch, Gradient, Node, Now, Receive, Send, Start, Wait
from hetsim.sim.clock import VirtualClock
from hetsim.sim.hosts.cores import Cores, CpuBudget
from hetsim.vector import Phantom

LAB = {"lab": {"cores": 2}}
ONE = {"lab": {"cores": 1}}


def on(host: str | None, seconds: float, **more: Any) -> dict[str, Any]:
    """A node whose gradients of any size take so many CPU-seconds."""
    return node(1e-15, seconds, **({} if host is None else {"host": host}), **more)


def ends(*works: tuple[float, float, dict[str, Any]], host: Host) -> list[float]:
    """When work of each (start, seconds, options) is done on a host."""
    clock = VirtualClock()
    cores = Cores(clock, host)
    done = [math.nan] * len(works)

    def end(place: int) -> None:
        done[place] = clock.now

    def begin(place: int, seconds: float, options: dict[str, Any], _: None) -> None:
        cores.run(seconds, end, place, **options)

    for place, (start, seconds, options) in enumerate(works):
        clock.at(start, partial(begin, place, seconds, options))
    clock.run_all()
    return done


@pytest.mark.parametrize(("cores", "speeds", "expected"), [(1, (), 3.0), (2, (), 1.5), (3, (), 1.0), (4, (), 1.0), (2, (1.0, 0.5), 3.0)])
def test_three_that_begin_together_share_the_cores(cores: int, speeds: tuple[float, ...], expected: float) -> None:
    host = Host(cores=cores, busy_speeds=speeds)

    assert ends(*[(0.0, 1.0, {})] * 3, host=host) == pytest.approx([expected] * 3, rel=1e-15)


def test_rates_change_when_work_begins_and_ends() -> None:
    """One core: 1 s alone, then two at half the speed until the shorter one ends, then alone again."""
    assert ends((0.0, 2.0, {}), (1.0, 0.5, {}), host=Host(cores=1)) == pytest.approx([2.5, 2.0], rel=1e-15)


def test_urgent_work_takes_the_core() -> None:
    assert ends((0.0, 2.0, {}), (1.0, 0.5, {"urgent": True}), host=Host(cores=1)) == pytest.approx([2.5, 1.5], rel=1e-15)
    assert ends((0.0, 2.0, {}), (0.0, 2.0, {}), (1.0, 0.5, {"urgent": True}), host=Host(cores=2)) == pytest.approx([2.25, 2.25, 1.5])


def test_urgent_work_takes_any_core() -> None:
    """It falls on each of four cores as likely, so a thread beside it is a quarter slower meanwhile, though two cores are idle."""
    assert ends((0.0, 2.0, {}), (1.0, 0.8, {"urgent": True}), host=Host(cores=4)) == pytest.approx([2.2, 1.8], rel=1e-15)


def test_several_threads_take_several_cores() -> None:
    """Two threads and one on two cores: each gets 2/3 of a core, until the work of one is done."""
    done = ends((0.0, 1.0, {"width": 2}), (0.0, 1.0, {}), host=Host(cores=2))

    assert done == pytest.approx([1.5, 1.5], rel=1e-15)


@pytest.mark.parametrize(
    ("works", "balance", "expected"),
    [
        ((3.0, 3.0, 3.0), 0.0, [4.5, 4.5, 4.5]),
        ((3.0, 3.0, 3.0), 1.0, [3.0, 5.0, 5.0]),  # the second core takes over after 4 s, of what two have half done after 3
        ((3.0, 3.0, 3.0), 9.0, [3.0, 6.0, 6.0]),
        ((3.0, 3.0, 3.0, 3.0), 1.0, [6.0, 6.0, 6.0, 6.0]),
        ((1.0, 4.0, 4.0), 1.0, [2.0, 4.0, 5.0]),  # the third begins beside the first
        ((3.0, 3.0), 1.0, [3.0, 3.0]),
    ],
)
def test_an_idle_core_takes_over_late(works: tuple[float, ...], balance: float, expected: list[float]) -> None:
    """Of two cores; a thread begins on the core with the fewest."""
    done = ends(*((0.0, seconds, {}) for seconds in works), host=Host(cores=2, balance_seconds=balance))

    assert sorted(done) == pytest.approx(expected, rel=1e-15)


def test_more_threads_than_cores_share_them_for_good() -> None:
    """Three threads of one work on two cores wait for the two that share a core, however often others begin and end."""
    host = Host(cores=2, balance_seconds=9.0)
    others = [(0.25 * k, 0.125, {"urgent": True}) for k in range(1, 5)]

    assert ends((0.0, 1.0, {"width": 3}), host=host) == pytest.approx([2.0])
    assert ends((0.0, 1.0, {"width": 3}), *others, host=host)[0] == pytest.approx(2.25)


def test_what_begins_takes_the_idle_core_at_once() -> None:
    """Urgent work takes a part of each core."""
    host = Host(cores=2, balance_seconds=9.0)

    assert ends((0.0, 3.0, {}), (0.0, 3.0, {}), (0.0, 3.0, {}), (4.0, 1.0, {}), host=host) == pytest.approx([6.0, 3.0, 6.0, 5.0])
    assert ends((0.0, 2.0, {}), (0.0, 2.0, {}), (0.0, 1.0, {"urgent": True}), host=host) == pytest.approx([2.5, 2.5, 1.0])


@pytest.mark.parametrize(("width", "cores", "expected"), [(3, 2, 6.0), (2, 1, 6.0), (2, 2, 3.0)])
def test_more_threads_than_cores_stay_as_many(width: int, cores: int, expected: float) -> None:
    """Two of them share a core, and the others wait for these two. Urgent work delays them by its own part."""
    host = Host(cores=cores, balance_seconds=9.0)
    urgent = [(at / 10, 1e-3 * cores, {"urgent": True}) for at in range(20)]
    alone, *_ = ends((0.0, 3.0, {"width": width}), host=host)
    done, *_ = ends((0.0, 3.0, {"width": width}), *urgent, host=host)

    assert alone == pytest.approx(expected, rel=1e-15)
    assert done == pytest.approx(expected + 0.02, rel=1e-9)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_gpu_takes_one_core(device: str) -> None:
    """Two nodes of two threads share three cores evenly; of a node whose GPU computes, only the thread that waits for it takes one."""
    workers = world(on("lab", 1.0, device=device), on("lab", 1.0), hosts={"lab": {"cores": 3}})
    run = timed("ssgd", workers=workers, updates=1, threads=2)

    assert run.seconds[-1] == pytest.approx(4 / 3 if device == "cpu" else 1.0)


@pytest.mark.parametrize("work", [0.01, 0.04, 0.05, 0.1, 0.333])
@pytest.mark.parametrize("phase", [0.0, 0.03])
def test_a_budget_is_spent_at_the_beginning_of_each_period(work: float, phase: float) -> None:
    """0.04 s in each 0.1 s: full periods, then the rest. Begun at a period's start, or 0.03 s before one."""
    budget = CpuBudget(0.4, 0.1, phase)
    done = ends((0.0, work, {"budget": budget}), host=Host(cores=1))[0]

    first = min(work, 0.04, phase or 0.04)
    left, begin = work - first, phase
    if phase == 0.0:
        begin = 0.1
    if left <= 1e-15:
        assert done == pytest.approx(first, rel=1e-12)
    else:
        whole = math.ceil(left / 0.04 - 1e-9) - 1
        assert done == pytest.approx(begin + whole * 0.1 + left - whole * 0.04, rel=1e-12)


def test_what_is_not_used_of_a_budget_is_lost() -> None:
    """Idle for a period, it gets one quota and not two; two threads of a process share it."""
    once = CpuBudget(0.4, 0.1)
    done = ends((0.0, 0.01, {"budget": once}), (0.25, 0.05, {"budget": once}), host=Host(cores=2))
    assert done == pytest.approx([0.01, 0.31], rel=1e-12)

    shared = CpuBudget(0.4, 0.1)
    assert ends((0.0, 0.03, {"budget": shared}), (0.0, 0.03, {"budget": shared}), host=Host(cores=2)) == pytest.approx([0.11, 0.11])


def test_a_tick_late_is_paid_later() -> None:
    """0.04 s in each 0.1 s, looked at every 0.03 s: 0.06 s in the first period, so the second has 0.02 s, and again 0.02 s too much."""
    budget = CpuBudget(0.4, 0.1, tick=0.03)
    done = ends((0.0, 0.1, {"budget": budget}), (0.2, 0.06, {"budget": budget}), host=Host(cores=1))

    assert done == pytest.approx([0.14, 0.32], rel=1e-9)  # until 0.24 s, and after 0.3 s


def test_over_many_periods_a_tick_changes_no_rate() -> None:
    for tick in (0.004, 0.01, 0.03):
        done = ends((0.0, 40.0, {"budget": CpuBudget(0.4, 0.1, tick=tick)}), host=Host(cores=1))[0]

        assert done == pytest.approx(100.0, abs=0.2)


def test_with_a_tick_a_millisecond_is_kept() -> None:
    """After a pause there is the quota, and 1 ms of what was not used before; not more, however long the pause was."""
    for pause in (1.0, 7.0):
        budget = CpuBudget(0.4, 0.1, tick=1e-5)
        done = ends((0.0, 0.01, {"budget": budget}), (pause, 0.0415, {"budget": budget}), host=Host(cores=1))[1]

        assert done == pytest.approx(pause + 0.1 + 0.0005, abs=3e-5)
        assert ends((0.0, 0.041, {"budget": CpuBudget(0.4, 0.1, -1.0, tick=1e-5)}), host=Host(cores=1)) == pytest.approx([0.041])


@pytest.mark.slow
@pytest.mark.parametrize("repeats", [5, pytest.param(25, marks=pytest.mark.long)])
def test_any_work_ends_when_small_steps_say_so(repeats: int) -> None:
    """Against a simulation in steps of 20 µs, in which a budget's last step may put the end off by a period."""
    chance = random.Random(1)
    errors = []
    step = 2e-5
    for _ in range(repeats):
        host = Host(cores=chance.randint(1, 3))
        host = Host(cores=host.cores, busy_speeds=(1.0, 0.8, 0.7)[: host.cores])
        budgets = [CpuBudget(chance.choice([0.2, 0.5]), 0.05, chance.random() * -0.05) for _ in range(2)]
        works = [
            (chance.random() * 0.3, chance.random() * 0.2, {"urgent": chance.random() < 0.3, "budget": chance.choice([None, *budgets])})
            for _ in range(8)
        ]
        expected = _in_small_steps(works, host, step)
        errors += [abs(exact - rough) for exact, rough in zip(ends(*works, host=host), expected, strict=True)]

    assert max(errors) <= 0.06
    assert sorted(errors)[int(0.9 * len(errors))] < 1e-3


def _in_small_steps(works: list[tuple[float, float, dict[str, Any]]], host: Host, step: float) -> list[float]:
    left = [seconds for _, seconds, _ in works]
    done = [math.nan] * len(works)
    spent: dict[tuple[int, int], float] = {}
    turn = 0
    while any(map(math.isnan, done)):
        now, turn = turn * step, turn + 1
        at = {id(b): (id(b), math.floor((now - b.phase) / b.period)) for _, _, o in works if (b := o["budget"]) is not None}
        able = [
            place for place, (start, _, options) in enumerate(works)
            if math.isnan(done[place]) and start <= now
            and ((b := options["budget"]) is None or spent.get(at[id(b)], 0.0) < b.quota)
        ]  # fmt: skip
        urgent = [place for place in able if works[place][2]["urgent"]]
        first = min(1.0, host.cores / len(urgent)) if urgent else 0.0
        others = len(able) - len(urgent)
        rest = min(1.0, host.cores / others) * (1 - first * len(urgent) / host.cores) if others else 0.0
        speed = host.speed(min(host.cores, len(able))) if able else 0.0
        for place in able:
            share = first if place in urgent else rest
            left[place] -= share * speed * step
            if (b := works[place][2]["budget"]) is not None:
                spent[at[id(b)]] = spent.get(at[id(b)], 0.0) + share * step
            if left[place] <= 0:
                done[place] = now + step
    return done


def test_workers_of_a_server_on_one_host_share_it() -> None:
    """Three workers of 1 s on two cores, and a server that takes nothing: three updates each 1.5 s."""
    run = timed("asgd", workers=world(on("lab", 1.0, count=3), hosts=LAB), updates=9)

    assert run.seconds == pytest.approx([1.5] * 3 + [3.0] * 3 + [4.5] * 3, rel=1e-9)


def test_a_barrier_frees_the_cores_for_the_slower_ones() -> None:
    """1, 1 and 4 s of work on two cores: 1.5 s for three of 1 s each, and then 3 s alone."""
    run = timed("ssgd", workers=world(on("lab", 1.0, count=2), on("lab", 4.0), hosts=LAB), updates=2)

    assert run.seconds == pytest.approx([4.5, 9.0], rel=1e-9)


def test_a_gradient_after_a_pause_takes_longer() -> None:
    """With one worker the pause is a round trip and an update; the first gradient follows none, and is as cold as can be."""
    row = on("lab", 0.1, cold_seconds=0.05, cooling_seconds=0.2)
    network = {"latency_seconds": 0.03, "bytes_per_second": 1e15}
    run = timed("asgd", workers=world(row, network=network, server={"seconds_per_update": 0.04}, hosts=LAB), updates=3)

    cycle = 0.03 + 0.04 + 0.03 + 0.1 + 0.05 * (1 - math.exp(-0.1 / 0.2))
    first = (0.03 + 0.03) + 0.1 + 0.05 + 0.03 + 0.04  # the worker asks for the weights
    assert run.seconds == pytest.approx([first, first + cycle, first + 2 * cycle], rel=1e-9)


def test_the_first_gradient_of_each_number_of_samples_takes_longer() -> None:
    """8, 3, 8 and 3 samples; in passes of at most 2 these are the sizes 2, then 2 and 1."""

    def asks(its: Node, _: Any) -> Generator[Any, Any, Any]:
        if its.rank < its.server:
            for samples in (8, 3, 8, 3):
                found.append((yield from Gradient(at=Phantom(8), batch=Batch(0, samples), version=0)).seconds)
            yield from Send(its.server, None)
        else:
            yield from Receive()

    found: list[float] = []
    play(asks, world(on("lab", 2.0, first_seconds=0.5), hosts=ONE))
    assert found == pytest.approx([2.5, 2.5, 2.0, 2.0])
    found.clear()
    play(asks, world(on("lab", 2.0, first_seconds=0.5, micro_batch=2), hosts=ONE))
    assert found == pytest.approx([8.5, 4.5, 8.0, 4.0])


def test_gradients_without_a_pause_are_not_cold() -> None:
    """The second of two that were started together begins when the first one ends."""

    def asks(its: Node, _: Any) -> Generator[Any, Any, Any]:
        if its.rank < its.server:
            started = []
            for place in range(2):
                started.append((yield from Start(Gradient(at=Phantom(8), batch=Batch(place, 1), version=0))))
            seconds = []
            for each in started:
                seconds.append((yield from Wait(each)).seconds)
            assert seconds == pytest.approx([2.5, 2.0])
            yield from Send(its.server, None)
        else:
            yield from Receive()

    run = play(asks, world(on("lab", 2.0, cold_seconds=0.5, cooling_seconds=0.1), hosts=ONE))
    assert run.seconds[-1] == pytest.approx(4.5, rel=1e-9)


def test_hosts_of_their_own_are_as_no_hosts() -> None:
    """With as many cores as processes every method takes the times that it takes without hosts."""
    for method in ("ssgd", "asgd", "hetgrad", "od_sgd", "local_sgd", "softsync", "ringmaster_stops", "rennala_stops"):
        noise = {"distribution": "lognorm", "s": 0.3}
        rows = [node(0.01, 0.3, noise=noise, seconds_per_update=0.1), node(0.02, 0.1, noise=noise)]
        network = {"latency_seconds": 0.01, "bytes_per_second": 1e3}
        server = {"seconds_per_update": 0.05}
        alone = timed(method, workers=world(*rows, network=network, server=server), updates=20)
        hosts = timed(
            method, workers=world(*({**row, "host": "lab"} for row in rows), network=network, server=server, hosts={"lab": {"cores": 9}}),
            updates=20,
        )  # fmt: skip

        assert hosts.seconds == pytest.approx(alone.seconds, rel=1e-9), method


def push(its: Node, _: Any) -> Generator[Any, Any, Any]:
    """Worker 0 sends 100 bytes to the server at 0 s."""
    if its.rank == 0:
        yield from Send(its.server, Phantom(100))
    elif its.rank == its.server:
        yield from Receive(0)


CPU = {"send_seconds": 0.5, "send_seconds_per_byte": 0.01, "receive_seconds": 0.25, "receive_seconds_per_byte": 0.0025}


@pytest.mark.parametrize(
    ("hosts", "network", "arrival"),
    [
        ({"lab": {"cores": 1}}, NO_NETWORK, 2.0),  # 1.5 s and 0.5 s on one core
        ({"lab": {"cores": 2}}, NO_NETWORK, 1.5),
        ({"lab": {"cores": 2}}, {"latency_seconds": 1.25, "bytes_per_second": 1e9}, 1.75),  # the receiver begins after the latency
        ({"lab": {"cores": 2}}, {"latency_seconds": 1.0, "bytes_per_second": 25.0}, 5.0),  # the network takes longer
    ],
)
def test_both_ends_of_a_message_have_work(hosts: dict[str, Any], network: dict[str, Any], arrival: float) -> None:
    workers = world(on("lab", 1.0), network={**network, "cpu": CPU}, server={"host": "lab"}, hosts=hosts)
    run = play(push, workers)

    assert run.seconds[-1] == pytest.approx(arrival, rel=1e-6)


def test_messages_take_the_core_from_a_gradient() -> None:
    """A gradient of 4 s on one core, during which 2 s go to a message."""

    def asks(its: Node, _: Any) -> Generator[Any, Any, Any]:
        if its.rank == 0:
            yield from Send(its.server, Phantom(100))
            yield from Gradient(at=Phantom(8), batch=Batch(0, 1), version=0)
            yield from Send(its.server, None)
        elif its.rank == its.server:
            yield from Receive(0)
            assert (yield from Now()) == pytest.approx(2.0)
            yield from Receive(0)

    workers = world(on("lab", 4.0), network={**NO_NETWORK, "cpu": CPU}, server={"host": "lab"}, hosts=ONE)
    assert play(asks, workers).seconds[-1] == pytest.approx(6.0 + 0.75, rel=1e-6)


@pytest.mark.parametrize("covers", [False, True])
def test_a_quota_may_cover_messages(covers: bool) -> None:
    """1.5 s to send, of which a budget allows 0.2 s in each second; its periods begin at a moment that the seed draws."""
    row = on("lab", 1.0, cpu_quota=0.2, cpu_quota_period_seconds=1.0, cpu_quota_covers_messages=covers)
    run = play(push, world(row, network={**NO_NETWORK, "cpu": CPU}, server={"host": "lab"}, hosts=LAB))

    begins = float(np.random.default_rng((0, 0, PERIODS)).random())
    first = min(begins, 0.2)
    periods = math.ceil((1.5 - first) / 0.2) - 1
    assert run.seconds[-1] == pytest.approx(begins + periods + 1.5 - first - periods * 0.2 if covers else 1.5, rel=1e-9)


def test_a_quota_covers_what_the_thread_that_computes_does_for_messages() -> None:
    """0.5 s at each end, of which the sender's budget allows 0.2 s in each second; the rest of the work needs none."""
    row = on("lab", 1.0, cpu_quota=0.2, cpu_quota_period_seconds=1.0)
    cpu = {"send_seconds": 0.1, "receive_seconds": 0.1, "thread_seconds": 0.5}
    run = play(push, world(row, network={**NO_NETWORK, "cpu": cpu}, server={"host": "lab"}, hosts={"lab": {"cores": 8}}))

    begins = float(np.random.default_rng((0, 0, PERIODS)).random())
    first = min(begins, 0.2)
    periods = math.ceil((0.5 - first) / 0.2) - 1
    assert run.seconds[-1] == pytest.approx(
        begins + periods + 0.5 - first - periods * 0.2, rel=0.03
    )  # urgent work takes an eighth for 0.1 s


def test_a_message_after_a_pause_takes_longer() -> None:
    """Each end by 0.2 · (1 − exp(−p)), p seconds after its last one has begun: the first one's pause is endless."""

    def push(peer: Node, weights: Any) -> Generator[Any, Any, None]:
        if peer.rank == peer.server:
            for _ in range(2):
                yield Receive()
                found.append((yield Now()))
        else:
            yield Send(peer.server)
            yield Gradient(weights, Batch(0, 1), 0)
            yield Send(peer.server)

    found: list[float] = []
    cpu = {"send_seconds": 0.1, "receive_seconds": 0.1, "cold_seconds": 0.2, "cooling_seconds": 1.0}
    hosts = {"one": {"cores": 64}, "other": {"cores": 64}}
    play(push, world(on("one", 1.0), network={**NO_NETWORK, "cpu": cpu}, server={"host": "other"}, hosts=hosts))

    assert found[0] == pytest.approx(0.3)
    pause = 1.0 + 0.3 / 64  # urgent work takes a 64th of the core while both run
    assert found[1] == pytest.approx(pause + 0.1 + 0.2 * (1 - math.exp(-pause)), rel=1e-3)


@pytest.mark.parametrize(("waits", "expected"), [(True, 1.5), (False, 1.0)])
def test_agreeing_on_whether_to_continue_is_work(waits: bool, expected: float) -> None:
    """Half a second of each rank's thread at each commit, if there is something to agree on."""
    network = {**NO_NETWORK, "cpu": {"agreement_seconds": 0.5}}
    workers = world(on("lab", 1.0, count=2), network=network, hosts={"lab": {"cores": 8}})
    run = timed("ssgd", workers=workers, updates=3, stop_when_diverged=waits)

    assert [b - a for a, b in pairwise(run.seconds)] == pytest.approx([expected] * 2)


@pytest.mark.parametrize(
    ("known", "expected"), [({}, 3.0), ({"agreement_seconds": 0.25}, 2.25), ({"agreement_seconds": 0.25, "gather_seconds": 0.5}, 2.5)]
)
def test_a_gather_of_numbers_costs_its_own_work_or_what_an_agreement_does(known: dict[str, float], expected: float) -> None:
    """A gradient of 1 s, an all-reduce of 1 s of each rank, and a gather of timings."""
    cpu = {"collective_seconds": 1.0, **known}
    workers = world(on("lab", 1.0, count=2), network={**NO_NETWORK, "cpu": cpu}, hosts={"lab": {"cores": 4096}})
    run = timed("ssgd", "allocation=dbs", workers=workers, updates=3, batch_size=2)

    assert [b - a for a, b in pairwise(run.seconds)] == pytest.approx([expected] * 2, rel=2e-3)


@pytest.mark.parametrize(("cores", "expected"), [(1, 1.5), (8, 1.0)])
def test_a_communication_beside_the_program_is_work(cores: int, expected: float) -> None:
    """Half a second for each, beside a gradient of one second, which waits for it only where a core is missing."""
    network = {**NO_NETWORK, "cpu": {"overlap_seconds": 0.5}}
    workers = world(*(on(host, 1.0) for host in "ab"), network=network, hosts={host: {"cores": cores} for host in "ab"})
    run = timed("pipe_sgd", "coordination.warm_up=0", workers=workers, updates=4)

    assert [b - a for a, b in pairwise(run.seconds)][1:] == pytest.approx([expected] * 2)


@pytest.mark.parametrize(("covers", "expected"), [(True, 1.5), (False, 1.2)])
def test_a_process_that_a_quota_stops_finds_cold_caches(covers: bool, expected: float) -> None:
    """A gradient of 0.6 s on half a core: each period of 1 s has one stop, after which 0.1 s are lost if the whole process stopped."""
    row = on(
        "lab", 0.6, cpu_quota=0.5, cpu_quota_period_seconds=1.0, cpu_quota_covers_messages=covers, cold_seconds=0.1, cooling_seconds=1e-9
    )
    run = timed("ssgd", workers=world(row, network=NO_NETWORK, hosts={"lab": {"cores": 1}}), updates=101)

    assert (run.seconds[-1] - run.seconds[0]) / 100 == pytest.approx(expected, rel=0.02)


def test_the_program_of_a_commit_is_work() -> None:
    """Each rank's own, on its own thread: the slower program sets the pace."""
    rows = on("lab", 1.0, program_seconds=0.25), on("lab", 1.0, program_seconds=0.5)
    workers = world(*rows, network=NO_NETWORK, hosts={"lab": {"cores": 8}})
    run = timed("ssgd", workers=workers, updates=3)

    assert [b - a for a, b in pairwise(run.seconds)] == pytest.approx([1.5] * 2)


def test_the_program_of_a_message_with_a_vector_is_work() -> None:
    """Of the worker for the weights that it pulls, and of the server for the gradient."""
    server = {"host": "lab", "program_seconds": 0.5}
    workers = world(on("lab", 1.0, program_seconds=0.25), network=NO_NETWORK, server=server, hosts={"lab": {"cores": 8}})
    run = timed("asgd", workers=workers, updates=6)

    assert [b - a for a, b in pairwise(run.seconds)] == pytest.approx([1.75] * 5)


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_a_part_of_a_collective_is_not_urgent(share: float) -> None:
    """1 s on each of two ranks, on as many cores as they like: what the thread and the others do goes on at the same time."""
    network = {"latency_seconds": 0.0, "bytes_per_second": 1e12, "cpu": {"collective_seconds": 1.0, "collective_thread_share": share}}
    run = timed("ssgd", workers=world(on("lab", 0.0, count=2), network=network, hosts={"lab": {"cores": 4096}}), updates=2)

    assert [b - a for a, b in pairwise([0.0, *run.seconds])] == pytest.approx([max(share, 1 - share)] * 2, rel=2e-3)


@pytest.mark.parametrize(("latency", "expected"), [(0.0, 1.5), (0.5, 4 * 0.5)])
def test_each_rank_of_a_collective_has_work(latency: float, expected: float) -> None:
    """1 s of work on each of three ranks on two cores, beside a ring of 2(N−1) steps."""
    network = {
        "latency_seconds": latency,
        "bytes_per_second": 1e12,
        "cpu": {"collective_seconds": 0.0, "collective_seconds_per_byte": 1 / 32},
    }
    run = timed("ssgd", workers=world(on("lab", 0.0, count=3), network=network, hosts=LAB), updates=3)

    assert [b - a for a, b in pairwise([0.0, *run.seconds])] == pytest.approx([expected] * 3, rel=1e-6)


def test_a_measured_all_reduce() -> None:
    """Linear between the sizes that were measured, and the same for the real backend's padding."""
    network = {**NO_NETWORK, "all_reduce_table": [[16, 1.0], [48, 2.0]]}
    run = timed("ssgd", workers=world(on(None, 1.0, count=2), network=network), updates=2)

    assert run.seconds == pytest.approx([2.5, 5.0], rel=1e-9)


def test_started_gradients_wait_for_each_other() -> None:
    """A rank computes one gradient at a time; two ranks that started two each on one core take 8 s together."""

    def asks(its: Node, _: Any) -> Generator[Any, Any, Any]:
        if its.rank < its.server:
            started = []
            for place in range(2):
                started.append((yield from Start(Gradient(at=Phantom(8), batch=Batch(place, 1), version=0))))
            for each in started:
                computed = yield from Wait(each)
                assert computed.seconds == pytest.approx(4.0)
            yield from Send(its.server, None)
        else:
            yield from Receive()
            yield from Receive()

    run = play(asks, world(on("lab", 2.0, count=2), hosts=ONE))
    assert run.seconds[-1] == pytest.approx(8.0, rel=1e-9)


def test_what_is_measured_before_a_run_shares_the_cores() -> None:
    """hetgrad measures its workers at the same time, so two of three get 2/3 of a core each while all are at work."""
    run = timed("hetgrad", workers=world(on("lab", 1.0, count=3), hosts=LAB), updates=1)

    assert run.simulation.record.profile_seconds == pytest.approx(1.5 * 5, rel=1e-6)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"rows": {"host": "lab"}}, "node 0 is on host 'lab', which cluster.hosts does not describe: add it there"),
        ({"hosts": LAB}, "cluster.hosts.lab has nothing on it: give rows of cluster.nodes host: lab, or leave it out"),
        ({"hosts": {"lab": {"cores": 0}}}, "cluster.hosts.lab.cores must be"),
        ({"hosts": {"lab": {"cores": 2, "busy_speeds": [1.0]}}}, "busy_speeds must have the speed of a core with 1, 2 … 2 of them busy"),
        ({"rows": {"cold_seconds": 0.1, "cooling_seconds": 0.1}}, "has cold_seconds and no host, on which alone pauses count"),
        ({"rows": {"first_seconds": 0.1}}, "has first_seconds and no host, on which alone it counts: give it a host, or leave"),
        ({"rows": {"program_seconds": 0.1}}, "has program_seconds and no host, on which alone it counts: give it a host, or leave"),
        ({"rows": {"host": "lab", "cold_seconds": 0.1}, "hosts": LAB}, "has cold_seconds and lacks cooling_seconds: give both, or neither"),
        ({"rows": {"host": "lab", "cold_seconds": 0.1, "cooling_seconds": 0}, "hosts": LAB}, "cooling_seconds must be above zero"),
        ({"rows": {"cpu_quota_period_seconds": 0.1}}, "has cpu_quota_period_seconds and no cpu_quota"),
        ({"rows": {"cpu_quota": 0.1, "cpu_quota_period_seconds": 0.001}}, "cpu_quota_period_seconds must be at most 1 and"),
        ({"rows": {"cpu_quota": 0.1, "cpu_quota_covers_messages": 1}}, "cpu_quota_covers_messages must be true or false"),
        (
            {"rows": {"host": "lab", "slow_spells": {"factor": 2, "seconds_between": 1, "seconds_lasting": 1}}, "hosts": LAB},
            "leave one of them",
        ),
        (
            {"rows": {"host": "lab"}, "hosts": LAB, "faults": {"schedule": [{"nodes": [0], "crash": 1}]}},
            "faults does not go with cluster.hosts",
        ),
        ({"network": {**NO_NETWORK, "cpu": {"send": 1}}}, "cluster.network.cpu"),
        ({"network": {**NO_NETWORK, "cpu": {"collective_thread_share": 1.5}}}, "collective_thread_share must be from 0 to 1, not 1.5"),
        (
            {"rows": {"host": "lab"}, "hosts": {"lab": {"cores": 2, "balance_seconds": -1}}},
            "cluster.hosts.lab.balance_seconds must be a finite number of at least zero, not -1",
        ),
        (
            {"rows": {"host": "lab"}, "hosts": {"lab": {"cores": 2, "tick_seconds": 4}}},
            "cluster.hosts.lab.tick_seconds must be at most 0.1",
        ),
        ({"network": {**NO_NETWORK, "all_reduce_table": [[8, 1.0], [4, 2.0]]}}, "must rise in bytes, but 4 comes after 8"),
    ],
)
def test_a_description_that_makes_no_sense_is_refused(parts: dict[str, Any], message: str) -> None:
    rows = parts.pop("rows", {})
    with pytest.raises(ValueError, match=re.escape(message)):
        built(node(1e-3, **rows), **parts)


def test_a_quota_on_a_host_is_in_periods() -> None:
    """Of the length that real runs have, if none is given; without a host it is a steady share."""
    host = built(node(1e-3, cpu_quota=0.1, host="lab"), hosts=LAB).nodes[0]
    alone = built(node(1e-3, cpu_quota=0.1)).nodes[0]

    assert (host.cpu_quota_period_seconds, alone.cpu_quota_period_seconds) == (0.01, None)
    assert built(node(1e-3, cpu_quota=0.5, host="lab"), hosts=LAB).nodes[0].cpu_quota_period_seconds == 0.005
