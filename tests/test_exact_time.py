"""Time in the simulator is what the cluster says: to the last bit, on workloads that have sizes only."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet
from worlds import UNEVEN, cluster, experiment, node, simulate

from hetsim.cluster.distributions import GRADIENTS, Distribution
from hetsim.files.writing import unfinished
from hetsim.runtime.experiment import Experiment
from hetsim.runtime.recording.recorder import Recorder
from hetsim.runtime.recording.trace import MAX_LIST_NUMBERS, Trace
from hetsim.sim.world import EventWorld

LINK = {"latency_seconds": 0.125, "bytes_per_second": 64.0, "sharing": "none"}
SIZES = {"num_parameters": 8, "num_samples": 60_000}  # 32 bytes
MESSAGE = 0.125 + 32 / 64


def phantom(method: str, *choices: str, updates: int, workers: dict[str, Any], **keys: Any) -> Experiment:
    """A timing-only run of so many updates."""
    return experiment(
        f"method={method}", "workload=phantom", *choices, workload=SIZES, budget={"updates": updates}, cluster=workers, **keys
    )


def test_an_ssgd_iteration_is_slowest_gradient_and_ring_and_update():
    """max_i(overhead + b_i·seconds_per_sample) + 2(N−1)(latency + nbytes/(N·bytes_per_second)) + seconds_per_update."""
    workers = cluster(node(0.25, 0.5, seconds_per_update=0.25), node(0.5, seconds_per_update=0.25), network=LINK)

    run = simulate(phantom("ssgd", updates=4, workers=workers, batch_size=6))

    iteration = max(0.5 + 3 * 0.25, 0 + 3 * 0.5) + 2 * 1 * (0.125 + 32 / (2 * 64)) + 0.25
    assert run.seconds == [1 * iteration, 2 * iteration, 3 * iteration, 4 * iteration]


def test_ssgd_times_are_the_formula_bit_by_bit_on_uneven_numbers():
    """The same additions in the same order give the same floats, with an update of its own length on each node."""
    per_sample, overhead, update = (0.0013, 0.0007, 0.0031), (0.01, 0.02, 0.0), (0.003, 0.0011, 0.0007)
    workers = cluster(
        *(node(s, o, seconds_per_update=u) for s, o, u in zip(per_sample, overhead, update, strict=True)),
        network={"latency_seconds": 1e-3, "bytes_per_second": 125e6},
    )

    run = simulate(phantom("ssgd", updates=50, workers=workers, batch_size=97))

    free, commits = [0.0, 0.0, 0.0], []
    for _ in range(50):
        entered = [t + (o + b * s) for t, o, b, s in zip(free, overhead, (33, 32, 32), per_sample, strict=True)]
        reduced = max(entered) + 2 * (3 - 1) * (1e-3 + 32 / (3 * 125e6))
        free = [reduced + u for u in update]
        commits.append(free[0])
    assert run.seconds == commits


def test_a_gather_of_measurements_takes_one_message_of_eight_bytes_per_other_worker():
    """(N−1)(latency + 8/bytes_per_second) more for each step of an allocation that measures; of one that does not, nothing."""
    workers = cluster(node(0.25, count=4), network=LINK)

    measured, plain = (
        simulate(phantom("ssgd", f"allocation={name}", updates=3, workers=workers, batch_size=8)) for name in ("dbs", "even")
    )

    gather = 3 * (0.125 + 8 / 64)
    assert [a - b for a, b in zip(measured.seconds, plain.seconds, strict=True)] == [gather, 2 * gather, 3 * gather]


def test_a_message_takes_latency_and_its_bytes():
    """latency + nbytes/bytes_per_second; one without a vector weighs nothing."""
    workers = cluster(node(0.25), network=LINK)

    run = simulate(phantom("asgd", updates=1, workers=workers, batch_size=4), trace="full")

    assert [(row.start, row.end, row.rank, row.nbytes) for row in run.rows("message")] == [
        (0.0, 0.125, 0, 0),  # ready
        (0.125, 0.125 + MESSAGE, 1, 32),  # weights
        (1.125 + MESSAGE, 1.125 + 2 * MESSAGE, 0, 32),  # a gradient
        (1.125 + 2 * MESSAGE, 1.25 + 2 * MESSAGE, 1, 0),  # stop
    ]


def test_the_server_applies_one_update_at_a_time_in_order_of_arrival():
    """First come, first served, seconds_per_update each: (seconds, rank) of each commit."""
    workers = cluster(node(1.5), node(1.25), node(1.0), seconds_per_update=2.0)

    run = simulate(phantom("asgd", updates=6, workers=workers, batch_size=3))

    history = [(seconds, group[0].rank) for seconds, group in zip(run.seconds, run.applied, strict=True)]
    assert history == [(3.0, 2), (5.0, 1), (7.0, 0), (9.0, 2), (11.0, 1), (13.0, 0)]


def test_a_fast_worker_waits_behind_a_slow_one_that_came_first():
    """The server is busy with the slow worker's gradient when the fast one's second arrives."""
    workers = cluster(node(3.5), node(1.0), seconds_per_update=2.0)

    run = simulate(phantom("asgd", updates=5, workers=workers, batch_size=2))

    history = [(seconds, group[0].rank) for seconds, group in zip(run.seconds, run.applied, strict=True)]
    assert history == [(3.0, 1), (5.5, 0), (7.5, 1), (10.5, 1), (12.5, 0)]


@pytest.mark.parametrize("num_workers", [1, 2, 4, 7, 8, 9, 16])
def test_equal_asgd_workers_make_n_updates_a_cycle_or_one_per_update_time(num_workers: int):
    """Exactly min(N/cycle, 1/seconds_per_update) updates/s, cycle = gradient + two messages + update; 8 workers fill the server."""
    workers = cluster(node(0.25, 0.25, count=num_workers), network=LINK, seconds_per_update=0.25)

    run = simulate(phantom("asgd", updates=10 * num_workers, workers=workers, batch_size=num_workers))

    cycle = 0.5 + 2 * MESSAGE + 0.25
    assert cycle == 8 * 0.25
    period = run.seconds[-1] - run.seconds[-1 - num_workers]
    assert num_workers / period == min(num_workers / cycle, 1 / 0.25)


def test_two_nodes_of_one_and_three_seconds_meet_every_three():
    """Without a network, synchronous SGD is paced by the slower one."""
    run = simulate(phantom("ssgd", updates=4, workers=cluster(node(1.0), node(3.0)), batch_size=2))

    assert run.seconds == [3.0, 6.0, 9.0, 12.0]


def test_staleness_counts_from_the_version_that_was_pulled():
    """Two nodes of one and three seconds under asynchronous SGD: (seconds, rank, staleness) of each commit."""
    run = simulate(phantom("asgd", updates=8, workers=cluster(node(1.0), node(3.0)), batch_size=2))

    assert [(seconds, group[0].rank, group[0].staleness) for seconds, group in zip(run.seconds, run.applied, strict=True)] == [
        (1.0, 0, 0),
        (2.0, 0, 0),
        (3.0, 1, 2),
        (3.0, 0, 1),
        (4.0, 0, 0),
        (5.0, 0, 0),
        (6.0, 1, 3),
        (6.0, 0, 1),
    ]


@pytest.mark.parametrize("seconds_per_update", [0.0, 0.25, 4.0])
def test_equal_asgd_workers_are_one_round_behind(seconds_per_update: float):
    """After the first N gradients, all from version 0, every gradient is N−1 versions old."""
    workers = cluster(node(1.0, count=5), network=LINK, seconds_per_update=seconds_per_update)

    run = simulate(phantom("asgd", updates=20, workers=workers, batch_size=5))

    assert [group[0].staleness for group in run.applied] == [0, 1, 2, 3, *[4] * 16]


def test_nothing_in_a_synchronous_round_is_stale():
    """Behind a barrier every gradient is of the version that it makes the next of."""
    run = simulate(phantom("ssgd", "coordination=parameter_server", updates=5, workers=cluster(node(1.0), node(3.0)), batch_size=2))

    assert [[c.staleness for c in group] for group in run.applied] == [[0, 0]] * 5


def test_waiting_is_what_is_neither_compute_nor_update():
    """Two nodes of 1 s and 3 s, updates of 1 s, two rounds: 8 s, in which the first one waits for 4 of the workers' 16."""
    workers = cluster(node(1.0, seconds_per_update=1.0), node(3.0, seconds_per_update=1.0))
    run = simulate(phantom("ssgd", updates=2, workers=workers, batch_size=2))

    summary = run.simulation.metrics.summary()

    assert summary == {
        "seconds": 8.0,
        "updates_per_second": 2 / 8,
        "staleness_mean": 0.0,
        "staleness_max": 0,
        "staleness_p50": 0,
        "staleness_p95": 0,
        "num_nonfinite_gradients": 0,
        "idle_share": 4 / 16,
        "per_worker": [
            {
                "rank": 0,
                "iterations": 2,
                "samples": 2,
                "compute_seconds": 2.0,
                "update_seconds": 2.0,
                "wait_seconds": 4.0,
                "down_seconds": 0.0,
                "staleness_mean": 0.0,
            },
            {
                "rank": 1,
                "iterations": 2,
                "samples": 2,
                "compute_seconds": 6.0,
                "update_seconds": 2.0,
                "wait_seconds": 0.0,
                "down_seconds": 0.0,
                "staleness_mean": 0.0,
            },
        ],
    }


def test_what_is_under_way_at_the_last_commit_counts_up_to_it():
    """At 2 s a gradient of 3 s is computing for 2 s, and is no iteration yet; the server's queue is waiting."""
    run = simulate(phantom("asgd", updates=2, workers=cluster(node(1.0), node(3.0)), batch_size=2))

    summary = run.simulation.metrics.summary()

    assert summary["idle_share"] == 0.0
    assert [(w["iterations"], w["samples"], w["compute_seconds"]) for w in summary["per_worker"]] == [(2, 2, 2.0), (0, 0, 2.0)]


def noisy(num_workers: int, *choices: str, method: str = "asgd", seed: int = 0) -> list[list[float]]:
    """What each worker's first five gradients took, three samples each."""
    workers = cluster(node(0.25, 0.5, count=num_workers, noise={"distribution": "lognorm", "s": 0.5}))
    run = simulate(phantom(method, *choices, updates=40, workers=workers, batch_size=3 * num_workers, seed=seed))
    applied = [contribution for group in run.applied for contribution in group]
    return [[c.seconds for c in applied if c.rank == rank][:5] for rank in range(num_workers)]


def test_adding_a_node_changes_no_other_nodes_times():
    """One stream of chance per node, by (seed, rank), and no two alike."""
    three, four = noisy(3), noisy(4)

    assert four[:3] == three
    assert len({seconds for times in four for seconds in times}) == 20


def test_a_nodes_stream_does_not_depend_on_the_method():
    """The k-th gradient of a node draws the k-th factor of its stream, whoever asks for it."""
    assert noisy(3, "coordination=parameter_server", method="ssgd") == noisy(3)


def test_another_seed_draws_other_times():
    """The seed is part of every stream."""
    assert not any(one == other for one, other in zip(noisy(3, seed=1), noisy(3), strict=True))


def test_noise_multiplies_overhead_and_samples_alike():
    """(overhead + b·seconds_per_sample) · factor, to the last bit."""
    workers = cluster(node(0.007, 0.03, noise={"distribution": "lognorm", "s": 0.5}))

    run = simulate(phantom("ssgd", updates=5, workers=workers, batch_size=9))

    now, commits = 0.0, []
    for factor in islice(Distribution("lognorm", {"s": 0.5}).draws(0, 0, GRADIENTS), 5):
        now += (0.03 + 9 * 0.007) * factor
        commits.append(now)
    assert run.seconds == commits


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("lognorm", {"s": 0.5}),
        ("lognorm", {"s": 0.3, "loc": 1.0, "scale": 0.25}),
        ("gamma", {"a": 4.0, "scale": 0.25}),
        ("uniform", {"loc": 0.5}),
    ],
)
def test_factors_follow_scipys_law_of_that_name(name: str, parameters: dict[str, float]):
    """Kolmogorov–Smirnov against scipy.stats, for the law that is drawn without it too; and against that law with another scale."""
    from scipy import stats

    factors = list(islice(Distribution(name, parameters).draws(0), 4000))

    assert stats.kstest(factors, getattr(stats, name)(**parameters).cdf).pvalue > 0.01
    assert stats.kstest(factors, getattr(stats, name)(**{**parameters, "scale": 1.2}).cdf).pvalue < 1e-6


def test_successive_blocks_of_a_stream_differ():
    """Factors are drawn in blocks, and no block is drawn twice."""
    factors = np.array(list(islice(Distribution("lognorm", {"s": 0.5}).draws(0), 5000)))

    assert len(np.unique(factors)) == 5000


def test_the_trace_of_a_round_is_who_did_what_when():
    """One synchronous round with measurements: (start, end, rank, kind, samples, nbytes)."""
    workers = cluster(node(0.25, seconds_per_update=0.5), node(0.5), network=LINK)

    run = simulate(phantom("ssgd", "allocation=dbs", updates=1, workers=workers, batch_size=4), trace="full")

    assert [(row.start, row.end, row.rank, row.kind, row.samples, row.nbytes) for row in run.rows()] == [
        (0.0, 0.5, 0, "gradient", 2, 0),
        (0.0, 1.0, 1, "gradient", 2, 0),
        (0.5, 1.75, 0, "all_reduce", 0, 32),
        (1.0, 1.75, 1, "all_reduce", 0, 32),
        (1.75, 2.0, 0, "gather", 0, 8),
        (1.75, 2.0, 1, "gather", 0, 8),
        (2.0, 2.5, 0, "update", 0, 0),
        (2.5, 2.5, 0, "apply", 2, 0),
        (2.5, 2.5, 1, "apply", 2, 0),
        (2.5, 2.5, 0, "commit", 4, 0),
    ]


def test_a_traced_gradient_has_the_version_that_was_pulled_for_it():
    """Two nodes of one and three seconds under asynchronous SGD: (start, rank, version); and what each use of one makes of it."""
    run = simulate(phantom("asgd", updates=4, workers=cluster(node(1.0), node(3.0)), batch_size=2), trace="full")

    gradients = [(round(row.start), row.rank, row.version) for row in run.rows("gradient")]
    assert gradients == [(0, 0, 0), (0, 1, 0), (1, 0, 1), (2, 0, 2), (3, 1, 3)]
    assert [(row.rank, row.version, row.staleness) for row in run.rows("apply")] == [(0, 1, 0), (0, 2, 0), (1, 3, 2), (0, 4, 1)]
    assert [row.version for row in run.rows("commit")] == [1, 2, 3, 4]


@pytest.mark.parametrize("detail", ["full", "commits"])
def test_rows_do_not_pile_up_in_memory(detail: str, tmp_path: Path) -> None:
    """What a long run notes is packed every so many rows, and they are all in the file."""
    made = experiment("method=asgd", "workload=phantom", f"trace={detail}", cluster=UNEVEN, budget={"updates": 4000})
    task, optimizers = made.load()
    longest: list[int] = []
    with Trace(tmp_path, detail) as trace:

        class Longest(Recorder):
            """Looks at the list after each commit."""

            def commit(self, *_: Any) -> None:
                longest.append(len(trace.rows))

        EventWorld(made, task, optimizers, [trace, Longest()]).run()

    kinds = parquet.read_table(unfinished(tmp_path / "trace.parquet")).column("kind").to_pylist()
    assert max(longest) < MAX_LIST_NUMBERS + 100
    assert kinds.count("commit") == 4000
    assert kinds.count("apply") == (4000 if detail == "full" else 0)
