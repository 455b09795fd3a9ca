"""The comparison of the gradients of several processes with those of one, and the line of advice if they differ."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hetsim.gradcheck.plan import windows

Record = Mapping[str, Any]
HALF = 0.02
"""The largest difference that may come from a reduction in 16 bits."""
MARGIN = 10
"""Gradients of other samples must differ by at least this many times the difference of the gradients that are compared."""
COARSE = 1e-5
"""A rounding above this one may hide a fault. Gradients are then right only if they differ by a few roundings."""
FLOOR = 30
"""The part of the gradient's norm, in square roots of a rounding, below which a parameter's rounding errors may be as large as it."""
RIGHT = "the gradients are right"
WRONG = "the gradients are not those of one process: "
NOTHING = "this proves nothing, because "
UNREDUCED = (
    "each rank steps along its own gradient. Call the DistributedDataParallel, not its .module, leave no_sync() before the last backward "
    "pass of a step, or all-reduce the gradients"
)
UNEQUAL = "the ranks train different weights from the beginning. Seed them alike, or broadcast the weights of rank 0"
SAME = (
    "all ranks draw the same samples. Give the DataLoader a DistributedSampler, and drop shuffle=. Only ranks that compute parts of "
    "one model (tensor parallelism) should have the same"
)
SUMMED = (
    "they are {n} times as large, as many as there are processes. Ranks' gradients are added up and not averaged, or the loss is the sum "
    "of all ranks' already"
)
SHRUNK = (
    "they are 1/{n} of them, for {n} processes. The loss is a sum over samples, or it is divided by a number of all ranks already: the "
    "ranks' gradients are averaged in addition, so multiply it by the number of processes"
)
SCALED = "they are {c:.4g} times as large in this step, and have the right direction. Look for what the loss or the gradient is divided by"
CLIPPED = (
    "each rank clips its own gradient before the ranks' gradients are reduced. Clip after the reduction: under DistributedDataParallel "
    "after the last backward pass, and not in no_sync()"
)
NORMALISED = (
    "batch norm takes the mean and variance of each rank's own samples. Use SyncBatchNorm if this matters; plain DDP has this difference"
)
FROZEN = "With its statistics frozen, "
STEPS_NOT_TOKENS = (
    "the gradient depends on which sample is in which of the {k} batches of a step, though not on the ranks. Divide the loss by the number "
    "of samples or tokens of the whole step, and not by its number of batches"
)
MEANS = (
    "they are no mean over the samples of all ranks. If the loss is a mean over tokens, boxes or other things of which ranks have unequal "
    "numbers, divide its sum by the number on all ranks, and multiply it by the number of processes. If it compares the samples of a batch "
    "with each other, gather them"
)
STATED = (
    "what team.share gets as one number is no mean over this rank's samples. Pass unreduced losses (reduction='none'), or leave out "
    "verified=True: then shares stay even"
)
COMPRESSED = ". So small a difference may also be the rounding of a reduction in 16 bits, as by fp16_compress_hook"
RANDOM = "random numbers are drawn between a batch and its step, and one process draws others. Turn them off for the check"
NO_LOADER = (
    "the script draws samples without a DataLoader, so one process cannot get those of all ranks. Take a DataLoader for the check, whose "
    "dataset is the same on all ranks"
)
COARSENESS = "the difference may be rounding. Compute in float32 for the check, without autocast and TF32"
ALIKE = "the samples of one rank alone give the same gradient. Let the ranks have samples that differ more"
ZERO = "all gradients are zero: the loss does not depend on the weights"
NOT_FINITE = "the gradients are not finite in one process either"


@dataclass(frozen=True)
class Verdict:
    """The result in words, whether the gradients are right, and whether the cause of a difference is known."""

    text: str
    right: bool
    is_explained: bool = True


def distance(ones: Sequence[torch.Tensor], others: Sequence[torch.Tensor], epsilon: float) -> float:
    """The largest ‖one − other‖ / ‖other‖ of a parameter. Norms far below that of all parameters count as larger."""
    norms = [float(other.double().norm()) for other in others]
    least = math.hypot(*norms) * min(1.0, FLOOR * epsilon**0.5)
    differences = [float((one.double() - other.double()).norm()) for one, other in zip(ones, others, strict=True)]
    pairs = zip(differences, (max(norm, least) for norm in norms), strict=True)
    return max((difference / norm if norm else float(difference > 0) for difference, norm in pairs), default=0.0)


def factor(ones: Sequence[torch.Tensor], others: Sequence[torch.Tensor], bound: float) -> float:
    """By which `others` must be multiplied to be `ones`; 0 if there is no such number."""
    one, other = (torch.cat([part.double() for part in parts]) for parts in (ones, others))
    value = float(one.dot(other)) / (float(other.dot(other)) or math.inf)
    return value if float((one - value * other).norm()) <= bound * float(one.norm()) else 0.0


class Comparison:
    """The records of several processes, and of one on the same samples."""

    def __init__(self, ranks: Sequence[Record]) -> None:
        self.ranks = ranks
        self.steps = ranks[0]["steps"]
        self.windows = windows(ranks[0])
        self.epsilon: float = max(record["epsilon"] for record in ranks)
        self._has_placebo = not all(map(self.windows.may_contain_one_rank, self.steps))

    @property
    def bound(self) -> float:
        """The largest relative difference that may be rounding."""
        return float(self.epsilon**0.5)

    def fault(self) -> Verdict | None:
        """The fault that the records of several processes show by themselves."""
        for steps in zip(*(record["steps"] for record in self.ranks), strict=False):
            for name, fault in (("weights", UNEQUAL), ("gradient", UNREDUCED)):
                if any(self._distance(step, steps[0], name) > self.bound for step in steps[1:]):
                    return Verdict(f"{self._headline()}\n{WRONG}{fault}", False)
        trained = {step["loader"] for step in self.steps} - {None, *self.ranks[0]["divided"]}
        drawn = [[sorted(batch) for name in trained for batch in record["loaders"].get(name, [])] for record in self.ranks]
        if len({sample for batch in drawn[0] for sample in batch}) > 1 and all(batches == drawn[0] for batches in drawn):
            return Verdict(f"{self._headline()}\n{WRONG}{SAME}", False)
        return None

    def verdict(self, alone: Record, ordered: Record | None = None) -> Verdict:
        """What the gradients show. Raises ValueError if they cannot be compared.

        Args:
            alone: the record of one process with a mixed plan.
            ordered: that of one with a plan that is not mixed, if it is known.
        """
        self.epsilon = max(self.epsilon, alone["epsilon"])
        pairs = self._pairs(alone)
        errors = [self._distance(step, other) for step, other in pairs]
        error = max((error for error in errors if not math.isnan(error)), default=math.nan)
        if not math.isfinite(error):
            return Verdict(f"{self._headline()}\n{NOTHING}{NOT_FINITE}", False)
        worst = self.steps.index(pairs[errors.index(error)][0])
        lines = [
            self._headline(),
            f"  their gradients differ by {error:.2g} in step {worst + 1} (relative; a rounding is {self.epsilon:.2g})",
        ]
        one_rank = self._error_of_one_rank(alone)
        if one_rank is not None:
            lines.append(f"  with the samples of one rank, they would differ by {one_rank:.2g}")
        is_explained = True
        if error > self.bound:
            if ordered is not None:
                pairs = self._pairs(ordered, mixed=False)
            conclusion, is_explained = self._cause(pairs, is_ordered=ordered is not None)
        elif self.epsilon > COARSE and error > 4 * self.epsilon:
            conclusion = NOTHING + COARSENESS
        elif not any(step["norm"] for step, _ in pairs):
            conclusion = NOTHING + ZERO
        elif one_rank is not None and one_rank < max(MARGIN * error, self.epsilon):
            conclusion = NOTHING + ALIKE
        else:
            conclusion = RIGHT
        return Verdict("\n".join([*lines, conclusion]), conclusion == RIGHT, is_explained)

    def _headline(self) -> str:
        loader, end = self.steps[0]["loader"], self.steps[0]["batches"]
        counts = [sum(map(len, record["loaders"].get(loader, [])[max(0, end - self.windows.size) : end])) for record in self.ranks]
        samples = f" with {', '.join(map(str, counts))} samples" if loader and loader not in self.ranks[0]["unbatched"] else ""
        several = f", in {self.windows.size} batches for each step" if self.windows.size > 1 else ""
        number = len(self.steps[0]["gradient"])
        return f"{len(self.steps)} steps of {len(self.ranks)} processes{samples}{several}, and of one with all; {number} parameters:"

    def _distance(self, step: Record, other: Record, name: str = "gradient") -> float:
        if [len(tensor) for tensor in step[name]] != [len(tensor) for tensor in other[name]]:
            raise ValueError("an optimizer has other parameters in one process than in another: build the model in the same way in each")
        return distance(step[name], other[name], self.epsilon)

    def _pairs(self, alone: Record, *, mixed: bool = True) -> list[tuple[Record, Record]]:
        """The steps that both took at the same weights, and on the same samples. Raises ValueError if there are none."""
        by_key = {step["key"]: step for step in alone["steps"]}
        self._check_counts(by_key)
        follows = [True, *(step["key"] in by_key for step in self.steps)]
        pairs = [
            (step, by_key[step["key"]])
            for step, is_next in zip(self.steps, follows, strict=False)
            if is_next and step["key"] in by_key and not (mixed and self._may_contain_one_rank(step))
        ]
        pairs = [(step, other) for step, other in pairs if self._distance(step, other, "weights") <= self.bound]
        if not pairs:
            raise ValueError("one process has other weights than several, although it loads theirs: do not change them between two steps")
        self._check_samples(pairs[-1][0], alone)
        return pairs

    def _check_samples(self, step: Record, alone: Record) -> None:
        """Raise ValueError if a Team of one process had other samples than those of several, until this step."""
        ours, its = (
            {sample for record in records for batch in record["loaders"].get(step["loader"], [])[: step["batches"]] for sample in batch}
            for records in (self.ranks, [alone])
        )
        if step["loader"] in alone["divided"] and not its <= ours:
            raise ValueError("a Team draws other samples in one process than in several: give it the same dataset, batch_size and seed")

    def _check_counts(self, alone: Mapping[Any, Record]) -> None:
        """Raise ValueError if one process steps at other places. `alone` are its steps by their keys."""
        several, one = (Counter(number for _, number, _ in keys) for keys in ((step["key"] for step in self.steps), alone))
        if 2 * len(several.keys() & one.keys()) <= len(several):
            places = (", ".join(map(str, sorted(counts)[:3])) for counts in (several, one))
            raise ValueError(
                "several processes step after {}, … batches, and one after {}, …: let the batches of a step not depend on the number of "
                "processes".format(*places)
            )
        for number in several.keys() & one.keys():
            few, many = sorted((several, one), key=lambda counts: counts[number])
            if few[number] < many[number] and number < max(few):  # the fewer ones do not end there
                raise ValueError(
                    f"several processes make {several[number]} steps with a batch, and one makes {one[number]}: let the number of steps "
                    "not depend on the size of a batch"
                )

    def _may_contain_one_rank(self, step: Record) -> bool:
        return self._has_placebo and self.windows.may_contain_one_rank(step)

    def _error_of_one_rank(self, alone: Record) -> float | None:
        by_key = {step["key"]: step for step in alone["steps"]}
        last = [step for step in self.steps if self._may_contain_one_rank(step) and step["batches"] == self.windows.stop]
        return max((self._distance(step, by_key[step["key"]]) for step in last if step["key"] in by_key), default=None)

    def _cause(self, pairs: Sequence[tuple[Record, Record]], *, is_ordered: bool) -> tuple[str, bool]:
        """The line of advice for a difference, and whether the cause is known. `is_ordered`: no samples of the pairs are mixed."""
        wrong = [(step, alone) for step, alone in pairs if not self._distance(step, alone) <= self.bound]
        if is_ordered and not wrong:
            return WRONG + STEPS_NOT_TOKENS.format(k=self.windows.size), True
        factors = [factor(step["gradient"], alone["gradient"], self.bound) for step, alone in pairs]
        if all(factors):
            n = len(self.ranks)
            for value, sentence in ((n, SUMMED), (1 / n, SHRUNK)):
                if all(math.isclose(one, value, rel_tol=self.bound) for one in factors):
                    return WRONG + sentence.format(n=n), True
            return WRONG + SCALED.format(c=max(factors, key=lambda one: abs(math.log(abs(one))))), True
        norms = [alone["norm"] for _, alone in pairs]
        are_equal = len(pairs) > 1 and max(norms) <= min(norms) * (1 + 1e-3)
        if are_equal and all(step["norm"] < alone["norm"] * (1 - self.bound) for step, alone in wrong):
            return WRONG + CLIPPED, True
        if any(step["random"] or alone["random"] for step, alone in wrong):
            return NOTHING + RANDOM, True
        if self.steps[0]["loader"] is None:
            return NOTHING + NO_LOADER, True
        if any(record["has_batch_norm"] for record in self.ranks):
            return WRONG + NORMALISED, False
        is_small = all(self._distance(step, alone) < HALF for step, alone in wrong)
        advice = STATED if self.steps[0]["loader"] in self.ranks[0]["divided"] else MEANS
        return WRONG + advice + COMPRESSED * is_small, True
