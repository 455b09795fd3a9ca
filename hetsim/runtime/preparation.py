"""The preparation of a run, for every world: plan, first or resumed state, profile, stream positions, and stop rule."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import cached_property

from hetsim.cluster.compute_times import ServiceTimes, StepTimes
from hetsim.coordination.bookkeeping.pools import Cursors
from hetsim.coordination.plan import Plan
from hetsim.coordination.state import State
from hetsim.effects import Batch
from hetsim.runtime.buckets import buckets_of
from hetsim.runtime.experiment import Experiment, Optimizers
from hetsim.runtime.profiling import Profile
from hetsim.runtime.rank import Checkpoint, RankState
from hetsim.runtime.stop import StopRule
from hetsim.vector import Vector
from hetsim.workloads.task import Bucket, Optimizer, Task, in_passes

OF_POLICIES = ("allocation", "compensation", "admission", "measured")
"""The fields of a State that begin anew with another number of workers. All others continue."""


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """The start of a run. It is the same in every world and on all ranks."""

    experiment: Experiment
    task: Task
    optimizers: Optimizers
    plan: Plan
    profile: Profile
    checkpoint: Checkpoint
    """The state and the ranks' states at the beginning of the run."""
    stop: StopRule

    @property
    def start(self) -> State:
        """The state at the beginning of the run."""
        return self.checkpoint.state

    @cached_property
    def buckets(self) -> Callable[[int], tuple[Bucket, ...]]:
        """A function of the bucket size in bytes: the buckets of a vector that is reduced during the backward pass."""
        return buckets_of(self.task)

    def epoch(self, state: State) -> int:
        """The number of whole passes over the data in the samples that are applied in this state."""
        return state.num_samples // self.task.num_samples

    def rank_state(self, rank: int) -> RankState:
        """A rank's state at the beginning of the run: from the checkpoint, or a new one at the checkpoint's version."""
        for saved in self.checkpoint.ranks:
            if saved.rank == rank:
                return saved.snapshot()
        start = self.start
        state = RankState(rank=rank)
        self.restart(state, start, optimizer=self.optimizer_of(rank).initial())
        if rank == self.experiment.num_workers:
            state.num_updates = start.version
        return state

    def restart(self, rank: RankState, state: State, *, optimizer: object) -> None:
        """Restart a rank from a commit, with the optimizer's memory at that commit."""
        local = self.optimizers.local
        local_memory = None if local is None else local.initial()
        rank.restart(version=state.version, epoch=self.epoch(state), optimizer=optimizer, local_optimizer=local_memory)

    def gradient(self, rank: int, at: Vector, batch: Batch) -> tuple[Vector, float]:
        """A worker's mean gradient and mean loss, computed in passes if its node has a `micro_batch`."""
        return in_passes(self.task, at, batch, self.experiment.cluster.nodes[rank].micro_batch)

    def step_times(self, rank: int, *, num_gradients: int) -> StepTimes:
        """The times of a worker's gradients, after those of an earlier run."""
        times = StepTimes(self.experiment.cluster.nodes[rank], seed=self.experiment.seed, rank=rank)
        if num_gradients:
            times.skip(num_gradients)
        return times

    def optimizer_of(self, rank: int) -> Optimizer:
        """The optimizer that takes the steps of `Update` on a rank."""
        local_server = rank > self.experiment.num_workers
        return self.optimizers.regional if local_server and self.optimizers.regional is not None else self.optimizers.main

    def service_times(self, server: RankState) -> ServiceTimes:
        """The times of a server's updates, from its current stream position."""
        times = ServiceTimes(self.experiment.cluster, seed=self.experiment.seed, number=server.rank - self.experiment.num_workers)
        times.skip(server.num_updates)
        return times


def prepare(
    experiment: Experiment,
    task: Task,
    optimizers: Optimizers,
    *,
    profile: Callable[[], Profile],
    checkpoint: Checkpoint | None = None,
    absent: Collection[int] = (),
) -> Preparation:
    """Prepare a run from its beginning or from a checkpoint, while these workers are absent.

    `profile()` measures the workers for the allocation. It is not called if the run resumes from a checkpoint.
    """
    plan = replace(experiment.plan(task), absent=frozenset(absent))
    measured = Profile()
    if checkpoint is None:
        if experiment.coordination.allocation.repetitions:
            measured = profile()
        timings = measured.timings(experiment.profile_batches)
        checkpoint = Checkpoint(state=experiment.coordination.initial(plan, task.initial(), timings))
    else:
        checkpoint = fit_checkpoint(checkpoint, experiment, plan, optimizers)
    prepared = Preparation(
        experiment=experiment,
        task=task,
        optimizers=optimizers,
        plan=plan,
        profile=measured,
        checkpoint=checkpoint,
        stop=StopRule.of(
            experiment.budget,
            needs_server=experiment.coordination.needs_server,
            samples_per_epoch=task.num_samples,
            when_diverged=experiment.stop_when_diverged,
        ),
    )
    if (overlapped := experiment.coordination.overlapped_bytes) is not None:
        prepared.buckets(overlapped)  # now, not in the first step
    return prepared


def fit_checkpoint(checkpoint: Checkpoint, experiment: Experiment, plan: Plan, optimizers: Optimizers) -> Checkpoint:
    """The checkpoint for a run whose samples belong to the same workers. Raises ValueError if they belong to others.

    Some pools, such as pools of files, do not depend on the number of workers, and allow another number. Then weights, the optimizer's
    memory and cursors continue, and all policies start anew. The pools of removed workers are closed.
    """
    state = checkpoint.state
    cursors = state.next_sample
    num_workers, with_server = experiment.num_workers, experiment.coordination.needs_server
    if (plan.pools is None) == isinstance(cursors, Cursors):
        earlier, now = ("shared", "owned") if plan.pools is not None else ("owned", "shared")
        raise ValueError(f"data={now} cannot resume a run with data={earlier}: type data={earlier}")
    if experiment.regions is not None:
        if checkpoint.ranks and len(checkpoint.ranks) != experiment.num_ranks:
            raise ValueError(
                f"the checkpoint is of a run of {len(checkpoint.ranks)} ranks, and this one has {experiment.num_ranks}: a run with local "
                "servers is resumed with as many workers and regions"
            )
        return checkpoint
    if not isinstance(cursors, Cursors):
        num_before = len(checkpoint.ranks) - with_server if checkpoint.ranks else num_workers
        return checkpoint if num_before == num_workers else change_num_workers(checkpoint, experiment, plan, optimizers, num_before)
    num_before = len(checkpoint.ranks) - with_server if checkpoint.ranks else len(cursors.of)
    if num_before == num_workers:
        return checkpoint
    if experiment.partition is None or experiment.partition.depends_on_workers:
        raise ValueError(
            f"the checkpoint is of a run of {num_before} workers, and with {num_workers} the samples would be divided in another way: "
            "resume it with as many workers, or divide them with partition=by_file"
        )
    return change_num_workers(checkpoint, experiment, plan, optimizers, num_before)


def change_num_workers(checkpoint: Checkpoint, experiment: Experiment, plan: Plan, optimizers: Optimizers, num_before: int) -> Checkpoint:
    """The checkpoint for another number of workers. Weights, the optimizer's memory and positions continue, and policies start anew."""
    state, cursors = checkpoint.state, checkpoint.state.next_sample
    num_workers, with_server = experiment.num_workers, experiment.coordination.needs_server
    outstanding = tuple(state.outstanding)
    if isinstance(cursors, Cursors):
        again = cursors.rewound(outstanding)
        cursors, outstanding = Cursors((*again.of, *(0,) * (num_workers - len(again.of)))), ()
    fresh = experiment.coordination.initial(plan, state.weights)
    resumed = replace(state, **{name: getattr(fresh, name) for name in OF_POLICIES}, next_sample=cursors, outstanding=outstanding)
    ranks = []
    if checkpoint.ranks:
        leader = checkpoint.ranks[num_before if with_server else 0]
        local = None if optimizers.local is None else optimizers.local.initial()
        for rank in range(experiment.num_ranks):
            ranks.append(RankState(rank=rank))
            ranks[-1].restart(version=state.version, epoch=plan.epoch(state.num_samples), optimizer=leader.optimizer, local_optimizer=local)
        if with_server:
            ranks[-1].num_updates = leader.num_updates
    seconds = (max(checkpoint.seconds),) * len(ranks) if checkpoint.seconds else ()
    return replace(checkpoint, state=resumed, ranks=tuple(ranks), seconds=seconds)
