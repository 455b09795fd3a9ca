"""ATA: assign whole tasks by lower confidence bounds of the workers' unknown mean seconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heapreplace
from typing import ClassVar

from hetsim import checks
from hetsim.effects import Contribution
from hetsim.policies.allocation.base import Allocation, check_repetitions


def least_maximum(seconds: Sequence[float], total: int, bounds: Sequence[int], preferred: Sequence[float]) -> tuple[int, ...]:
    """The whole a_i with 0 ≤ a_i ≤ bound_i and Σ a_i = total that minimise max_i a_i · seconds_i.

    Each task goes to the worker that ends it first. Ties go to the worker with fewer tasks, then to the smallest `preferred`, then to the
    lower rank. So if some `seconds` are 0, these workers share all tasks, as far as their bounds allow.
    """
    num_free = sum(not s for s in seconds)
    if num_free:
        tasks = [0 if s else min(bound, total // num_free) for s, bound in zip(seconds, bounds, strict=True)]
    else:
        deadline = total / math.fsum(1 / s for s in seconds)
        tasks = [min(bound, math.floor(deadline / s)) for s, bound in zip(seconds, bounds, strict=True)]

    def end(rank: int) -> tuple[float, int, float, int]:
        """The time at which this worker would end one more task, and what breaks ties."""
        a = tasks[rank]
        return (seconds[rank] * (a + 1) if a < bounds[rank] else math.inf), a, preferred[rank], rank

    ends = [end(rank) for rank in range(len(tasks))]
    heapify(ends)
    for _ in range(total - sum(tasks)):
        rank = ends[0][-1]
        tasks[rank] += 1
        heapreplace(ends, end(rank))
    return tuple(tasks)


@dataclass(frozen=True)
class AdaptiveTasksState:
    """The tasks of each worker in the next round, and what was measured: K_i as `samples`, T_i as `seconds`, and k − 1 as `num_rounds`."""

    tasks: tuple[int, ...]
    bounds: tuple[int, ...] = field(repr=False)
    """The maximum number of tasks of each worker."""
    samples: tuple[int, ...] = field(repr=False)
    seconds: tuple[float, ...] = field(repr=False)
    num_rounds: int = 0
    absent: tuple[int, ...] = ()
    """The ranks with tasks in the last round for which no time arrived."""


@dataclass(frozen=True, kw_only=True)
class AdaptiveTasks(Allocation):
    """ATA: the whole a_i ≥ 0 with Σ a_i = B that minimise max_i a_i s_i, for lower bounds s_i of the mean seconds of a task.

    Maranjyan et al. 2025, arXiv 2502.00775, with the equations of the authors' poster at ICML 2025. In round k, worker i has ended K_i
    tasks, in μ̂_i seconds on average. With r_i = √(ln(2k²) / K_i) + ln(2k²) / K_i:

        s_i = max(μ̂_i − 2 (η μ̂_i + α) r_i, 0)

    s_i is 0 while K_i is 0. A worker with a_i = 0 takes no part in the round. α = 0 is the paper's ATA-Empirical, and η = 0 is ATA. X_i are
    the seconds of a task. α bounds their sub-exponential norm ‖X_i − μ_i‖_ψ1, and η bounds ‖X_i − μ_i‖_ψ1 / μ_i.

    hetsim's own choices: a worker computes its tasks as one gradient, so a run's noise is drawn once for all of them. The paper draws for
    each. Where the minimum leaves a choice, workers with equal numbers of tasks share evenly, the least measured first. An absent worker
    gets one task in each round, which the others compute.
    """

    keeps_gradients = False
    leaves_out: ClassVar[bool] = True

    eta: float = 1.0
    alpha: float = 0.0
    """α, in seconds."""
    samples_per_task: int = 1
    repetitions: int = 0
    """How many B-sample gradients each worker computes before the run. They count as ended tasks."""

    def __post_init__(self) -> None:
        checks.number("allocation.eta", self.eta, zero=True)
        checks.number("allocation.alpha", self.alpha, zero=True)
        checks.whole("allocation.samples_per_task", self.samples_per_task)
        check_repetitions(self.repetitions)

    def initial(self, num_workers: int, batch_size: int, max_samples: Sequence[int] | None = None) -> AdaptiveTasksState:
        total, rest = divmod(batch_size, self.samples_per_task)
        if rest:
            raise ValueError(
                f"batch_size={batch_size} is not a multiple of allocation.samples_per_task={self.samples_per_task}: "
                "take a divisor of the batch size"
            )
        bounds = [total] * num_workers if max_samples is None else [min(total, bound // self.samples_per_task) for bound in max_samples]
        if sum(bounds) < total:
            raise ValueError(
                f"the nodes' max_samples hold {sum(bounds)} tasks of {self.samples_per_task} samples, but batch_size={batch_size} "
                f"has {total}: raise them, or lower it"
            )
        nothing = (0,) * num_workers
        tasks = least_maximum([0.0] * num_workers, total, bounds, nothing)
        return AdaptiveTasksState(tasks, tuple(bounds), nothing, tuple(map(float, nothing)))

    def shares(self, state: AdaptiveTasksState) -> tuple[int, ...]:
        return tuple(a * self.samples_per_task for a in state.tasks)

    def observe_profile(self, state: AdaptiveTasksState, timings: Sequence[Contribution]) -> AdaptiveTasksState:
        return self._decide(self._add_timings(state, timings))

    def asks(self, state: AdaptiveTasksState, epoch: int) -> bool:
        return True

    def observe(self, state: AdaptiveTasksState, timings: Sequence[Contribution], epoch: int = 0) -> AdaptiveTasksState:
        if not timings:
            return state
        absent = state.absent
        if sum(timing.samples for timing in timings) == sum(self.shares(state)):  # otherwise an epoch ended before some ranks' ranges
            seen = {timing.rank for timing in timings}
            absent = tuple(rank for rank, a in enumerate(state.tasks) if rank not in seen and (a or rank in absent))
        return self._decide(replace(self._add_timings(state, timings), num_rounds=state.num_rounds + 1, absent=absent))

    def lower_bounds(self, state: AdaptiveTasksState) -> list[float]:
        """Each worker's s_i, in seconds of a task, in round k = `num_rounds` + 1."""
        log = math.log(2 * (state.num_rounds + 1) ** 2)

        def lower_bound(num_tasks: float, seconds: float) -> float:
            if not num_tasks:
                return 0.0
            mean, r = seconds / num_tasks, math.sqrt(log / num_tasks) + log / num_tasks
            return max(mean - 2 * (self.eta * mean + self.alpha) * r, 0.0)

        return [lower_bound(samples / self.samples_per_task, t) for samples, t in zip(state.samples, state.seconds, strict=True)]

    def _add_timings(self, state: AdaptiveTasksState, timings: Sequence[Contribution]) -> AdaptiveTasksState:
        samples, seconds = list(state.samples), list(state.seconds)
        for timing in timings:
            if timing.samples and timing.seconds > 0:
                samples[timing.rank] += timing.samples
                seconds[timing.rank] += timing.seconds
        return replace(state, samples=tuple(samples), seconds=tuple(seconds))

    def _decide(self, state: AdaptiveTasksState) -> AdaptiveTasksState:
        """The state with the tasks of the next round. Absent workers get one each, if the others have room for the rest."""
        seconds, bounds = self.lower_bounds(state), list(state.bounds)
        for rank in state.absent:
            seconds[rank], bounds[rank] = 0.0, min(1, bounds[rank])
        total = sum(state.tasks)
        return replace(state, tasks=least_maximum(seconds, total, bounds if sum(bounds) >= total else state.bounds, state.samples))
