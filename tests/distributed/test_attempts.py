"""Gradients that are given up in real time: exactly when described with padding, otherwise at the end, or between micro-batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fake_transport import FakeNetwork
from methods import num_given_up
from test_padding import BEGAN, Clock, asked, clock, driver
from threads import run_in_threads
from worlds import NO_NETWORK, cluster, experiment, node, simulate

from hetsim.distributed.communication.mailbox import Mailbox
from hetsim.distributed.pacing.padding import LateResults, Pace
from hetsim.effects import Attempt, Batch
from hetsim.vector import Phantom
from hetsim.workloads.task import divide_batch

__all__ = ["clock"]


class Due:
    """A mailbox into which messages come at given moments; whoever waits for them waits by the clock."""

    def __init__(self, clock: Clock, *moments: float) -> None:
        self.clock = clock
        self.moments = moments

    def due_before(self, moment: float, *, wait: bool) -> float | None:
        """The first one."""
        first = min(self.moments, default=float("inf"))
        if wait:
            self.clock.now = max(self.clock.now, min(first, moment))
        return first if first <= min(self.clock.now, moment) else None

    def has_message(self, source: int | None) -> bool:
        """Whether one has come."""
        return any(moment <= self.clock.now for moment in self.moments)


def attempted(
    clock: Clock, *moments: float, within: float = float("inf"), micro_batch: int | None = None, **keys: Any
) -> tuple[Any, float, Any]:
    """The answer to an attempt of 4 samples (1.5 s as described), when it is given, and the rank; messages are due at these moments."""
    rank = driver(clock, letters=Due(clock, *(BEGAN + moment for moment in moments)), **keys)
    rank.parts.micro_batch = micro_batch
    computed, end = asked(rank, Attempt(Phantom(8), Batch(0, 4), 7, within), BEGAN)
    return computed, end - BEGAN, rank


def spent(rank: Any) -> tuple[int, int, float]:
    """Iterations, samples and seconds of computing."""
    activity = rank.metrics.activity[0]
    return activity.iterations, activity.samples, activity.compute_seconds


def test_what_nobody_stops_is_a_gradient(clock: Clock) -> None:
    """Held until it is due."""
    computed, end, rank = attempted(clock, takes=0.01)

    assert (computed.seconds, computed.samples, end) == (1.5, 4, 1.5)
    assert spent(rank) == (1, 4, 1.5)
    assert rank.pace.kinds == {"gradient": LateResults(1, 0, 0.0)}
    assert rank.state.version == 7


@pytest.mark.parametrize("moment", [0.25, 1.375])
def test_with_padding_it_is_given_up_when_the_message_is_due(clock: Clock, moment: float) -> None:
    """Although the real gradient is there long before."""
    computed, end, rank = attempted(clock, moment, takes=0.01)

    assert (computed, end, rank.pace.kinds) == (None, moment, {})
    assert spent(rank) == (0, 0, moment)


def test_with_padding_what_will_not_end_in_time_is_not_even_computed(clock: Clock) -> None:
    """Its end is known beforehand: of 1.5 s a gradient that is given 1 s."""
    computed, end, rank = attempted(clock, within=1.0, takes=50.0)

    assert (computed, end, spent(rank)) == (None, 1.0, (0, 0, 1.0))


def test_a_late_result_is_given_up_for_what_was_due_before_its_described_end_alone(clock: Clock) -> None:
    """Described as 1.5 s, really 4 s: a message of 1 s stops it, one of 2 s does not."""
    stopped, at, _ = attempted(clock, 1.0, takes=4.0)
    clock.now = BEGAN
    computed, end, rank = attempted(clock, 2.0, takes=4.0)

    assert (stopped, at) == (None, 1.0)
    assert (computed.seconds, end, rank.pace.kinds) == (4.0, 4.0, {"gradient": LateResults(1, 1, 2.5)})


@pytest.mark.parametrize("emulate", ["pad", "none"])
def test_a_message_that_is_there_already_gives_it_up_before_it_begins(clock: Clock, emulate: Any) -> None:
    """At no cost, and with no interval."""
    computed, end, rank = attempted(clock, 0.0, emulate=emulate, takes=3.0)

    assert (computed, end, spent(rank)) == (None, 0.0, (0, 0, 0.0))
    assert clock.now == BEGAN


@pytest.mark.parametrize(("within", "moments"), [(1.0, ()), (float("inf"), (0.5,))])
def test_without_padding_it_is_computed_to_its_end_and_thrown_away(clock: Clock, within: float, moments: tuple[float, ...]) -> None:
    """All of its 4 s count."""
    computed, end, rank = attempted(clock, *moments, within=within, emulate="none", takes=4.0)

    assert (computed, end, spent(rank)) == (None, 4.0, (0, 0, 4.0))


@pytest.mark.parametrize(("within", "moments", "end"), [(5.0, (), 6.0), (float("inf"), (3.5,), 4.0), (8.0, (9.0,), 8.0)])
def test_micro_batches_are_what_it_is_given_up_between(clock: Clock, within: float, moments: tuple[float, ...], end: float) -> None:
    """Four of one sample, of 2 s each: at the first one that ends too late, or behind a message."""
    computed, at, rank = attempted(clock, *moments, within=within, micro_batch=1, emulate="none", takes=2.0)

    assert (computed is None, at) == (end < 8, end)
    assert spent(rank) == ((1, 4, 8.0) if end == 8 else (0, 0, end))


def test_a_range_is_divided_into_micro_batches() -> None:
    """The last one is the rest; the pool stays."""
    assert list(divide_batch(Batch(5, 7, 2), 3)) == [Batch(5, 3, 2), Batch(8, 3, 2), Batch(11, 1, 2)]


@pytest.mark.realtime
def test_a_mailbox_says_when_its_first_message_is_due() -> None:
    """Without waiting what is due by now, with waiting what is due before the moment, however late it comes; it stays in the inbox."""
    pace = Pace("pad")
    began = pace.clock()
    network = FakeNetwork(2)
    mailbox = Mailbox(network.transport(0), [], lambda *_: 0.05, pace, began=began)

    assert mailbox.due_before(pace.clock(), wait=False) is None
    assert mailbox.due_before(pace.clock() + 0.01, wait=True) is None
    mailbox.arrive(1, {"sent_at": pace.clock() - began})
    assert mailbox.due_before(pace.clock(), wait=False) is None
    due = mailbox.due_before(pace.clock() + 60, wait=True)
    assert due is not None
    assert due <= pace.clock()
    assert mailbox.receive(1).due_at >= due


@pytest.mark.parametrize("micro_batch", [None, 3])
@pytest.mark.parametrize("name", ["ringmaster_stops", "rennala_stops"])
def test_real_ranks_apply_each_position_once(name: str, micro_batch: int | None) -> None:
    """Whoever is stopped when; nothing is discarded, whatever was in flight."""
    quick = cluster(*(node(seconds, 1e-4) for seconds in (4e-6, 1e-6, 2e-6)), network={"latency_seconds": 1e-6, "bytes_per_second": 1e9})
    keys = {"workload": {"num_parameters": 8, "num_samples": 100}, "batch_size": 31, "cluster": quick}
    made = experiment(f"method={name}", "workload=quadratic", **keys, budget={"epochs": 3})

    ends: Any = run_in_threads(made, micro_batch=micro_batch, finish=lambda run: run.close())

    last = ends[3].history.last
    assert (last.num_samples, last.num_samples_discarded, int(last.next_sample)) == (300, 0, 300)


@pytest.mark.realtime
def test_padded_ranks_stop_when_simulated_ones_do() -> None:
    """Workers of 400, 400.4 and 100 ms, R = 1: one makes all versions of a second, the others are stopped each time, in both worlds.

    All samples have the same gradient: which of the two that are stopped at the same moment asks first is left to chance.
    """
    workers = cluster(node(0.4), node(0.4004), node(0.1), network=NO_NETWORK)
    keys = {
        "workload": {"num_parameters": 8, "num_samples": 100, "noise": 0.0},
        "batch_size": 3,
        "cluster": workers,
        "admission": {"max_delay": 1},
    }
    made = experiment("method=ringmaster_stops", "workload=quadratic", dtype="float64", **keys, budget={"updates": 10})
    simulated = simulate(made, trace="full")

    ends: Any = run_in_threads(made, pad=True, finish=lambda run: run.close())

    assert num_given_up(simulated) == 18
    assert [ends[rank].metrics.activity[rank].iterations for rank in range(3)] == [1, 1, 10]  # what was under way at the end, too
    torch.testing.assert_close(ends[3].history.last.weights, simulated.weights, rtol=0, atol=1e-12)
