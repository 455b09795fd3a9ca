"""Compute the gradients of several nodes together, in one pass over all their models."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from heapq import heappop, heappush

import torch

from hetsim import effects as fx
from hetsim.cluster.model import Node
from hetsim.effects import Batch
from hetsim.sim.gradient_batching import Compute, Due, EarlyGradient, GradientBatcher
from hetsim.sim.rank_process import RankProcess
from hetsim.vector import Vector
from hetsim.workloads.task import Task

MOST_TOGETHER, MOST_ON_GPU = 64, 256
"""The maximum number of gradients that a CPU, or a GPU, computes together. More do not stay in a CPU's caches."""
AS_GOOD = 0.01
"""The maximum difference of the first gradient from itself computed alone, relative to its norm. Rounding may turn a ReLU on or off."""


class JointGradients(GradientBatcher):
    """Computes gradients under way with equal batch sizes together, which is faster for small models, with other last bits.

    The groups depend on the simulated times alone, so a run still repeats bit by bit. Gradients in micro-batches, and gradients without
    enough others, are computed one by one. So are all of a workload whose first gradient differs, or cannot be computed with others.

    Args:
        nodes: the cluster's nodes. A gradient of more samples than its node's `micro_batch` is computed alone.
        least: the smallest number of gradients that are computed together.
    """

    def __init__(self, task: Task, gradient: Compute, nodes: Sequence[Node], least: int) -> None:
        super().__init__(task, gradient)
        self._task = task
        self._nodes = nodes
        self._least, self._most = least, MOST_TOGETHER if task.device.in_cpu_memory else MOST_ON_GPU
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
            self._computed = {key: early for key, early in self._computed.items() if not early.process.lost}
            due = self._expected[number]
            self._compute_first(due, 1 if due is self._by_samples.get(0) else self._most)
        early = self._computed.pop(number)
        return early.gradient, early.loss

    def _compute_first(self, due: list[Due], most: int) -> None:
        """Compute the next gradients of this list together, or the first one alone."""
        group: list[Due] = []
        while due and len(group) < most:
            ended = heappop(due)
            del self._expected[ended[1]]
            if not ended[2].lost:
                group.append(ended)
        found = self._together(group)
        if not found:
            _, _, process, effect = group[0]
            found = [self._gradient(process.rank, effect.at, effect.batch)]
        for (_, number, process, _), (gradient, loss) in zip(group, found, strict=False):
            self._computed[number] = EarlyGradient(process, gradient, loss)
        for ended in group[len(found) :]:
            heappush(due, ended)
            self._expected[ended[1]] = due

    def _together(self, group: Sequence[Due]) -> list[tuple[Vector, float]]:
        """The gradients of this group, or of the first ones if there is no memory for more. None of them if they do not go together."""
        if len(group) < self._least:
            return []
        weights, batches = [effect.at for _, _, _, effect in group], [effect.batch for _, _, _, effect in group]
        try:
            if not self._is_tried:
                self._is_tried = True
                if not self._is_right(weights, batches):
                    self._give_up("the first one differs from itself computed alone")
                    return []
            return self._task.gradients(weights, batches)
        except torch.OutOfMemoryError:
            self._most = len(group) // 2
            return self._together(group[: self._most])
        except RuntimeError as error:
            self._give_up(str(error).partition("\n")[0])
            return []

    def _is_right(self, weights: Sequence[Vector], batches: Sequence[Batch]) -> bool:
        """Whether the first gradient is the same together and alone. Rounding as by TF32 would hide it in a deep model."""
        with self._task.device.in_full_precision():
            (together, _), *_ = self._task.gradients(weights[:2], batches[:2])
            alone, _ = self._task.gradient(weights[0], batches[0])
        return bool(torch.linalg.vector_norm(together - alone) <= AS_GOOD * torch.linalg.vector_norm(alone))

    def _give_up(self, reason: str) -> None:
        self._most = 1
        warnings.warn(f"backend.batched=auto: gradients are computed one by one, as {reason}", stacklevel=2)
