"""Local steps: H steps alone, then an average, or an outer step along how far everyone went."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_programs_by_hand import PLAIN, exchange, finished
from worlds import NO_NETWORK, UNEVEN, Run, cluster, experiment, node, simulate, tiles

from hetsim.coordination.local_steps import LocalSteps
from hetsim.coordination.plan import Plan
from hetsim.effects import AllReduce, Batch, Commit, Computed, Gather, Gradient, LocalUpdate, Node, Update
from hetsim.policies.admission import Barrier, EveryGradient
from hetsim.policies.allocation.periodic import SpeedProportional
from hetsim.policies.weighting import PerSample
from hetsim.runtime.experiment import Experiment
from hetsim.workloads.tasks.quadratic_task import QuadraticTask


def alone(**policies: Any) -> LocalSteps:
    """Local steps with these policies; H = 2."""
    return LocalSteps(**{**PLAIN, "admission": Barrier(), "period": 2, **policies})


def computed(value: float, samples: int = 2, seconds: float = 1.0) -> Computed:
    """A gradient."""
    return Computed(value, 0.5, samples, seconds)


def test_a_worker_goes_h_steps_alone_then_everyone_steps_along_the_mean_way():
    """Rank 1 of two: its share of two global batches, from x to x; Δ = mean of W − x_i makes a version, whose weights all go on from."""
    plan = Plan(2, 4, samples_per_epoch=4)
    program = alone().program(Node(1, 2), plan, alone().initial(plan, 10.0))

    asked = exchange(program, computed(1.0), 9.0, computed(2.0), 7.0, 2.5, 7.5, True, computed(3.0), 6.5)

    assert asked == [
        Gradient(at=10.0, batch=Batch(2, 2), version=0),
        LocalUpdate(at=10.0, gradient=1.0, version=0, epoch=0),
        Gradient(at=9.0, batch=Batch(6, 2), version=0),
        LocalUpdate(at=9.0, gradient=2.0, version=0, epoch=0),
        AllReduce((10.0 - 7.0) / 2),
        Update(at=10.0, gradient=2.5),
        ("commit", 1, 7.5, 8, 8, [(0, 2, 0), (1, 2, 0), (0, 2, 0), (1, 2, 0)]),
        Gradient(at=7.5, batch=Batch(10, 2), version=1),
        LocalUpdate(at=7.5, gradient=3.0, version=1, epoch=2),
        Gradient(at=6.5, batch=Batch(14, 2), version=1),
    ]


def test_the_last_round_is_shorter_and_its_last_batch_may_have_nothing_for_a_worker():
    """Of 13 positions in batches of four: two batches, then one and a sample, which is the first worker's alone."""
    plan = Plan(2, 4, num_positions=13)
    first, second = (alone().program(Node(rank, 2), plan, alone().initial(plan, 10.0)) for rank in (0, 1))
    round_ = (computed(1.0), 9.0, computed(2.0), 7.0, 2.5, 7.5, True)

    one = exchange(first, *round_, computed(1.0), 6.5, computed(2.0, samples=1), 5.5)
    other = exchange(second, *round_, computed(1.0), 6.0, 1.75, 5.75)

    assert one[-4:] == [
        LocalUpdate(at=7.5, gradient=1.0, version=1, epoch=0),
        Gradient(at=6.5, batch=Batch(12, 1), version=1),
        LocalUpdate(at=6.5, gradient=2.0, version=1, epoch=0),
        AllReduce((7.5 - 5.5) / 2),
    ]
    assert other[-5:] == [
        Gradient(at=7.5, batch=Batch(10, 2), version=1),
        LocalUpdate(at=7.5, gradient=1.0, version=1, epoch=0),
        AllReduce((7.5 - 6.0) / 2),
        Update(at=7.5, gradient=1.75),
        ("commit", 2, 5.75, 13, 13, [(0, 2, 0), (1, 2, 0), (0, 1, 0)]),
    ]
    assert finished(second, True)


def test_a_worker_without_any_range_has_no_part_in_the_mean():
    """The one that went somewhere counts whole."""
    plan = Plan(2, 4, num_positions=2)
    first, second = (alone().program(Node(rank, 2), plan, alone().initial(plan, 10.0)) for rank in (0, 1))

    assert exchange(first, computed(1.0), 9.0)[-1] == AllReduce(10.0 - 9.0)
    assert exchange(second) == [AllReduce(0.0)]


def test_a_run_that_may_not_go_on_stops_at_its_commit():
    """The answer to a commit is the budget's verdict."""
    plan = Plan(1, 4)
    program = alone().program(Node(0, 1), plan, alone().initial(plan, 10.0))
    exchange(program, computed(1.0), 9.0, computed(2.0), 7.0, 3.0, 7.0)

    assert finished(program, False)


def test_weights_are_by_the_samples_of_a_whole_round():
    """Rank 1 of two with 2 samples of 8 in each batch: N b/B = 1/2 of an equal part; the commit has what everyone did."""
    method, plan = alone(weighting=PerSample(), allocation=SpeedProportional()), Plan(2, 8)
    program = method.program(Node(1, 2), plan, method.initial(plan, 10.0))

    asked = exchange(program, computed(1.0, 4, 1.5), 9.0, computed(2.0, 4, 2.5), 7.0, 2.5, (2.0, 6.0), 7.5, True)
    rest = [program.send(answer) for answer in (computed(1.0, 2, 1.0), 6.5, computed(1.0, 2, 1.0), 5.5)]

    assert asked[4:] == [
        AllReduce(3.0 / 2),
        Gather(1.5 + 2.5),
        Update(at=10.0, gradient=2.5),
        ("commit", 1, 7.5, 16, 16, [(0, 4, 0), (1, 4, 0), (0, 4, 0), (1, 4, 0)]),
        Gradient(at=7.5, batch=Batch(22, 2), version=1),
    ]
    assert rest == [
        LocalUpdate(at=7.5, gradient=1.0, version=1, epoch=0),
        Gradient(at=6.5, batch=Batch(30, 2), version=1),
        LocalUpdate(at=6.5, gradient=1.0, version=1, epoch=0),
        AllReduce((7.5 - 5.5) * (4 / 8) / 2),
    ]


def test_measurements_are_summed_until_the_allocation_asks():
    """With a re-allocation every second round, the gathered seconds are of all four gradients."""
    method, plan = alone(allocation=SpeedProportional(reallocate_every=2)), Plan(1, 4)
    program = method.program(Node(0, 1), plan, method.initial(plan, 10.0))
    alike = (computed(1.0, 4, 1.5), 9.0, computed(2.0, 4, 2.5), 7.0, 3.0)

    asked = exchange(program, *alike, 7.0, True, *alike, (8.0,))
    commit = program.send(5.0)

    assert [one for one in asked if isinstance(one, Gather)] == [Gather(1.5 + 2.5 + 1.5 + 2.5)]
    assert asked[-1] == Update(at=7.0, gradient=3.0)
    assert isinstance(commit, Commit)
    assert commit.state.allocation.v == (16 / 8.0,)


@pytest.mark.parametrize("period", [0, -1, 2.5, True])
def test_a_period_is_a_whole_number_of_steps(period: Any):
    """One sentence with the key and the value."""
    with pytest.raises(ValueError, match=rf"^coordination\.period .*{period}"):
        alone(period=period)


def test_what_would_need_a_server_is_refused():
    """An average waits for everyone."""
    with pytest.raises(ValueError, match=r"^admission is EveryGradient, but at each average all workers wait for one another"):
        alone(admission=EveryGradient())


def test_local_steps_need_a_local_optimizer():
    """Without one nobody would go anywhere."""
    with pytest.raises(ValueError, match="local_optimizer is none"):
        experiment("method=local_sgd", "local_optimizer=none")


# Time, and laws


LINK = {"latency_seconds": 0.125, "bytes_per_second": 64.0}
BUDGETS: dict[str, dict[str, Any]] = {"epochs": {"epochs": 3.5}, "updates": {"updates": 4}, "seconds": {"seconds": 0.09}}
ALLOCATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "even": ("even", {}),
    "fixed": ("fixed", {"parts": [1, 3, 2]}),
    "dbs": ("dbs", {}),
    "dbs every 3": ("dbs", {"reallocate_every": 3}),
    "dbs every epoch": ("dbs", {"reallocate_every": "epoch"}),
}
CELLS = [
    ("phantom", "epochs", 3),
    ("phantom", "updates", 3),
    ("phantom", "seconds", 3),
    ("phantom", "updates", 1),
    ("quadratic", "epochs", 1),
]
ONE = {**UNEVEN, "nodes": UNEVEN["nodes"][:1]}
EVERY_ALLOCATION = pytest.mark.parametrize("allocation", ALLOCATIONS)


def local_sgd(*choices: str, on: str = "quadratic", period: int = 4, **keys: Any) -> Experiment:
    """Local SGD with a rate of its own; 90 samples an epoch in batches of 31."""
    keys = {"workload": {"num_parameters": 8, "num_samples": 90}, "batch_size": 31, "cluster": UNEVEN, **keys}
    rates = {"learning_rate": 1.0, "momentum": 0.0, "local_learning_rate": 0.05}
    return experiment("method=local_sgd", f"workload={on}", *choices, **{**rates, **keys}, coordination={"period": period})


@pytest.mark.parametrize("local", [None, 0.0, 0.125, 1.5])
@pytest.mark.parametrize("period", [1, 3, 8])
def test_a_round_is_h_gradients_and_local_steps_and_one_all_reduce_and_update(period: int, local: float | None):
    """H·(gradient + local update) of the slowest + 2(N−1)(latency + nbytes/(N·bytes_per_second)) + update, exactly."""
    rows = [node(0.25, 0.5, seconds_per_update=0.25), node(0.5, seconds_per_update=0.25)]
    workers = cluster(*({**row, "seconds_per_local_update": local} for row in rows), network=LINK)
    keys: dict[str, Any] = {"workload": {"num_parameters": 8, "num_samples": 60_000}, "cluster": workers, "batch_size": 6}

    run = simulate(local_sgd(on="phantom", period=period, budget={"updates": 4}, **keys))

    round_ = period * (max(0.5 + 3 * 0.25, 3 * 0.5) + (0.25 if local is None else local)) + 2 * (0.125 + 32 / (2 * 64)) + 0.25
    assert run.seconds == [1 * round_, 2 * round_, 3 * round_, 4 * round_]
    assert {c.staleness for group in run.applied for c in group} == {0}


def test_measurements_cost_one_gather_a_round_however_long_it_is():
    """(N−1)(latency + 8/bytes_per_second)."""
    workers = cluster(node(0.25, count=2), network=LINK)
    keys: dict[str, Any] = {"workload": {"num_parameters": 8, "num_samples": 60_000}, "cluster": workers, "batch_size": 8}

    measured, plain = (simulate(local_sgd(f"allocation={name}", on="phantom", budget={"updates": 3}, **keys)) for name in ("dbs", "even"))

    gather = 0.125 + 8 / 64
    assert [a - b for a, b in zip(measured.seconds, plain.seconds, strict=True)] == [gather, 2 * gather, 3 * gather]


def test_shares_follow_the_speeds_of_a_round():
    """Speeds 1 : 1 : 2 : 4 and B = 256, after one round of three steps."""
    workers = cluster(*(node(seconds) for seconds in (4e-3, 4e-3, 2e-3, 1e-3)))

    run = simulate(local_sgd("allocation=dbs", on="phantom", period=3, batch_size=256, cluster=workers, budget={"updates": 2}))

    assert [tuple(c.samples for c in group) for group in run.applied] == [(64,) * 12, (32, 32, 64, 128) * 3]


def applied(run: Run) -> list[Batch]:
    """The ranges that went into versions."""
    return [c.batch for group in run.applied for c in group]


@pytest.mark.slow
@pytest.mark.parametrize(("on", "budget", "workers"), CELLS)
@EVERY_ALLOCATION
def test_every_position_is_applied_once_and_nobody_is_left_waiting(allocation: str, workers: int, budget: str, on: str):
    """Computed once too, the budget met exactly in versions, and every rank at its end."""
    name, options = ALLOCATIONS[allocation]
    if "parts" in options:
        options = {"parts": options["parts"][:workers]}
    where = UNEVEN if workers == 3 else ONE

    run = simulate(local_sgd(f"allocation={name}", on=on, allocation=options, cluster=where, budget=BUDGETS[budget]))

    last = run.states[-1]
    assert all(process.done for process in run.simulation.processes)
    assert tiles(applied(run), last.num_samples)
    assert tiles(run.computed, last.num_samples)
    assert [state.version for state in run.states] == list(range(1, len(run.states) + 1))
    if budget == "epochs":
        assert (last.num_samples, last.version) == (315, 3)  # eleven batches, the last of five samples, four to a round
        assert len({c.batch.start // 31 for c in run.applied[-1]}) == 3
    if budget == "updates":
        assert last.version == 4
    if budget == "seconds":
        assert run.seconds[-1] >= 0.09
        assert not any(seconds >= 0.09 for seconds in run.seconds[:-1])


@pytest.mark.slow
@pytest.mark.parametrize("inner", ["sgd", "adamw"])
@EVERY_ALLOCATION
@pytest.mark.sampled(4)
def test_local_sgd_goes_on_as_if_it_had_never_stopped(allocation: str, inner: str):
    """Bit by bit, from every version, on noisy nodes: each worker's own optimizer and what it has to report are in a checkpoint."""
    name, options = ALLOCATIONS[allocation]
    described = local_sgd(
        f"allocation={name}", f"local_optimizer={inner}", allocation=options, period=2, momentum=0.9, budget={"epochs": 3.5}
    )
    whole = simulate(described, saved=True)
    assert len(whole.states) == 6

    assert len(whole.checkpoints) == len(whole.states)
    for stop, checkpoint in enumerate(whole.checkpoints):
        rest = simulate(described, checkpoint=checkpoint, saved=True)

        assert all(torch.equal(one.weights, other.weights) for one, other in zip(rest.states, whole.states[stop + 1 :], strict=True))
        assert applied(rest) == [c.batch for group in whole.applied[stop + 1 :] for c in group]


@EVERY_ALLOCATION
def test_a_new_start_applies_what_is_left_once(allocation: str):
    """Whatever the allocation had measured."""
    name, options = ALLOCATIONS[allocation]
    described = local_sgd(f"allocation={name}", allocation=options, period=2, budget={"epochs": 3.5})
    whole = simulate(described, saved=True)

    assert len(whole.checkpoints) == len(whole.states)
    for stop, checkpoint in enumerate(whole.checkpoints):
        rest = simulate(described, checkpoint=checkpoint, saved=True)

        assert tiles([c.batch for group in whole.applied[: stop + 1] for c in group] + applied(rest), 315)
        assert [after.version for after in rest.states] == list(range(stop + 2, 7))


# What is learned, against the algorithm written out


def steps(task: QuadraticTask, x: torch.Tensor, ranges: list[Batch], memory: dict[str, Any], inner: str) -> torch.Tensor:
    """One worker's way through its ranges: SGD at 0.05, or AdamW as its paper writes it (rate 0.02, decay 0.01)."""
    for batch in ranges:
        g = task.curvature * (x - task.centres.data[task.sequence.indices(batch)].mean(0))
        if inner == "sgd":
            x = x - 0.05 * g
            continue
        memory["t"] = memory.get("t", 0) + 1
        memory["m"] = 0.9 * memory.get("m", torch.zeros_like(x)) + 0.1 * g
        memory["v"] = 0.999 * memory.get("v", torch.zeros_like(x)) + 0.001 * g * g
        m, v = memory["m"] / (1 - 0.9 ** memory["t"]), memory["v"] / (1 - 0.999 ** memory["t"])
        x = x - 0.02 * 0.01 * x - 0.02 * m / (v.sqrt() + 1e-8)
    return x


def rounds(
    task: QuadraticTask, *, positions: int, shares: tuple[int, ...], weights: tuple[float, ...], inner: str, rate: float, momentum: float
) -> list[torch.Tensor]:
    """Every version: H = 3 steps from W, Δ = mean of w_i (W − x_i), outer SGD with Nesterov's momentum."""
    n, total = len(shares), sum(shares)
    server = torch.zeros_like(task.optimum)
    velocity = torch.zeros_like(server)
    memories: list[dict[str, Any]] = [{} for _ in shares]
    versions = []
    for start in range(0, positions, 3 * total):
        delta = torch.zeros_like(server)
        for i in range(n):
            offset = sum(shares[:i])
            ranges = [Batch(first + offset, shares[i]) for first in range(start, min(start + 3 * total, positions), total)]
            x = steps(task, server, ranges, memories[i], inner)
            delta += weights[i] * (server - x) / n
        velocity = momentum * velocity + delta
        server = server - rate * (delta + momentum * velocity)
        versions.append(server)
    return versions


def learned(method: str, *choices: str, cluster: dict[str, Any], batch_size: int, **keys: Any) -> Run:
    """On the float64 quadratic, H = 3, for a number of batches that is no multiple of it."""
    sizes = {"num_parameters": 8, "num_samples": 50, "noise": 1.0}
    keys = {"workload": sizes, "budget": {"epochs": 20 * batch_size / 50}, "dtype": "float64", **keys}
    return simulate(
        experiment(
            f"method={method}", "workload=quadratic", *choices, cluster=cluster, batch_size=batch_size, coordination={"period": 3}, **keys
        )
    )


METHODS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "local_sgd": (
        {"learning_rate": 1.0, "momentum": 0.0, "local_learning_rate": 0.05},
        {"inner": "sgd", "rate": 1.0, "momentum": 0.0},
    ),
    "diloco": (
        {"learning_rate": 0.7, "momentum": 0.9, "local_learning_rate": 0.02},
        {"inner": "adamw", "rate": 0.7, "momentum": 0.9},
    ),
}
SPLITS: dict[str, tuple[int, ...]] = {"three alike": (5, 5, 5), "three unlike": (2, 9, 4), "one": (15,)}


def apart(run: Run, versions: list[torch.Tensor]) -> float:
    """The largest difference of any parameter in any version."""
    assert len(run.states) == len(versions)
    return max((state.weights - version).abs().max().item() for state, version in zip(run.states, versions, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("weighting", ["per_worker", "per_sample"])
@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("method", METHODS)
def test_it_is_the_algorithm_written_out(method: str, split: str, weighting: str):
    """Every version to 1e-12, the last of a shorter round; AdamW's memory goes on from round to round, and each worker has its own."""
    keys, written = METHODS[method]
    shares = SPLITS[split]
    fair = sum(shares) / len(shares)
    weights = {"per_worker": (1.0,) * len(shares), "per_sample": tuple(b / fair for b in shares)}

    run = learned(
        method,
        "allocation=fixed",
        f"weighting={weighting}",
        cluster=cluster(node(1e-3, count=len(shares)), network=NO_NETWORK),
        batch_size=sum(shares),
        allocation={"parts": list(shares)},
        **keys,
    )

    versions = {
        name: rounds(run.simulation.task, positions=20 * sum(shares), shares=shares, weights=w, **written) for name, w in weights.items()
    }
    assert len(run.states) == 7
    assert apart(run, versions.pop(weighting)) < 1e-12
    assert all((apart(run, other) > 1e-4) == (split == "three unlike") for other in versions.values())


def test_local_sgd_with_a_period_of_one_is_synchronous_sgd():
    """To rounding: the mean of W − (W − η g_i) is η ḡ."""
    where = cluster(node(1e-3, count=3))
    keys: dict[str, Any] = {"workload": {"num_parameters": 8, "num_samples": 90}, "batch_size": 31, "dtype": "float64", "cluster": where}

    alone = simulate(local_sgd(period=1, **{**keys, "budget": {"epochs": 3.5}}))
    together = simulate(experiment("method=ssgd", "workload=quadratic", **keys, learning_rate=0.05, momentum=0.0, budget={"epochs": 3.5}))

    assert apart(alone, [state.weights for state in together.states]) < 1e-12
    assert applied(alone) == applied(together)


def test_a_commit_tells_what_each_step_took():
    """By hand: seconds and loss of one's own gradients, one contribution for each range of the round."""
    plan = Plan(1, 4)
    program = alone().program(Node(0, 1), plan, alone().initial(plan, 10.0))
    next(program)
    for answer in (computed(1.0, 4, 1.5), 9.0, computed(2.0, 4, 2.5), 7.0, 3.0):
        program.send(answer)

    commit = program.send(7.0)

    assert isinstance(commit, Commit)
    assert [(c.batch, c.seconds) for c in commit.applied] == [(Batch(0, 4), 1.5), (Batch(4, 4), 2.5)]
