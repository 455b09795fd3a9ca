"""Compute the gradients of several nodes together, in one pass over all their models."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

import torch

from hetsim import effects as fx
from hetsim.cluster.model import NodeSpec
from hetsim.effects import Batch
from hetsim.sim.gradient_batching import Compute, Due, EarlyGradient, GradientBatcher
from hetsim.sim.rank_process import RankProcess
from hetsim.vector import Vector
from hetsim.workloads.task import Task

MOST_TOGETHER, MOST_ON_GPU = 64, 256
"""The maximum number of gradients that a CPU, or a GPU, computes together. More do not stay in a CPU's caches."""
MOST_BYTES, MOST_BYTES_ON_GPU = 2**26, 2**30
"""The maximum bytes of these gradients."""
AS_GOOD = 0.01
"""The maximum difference of a gradient from itself computed alone, relative to its norm. Rounding may turn a ReLU on or off."""
NUM_TRIED = 2


class JointGradients(GradientBatcher):
    """Computes gradients under way with equal batch sizes together, which is faster for small models, with other last bits.

    The groups depend on the simulated times alone, unless the device's memory does not suffice. So a run still repeats bit by bit.
    Gradients in micro-batches, and gradients without enough others, are computed one by one. So are all of a workload whose first
    gradients differ, or cannot be computed together.

    Args:
        nodes: the cluster's nodes. A gradient of more samples than its node's `micro_batch` is computed alone.
    """

    def __init__(self, task: Task, gradient: Compute, nodes: Sequence[NodeSpec]) -> None:
        super().__init__(task, gradient)
        self._task = task
        self._nodes = nodes
        self._least, self._most = task.least_together or 1, max_together(task)
        self._is_tried = False
        self._by_samples: dict[int, list[Due]] = {}
        """The expected gradients by their number of samples; 0 for those in micro-batches."""
        self._expected: dict[int, list[Due]] = {}  # the list of each number

    def expect(self, end: float, process: RankProcess, effect: fx.Gradient) -> int:
        number, samples, most = next(self._serial), effect.batch.samples, self._nodes[process.rank].micro_batch
        due = self._by_samples.setdefault(0 if most is not None and samples > most else samples, [])
        heappush(due, (end, number, process, effect))
        self._expected[number] = due
        return number

    def gradient(self, number: int) -> tuple[Vector, float]:
        if number not in self._computed:
            self._forget_lost()
            due = self._expected[number]
            self._compute_first(due, 1 if due is self._by_samples.get(0) else self._most)
        early = self._computed.pop(number)
        return early.gradient, early.loss

    def _forget_lost(self) -> None:
        """Forget the gradients of lost processes, which nobody will request."""
        self._computed = {key: early for key, early in self._computed.items() if not early.process.lost}
        for due in self._by_samples.values():
            lost = [number for _, number, process, _ in due if process.lost]
            if lost:
                due[:] = [gradient for gradient in due if not gradient[2].lost]
                heapify(due)
                for number in lost:
                    del self._expected[number]

    def _compute_first(self, due: list[Due], most: int) -> None:
        """Compute the next gradients of this list together, or the first one alone."""
        group = [heappop(due) for _ in range(min(max(1, most), len(due)))]
        gradients = self._compute_together(group)
        if not gradients:
            _, _, process, effect = group[0]
            gradients = [self._gradient(process.rank, effect.at, effect.batch)]
        for (_, number, process, _), (gradient, loss) in zip(group, gradients, strict=False):
            self._computed[number] = EarlyGradient(process, gradient, loss)
            del self._expected[number]
        for remaining in group[len(gradients) :]:
            heappush(due, remaining)

    def _compute_together(self, group: Sequence[Due]) -> list[tuple[Vector, float]]:
        """The gradients of this group, or of the first ones if there is no memory for more. None of them if they do not go together."""
        while min(len(group), self._most) >= self._least:
            group = group[: self._most]
            weights, batches = [effect.at for _, _, _, effect in group], [effect.batch for _, _, _, effect in group]
            try:
                if self._is_tried or self._try(weights[:NUM_TRIED], batches[:NUM_TRIED]):
                    return self._task.gradients(weights, batches)
            except torch.OutOfMemoryError:
                self._most = len(group) // 2  # and again outside, where the exception does not keep the memory
        return []

    def _try(self, weights: Sequence[Vector], batches: Sequence[Batch]) -> bool:
        """Whether these gradients are the same together and alone. Otherwise, all are computed one by one from now on.

        They are computed in full precision: rounding as by TF32 makes the gradients of a deep model differ.
        """
        with self._task.device.in_full_precision():
            alone = [self._task.gradient(at, batch) for at, batch in zip(weights, batches, strict=True)]
            if not all(math.isfinite(loss) and bool(gradient.isfinite().all()) for gradient, loss in alone):
                return True  # tried with the next ones
            try:
                together = self._task.gradients(weights, batches)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                return self._give_up(str(error).partition("\n")[0])
        if not all(self._is_near(first, second) for first, second in zip(together, alone, strict=True)):
            return self._give_up("the first ones differ from themselves computed alone")
        self._is_tried = True
        return True

    def _is_near(self, first: tuple[Vector, float], second: tuple[Vector, float]) -> bool:
        """Whether two gradients differ by rounding, as do the averaged entries after them, and their losses."""
        num = self._task.num_parameters
        pairs = [(first[0], second[0])] if num is None else [(first[0][:num], second[0][:num]), (first[0][num:], second[0][num:])]
        near: Iterable[bool] = (bool((a - b).norm() <= AS_GOOD * b.norm()) for a, b in pairs)
        return all(near) and math.isclose(first[1], second[1], rel_tol=AS_GOOD, abs_tol=AS_GOOD)

    def _give_up(self, reason: str) -> bool:
        self._most = 0
        warnings.warn(f"backend.batched=auto: gradients are computed one by one, as {reason}", stacklevel=2)
        return False


def max_together(task: Task) -> int:
    """The maximum number of a task's gradients that are computed together."""
    count, nbytes = (MOST_TOGETHER, MOST_BYTES) if task.device.in_cpu_memory else (MOST_ON_GPU, MOST_BYTES_ON_GPU)
    size: int = task.initial().nbytes
    return min(count, nbytes // max(1, size))
