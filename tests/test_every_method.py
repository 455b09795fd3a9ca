"""What holds of every method of conf/method; a new method is one more row of the table in methods.py."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from methods import DROPPING, IDENTITIES, METHODS, SHIPPED, STOPPING, Identity
from processes import run_all_in_processes
from torch import nn
from worlds import NO_NETWORK, UNEVEN, Run, cluster, experiment, node, simulate, tiles

from hetsim.coordination.bookkeeping.contributions import SynchronousContributions
from hetsim.coordination.decoupled_steps import MergedContributions
from hetsim.coordination.streaming_steps import StreamingSteps
from hetsim.coordination.table_server import Tabled
from hetsim.effects import Batch
from hetsim.trust.shipped import configs
from hetsim.workloads.models.registry import OWN

EVERY_METHOD = pytest.mark.parametrize("name", METHODS)
SMALL: dict[str, Any] = {"workload": {"num_parameters": 8, "num_samples": 100}, "batch_size": 31, "cluster": UNEVEN}
SHORT = {
    "od_sgd": {"coordination": {"warm_up": 4}},
    "ssd_sgd": {"coordination": {"warm_up": 4, "pull_every": 3}},
    "cd_sgd": {"coordination": {"warm_up": 4}},
    "pipe_sgd": {"coordination": {"warm_up": 4}},
    "abs_sgd": {"coordination": {"warm_up": 4}},
    "local_sgd": {"coordination": {"period": 3}},
    "diloco": {"coordination": {"period": 3}},
    "muloco": {"coordination": {"period": 3}},
    "sparse_loco": {"coordination": {"period": 3}, "compression": {"keep": 2, "chunk": 4}},
    "streaming_diloco": {"coordination": {"period": 4}},
    "decoupled_diloco": {"coordination": {"period": 4}},
    "fedbuff": {"coordination": {"period": 3}},
    "fedasync": {"coordination": {"period": 3}},
    "async_local_sgd": {"coordination": {"period": 3}},
    "mla": {"coordination": {"period": 3}},
    "heloco": {"coordination": {"period": 3}},
    "cgad": {"coordination": {"period": 3}},
    "halos": {"coordination": {"period": 3, "merge_every": 3, "num_regions": 2}},
    "optperf": {"allocation": {"probes": 2}},
}
"""A few updates are enough to enter a method's own phase."""


def short(name: str, *choices: str, **keys: Any) -> Any:
    """A method on three uneven, noisy nodes and a hundred samples, its own phase entered after a few updates."""
    return experiment(f"method={name}", *choices, **{**SMALL, **SHORT.get(name, {}), **keys})


SERIAL = ("ssgd", "ddp", "od_sgd", "pipe_sgd", "ssd_sgd", "cd_sgd", "local_sgd", "diloco", "muloco", "sparse_loco", "streaming_diloco")
"""Methods whose parameters do not depend on what takes how long."""


def test_the_table_has_every_method() -> None:
    """What is shipped is under law."""
    assert sorted(METHODS) == SHIPPED


@pytest.mark.slow
@EVERY_METHOD
@pytest.mark.sampled(7)
def test_it_converges_to_the_quadratics_known_optimum(name: str) -> None:
    """Where all samples agree on the optimum, every method finds it."""
    workload = {"num_parameters": 8, "num_samples": 100, "condition": 4, "noise": 0.0}

    run = simulate(short(name, "workload=quadratic", **METHODS[name].keys, workload=workload, dtype="float64", budget={"epochs": 150}))

    assert (run.weights - run.simulation.task.optimum).abs().max() < 2e-3
    assert (run.simulation.task.initial() - run.simulation.task.optimum).abs().max() > 0.5


@cache
def trained(name: str, seed: int) -> tuple[float, bool]:
    """Thirty epochs of digits on mixed4 with the shipped defaults: the test accuracy after them, and whether its own phase was entered."""
    run = simulate(experiment(f"method={name}", seed=seed, evaluate_every_epochs=30, budget={"epochs": 30}), trace="full")
    accuracy = run.simulation.curve.points[-1].evaluation.test_accuracy
    assert accuracy is not None
    return accuracy, METHODS[name].shows(run)


@pytest.mark.slow
@EVERY_METHOD
@pytest.mark.sampled(7)
def test_it_trains_digits_with_its_shipped_defaults(name: str) -> None:
    """At least 0.93 test accuracy after 30 epochs on mixed4; where a seed misses it, two others do not."""
    assert all(trained(name, seed)[0] >= 0.93 for seed in ((0,) if trained(name, 0)[0] >= 0.93 else (1, 2)))


@pytest.mark.slow
@EVERY_METHOD
@pytest.mark.sampled(7)
def test_its_own_phase_is_entered(name: str) -> None:
    """The defaults are sized for small workloads: what the method is about happens in such a run."""
    assert trained(name, 0)[1]


@pytest.mark.slow
@EVERY_METHOD
@pytest.mark.sampled(9)
def test_the_same_seed_gives_the_same_trace_and_parameters(name: str) -> None:
    """Row by row and bit by bit; another seed gives others."""
    one, again, other = (simulate(short(name, "workload=quadratic", seed=seed, budget={"epochs": 5}), trace="full") for seed in (7, 7, 8))

    assert one.rows() == again.rows()
    assert torch.equal(one.weights, again.weights)
    assert one.rows() != other.rows()
    assert not torch.equal(one.weights, other.weights)


@pytest.mark.slow
@pytest.mark.parametrize("budget", [{"epochs": 3.37}, {"epochs": 0.02}, {"updates": 9}, {"seconds": 0.05}], ids=str)
@EVERY_METHOD
@pytest.mark.sampled(20)
def test_no_process_is_left_waiting(name: str, budget: dict[str, Any]) -> None:
    """Whatever ends the run, every program ends, and every message that was sent is delivered."""
    run = simulate(short(name, "workload=phantom", budget=budget))

    assert all(process.done for process in run.simulation.processes)
    assert run.simulation.env.peek() == float("inf")
    if "updates" in budget:
        assert [state.version for state in run.states] == list(range(1, 10))
    if "seconds" in budget:
        assert run.seconds[-1] >= budget["seconds"] > max([0.0, *run.seconds[:-1]])


def computed_once(name: str, batches: list[Batch], stop: int) -> bool:
    """Whether these ranges are each position once; of methods that give up gradients, at least once."""
    return tiles(batches, stop) or (name in STOPPING and {p for b in batches for p in range(b.start, b.stop)} == set(range(stop)))


@pytest.mark.parametrize("epochs", [3.37, pytest.param(0.02, marks=pytest.mark.slow)])
@EVERY_METHOD
@pytest.mark.sampled(32)
def test_each_position_is_handed_out_once_and_drops_are_counted(name: str, epochs: float) -> None:
    """Every position of the budget is computed once, and applied once or counted as discarded."""
    run = simulate(short(name, "workload=phantom", budget={"epochs": epochs}))

    last, applied = run.states[-1], [c.batch for group in run.applied for c in group]
    assert computed_once(name, run.computed, round(100 * epochs))
    assert last.num_samples == sum(batch.samples for batch in applied) == len({p for b in applied for p in range(b.start, b.stop)})
    ended = run.simulation.history.last
    assert (ended.num_samples + ended.num_samples_discarded, ended.num_samples_in_flight) == (round(100 * epochs), 0)
    if name not in DROPPING:
        assert tiles(applied, round(100 * epochs))
        assert (last.num_samples_discarded, last.outstanding) == (0, ())


@pytest.mark.slow
@EVERY_METHOD
@pytest.mark.sampled(9)
def test_it_starts_again_from_any_committed_state(name: str) -> None:
    """The rest applies or drops what the part before had not, once, and its versions go on."""
    made = short(name, "workload=quadratic", budget={"epochs": 6.3})
    whole = simulate(made, saved=True)
    dropping = name in DROPPING

    assert len(whole.checkpoints) == len(whole.states)
    for stop in range(0, len(whole.states), max(1, len(whole.states) // 12)):
        rest = simulate(made, checkpoint=whole.checkpoints[stop], saved=True)

        before = [c.batch for group in whole.applied[: stop + 1] for c in group]
        after = [c.batch for group in rest.applied for c in group]
        versions = [later.version for later in rest.states]
        assert versions == list(range(stop + 2, stop + 2 + len(versions)))
        positions = [position for batch in before + after for position in range(batch.start, batch.stop)]
        assert len(positions) == len(set(positions))
        assert dropping or len(positions) == 630


@pytest.mark.slow
@EVERY_METHOD
@pytest.mark.sampled(14)
def test_a_phantom_takes_exactly_the_time_of_what_it_stands_for(name: str) -> None:
    """The same trace, row by row, as a real vector of as many bytes."""
    real, phantom = (simulate(short(name, f"workload={work}", budget={"epochs": 5}), trace="full") for work in ("quadratic", "phantom"))

    assert real.rows() == phantom.rows() != []


@pytest.mark.slow
@pytest.mark.parametrize("names", [sorted(METHODS)[::5], pytest.param(sorted(METHODS), marks=pytest.mark.long)], ids=["a fifth", "all"])
def test_a_phantom_needs_no_torch(names: list[str]) -> None:
    """A timing-only run of every method, in a process that never imports it."""
    script = f"""
import sys
sys.path.insert(0, {str(__file__.rpartition("/")[0])!r})
from phantoms import run_phantoms
run_phantoms({names!r})
assert "torch" not in sys.modules, "torch was imported"
print("none")
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (0, "none\n"), done.stderr


@EVERY_METHOD
def test_the_summary_adds_up(name: str) -> None:
    """Busy and waiting time of each worker make the run's; nobody is busier than the run is long."""
    run = simulate(short(name, "workload=phantom", budget={"updates": 12}))

    numbers = run.simulation.metrics.summary()
    for worker in numbers["per_worker"]:
        spent = worker["compute_seconds"] + worker["update_seconds"]
        assert spent <= numbers["seconds"] * (1 + 1e-12)
        assert spent + worker["wait_seconds"] == pytest.approx(numbers["seconds"], rel=1e-12)


def normed(shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """The smallest model with running statistics that takes images, also one at a time."""
    channels, height, width = shape
    convolution = nn.Conv2d(channels, 4, kernel_size=3, padding=1)
    return nn.Sequential(convolution, nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * height * width, num_classes))


@pytest.mark.slow
@EVERY_METHOD
@pytest.mark.sampled(12)
def test_batch_norms_statistics_are_left_alone_by_every_rule(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is done to gradients: a version's statistics are the weighted mean of those that its contributions brought."""
    monkeypatch.setitem(OWN, "normed", normed)
    keys: dict[str, Any] = {"coordination": {"trials": 1}} if name == "mindflayer" else {}  # so that a gradient is a contribution
    made = short(name, "workload=digits", workload={"model": "normed"}, batch_size=48, dtype="float64", budget={"updates": 7}, **keys)
    run = simulate(made)
    task = run.simulation.task
    brought = {batch.stop: gradient for batch, gradient in zip(run.computed, run.gradients, strict=True)}

    before = task.initial()[task.num_parameters :]
    for state, group in zip(run.states, run.applied, strict=True):
        if isinstance(made.coordination, StreamingSteps):
            if state.version % made.coordination.fragments:  # statistics go with the last fragment
                assert torch.equal(state.weights[task.num_parameters :], before)
                continue
            before = state.weights[task.num_parameters :]
            group = replace(group, rounds=group.rounds[: len(group.rounds) - made.coordination.delay])
        if isinstance(group, MergedContributions):
            if state.version % made.coordination.fragments:
                assert torch.equal(state.weights[task.num_parameters :], before)
                continue
            before = state.weights[task.num_parameters :]
            latest = {c.rank: c.batch.stop for c in group}
            factors = made.coordination.factors(group.merged, made.plan(task))
            tails = [brought[latest[c.rank]][task.num_parameters :] for c in group.merged]
            torch.testing.assert_close(before, sum(f * tail for f, tail in zip(factors, tails, strict=True)), rtol=0, atol=1e-12)
            continue
        counted = tuple(
            {c.rank: c for c in group}.values() if isinstance(group, SynchronousContributions) else group
        )  # the last local step's
        factors = made.coordination.factors(counted, made.plan(task))
        tails = [brought[c.batch.stop][task.num_parameters :] for c in counted]
        if isinstance(group, Tabled):  # of all workers, also of those that brought nothing new
            factors, tails = [1.0] * len(group.means), [mean[task.num_parameters :] for mean in group.means.values()]
        if made.coordination.has_local_servers:  # where each step takes those of one push, and the last one's go to the global server
            factors, tails = [1.0], tails[-1:]
        mean = sum(factor * tail for factor, tail in zip(factors, tails, strict=True)) / sum(factors)
        torch.testing.assert_close(state.weights[task.num_parameters :], mean, rtol=0, atol=1e-12)
    assert run.weights[-1] == 1.0
    assert not torch.equal(run.weights[task.num_parameters :], task.initial()[task.num_parameters :])


@pytest.mark.slow
@pytest.mark.parametrize("allocation", ["dbs", "omnilearn", "lb_bsp", "optperf", "static"])
def test_the_split_that_is_reached_does_not_depend_on_the_period_of_local_steps(allocation: str) -> None:
    """What is measured is a mean step, however many there are between two averages."""
    workers = cluster(node(4e-4, 2e-3), node(1e-4, 5e-3), node(2e-4))
    splits = []
    for period in (1, 10):
        made = experiment(
            "method=local_sgd",
            f"allocation={allocation}",
            "workload=phantom",
            cluster=workers,
            coordination={"period": period},
            budget={"updates": 120},
        )
        splits.append(made.coordination.allocation.shares(simulate(made).states[-1].allocation))

    assert splits[0] == splits[1] != (86, 85, 85)


# Real processes

QUICK = cluster(
    *(node(seconds, 1e-3, seconds_per_update=2e-4) for seconds in (4e-5, 1e-5, 2e-5)),
    network={"latency_seconds": 5e-4, "bytes_per_second": 1e8, "sharing": "none"},  # as there are methods with local servers
    seconds_per_update=2e-4,
)


@pytest.mark.slow
@pytest.mark.parametrize("names", [list(METHODS)[::5], pytest.param(list(METHODS), marks=pytest.mark.long)], ids=["a fifth", "all"])
def test_every_method_runs_in_real_processes(names: list[str]) -> None:
    """All in one set of processes: each position once, versions in order, the simulator's parameters where time decides nothing."""
    made = {
        name: short(name, "workload=digits", workload={}, cluster=QUICK, batch_size=48, dtype="float64", budget={"epochs": 0.3})
        for name in names
    }

    told = dict(zip(made, run_all_in_processes(list(made.values()), timeout=180), strict=True))

    positions = round(0.3 * 1437)
    for name, parts in told.items():
        leader = parts[made[name].leader]
        last = leader.states[-1]
        assert computed_once(name, [batch for part in parts[:3] for batch in part.computed], positions), name
        assert [state.version for state in leader.states] == list(range(1, len(leader.states) + 1)), name
        assert last.num_samples + last.num_samples_discarded + last.num_samples_in_flight == positions, name
        if name in SERIAL:
            simulated = simulate(made[name])
            assert len(simulated.states) == len(leader.states)
            for mine, theirs in zip(leader.states, simulated.states, strict=True):
                torch.testing.assert_close(mine.weights, theirs.weights, rtol=0, atol=1e-12)


# Identities

EVEN_NODES = cluster(node(4e-4, 2e-3, count=3), network=NO_NETWORK, seconds_per_update=5e-4)


def sides(identity: Identity) -> tuple[Run, Run]:
    """Both sides, in float64."""
    keys = dict(identity.keys)
    nodes = EVEN_NODES if identity.equal_nodes else UNEVEN
    if "num_nodes" in keys:
        nodes = cluster(node(4e-4, 2e-3, count=keys["num_nodes"]), network=NO_NETWORK, seconds_per_update=5e-4)
    common = {"workload": {"num_parameters": 8, "num_samples": 100}, "batch_size": 30, "cluster": nodes, "dtype": "float64"}
    runs = []
    for side, choices in (("one", identity.one), ("other", identity.other)):
        rates = {"learning_rate": 0.1, "momentum": 0.0, **keys.get("both", {})} if "method=asgd" in identity.other else keys.get("both", {})
        made = experiment(*choices, "workload=quadratic", **{**common, **rates, **keys.get(side, {})}, budget={"epochs": 9.7})
        runs.append(simulate(made, trace="full"))
    return runs[0], runs[1]


LEAVING_OUT = ("ata",)
"""Methods in which a worker may have no samples, which a server is not made for."""
REDUCING = [name for name in METHODS if "coordination: all_reduce" in (configs() / "method" / f"{name}.yaml").read_text()]
BARRIERS = [name for name in REDUCING if name not in LEAVING_OUT]


@pytest.mark.slow
@pytest.mark.parametrize("name", BARRIERS)
def test_a_barrier_method_on_a_server_is_its_all_reduces_twin(name: str) -> None:
    """The same ranges and the same parameters in every version, whatever the exchange takes, under noise and measured shares."""
    one, other = (
        simulate(short(name, "workload=quadratic", *choice, dtype="float64", budget={"epochs": 9.7}))
        for choice in ((), ("coordination=parameter_server",))
    )

    assert [[(c.rank, c.batch) for c in group] for group in one.applied] == [[(c.rank, c.batch) for c in group] for group in other.applied]
    for mine, theirs in zip(one.states, other.states, strict=True):
        torch.testing.assert_close(mine.weights, theirs.weights, rtol=0, atol=1e-12)


def test_ssp_with_bound_0_is_a_barrier() -> None:
    """It starts its steps when the barrier does, and at η/N without momentum has the barrier's parameters after each clock."""
    keys = {**SMALL, "cluster": {**UNEVEN, "server": {"seconds_per_update": 0.0}}, "batch_size": 30, "dtype": "float64"}
    ssp, barrier = (
        simulate(experiment(*choices, "workload=quadratic", **keys, **more, momentum=0.0, budget={"epochs": 3}), trace="full")
        for choices, more in (
            (("method=ssp",), {"admission": {"bound": 0}, "learning_rate": 0.1 / 3}),
            (("method=ssgd", "coordination=parameter_server"), {"learning_rate": 0.1}),
        )
    )

    assert [row[:3] for row in ssp.rows("gradient")] == [row[:3] for row in barrier.rows("gradient")]
    assert len(ssp.states) == 3 * len(barrier.states) == 30
    for clock, theirs in enumerate(barrier.states):
        torch.testing.assert_close(ssp.states[3 * clock + 2].weights, theirs.weights, rtol=0, atol=1e-12)


def test_optperf_without_overheads_is_proportional() -> None:
    """By speed, once it has measured; where quotas are whole, to the sample."""
    workers = cluster(node(4e-3, count=2), node(2e-3), node(1e-3))
    optperf, dbs = (
        simulate(experiment(f"method={name}", "workload=phantom", cluster=workers, batch_size=256, budget={"updates": 40}))
        for name in ("optperf", "dbs_sgd")
    )

    assert optperf.simulation.experiment.coordination.allocation.shares(optperf.states[-1].allocation) == (32, 32, 64, 128)
    assert dbs.simulation.experiment.coordination.allocation.shares(dbs.states[-1].allocation) == (32, 32, 64, 128)


@pytest.mark.slow
@pytest.mark.parametrize("name", IDENTITIES)
@pytest.mark.sampled(26)
def test_two_sentences_for_one_method_are_one_method(name: str) -> None:
    """The same commits at the same times where times are marked, the same parameters at each commit where parameters are."""
    identity = IDENTITIES[name]

    one, other = sides(identity)

    assert len(one.states) == len(other.states) > 10
    if identity.times:
        assert one.seconds == other.seconds
        assert [[(c.rank, c.batch, c.staleness) for c in g] for g in one.applied] == [
            [(c.rank, c.batch, c.staleness) for c in g] for g in other.applied
        ]
    if identity.parameters:
        for mine, theirs in zip(one.states, other.states, strict=True):
            torch.testing.assert_close(mine.weights, theirs.weights, rtol=0, atol=1e-12)
    assert (one.weights - one.simulation.task.initial()).abs().max() > 0.1
