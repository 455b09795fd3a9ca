"""One-step delay: what is learned, against OD-SGD, Pipe-SGD and SSD-SGD written out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from delays import BOTH, LINK, delayed
from worlds import Run, cluster, node, simulate

from hetsim.effects import Batch
from hetsim.policies.compensation import Compensation, DelayCompensation, NoCompensation
from hetsim.workloads.tasks.quadratic_task import QuadraticTask

pytestmark = pytest.mark.slow

Local = Callable[[torch.Tensor, torch.Tensor, list[torch.Tensor], int], torch.Tensor]
"""The corrected gradient of a worker: (g, way from where it was to the base, the workers' mean squares, rank)."""


def plain(g: torch.Tensor, *_: Any) -> torch.Tensor:
    """−η_loc g."""
    return g


def constant(g: torch.Tensor, way: torch.Tensor, *_: Any) -> torch.Tensor:
    """−η_loc (g + λ g⊙g⊙way), λ = 3."""
    return g + 3.0 * g * g * way


def adaptive(g: torch.Tensor, way: torch.Tensor, ms: list[torch.Tensor], rank: int, m: float = 0.0) -> torch.Tensor:
    """−η_loc (g + λ/√(MS + 1e-7) g⊙g⊙way), MS = m·MS + (1−m) g⊙g, λ = 2."""
    ms[rank] = m * ms[rank] + (1 - m) * g * g
    return g + 2.0 / torch.sqrt(ms[rank] + 1e-7) * g * g * way


def remembering(g: torch.Tensor, way: torch.Tensor, ms: list[torch.Tensor], rank: int) -> torch.Tensor:
    """The same with m = 0.5."""
    return adaptive(g, way, ms, rank, 0.5)


STEPS: dict[str, tuple[Local, str, dict[str, Any]]] = {
    "plain": (plain, "none", {}),
    "constant": (constant, "dc", {"strength": 3.0}),
    "adaptive": (adaptive, "dc_adaptive", {"strength": 2.0, "decay": 0.0}),
    "remembering": (remembering, "dc_adaptive", {"strength": 2.0, "decay": 0.5}),
}
SHARES = (7, 7, 7)


def od_sgd(
    task: QuadraticTask, *, updates: int, warm_up: int, local: Local, rate: float, against: str = "previous",
    shares: tuple[int, ...] = SHARES, weights: tuple[float, ...] = (1.0, 1.0, 1.0), k: int = 1,
) -> list[torch.Tensor]:  # fmt: skip
    """W(1) … W(T) of OD-SGD, a worker after the other: global rate 0.1, momentum 0.9; local rate `rate`, a pull after every kth push."""
    n, total = len(shares), sum(shares)
    server = torch.zeros_like(task.optimum)
    velocity = torch.zeros_like(server)
    versions: list[torch.Tensor] = []
    device = [server] * n  # w_i(t)
    newest = previous = server
    ms = [torch.zeros_like(server)] * n
    for t in range(updates):
        start, gradients = t * total, []
        for i in range(n):
            indices = task.sequence.indices(Batch(start, shares[i]))
            start += shares[i]
            gradients.append(task.curvature * (device[i] - task.centres.data[indices].mean(0)))
        velocity = 0.9 * velocity + sum(w * g for w, g in zip(weights, gradients, strict=True)) / n
        s = t - warm_up
        if s < 0:
            server = server - 0.1 * velocity
            device, newest, previous = [server] * n, server, server
        else:
            pulled = s > 0 and s % k == 0
            if pulled:
                newest, previous = server, newest  # W(t), which all pushes before this one made
            for i in range(n):
                base = newest if pulled else device[i]
                used = device[i] if against == "used" or not pulled else previous  # between pulls nothing has passed
                g = local(gradients[i], base - used, ms, i)
                device[i] = base - rate * g
            server = server - 0.1 * velocity
        versions.append(server)
    return versions


def learned(where: str, *choices: str, coordination: dict[str, Any], **keys: Any) -> Run:
    """Three equal workers on the float64 quadratic."""
    steady = cluster(node(1e-3, count=3, seconds_per_update=1e-3), network=LINK)
    keys = {"workload": {"num_parameters": 8, "num_samples": 50, "noise": 1.0}, "batch_size": 21, "cluster": steady, **keys}
    return simulate(delayed(where, "workload=quadratic", *choices, dtype="float64", coordination=coordination, **keys))


def apart(run: Run, versions: list[torch.Tensor]) -> float:
    """The largest difference of any parameter in any version."""
    assert len(run.states) == len(versions)
    return max((state.weights - version).abs().max().item() for state, version in zip(run.states, versions, strict=True))


@BOTH
@pytest.mark.parametrize("against", ["previous", "used"])
@pytest.mark.parametrize("step", STEPS)
def test_it_is_od_sgd_written_out(where: str, against: str, step: str):
    """Every version to 1e-12 after three of warm-up; the other choice of what to correct against is another algorithm."""
    local, compensation, options = STEPS[step]

    run = learned(where, f"compensation={compensation}", compensation=options, coordination={"against": against}, budget={"updates": 40})

    task = run.simulation.task
    one, other = (
        od_sgd(task, updates=40, warm_up=3, local=local, rate=0.05, against=choice)
        for choice in (against, "used" if against == "previous" else "previous")
    )
    assert apart(run, one) < 1e-12
    assert (apart(run, other) > 1e-4) == (step != "plain")


@BOTH
def test_without_local_steps_it_is_pipe_sgd(where: str):
    """w(t+1) = W(t), W(t+1) = W(t) − η ḡ(t): the gradient is one version late, and nothing bridges it."""
    run = learned(where, "local_optimizer=none", coordination={}, budget={"updates": 40})

    task = run.simulation.task
    w = [torch.zeros_like(task.optimum)]
    velocity = torch.zeros_like(w[0])
    for t in range(40):
        at = w[t] if t <= 3 else w[t - 1]
        velocity = 0.9 * velocity + task.curvature * (at - task.centres.data[task.sequence.indices(Batch(21 * t, 21))].mean(0))
        w.append(w[t] - 0.1 * velocity)
    assert apart(run, w[1:]) < 1e-12
    assert apart(run, od_sgd(task, updates=40, warm_up=3, local=plain, rate=0.0)) < 1e-12
    assert apart(run, od_sgd(task, updates=40, warm_up=3, local=plain, rate=0.05)) > 1e-4


@BOTH
@pytest.mark.parametrize("weighting", ["per_worker", "per_sample"])
def test_unequal_shares_are_weighted_globally_and_not_locally(where: str, weighting: str):
    """A worker's own step is along its own mean gradient, whatever its part in the global one."""
    run = learned(
        where, "allocation=fixed", f"weighting={weighting}", allocation={"parts": [1, 4, 2]}, coordination={}, budget={"updates": 40}
    )

    weights = {"per_worker": (1.0, 1.0, 1.0), "per_sample": (3 / 7, 12 / 7, 6 / 7)}
    versions = {
        name: od_sgd(run.simulation.task, updates=40, warm_up=3, local=plain, rate=0.05, shares=(3, 12, 6), weights=w)
        for name, w in weights.items()
    }
    assert apart(run, versions.pop(weighting)) < 1e-12
    assert all(apart(run, other) > 1e-4 for other in versions.values())


@pytest.mark.parametrize("against", ["previous", "used"])
@pytest.mark.parametrize("step", ["plain", "constant"])
@pytest.mark.parametrize("k", [2, 3])
def test_it_is_ssd_sgd_written_out(k: int, step: str, against: str):
    """With pull_every k: local steps from one's own weights between pulls, corrected for the last pull's way, or not at all."""
    local, compensation, options = STEPS[step]

    run = learned(
        "server", f"compensation={compensation}", compensation=options,
        coordination={"pull_every": k, "against": against}, budget={"updates": 40},
    )  # fmt: skip

    task = run.simulation.task
    assert apart(run, od_sgd(task, updates=40, warm_up=3, local=local, rate=0.05, against=against, k=k)) < 1e-12
    assert apart(run, od_sgd(task, updates=40, warm_up=3, local=local, rate=0.05, against=against)) > 1e-4


def test_a_compensation_needs_local_steps():
    """Without a local optimizer it would do nothing."""
    with pytest.raises(ValueError, match="local_optimizer is none"):
        delayed("server", "local_optimizer=none", "compensation=dc")


@BOTH
@pytest.mark.parametrize("compensation", ["gap_aware", "dana"])
def test_a_compensation_by_the_server_is_refused(where: str, compensation: str):
    """A worker cannot correct its local step by it."""
    with pytest.raises(ValueError, match="a worker cannot correct its local step by it"):
        delayed(where, f"compensation={compensation}")


def test_the_kinds_of_compensation_are_all_here():
    """Those that correct locally are the rows of the table above."""
    local = {kind.__name__ for kind in Compensation.__subclasses__() if kind.corrects_locally}

    assert local == {NoCompensation.__name__, DelayCompensation.__name__, "AdaptiveDelayCompensation"}
