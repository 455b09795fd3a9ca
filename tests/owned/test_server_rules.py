"""Discounts that know N, Rennala, Malenia and Ringleader in World Q, against a few lines of NumPy and numbers by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from test_async_local_steps import Push, on_q, pushed
from worlds import cluster, experiment, node, simulate

RATE = 0.05
Server = Callable[[float, list[Push]], float | None]


def rescaled(weights: float, pushes: list[Push]) -> float:
    """W ← W − γ (s + 1)/N g."""
    ((_, s, w, x),) = pushes
    return weights - RATE * (s + 1) / 4 * (w - x)


def delay_adaptive(weights: float, pushes: list[Push]) -> float:
    """W ← W − γ N / max(N, s) g."""
    ((_, s, w, x),) = pushes
    return weights - RATE * 4 / max(4, s) * (w - x)


def rennala(weights: float, pushes: list[Push]) -> float | None:
    """W ← W − γ (1/B) Σ g over the first B = 5 gradients at W."""
    fresh = [w - x for _, s, w, x in pushes if s == 0]
    return weights - RATE / 5 * sum(fresh) if len(fresh) == 5 else None


def malenia(weights: float, pushes: list[Push]) -> float | None:
    """W ← W − γ (1/N) Σ μ_i as soon as every worker has a gradient at W."""
    fresh = [[w - x for rank, s, w, x in pushes if s == 0 and rank == worker] for worker in range(4)]
    return weights - RATE / 4 * sum(np.mean(each) for each in fresh) if all(fresh) else None


class RingleaderByHand:
    """Algorithm 1 with its two phases: gather until every b_i ≥ 1, then exactly N updates, each worker's first arrival one."""

    def __init__(self) -> None:
        self.current: list[list[float]] = [[] for _ in range(4)]
        self.following: list[list[float]] = [[] for _ in range(4)]
        self.gathering = True
        self.to_come = {0, 1, 2, 3}

    def __call__(self, weights: float, pushes: list[Push]) -> float | None:
        rank, _, w, x = pushes[-1]
        self.gathering = self.gathering and not all(self.current)
        if not self.gathering and rank not in self.to_come:
            self.following[rank].append(w - x)
            return None
        self.current[rank].append(w - x)
        if not all(self.current):
            return None
        self.to_come.remove(rank)
        weights -= RATE * float(np.mean([np.mean(each) for each in self.current]))
        if not self.to_come:
            self.current, self.following = self.following, [[] for _ in range(4)]
            self.to_come, self.gathering = {0, 1, 2, 3}, True
        return weights


@pytest.mark.parametrize(
    ("name", "server", "keys"),
    [
        ("ringleader", RingleaderByHand(), {}),
        ("rescaled_asgd", rescaled, {}),
        ("delay_adaptive", delay_adaptive, {}),
        ("rennala", rennala, {"admission": {"batch": 5}}),
        ("malenia", malenia, {}),
    ],
)
def test_a_method_is_its_equation(name: str, server: Server, keys: dict[str, Any]):
    """Sixty versions in an event loop, in which a step of rate 1 to the worker's optimum is its gradient."""
    mine = on_q(name, learning_rate=RATE, momentum=0.0, **keys)

    np.testing.assert_allclose(mine, pushed(60, period=1, rate=1.0, server=server), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("batch", "rate"), [(3, 0.375), (4, 0.3), (8, 2 / 11)])
def test_rennala_makes_so_many_versions_a_second_in_world_q(batch: int, rate: float):
    """By hand, for workers of 4, 4, 2 and 1 s and a trifle more, so that of two that end together the lower rank is first."""
    workers = cluster(*(node(seconds + 1e-7 * rank) for rank, seconds in enumerate((4.0, 4.0, 2.0, 1.0))))
    run = simulate(
        experiment(
            "method=rennala", "workload=phantom", admission={"batch": batch}, cluster=workers, batch_size=4, budget={"updates": 800}
        ),
    )

    assert len(run.seconds) / run.seconds[-1] == pytest.approx(rate, rel=0.01)


def test_rennala_with_a_batch_of_all_equal_workers_is_slower_than_a_barrier():
    """Late gradients are ignored: four equal workers in turn, 4/7 of the rate of synchronous SGD."""
    workers = cluster(*(node(1.0 + delay) for delay in (0.0, 1e-6, 2e-6, 3e-6)))
    run = simulate(
        experiment("method=rennala", "workload=phantom", admission={"batch": 4}, cluster=workers, batch_size=4, budget={"updates": 400})
    )

    assert len(run.seconds) / run.seconds[-1] == pytest.approx(0.57, abs=0.01)


def test_ringleaders_rounds_in_world_q():
    """Of 8 s and 4 s in turn, four updates each: 0.667 a second; no gradient is more than 2N − 2 versions old, and none is dropped."""
    workers = cluster(*(node(seconds) for seconds in (4.0, 4.0, 2.0, 1.0)))
    run = simulate(experiment("method=ringleader", "workload=phantom", cluster=workers, batch_size=4, budget={"updates": 600}))

    assert len(run.seconds) / run.seconds[-1] == pytest.approx(2 / 3, rel=0.01)
    assert max(c.staleness for group in run.applied for c in group) <= 6
    assert run.states[-1].num_samples_discarded == 0
    for start in range(0, 600, 4):  # in each round, each worker makes one update: it is the last one of its group
        assert sorted(group[-1].rank for group in run.applied[start : start + 4]) == [0, 1, 2, 3]


def test_a_table_and_its_server_go_together():
    """Either without the other is refused, with the name of what to take."""
    with pytest.raises(ValueError, match=r"^admission is Ringleader, but coordination is ParameterServer: take coordination=table_server"):
        experiment("method=ringleader", "coordination=parameter_server", "workload=phantom")
    with pytest.raises(ValueError, match=r"^admission is EveryGradient, but coordination is TableServer: take coordination=par"):
        experiment("method=asgd", "coordination=table_server", "workload=phantom")
    with pytest.raises(ValueError, match=r"^weighting is PerSample, but a step is along the table of all workers' means"):
        experiment("method=ringleader", "weighting=per_sample", "workload=phantom")


@pytest.mark.parametrize("admission", ["ssp", "softsync", "ringmaster", "buffer"])
def test_rescaled_factors_are_refused_where_they_do_not_add_up(admission: str):
    """Where workers are held back, dropped or grouped."""
    with pytest.raises(ValueError, match=r"^admission is \w+, but discount is Rescaled, which weights all workers alike only if"):
        experiment("method=rescaled_asgd", f"admission={admission}", "workload=phantom")


@pytest.mark.parametrize("name", ["rennala", "malenia"])
def test_where_nothing_late_is_applied_a_discount_is_refused(name: str):
    """It would do nothing."""
    with pytest.raises(ValueError, match=r"^discount is InverseStaleness, but admission is \w+, which lets no gradient be late"):
        experiment(f"method={name}", "discount=inverse_staleness", "workload=phantom")
