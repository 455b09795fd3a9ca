"""The laws of data that belong to workers: pools, positions, epochs, restarts, and what a method makes of them."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from methods import METHODS as ALL_METHODS
from methods import STOPPING
from own_pools import DROPS, HANDS_OUT_AHEAD, SIZES, Pieces, Q, applied, cursors, owned, tile_pools
from test_every_method import SERIAL, short
from test_lockstep import METHODS as ALL_LOCKSTEP_METHODS
from test_lockstep import reported
from threads import run_in_threads
from worlds import NO_NETWORK, UNEVEN, cluster, experiment, node, simulate

from hetsim.coordination.bookkeeping.pools import AlignedPools, Cursors, Pools
from hetsim.effects import Batch
from hetsim.sim.backend import world_of
from hetsim.sim.lockstep.world import LockstepWorld
from hetsim.sim.world import EventWorld
from hetsim.workloads.partition import ByClass, ByFile, Contiguous, Dirichlet, Divisible, Even
from hetsim.workloads.tasks.sequence import Sequence, word, words

pytestmark = pytest.mark.slow

METHODS, LOCKSTEP_METHODS = ({name: row for name, row in rows.items() if name != "ata"} for rows in (ALL_METHODS, ALL_LOCKSTEP_METHODS))
EVERY_METHOD = pytest.mark.parametrize("name", METHODS)
LABELS = np.random.default_rng(3).permutation(np.repeat(np.arange(10), 40))
BALANCED = Divisible("by hand", len(LABELS), LABELS)
FAULTS = {"schedule": [{"nodes": [1], "crash": 0.02, "repair": 0.08}, {"nodes": [2], "join": 0.03}], "detection_seconds": 0.003}
GONE = {"schedule": [{"nodes": [1], "crash": 0.03}], "detection_seconds": 0.003}
IN_ROUNDS = (
    *("local_sgd", "diloco", "muloco", "sparse_loco", "streaming_diloco", "fedbuff", "fedasync", "async_local_sgd"),
    *("mla", "heloco", "cgad", "mindflayer"),
)
"""Methods whose workers take ranges for several gradients, which end with an epoch."""


def test_no_workers_own_samples_are_left_out():
    """A rule that gives a worker nothing would never see them."""
    with pytest.raises(ValueError, match="AdaptiveTasks, which may leave out workers, and with data=owned nobody would see their samples"):
        owned("ata", "workload=phantom")


@pytest.mark.parametrize("num_workers", [1, 3, 7])
@pytest.mark.parametrize("partition", [Even(), Contiguous(), Dirichlet(alpha=0.1), Dirichlet(alpha=5), ByClass(classes=10)], ids=repr)
def test_pools_are_disjoint_and_hold_every_sample(partition: Any, num_workers: int):
    """And depend on nothing but the data, the seed, the number of workers and the options; another seed has others."""
    pools, again, other = (partition.pools(BALANCED, num_workers, seed=seed) for seed in (5, 5, 6))

    assert sorted(np.concatenate(pools).tolist()) == list(range(400))
    assert all(np.array_equal(one, two) for one, two in zip(pools, again, strict=True))
    assert all((np.diff(pool) > 0).all() for pool in pools)
    differ = any(not np.array_equal(one, two) for one, two in zip(pools, other, strict=True))
    assert differ == (num_workers > 1 and not isinstance(partition, Contiguous))


@pytest.mark.parametrize("partition", [Even(), Contiguous(), Dirichlet(alpha=0.1)], ids=repr)
def test_pools_are_equally_large_give_or_take_one(partition: Any):
    """400 samples for seven workers: one has 58, six have 57."""
    sizes = [len(pool) for pool in partition.pools(BALANCED, 7, seed=1)]

    assert sizes == [58] + [57] * 6


def counts(pools: Any) -> list[list[int]]:
    """How many samples of each class each pool has."""
    return [np.bincount(LABELS[pool], minlength=10).tolist() for pool in pools]


def test_a_large_alpha_mixes_all_classes_alike_and_a_small_one_hardly_any():
    """α = 10⁶: every class as often as any other, up to rounding; α = 10⁻³: half of each pool and more is of one class."""
    assert all(abs(count - 8) <= 1 for row in counts(Dirichlet(alpha=1e6).pools(BALANCED, 5, seed=2)) for count in row)
    assert all(max(row) >= 40 for row in counts(Dirichlet(alpha=1e-3).pools(BALANCED, 5, seed=2)))


def test_with_as_many_workers_as_classes_each_has_one():
    """And with k = 2 each has two, one of which its neighbour has, too."""
    assert counts(ByClass(classes=1).pools(BALANCED, 10, seed=2)) == (40 * np.eye(10, dtype=int)).tolist()
    of_two = counts(ByClass(classes=2).pools(BALANCED, 10, seed=2))
    assert [sum(count > 0 for count in row) for row in of_two] == [2] * 10
    assert np.sum(of_two, axis=0).tolist() == [40] * 10


def test_contiguous_pools_are_cut_from_the_samples_in_the_order_of_their_labels():
    """In rank order: five workers, ten classes."""
    pools = counts(Contiguous().pools(BALANCED, 5, seed=2))

    assert [[each for each, count in enumerate(row) if count] for row in pools] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]


def test_each_pool_has_a_sequence_of_its_own_in_which_each_sample_is_once_an_epoch():
    """One pool is the sequence of a run without pools, bit for bit; two pools of one size are shuffled differently."""
    pools = [np.arange(0, 40, 2), np.arange(1, 40, 2)]
    sequence, whole, one = Sequence(40, seed=4, pools=pools), Sequence(40, seed=4), Sequence(40, seed=4, pools=[np.arange(40)])

    for pool, samples in enumerate(pools):
        for epoch in range(3):
            assert sorted(sequence.indices(Batch(20 * epoch, 20, pool)).tolist()) == samples.tolist()
    assert ((sequence.indices(Batch(0, 20, 0)) + 1) != sequence.indices(Batch(0, 20, 1))).any()
    assert np.array_equal(whole.indices(Batch(13, 90)), one.indices(Batch(13, 90)))


def test_chance_by_position_takes_the_pool_too():
    """Pool 0 draws what it always drew."""
    positions = np.arange(5)

    assert np.array_equal(words(3, positions, 2), words(3, positions, 2, pool=0))
    assert not set(words(3, positions, 2).tolist()) & set(words(3, positions, 2, pool=1).tolist())
    assert word(3, 4, 2, pool=1) == words(3, positions, 2, pool=1)[4]


@pytest.mark.parametrize("name", [name for name in METHODS if name not in (*DROPS, *HANDS_OUT_AHEAD)])
@pytest.mark.sampled(6)
def test_who_ends_its_epoch_before_others_have_begun_waits_for_them(name: str):
    """Behind links of half a second a worker asks for its first range when another has long ended its first epoch."""
    late = cluster(node(1e-4), node(1e-4, latency_seconds=0.5), node(1e-4, latency_seconds=0.7), network=NO_NETWORK)
    run = simulate(owned(name, "workload=phantom", epochs="aligned", cluster=late, budget={"epochs": 3}))

    assert cursors(run) == (150, 90, 60)
    assert run.states[-1].num_samples == 300


@pytest.mark.parametrize("budget", [{"epochs": 3.37}, {"epochs": 0.02}, {"updates": 9}, {"seconds": 0.05}], ids=str)
@pytest.mark.parametrize("epochs", ["independent", "aligned"])
@EVERY_METHOD
@pytest.mark.sampled(10)
def test_each_position_of_each_pool_is_handed_out_once_and_to_its_owner(name: str, epochs: str, budget: dict[str, Any]):
    """Up to the pool's cursor, whatever ends the run; what is in flight is what is held, or held back."""
    if epochs == "aligned" and name in HANDS_OUT_AHEAD:
        pytest.skip("it is refused")
    run = simulate(owned(name, "workload=phantom", epochs=epochs, budget=budget))

    last = run.simulation.history.last
    assert all(process.done for process in run.simulation.processes)
    assert all(c.rank == c.batch.pool for c in applied(run))
    if name not in DROPS:
        assert tile_pools([c.batch for c in applied(run)] + held_back(last), cursors(run))
    assert len({(b.pool, p) for c in applied(run) for b in [c.batch] for p in range(b.start, b.stop)}) == last.num_samples
    assert int(last.next_sample) == last.num_samples + last.num_samples_discarded + sum(
        b.samples for b in (*last.outstanding, *held_back(last))
    )
    if "epochs" in budget:
        computed = dict.fromkeys(run.computed) if name in STOPPING else run.computed
        assert tile_pools([*computed], cursors(run))
        assert sum(cursors(run)) == round(100 * budget["epochs"])
        if epochs == "aligned":
            parts = [budget["epochs"] * size for size in SIZES]
            assert all(abs(reached - part) < 1 for reached, part in zip(cursors(run), parts, strict=True))


def held_back(state: Any) -> list[Batch]:
    """The ranges whose gradients wait in the admission for others."""
    waiting = getattr(state.admission, "waiting", ())
    return [c.batch for c in waiting] if isinstance(waiting, tuple) else []


@pytest.mark.parametrize("epochs", ["independent", "aligned"])
@EVERY_METHOD
@pytest.mark.sampled(14)
def test_a_lost_range_waits_for_the_owner_of_its_pool(name: str, epochs: str):
    """A worker crashes and comes back, another joins late: every position of each pool up to its cursor is applied once."""
    if epochs == "aligned" and name in HANDS_OUT_AHEAD:
        pytest.skip("it is refused")
    keys = {"cluster": {**UNEVEN, "faults": FAULTS}, "budget": {"epochs": 8}}
    run = simulate(owned(name, "workload=phantom", epochs=epochs, **keys), trace="full")

    last = run.simulation.history.last
    assert {row.rank for row in run.rows("down")} == {1, 2}
    assert all(c.rank == c.batch.pool for c in applied(run))
    if name not in DROPS:
        assert tile_pools([c.batch for c in applied(run)], cursors(run))
    assert sum(cursors(run)) == last.num_samples + last.num_samples_discarded == 800
    assert last.num_samples_in_flight == 0
    assert min(cursors(run)) > 20
    if epochs == "aligned":
        assert cursors(run) == tuple(8 * size for size in SIZES)


@pytest.mark.parametrize("epochs", ["independent", "aligned"])
@pytest.mark.parametrize("name", ["asgd", "ssp", "softsync", "ssgd", "backup", "local_sgd", "pipe_sgd"])
def test_the_pool_of_a_worker_that_is_gone_for_good_is_closed(name: str, epochs: str):
    """Others go on with theirs. With aligned epochs they come to the end of the budget, and what is left is reported."""
    run = simulate(owned(name, "workload=phantom", epochs=epochs, cluster={**UNEVEN, "faults": GONE}, budget={"epochs": 8}))

    pools = run.simulation.outcome.pools
    assert pools is not None
    assert [pool.closed for pool in pools] == [False, True, False]
    assert pools[1].num_taken == cursors(run)[1] < 8 * 30
    assert (pools[1].num_taken + pools[1].remainder) % 30 == 0
    assert pools[1].remainder > 0 or pools[1].num_taken
    if epochs == "aligned":
        assert (cursors(run)[0], cursors(run)[2]) == (400, 160)
    else:
        assert sum(cursors(run)) == 800
    if name not in DROPS:
        assert tile_pools([c.batch for c in applied(run)], cursors(run))


@pytest.mark.parametrize("name", ["asgd", "ssp", "softsync", "ssgd", "backup", "local_sgd", "dbs"])
@pytest.mark.parametrize("sizes", [SIZES, (28, 42, 30)], ids=str)
def test_nobody_begins_an_epoch_before_all_have_ended_the_one_before(name: str, sizes: tuple[int, ...]):
    """By the gradients' own times, where the slowest has the largest pool, and where all end together; independent epochs overlap."""
    overlaps = {}
    for epochs in ("independent", "aligned"):
        run = simulate(owned(name, "workload=phantom", sizes=sizes, epochs=epochs, budget={"epochs": 4}), trace="full")
        begun: dict[int, float] = {}
        ended: dict[int, float] = {}
        done = [0, 0, 0]
        for row in sorted(run.rows("gradient"), key=lambda row: row.start):
            epoch = done[row.rank] // sizes[row.rank]
            done[row.rank] += row.samples
            begun[epoch] = min(begun.get(epoch, row.start), row.start)
            ended[epoch] = max(ended.get(epoch, row.end), row.end)
        overlaps[epochs] = any(begun[epoch + 1] < ended[epoch] for epoch in range(max(begun)))

    assert overlaps == {"independent": True, "aligned": False}


@pytest.mark.parametrize("epochs", ["independent", "aligned"])
@EVERY_METHOD
@pytest.mark.sampled(14)
def test_a_run_that_is_resumed_loses_and_repeats_no_position(name: str, epochs: str):
    """From every third version: the parts before and after the stop cover each pool once."""
    if name in DROPS or (epochs == "aligned" and name in HANDS_OUT_AHEAD):
        pytest.skip("it drops gradients, or is refused")
    made = owned(name, "workload=phantom", epochs=epochs, budget={"epochs": 3})
    whole = simulate(made, saved=True)

    for stop in range(0, len(whole.checkpoints), 3):
        rest = simulate(made, checkpoint=whole.checkpoints[stop], saved=True)

        before = [c.batch for group in whole.applied[: stop + 1] for c in group]
        reached = cursors(rest)
        assert tile_pools(before + [c.batch for c in applied(rest)], reached)
        assert sum(reached) == 300


@pytest.mark.parametrize("name", ["ssgd", "dbs", "local_sgd", "hetgrad"])
def test_a_synchronous_run_goes_on_as_if_it_had_never_stopped(name: str):
    """Bit by bit, from every version."""
    made = owned(name, "workload=quadratic", epochs="aligned", budget={"epochs": 3})
    whole = simulate(made, saved=True)

    for checkpoint in whole.checkpoints:
        rest = simulate(made, checkpoint=checkpoint, saved=True)

        assert not rest.states or torch.equal(rest.weights, whole.weights)


ONE_NODE: dict[str, dict[str, Any]] = {
    "backup": {"admission": {"spares": 0}},
    "softsync": {"admission": {"n": 1}},
    "halos": {"coordination": {"period": 3, "merge_every": 3}},
}


@pytest.mark.parametrize("epochs", ["independent", "aligned"])
@EVERY_METHOD
@pytest.mark.sampled(6)
def test_a_single_pool_is_the_run_without_pools_bit_for_bit(name: str, epochs: str):
    """One worker that owns everything: the same rows, and the same weights. Aligned epochs cut ranges where they end."""
    if epochs == "aligned" and name in HANDS_OUT_AHEAD:
        pytest.skip("it is refused")
    keys = {**ONE_NODE.get(name, {}), "cluster": {**UNEVEN, "nodes": UNEVEN["nodes"][:1]}, "batch_size": 20, "budget": {"epochs": 3}}
    shared, own = (
        simulate(short(name, "workload=quadratic", *choices, **keys, **more), trace="full")
        for choices, more in (((), {}), (("partition=even",), {"data": "owned", "epochs": epochs}))
    )

    if epochs == "aligned" and name in IN_ROUNDS:  # whose rounds end with an epoch
        assert tile_pools([c.batch for c in applied(own)], (300,))
    else:
        assert own.rows() == shared.rows()
        assert torch.equal(own.weights, shared.weights)


def test_a_single_pool_draws_the_same_augmentation_and_dropout():
    """Digits with shifts and a model that drops units: the weights are those of shared data."""
    keys = {
        "workload": {"model": "mlp", "model_options": {"dropout": 0.3}, "augmentation": {"pad": 1}},
        "cluster": {**UNEVEN, "nodes": UNEVEN["nodes"][:1]},
        "budget": {"updates": 5},
    }

    shared, own = (
        simulate(experiment("method=asgd", "workload=digits", *choices, **keys, **more))
        for choices, more in (((), {}), (("partition=contiguous",), {"data": "owned"}))
    )

    assert torch.equal(shared.weights, own.weights)


def test_a_step_over_whole_pools_is_the_step_along_the_full_gradient():
    """SSGD, each worker's range its whole pool: per worker where pools are of one size, per sample where they are not."""
    for sizes, choices, keys in (
        ((30, 30, 30), (), {}),
        ((45, 30, 15), ("allocation=fixed", "weighting=per_sample"), {"allocation": {"parts": [3, 2, 1]}}),
    ):
        workload = {"num_parameters": 6, "num_samples": 90}
        settings = {**keys, "workload": workload, "batch_size": 90, "momentum": 0.0, "dtype": "float64", "budget": {"updates": 1}}
        run = simulate(owned("ssgd", "workload=quadratic", *choices, sizes=sizes, **settings))

        task: Any = run.simulation.task
        full = task.initial() - 0.1 * task.curvature * (task.initial() - task.optimum)
        torch.testing.assert_close(run.weights, full, rtol=0, atol=1e-14)


WORLD_Q = cluster(*(node(seconds) for seconds in (4.0, 4.0, 2.0, 1.0)))
BIAS = {
    "asgd": (3.125, (1 / 8, 1 / 8, 1 / 4, 1 / 2)),
    "staleness_aware": (3.665, None),
    "rescaled_asgd": (2.5, (1 / 4,) * 4),
    "malenia": (2.5, (1 / 4,) * 4),
    "ringleader": (2.5, (1 / 4,) * 4),
    "ssgd": (2.5, (1 / 4,) * 4),
    "ssp": (2.5, (1 / 4,) * 4),
}


def settled(name: str, *choices: str, updates: int = 12_000, **keys: Any) -> tuple[float, list[float]]:
    """Where a method comes to rest in World Q, on average over a cycle of the workers, and the workers' shares of the weight."""
    settings = {"cluster": WORLD_Q, "batch_size": 4, "learning_rate": 1e-3, "momentum": 0.0, "dtype": "float64", **keys}
    made = experiment(
        f"method={name}", "partition=contiguous", "workload=phantom", *choices, **settings, data="owned", budget={"updates": updates}
    )
    run = simulate(replace(made, workload=Q()))
    return float(torch.cat([state.weights for state in run.states[-800:]]).mean()), run.simulation.metrics.applied.weight_shares  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("name", "rests_at", "shares"),
    [pytest.param(name, *its, marks=[pytest.mark.long] * (name in ("malenia", "ssgd"))) for name, its in BIAS.items()],
)
@pytest.mark.sampled(2)
def test_where_a_method_comes_to_rest_goes_by_the_weight_of_each_worker(name: str, rests_at: float, shares: Any):
    """World Q, workers of 4, 4, 2 and 1 s with optima 1, 2, 3, 4: at Σ p_i a_i, where p_i is worker i's share of the applied weight."""
    waits = {"updates": 4000, "learning_rate": 4e-3} if name in ("malenia", "ssgd", "ssp") else {}
    rest, weights = settled(name, **waits)  # no delay makes those that wait drift, so longer steps come to the same

    assert rest == pytest.approx(rests_at, abs=0.004)
    assert sum(share * centre for share, centre in zip(weights, (1, 2, 3, 4), strict=True)) == pytest.approx(rest, abs=0.004)
    if shares is not None:
        assert weights == pytest.approx(shares, abs=1e-3)


@pytest.mark.parametrize(("weighting", "rests_at"), [("tokens", 79 / 22), pytest.param("per_worker", 3.125, marks=pytest.mark.long)])
@pytest.mark.long
def test_token_weights_go_by_speed_twice(weighting: str, rests_at: float):
    """Decoupled DiLoCo in World Q, H = 4: workers of 4, 4, 2 and 1 s take 1, 1, 2 and 4 steps, and w is by these once more."""
    keys = {"local_learning_rate": 1e-3, "coordination": {"period": 4, "fragments": 1, "merge": "mean"}}

    rest, _ = settled(
        "decoupled_diloco", "optimizer=sgd", "local_optimizer=sgd", f"weighting={weighting}", updates=3400, **{**keys, "learning_rate": 1.0}
    )

    assert rest == pytest.approx(rests_at, abs=0.004)


@pytest.mark.parametrize("method", [name for name in LOCKSTEP_METHODS if not name.startswith("ata")])  # which may leave out workers
@pytest.mark.sampled(10)
def test_lockstep_is_event_by_event_with_pools_too(method: str):
    """To the last bit: commits, checkpoints, rows, what each worker did; with unequal pools and either kind of epochs."""
    for epochs in ("independent", "aligned"):
        choices, keys = LOCKSTEP_METHODS[method]
        sizes = {"num_parameters": 2000, "num_samples": 100}
        network = {"latency_seconds": 1e-3, "bytes_per_second": 1e6}
        workers = cluster(node(4e-3, 2e-3, seconds_per_update=1e-3), node(1e-3, 5e-3), node(2e-3), node(3e-3, 1e-3), network=network)
        settings = {"workload": sizes, "batch_size": 40, "cluster": workers, "budget": {"epochs": 2.57}, "data": "owned", "epochs": epochs}
        made = experiment(*choices, "workload=phantom", "partition=even", **{**keys, **settings})
        made = replace(made, partition=Pieces((40, 10, 30, 20)))

        one, other = (reported(kind, made) for kind in (EventWorld, LockstepWorld))
        weights = [world.metrics.applied.weight_shares for world in (ran(kind, made) for kind in (EventWorld, LockstepWorld))]

        assert one == other
        assert weights[0] == weights[1]
        assert isinstance(world_of(made, *made.load(), []), LockstepWorld)


def ran(kind: Any, made: Any) -> Any:
    """A world after its run."""
    world = kind(made, *made.load())
    world.run()
    return world


@pytest.mark.parametrize("epochs", ["independent", "aligned"])
@pytest.mark.parametrize("name", SERIAL)
@pytest.mark.sampled(10)
def test_real_ranks_compute_what_the_simulation_computes(name: str, epochs: str):
    """Where time decides nothing: over the fake transport, the simulator's weights, each rank from its own pool."""
    if epochs == "aligned" and name in HANDS_OUT_AHEAD:
        pytest.skip("it is refused")
    made = owned(name, "workload=quadratic", epochs=epochs, dtype="float64", cluster=QUICK, budget={"epochs": 2})
    simulated = simulate(made)

    ends: Any = run_in_threads(made, finish=lambda run: run.close())

    leader = ends[made.leader]
    assert leader.last.version == simulated.states[-1].version
    assert leader.last.next_sample == simulated.states[-1].next_sample
    torch.testing.assert_close(leader.last.weights, simulated.weights, rtol=0, atol=1e-12)
    assert leader.outcome.pools == simulated.simulation.outcome.pools


QUICK = cluster(
    *(node(seconds, 1e-4) for seconds in (4e-6, 1e-6, 2e-6)), network={"latency_seconds": 1e-6, "bytes_per_second": 1e9, "sharing": "none"}
)


@pytest.mark.parametrize("epochs", ["independent", "aligned"])
@pytest.mark.parametrize(
    "name",
    [
        *("asgd", "ssp", "softsync", "dbs_sgd", "backup", "fedbuff", "fedasync", "async_local_sgd"),
        *("rescaled_asgd", "rennala", "malenia", "ringleader", "halos", "decoupled_diloco"),
    ],
)
@pytest.mark.sampled(10)
def test_real_ranks_hand_out_each_position_once(name: str, epochs: str):
    """Whatever the order of arrival."""
    if epochs == "aligned" and name in HANDS_OUT_AHEAD:
        pytest.skip("it is refused")
    ends: Any = run_in_threads(
        owned(name, "workload=phantom", epochs=epochs, cluster=QUICK, budget={"epochs": 3}), finish=lambda run: run.close()
    )

    last = ends[3].history.last
    assert isinstance(last.next_sample, Cursors)
    assert last.num_samples + last.num_samples_discarded == int(last.next_sample) == 300
    if epochs == "aligned":
        assert last.next_sample.of == (150, 90, 60)


def test_a_checkpoint_is_of_the_workers_whose_data_they_are():
    """Another number of workers is refused unless the pools are files'; so is shared data in the place of owned."""
    three, two = (
        short(
            "asgd",
            "workload=phantom",
            "partition=even",
            data="owned",
            cluster={**UNEVEN, "nodes": UNEVEN["nodes"][:count]},
            budget={"epochs": 2},
        )
        for count in (3, 2)
    )
    shared = short("asgd", "workload=phantom", budget={"epochs": 2})
    half = simulate(three, saved=True).checkpoints[4]

    with pytest.raises(ValueError, match=r"^the checkpoint is of a run of 3 workers, and with 2 the samples would be divided"):
        simulate(two, checkpoint=half, saved=True)
    with pytest.raises(ValueError, match=r"^data=shared cannot resume a run with data=owned"):
        simulate(shared, checkpoint=half, saved=True)
    with pytest.raises(ValueError, match=r"^data=owned cannot resume a run with data=shared"):
        simulate(three, checkpoint=simulate(shared, saved=True).checkpoints[4], saved=True)


class Files(Pieces):
    """Pools that do not depend on the number of workers."""

    depends_on_workers = False


@pytest.mark.parametrize("name", ["asgd", "softsync", "ssgd", "dbs", "diloco"])
@pytest.mark.parametrize(("before", "after"), [(3, 2), (2, 3)])
def test_pools_of_files_go_on_with_another_number_of_workers(name: str, before: int, after: int):
    """Each position of a pool that is there is applied once over both runs; version, counts and weights go on."""
    sizes = (40, 30, 20)
    made = []
    for count in (before, after):
        keys = {
            "cluster": {**UNEVEN, "nodes": UNEVEN["nodes"][:count]},
            "workload": {"num_parameters": 8, "num_samples": sum(sizes[:count])},
        }
        run = short(name, "workload=quadratic", "partition=even", data="owned", **keys, budget={"epochs": 4})
        made.append(replace(run, partition=Files(sizes[:count])))
    first = simulate(made[0], saved=True)
    stop = len(first.checkpoints) // 2

    rest = simulate(made[1], checkpoint=first.checkpoints[stop], saved=True)

    batches = [c.batch for group in first.applied[: stop + 1] for c in group] + [c.batch for c in applied(rest)]
    assert tile_pools(batches, cursors(rest))
    assert rest.states[0].version == stop + 2
    assert not torch.equal(rest.states[0].weights, rest.simulation.task.initial())


def test_all_allocations_split_a_budget_of_samples_over_all_pools():
    """Free epochs: the fast worker goes through its pool more often; behind a barrier by its share, whatever its pool's size."""
    free = simulate(owned("asgd", "workload=phantom", sizes=(34, 33, 33), cluster=STEADY, budget={"epochs": 20}))
    barrier = simulate(
        owned(
            "dbs",
            "workload=phantom",
            "allocation=fixed",
            allocation={"parts": [1, 3, 2]},
            sizes=(34, 33, 33),
            cluster=STEADY,
            budget={"epochs": 20},
        )
    )

    assert np.argmax(cursors(free)) == 1
    assert [round(6 * taken / 2000) for taken in cursors(barrier)] == [1, 3, 2]
    assert barrier.simulation.metrics.applied.weight_shares == pytest.approx([1 / 6, 1 / 2, 1 / 3], abs=0.03)


STEADY = cluster(node(4e-4), node(1e-4), node(2e-4), network=NO_NETWORK)


def test_a_budget_of_epochs_is_divided_among_aligned_pools_by_largest_remainder():
    """38 positions of pools of 7, 5 and 3 samples are 18, 13 and 7; without aligned epochs, whoever comes first takes what is left."""
    pools = AlignedPools((7, 5, 3), 38)

    assert pools.limits == (18, 13, 7)
    assert pools.samples((14, 10, 6), (9, 9, 9), range(3)) == (4, 3, 1)
    assert Pools((7, 5, 3), 38).samples((14, 10, 6), (9, 9, 9), range(3)) == (8, 0, 0)


def test_cursors_are_a_number_that_knows_its_pools():
    """Equal to the sum as a number, but not to cursors with another sum of parts."""
    one, other = Cursors((3, 4)), Cursors((4, 3))

    assert one == 7 == other
    assert one != other
    assert one.advanced((1, 0)).of == (4, 4)
    assert one.rewound([Batch(1, 3, 1)]).of == (3, 1)
    assert pickle.loads(pickle.dumps(one)) == one


def test_by_file_is_a_pool_for_each_archive():
    """As many as workers, or one sentence."""
    data = Divisible("arrays", 6, None, np.array([0, 0, 1, 2, 2, 2]))

    assert [pool.tolist() for pool in ByFile().pools(data, 3, seed=0)] == [[0, 1], [2], [3, 4, 5]]
    with pytest.raises(ValueError, match=r"^workload\.path names 3 archives, but the cluster has 2 workers"):
        ByFile().pools(data, 2, seed=0)
