"""MindFlayer SGD: each worker makes several trials with a time limit. A version uses the trials that ended in time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, ClassVar

from hetsim import checks
from hetsim.coordination.async_local_steps import cut
from hetsim.coordination.bookkeeping.outstanding import Holding, Outstanding, Pushes
from hetsim.coordination.local_steps import MAX_PERIOD
from hetsim.coordination.parameter_server import ParameterServer
from hetsim.coordination.plan import Plan
from hetsim.coordination.state import State
from hetsim.effects import Attempt, Batch, Contribution, Message, Node, Program, Receive, Send
from hetsim.policies.admission import Barrier, Decision
from hetsim.policies.weighting import PerWorker
from hetsim.vector import Vector


@dataclass(slots=True, unsafe_hash=True)
class TrialMean(Contribution):
    """The mean gradient of a worker's trials. `num_gradients` of its `num_trials` trials ended in time. The mean is zero if none did."""

    num_trials: int = 0
    num_samples_cut: int = 0
    """The samples of the round that are in no gradient."""


class TrialMeans(list[Contribution]):
    """The contributions to a version, and the expected number of trials in time, Σ B_i p_i."""

    def __init__(self, tried: Sequence[Contribution], expected: float) -> None:
        super().__init__(tried)
        self.expected = expected


@dataclass(frozen=True, kw_only=True)
class Trials(ParameterServer):
    """W ← W − η Σ g / Σ_i B_i p_i over all gradients that ended within t_i seconds, from B_i trials of each worker: arXiv 2410.04285.

    All trials of a version use its weights. A worker gives up a trial that takes longer than t_i, and uses a further trial for the same
    samples. Samples without a trial are discarded. p_i = P(T_i ≤ t_i) is given or measured: the fraction of the worker's trials so far that
    ended in time. One trial without a limit is synchronous SGD.
    """

    gives_up_gradients: ClassVar[bool] = True
    keeps: ClassVar[tuple[type, ...]] = (*ParameterServer.keeps, TrialMean)

    trials: int | Sequence[int]
    """B_i: one number for all workers, or one for each."""
    within: float | Sequence[float] | None = None
    """t_i in seconds: one number for all workers, or one for each; None: no limit."""
    success: float | Sequence[float] | None = None
    """p_i: one number for all workers, or one for each; None: measured."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check("trials", self.trials, lambda key, value: checks.whole(key, value, most=MAX_PERIOD))
        _check("within", self.within, checks.seconds)
        _check("success", self.success, _check_probability)
        why = "a version is of the trials of all workers, which count alike: leave this axis as the method sets it"
        self.only(why, admission=Barrier, weighting=PerWorker)

    def check(self, num_workers: int) -> None:
        super().check(num_workers)
        for key in ("trials", "within", "success"):
            value = getattr(self, key)
            if isinstance(value, Sequence) and len(value) != num_workers:
                raise ValueError(
                    f"coordination.{key} has {len(value)} numbers, but the cluster has {num_workers} workers: give one for each"
                )

    @property
    def num_ahead(self) -> int:
        return self.trials if isinstance(self.trials, int) else max(self.trials)

    def initial(self, plan: Plan, weights: Vector, profile: Sequence[Contribution] = ()) -> State:
        """The state before the first step. No trial has been made."""
        return super().initial(plan, weights, profile).evolve(measured={})

    def worker(self, node: Node, plan: Plan, state: State) -> Program[None]:
        """Pull weights and a range; try each part of the range until a trial ends in time; push the mean; repeat until a range is empty."""
        server = node.server
        within = inf if self.within is None else _value_of(self.within, node.rank)
        pushes = node.own.get("compression") or Pushes(self.compression.initial(state.weights))
        packing = pushes.resumed(state.outstanding)
        yield from Send(server)
        message = yield from Receive(server)
        while message.batch:
            batches = cut(message.batch, message.share)
            payload = mean = message.payload - message.payload
            seconds = loss = 0.0
            ended = samples = 0
            for _ in batches:
                computed = yield from Attempt(message.payload, batches[ended], message.version, within)
                if computed is not None:
                    ended += 1
                    samples += computed.samples
                    mean = mean + (computed.gradient - mean) * (1 / ended) if ended > 1 else computed.gradient
                    seconds += (computed.seconds - seconds) / ended
                    loss += (computed.loss - loss) / ended
            if ended:
                packing, payload = self.compression.pack(packing, mean, plan.num_parameters)
                if packing is not None:
                    node.own["compression"] = pushes = pushes.appended(message.batch, packing, num_outstanding=1)
            header = {"trials": len(batches), "ended": ended, "samples": samples}
            yield from Send(server, payload, version=message.version, seconds=seconds, loss=loss, **header)
            computed = payload = mean = None
            message = yield from Receive(server)

    def next_range(self, plan: Plan, state: State, outstanding: Outstanding, rank: int) -> Batch:
        """The positions of all trials. Each trial takes the worker's share."""
        return outstanding.take(plan, rank, self.allocation.shares(state.allocation)[rank], _value_of(self.trials, rank))

    def details(self, plan: Plan, state: State, rank: int) -> Mapping[str, Any]:
        """The number of samples in a trial."""
        return {"share": self.allocation.shares(state.allocation)[rank]}

    def contribution(self, message: Message, held: Holding, plan: Plan, state: State) -> Contribution:
        """The mean of the trials that ended in time. These trials cover the first samples of the range."""
        c = super().contribution(message, held, plan, state)
        return TrialMean(
            c.rank, replace(c.batch, samples=message.samples), c.version, c.seconds, c.loss, c.staleness, c.gradient, c.used,
            num_gradients=message.ended, num_trials=message.trials, num_samples_cut=c.batch.samples - message.samples,
        )  # fmt: skip

    def correct_group(self, plan: Plan, state: State, group: tuple[Contribution, ...]) -> tuple[Any, list[Contribution]]:
        """The contributions, with Σ B_i p_i. A worker without any trial in time gets the mean loss of the others."""
        compensation, corrected = super().correct_group(plan, state, group)
        losses = [c.loss for c in corrected if c.num_gradients]
        corrected = [c if c.num_gradients or not losses else replace(c, loss=sum(losses) / len(losses)) for c in corrected]
        measured = count_trials(state.measured, corrected)
        expected = sum(c.num_trials * self.probability(measured, c.rank) for c in corrected if isinstance(c, TrialMean))
        return compensation, TrialMeans(corrected, expected)

    def probability(self, measured: Mapping[int, tuple[int, int]], rank: int) -> float:
        """p_i."""
        if self.success is not None:
            return float(_value_of(self.success, rank))
        ended, trials = measured[rank]
        return ended / trials

    def factors(self, group: Sequence[Contribution], plan: Plan) -> list[float]:
        """m_i / Σ B_j p_j, where m_i trials of worker i ended in time."""
        expected = group.expected if isinstance(group, TrialMeans) else sum(c.num_gradients for c in group)
        return [c.num_gradients / expected if expected else 0.0 for c in group]

    def observe(self, plan: Plan, state: State, decision: Decision) -> State:
        """The state after the allocation has observed a mean trial of each worker. It also counts discarded samples, and trials in time."""
        seen = decision.apply + decision.drop
        steps = [replace(c, batch=replace(c.batch, samples=round(c.samples / c.num_gradients))) for c in seen if c.num_gradients]
        allocation = self.allocation.observe(state.allocation, steps, plan.epoch(state.num_samples))
        discarded = sum(c.num_samples_cut for c in seen if isinstance(c, TrialMean)) + sum(c.samples for c in decision.drop)
        num_samples_discarded = state.num_samples_discarded + discarded
        return state.evolve(allocation=allocation, num_samples_discarded=num_samples_discarded, measured=count_trials(state.measured, seen))

    def remark(self, last: State) -> str | None:
        """A warning that lists the workers whose trials were all given up."""
        never = [rank for rank, (ended, _) in sorted((last.measured or {}).items()) if not ended]
        if not never:
            return super().remark(last)
        ranks = ", ".join(map(str, never[:8])) + (", …" if len(never) > 8 else "")
        return (
            f"no trial of rank {ranks} ended within coordination.within, so its samples have had no part in the run: give it more seconds"
        )


def count_trials(measured: Mapping[int, tuple[int, int]], group: Sequence[Contribution]) -> dict[int, tuple[int, int]]:
    """For each worker, how many of its trials ended in time, and its total number of trials, including these contributions."""
    counts = dict(measured)
    for c in group:
        if isinstance(c, TrialMean):
            ended, trials = counts.get(c.rank, (0, 0))
            counts[c.rank] = ended + c.num_gradients, trials + c.num_trials
    return counts


def _value_of(value: Any, rank: int) -> Any:
    return value[rank] if isinstance(value, Sequence) else value


def _check(name: str, value: Any, check: Callable[[str, Any], object]) -> None:
    key = f"coordination.{name}"
    if value is None and name != "trials":
        return
    for number in value if isinstance(value, list | tuple) else [value]:
        check(key, number)


def _check_probability(key: str, value: Any) -> None:
    if checks.number(key, value) > 1:
        raise ValueError(f"{key} is a probability, at most 1, not {value!r}")
