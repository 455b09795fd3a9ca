"""The interface of a coordination: one program for each rank, and the weighted sum that makes a version."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import ClassVar

from hetsim.coordination.bookkeeping.contributions import part, ranks
from hetsim.coordination.bookkeeping.outstanding import Pushes
from hetsim.coordination.bookkeeping.regions import Regions
from hetsim.coordination.bookkeeping.timings import UnreportedTimings
from hetsim.coordination.plan import Plan
from hetsim.coordination.state import State
from hetsim.effects import Contribution, Node, PeerLost, Program, Regroup
from hetsim.policies.admission import Admission
from hetsim.policies.allocation.base import Allocation, Even
from hetsim.policies.compensation import Compensation, NoCompensation
from hetsim.policies.compression import Compression, NoCompression
from hetsim.policies.weighting import Discount, NoDiscount, PerWorker, Weighting
from hetsim.vector import Vector, operations_of_sum, scaled, weighted_sum


@dataclass(frozen=True, kw_only=True)
class Coordination(ABC):
    """A training method: a program for each rank, and the policies that make its decisions.

    The policies are `admission`, `allocation`, `weighting`, `discount`, `compensation` and `compression`. A group of c contributions is
    applied as (1/c) Σ w_i d(τ_i) g_i.
    """

    admission: Admission
    allocation: Allocation = field(default_factory=Even)
    weighting: Weighting = field(default_factory=PerWorker)
    discount: Discount = field(default_factory=NoDiscount)
    compensation: Compensation = field(default_factory=NoCompensation)
    compression: Compression = field(default_factory=NoCompression)

    keeps: ClassVar[tuple[type, ...]] = (Contribution, Pushes, UnreportedTimings)
    """The classes that a checkpoint may contain besides the states of the policies: what programs keep in `Node.own` and in `State`."""
    needs_server: ClassVar[bool]
    """Whether there is a server, on the rank after the last worker."""
    regroups: ClassVar[bool] = True
    """Whether all active ranks restart from the last commit when a worker crashes, joins or returns.

    If not, the server's program handles it.
    """
    takes_local_steps: ClassVar[bool] = False
    """Whether a worker may take local steps, with the local optimizer."""
    trains_locally: ClassVar[bool] = False
    """Whether the local optimizer trains, and the optimizer of versions merges what workers have trained alone."""
    gives_up_gradients: ClassVar[bool] = False
    """Whether a worker may give up a gradient: whether its program asks for an `Attempt`."""
    has_local_servers: ClassVar[bool] = False
    """Whether each region of workers has a server of its own, on the ranks after the server's, with the regional optimizer."""
    may_leave_out: ClassVar[bool] = False
    """Whether a worker may have no samples in a global batch, so that it takes no part in this version."""
    aligns_epochs: ClassVar[bool] = True
    """Whether the coordination allows `epochs=aligned`, where workers wait for each other at the end of each epoch of their pools.

    If not, `epochs=aligned` is refused, because a worker with an empty range ends.
    """
    same_on_every_rank: ClassVar[bool] = False
    """Whether all ranks yield the same effects in the same order, and use the number of their rank only to pick their range.

    If so, a backend may run all ranks as one. A rank whose range is empty may leave out the gradient and its local
    step. The value is not inherited: each class has to set it, as a base class cannot know what a subclass does.
    """

    begins_at_commits: ClassVar[bool] = False
    """Whether a rank's program may end at any commit and begin again from its state and `Node.own`, with the same effects.

    Nothing may be under way at a commit. The value is not inherited.
    """

    @property
    def needs_local_steps(self) -> str | None:
        """Why this coordination needs a local optimizer; None if it does not."""
        return None

    def regions(self, racks: tuple[int, ...]) -> Regions | None:
        """The local server of each worker; None without local servers.

        Args:
            racks: the outermost rack of each worker, in rank order.

        Raises:
            ValueError: these racks cannot serve as regions.
        """
        return None

    def remark(self, last: State) -> str | None:
        """A remark for the user about a run, for example that a phase never began; None without a remark.

        Args:
            last: the state in which the run ended.
        """
        return None

    @property
    def num_ahead(self) -> int:
        """How many gradients a worker may still compute after the last commit."""
        return 1

    @property
    def overlapped_bytes(self) -> int | None:
        """`bucket_bytes` of the coordination's GradientSums, whose buckets are made before the run. None if it yields no GradientSum."""
        return None

    def check(self, num_workers: int) -> None:  # noqa: B027
        """Check that the policies fit together.

        Args:
            num_workers: N.

        Raises:
            ValueError: the policies do not fit together. The message gives the reason.
        """

    def relies_on_scale(self, num_workers: int) -> bool:
        """Whether every weight applies to a single gradient. Such weights have no effect with Adam, which ignores the scale.

        Args:
            num_workers: N.
        """
        return False

    def initial(self, plan: Plan, weights: Vector, profile: Sequence[Contribution] = ()) -> State:
        """The state before the first step.

        Args:
            plan: the workers, the global batch and the positions.
            weights: the initial weights, a flat vector.
            profile: the gradients of each worker that were measured before the run, if any.
        """
        allocation = self.allocation.initial_within(plan.num_workers, plan.batch_size, plan.max_samples)
        return State(
            weights=weights,
            next_sample=plan.first,
            allocation=self.allocation.observe_profile(allocation, profile) if profile else allocation,
            compensation=self.compensation.initial(weights, plan.num_workers),
            admission=self.admission.initial(plan.num_workers),
        )

    def with_recovery(self, node: Node, plan: Plan, state: State | None, last: State) -> Program[State | None]:
        """Run this rank's program, and restart it from the last commit whenever the active ranks change.

        Args:
            node: the rank.
            plan: the workers, the global batch and the positions.
            state: the state to begin with. None joins a running run: the rank begins with the regroup, or at `last` if no regroup is
                needed.
            last: the state of the last commit.
        """
        return self.restart_on_change(node, plan, state) if self.regroups else self.program(node, plan, last if state is None else state)

    def restart_on_change(self, node: Node, plan: Plan, state: State | None) -> Program[State | None]:
        """Run the program, and restart it from the last commit after each change of the active ranks.

        Args:
            node: the rank.
            plan: the workers, the global batch and the positions.
            state: the state to begin with; None begins with a regroup.
        """
        if len(plan.absent) == plan.num_workers:  # a server waits for the first worker
            state = None
        while True:
            try:
                if state is None:
                    regrouped = yield from Regroup()
                    plan, state = replace(plan, absent=regrouped.absent), regrouped.state
                return (yield from self.program(node, plan, state))
            except PeerLost:
                state = None

    @abstractmethod
    def program(self, node: Node, plan: Plan, state: State) -> Program[State | None]:
        """The program of one rank. If the leader dropped samples after the last commit, its program may return its last state.

        Args:
            node: the rank.
            plan: the workers, the global batch and the positions.
            state: the state to begin with.
        """

    def factors(self, group: Sequence[Contribution], plan: Plan) -> list[float]:
        """w_i d(τ_i) / c of each contribution of a group of c.

        Args:
            group: the contributions.
            plan: the workers and the global batch.
        """
        fair_share = self.admission.fair_share(group, plan.batch_size, plan.num_workers)
        weights = self.weighting.weights(group, fair_share)
        return [w * self.discount.factor_among(c.staleness, plan.num_workers) / len(group) for w, c in zip(weights, group, strict=True)]

    def grouped(self, group: Sequence[Contribution]) -> Sequence[Contribution]:
        """The contributions that have their own factor: all of them, unless a subclass combines those of one rank.

        Args:
            group: the contributions.
        """
        return group

    def factor(self, group: Sequence[Contribution], plan: Plan, rank: int) -> float:
        """A rank's factor in a group.

        Args:
            group: the contributions.
            plan: the workers and the global batch.
            rank: the rank.
        """
        group = self.grouped(group)
        return part(group, self.factors(group, plan), rank)

    def weights(self, group: Sequence[Contribution], plan: Plan) -> list[tuple[int, float]]:
        """The factor of each rank's gradient, for a group that makes a version.

        Args:
            group: the contributions.
            plan: the workers and the global batch.
        """
        if len(group) == 1 and self.counts_alike:  # asked for every gradient of an asynchronous run
            return [(group[0].rank, 1.0)]
        group = self.grouped(group)
        if self.counts_alike and group:
            return [(rank, 1.0 / len(group)) for rank in ranks(group)]
        group = tuple(group)  # whose contributions may be made when they are read
        return [(c.rank, factor) for c, factor in zip(group, self.factors(group, plan), strict=True)] if group else []

    @cached_property
    def counts_alike(self) -> bool:
        """Whether every contribution of a group of c has the factor 1/c."""
        return type(self.weighting) is PerWorker and type(self.discount) is NoDiscount and type(self).factors is Coordination.factors

    def term(self, g: Vector, group: Sequence[Contribution], plan: Plan, rank: int) -> Vector:
        """A rank's term of (1/c) Σ w_i d(τ_i) g_i. For phantoms, the factor is not computed.

        Args:
            g: the rank's gradient, a flat vector.
            group: the contributions.
            plan: the workers and the global batch.
            rank: the rank.
        """
        return scaled(g, lambda: self.factor(group, plan, rank))

    def total(self, group: Sequence[Contribution], plan: Plan) -> Vector:
        """(1/c) Σ w_i d(τ_i) g_i, a flat vector.

        Args:
            group: the contributions, with their gradients.
            plan: the workers and the global batch.
        """
        return weighted_sum([c.gradient for c in group], partial(self.factors, group, plan))

    def num_operations(self, group: Sequence[Contribution]) -> int:
        """The number of operations on whole vectors by which a server makes `total`.

        Args:
            group: the contributions.
        """
        return operations_of_sum(len(group))

    def only(self, why: str, **kinds: type) -> None:
        """Refuse policies that would have no effect, or make no sense, in this coordination.

        Args:
            why: the end of the sentence, after the name of the policy.
            kinds: the allowed class of each policy.

        Raises:
            ValueError: a policy is of another class.
        """
        for axis, kind in kinds.items():
            if not isinstance(policy := getattr(self, axis), kind):
                raise ValueError(f"{axis} is {type(policy).__name__}, but {why}")
