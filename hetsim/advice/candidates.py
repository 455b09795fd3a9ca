"""A candidate for an advice: a method, its split of the batch, and the nodes that take part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hetsim.advice.question import BASELINE, RATES, Question
from hetsim.config.methods import Method

ALLOCATIONS = ("dbs", "lb_bsp", "optperf", "static")
"""The allocations that are tried instead of equal batches. Each is also part of a method; others re-allocate once in each epoch."""
ALIKE = ("all_reduce", "overlapped_all_reduce", "parameter_server")
"""Coordinations that train as DDP does if they wait for all workers."""
SERVERLESS = (
    *("all_reduce", "overlapped_all_reduce", "one_step_delay_all_reduce", "accumulating_all_reduce", "local_steps", "streaming_steps"),
)
"""Coordinations without a server."""


@dataclass(frozen=True)
class Candidate:
    """A method, an allocation that replaces the method's own, and the nodes that are left out."""

    method: Method
    allocation: str | None = None
    leave_out: tuple[int, ...] = ()
    factor: float = 1.0
    """The factor on the method's learning rates."""

    @property
    def label(self) -> str:
        """The candidate in words, without its rates."""
        split = f", allocation {self.allocation}" if self.allocation else ""
        out = f", without {'nodes' if len(self.leave_out) > 1 else 'node'} {', '.join(map(str, self.leave_out))}" if self.leave_out else ""
        return self.method.name + split + out

    @property
    def synchronous(self) -> bool:
        """Whether the candidate trains as DDP does: each version is the mean gradient of one global batch, with any split."""
        choices = self.method.choices
        counts_alike = "allocation" not in choices or choices.get("weighting") == "per_sample"
        return choices["admission"] == "barrier" and choices["coordination"] in ALIKE and counts_alike

    @property
    def needs_server(self) -> bool:
        """Whether it has a parameter server."""
        return self.method.choices["coordination"] not in SERVERLESS

    @property
    def weighs_samples(self) -> bool:
        """Whether the candidate uses `weighting=per_sample`: the mean over all samples."""
        return self.allocation is not None and self.synchronous and "weighting" not in self.method.choices

    def words(self, *, rates: bool = True) -> list[str]:
        """The candidate's arguments, to type after the arguments for all candidates."""
        typed = [f"method={self.method.name}"]
        if self.allocation is not None:
            typed.append(f"allocation={self.allocation}")
            if self.weighs_samples:
                typed.append("weighting=per_sample")
        if self.leave_out:
            typed.append(f"++cluster.leave_out=[{','.join(map(str, self.leave_out))}]")
        if rates:
            typed += [f"{rate}={self.method.keys[rate] * self.factor:.4g}" for rate in self.scaled]
        return typed

    @property
    def scaled(self) -> tuple[str, ...]:
        """The rates to search: only the local steps' rate if the outer step is an average."""
        own = tuple(rate for rate in RATES if rate in self.method.keys)
        return own[1:] if self.method.family == "local steps" and len(own) > 1 else own

    def at(self, factor: float) -> Candidate:
        """The same candidate, with learning rates multiplied by this factor."""
        return replace(self, factor=factor)


def baseline(split: str | None = None) -> Candidate:
    """Plain DDP: equal batches on all nodes. `split` is `Question.even`."""
    from hetsim.config.methods import read
    from hetsim.trust.shipped import configs

    return Candidate(read(configs() / "method" / f"{BASELINE}.yaml"), split)


def with_allocations(question: Question, of: Sequence[Candidate]) -> Iterator[Candidate]:
    """Methods with equal batches, each with the other allocations."""
    if not question.typed("allocation"):
        for candidate in of:
            if "allocation" not in candidate.method.choices:
                yield from (replace(candidate, allocation=allocation) for allocation in ALLOCATIONS)
