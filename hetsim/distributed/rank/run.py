"""One rank's run: its profile, the common start of all ranks, and its program, among ranks that a membership describes.

`FixedMembership` is for a run that any loss ends. The memberships that survive losses are in `surviving.py` and `regrouping.py`.
"""

from __future__ import annotations

import contextlib
import gc
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import pairwise
from typing import Any

from hetsim.checkpoints.saver import NoSaver, Saver
from hetsim.cluster.compute_times import Jitter, StepTimes
from hetsim.cluster.distributions import PROFILING
from hetsim.cluster.network.collectives import Collectives
from hetsim.coordination.state import State
from hetsim.distributed.communication.clock_alignment import Clocks
from hetsim.distributed.communication.mailbox import Mailbox
from hetsim.distributed.communication.reduction import Reduction
from hetsim.distributed.communication.transport import Transport
from hetsim.distributed.membership.keeper import Store
from hetsim.distributed.membership.keeper_client import Ledger
from hetsim.distributed.pacing.cpu_quota import own_quota
from hetsim.distributed.pacing.padding import Pace
from hetsim.distributed.pacing.shared_links import LinkEmulator
from hetsim.distributed.rank.checkpointing import Saving
from hetsim.distributed.rank.standstill import StandstillWatch
from hetsim.distributed.rank.world import ProcessWorld, RankParts
from hetsim.effects import Batch, Node
from hetsim.errors import RunFailed, RunOver
from hetsim.runtime.experiment import Experiment, Optimizers
from hetsim.runtime.nonfinite import NonfiniteGradients
from hetsim.runtime.preparation import Preparation, prepare
from hetsim.runtime.profiling import Profile, seconds_for_quota
from hetsim.runtime.rank import Checkpoint, RankState
from hetsim.runtime.recording.history import History
from hetsim.runtime.recording.metrics import Metrics, RankActivity
from hetsim.runtime.recording.outcome import RunOutcome
from hetsim.runtime.recording.recorder import DOWN, Recorder, interval_recorder
from hetsim.runtime.recording.run_record import RunRecord
from hetsim.runtime.recording.trace import Trace
from hetsim.vector import nbytes
from hetsim.workloads.task import Task, in_passes

SAME_LOSS = 1e-3
"""The maximum relative difference of two losses of the same samples. Different machines may compute different last bits."""


class GroupMembership(ABC):
    """The ranks that take part in a run, as one rank sees them, and what this rank does when they change.

    `RankRun.run` calls `begin`, `enter`, `run` and `leave`, in this order. PeerLost from one of them ends the run.
    """

    rank: int
    leader: int
    """The rank that keeps the record of the run, and decides when the run ends."""
    joined: bool = False
    """Whether this rank joins a running run."""
    has_results: bool = True
    """Whether this rank has taken part."""
    ledger: Ledger
    """The losses of the run. Empty if the first loss ends it."""
    num_restarts: int = 0
    """The number of restarts after a loss of all ranks."""

    @property
    @abstractmethod
    def members(self) -> Collection[int]:
        """The ranks that take part now."""

    @abstractmethod
    def begin(self, run: RankRun, loss: float) -> float:
        """Agree with the other ranks on the beginning of the run. Returns its time by this host's clock.

        `loss` is this rank's loss of the first samples, which all ranks compare. A rank that joins later waits until then, and gets
        RunOver if the run ends before.
        """

    @abstractmethod
    def enter(self, run: RankRun) -> ProcessWorld:
        """Connect to the members. Returns this rank's world among them."""

    @abstractmethod
    def run(self, run: RankRun, world: ProcessWorld) -> None:
        """Run this rank's program to the end of the run, and wait until the members' programs have ended."""

    @abstractmethod
    def leave(self, run: RankRun, world: ProcessWorld) -> Mapping[int, Transport]:
        """The transports for the results: on the leader to each rank that has any, on another rank to the leader."""

    def lose(self, rank: int) -> bool:
        """Record that the connection to this rank broke. Returns whether the run continues without it."""
        return False

    def have_saved(self, version: int) -> None:  # noqa: B027  only some report it
        """On the leader: record that the checkpoint at this version is complete."""

    def ranks_at_a_standstill(self) -> Collection[int]:
        """The ranks that must all wait if the run can make no progress."""
        return self.members


class FixedMembership(GroupMembership):
    """The ranks of this transport. The loss of any of them ends the run.

    Without a `reduction`, all-reduces use the transport, in rank order.
    """

    def __init__(self, transport: Transport, *, leader: int, reduction: Reduction | None = None) -> None:
        self.transport = transport
        self.rank = transport.rank
        self.leader = leader
        self.reduction = reduction
        self.ledger = Ledger(transport.members)

    @property
    def members(self) -> Collection[int]:
        return self.transport.members

    def begin(self, run: RankRun, loss: float) -> float:
        run.check_same_task(self.transport, loss)
        return run.agree_on_begin(self.transport)

    def enter(self, run: RankRun) -> ProcessWorld:
        reduction = self.reduction or Reduction.by_gloo(self.transport, run.prepared.task.device, "ordered")
        return ProcessWorld(
            run.parts, transport=self.transport, mailbox=run.mailbox(self.transport), reduction=reduction, began=run.began
        )  # fmt: skip

    def run(self, run: RankRun, world: ProcessWorld) -> None:
        program = run.experiment.coordination.program(run.node, run.prepared.plan, run.prepared.start)
        run.record_end(world.run(program))
        world.mailbox.close()
        self.transport.control.barrier()  # until all programs have ended, or the watch reports a standstill

    def leave(self, run: RankRun, world: ProcessWorld) -> Mapping[int, Transport]:
        return dict.fromkeys(self.members, self.transport)


class RankRun:
    """One rank's part of a run. After `run`, its results are in `metrics`. On the leader, they are in `record`, too.

    A rank that does not lead copies versions to `copies` if it may lead later. Threads that only move messages are started in a block
    `uncapped()`.
    """

    def __init__(
        self,
        prepared: Preparation,
        trace: Trace,
        *,
        membership: GroupMembership,
        pace: Pace,
        clocks: Clocks | None = None,
        keep: Callable[[RankState], None] | None = None,
        recorders: Sequence[Recorder] = (),
        copies: Sequence[Recorder] = (),
        saver: Saver | NoSaver | None = None,
        uncapped: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
        micro_batch: int | None = None,
    ) -> None:
        self.experiment = experiment = prepared.experiment
        self.prepared = prepared
        self.membership = membership
        self.rank = rank = membership.rank
        self.joined = membership.joined
        """Whether this rank joins a running run, and has not received the leader's record yet."""
        self.begun = pace.clock()
        """The start of the run's processes, or at least of this one, by this host's clock."""
        self.began = 0.0
        """The time at which the run's clock was at 0, by this host's clock."""
        self.pace = pace
        self.clocks = clocks or Clocks.shared(experiment.num_ranks, leader=experiment.leader)
        self.clocks.seconds_before = prepared.checkpoint.began
        self.trace = trace
        self.emulates_links = pace.pad and experiment.coordination.needs_server and experiment.cluster.shares_links
        """Whether messages are held as if they shared the described links."""
        self._uncapped = uncapped
        self.metrics = Metrics(
            experiment.num_workers, num_ahead=experiment.coordination.num_ahead, weights=experiment.weights_of(prepared.task)
        )
        profile = prepared.profile
        profile.record([trace, *recorders], experiment.profile_batches, [rank] if rank < len(profile.seconds) else [])
        self.recorders: list[Recorder] = [self.metrics, trace, *recorders]
        self.last = prepared.start
        """The state that this rank committed last. On a worker of a server, the state at the beginning."""
        self.absent_at_end: frozenset[int] = frozenset()
        self.transports: Mapping[int, Transport] = {}
        """After the run: the transport for each rank's results, see `GroupMembership.leave`."""
        self._recorded_absences: dict[int, float] = {}
        """The time until which each rank's absences are in the trace, in seconds of the run."""
        leads = rank == membership.leader
        observers = [trace, *recorders] if leads else copies
        self.record = RunRecord(prepared, self.metrics, observers, at_once=False, keeps=experiment.checkpoint.enabled, leads=leads)
        state = prepared.rank_state(rank)
        self.saving = Saving(
            prepared, state, self.record, trace, clocks=self.clocks, saver=saver or NoSaver(), joined=self.joined,
            absences=self.record_absences_before, on_saved=membership.have_saved,
        )  # fmt: skip
        self.parts = RankParts(
            prepared=prepared, state=state, leader=membership.leader, pace=pace, record=self.record, recorders=self.recorders,
            saving=self.saving, nonfinite=NonfiniteGradients(experiment.nonfinite, self.metrics.activity), keep=keep,
            micro_batch=micro_batch,
        )  # fmt: skip

    @property
    def history(self) -> History:
        """The versions of the run. On a rank that does not lead, the versions in its copy."""
        return self.record.history

    @property
    def node(self) -> Node:
        """This rank, for its program."""
        return Node(self.rank, self.experiment.num_workers, self.parts.state.own)

    def run(self, store: Store | None = None, report: Callable[[RunFailed], None] | None = None) -> None:
        """Run this rank's program with those of the other ranks. `report(error)` is called on the leader if no rank can continue."""
        with contextlib.suppress(RunOver):  # before this rank took part
            self._take_part(store, report)

    def _take_part(self, store: Store | None, report: Callable[[RunFailed], None] | None) -> None:
        membership = self.membership
        loss = warm_up(self.prepared, samples=self.experiment.first_samples)
        self.began = membership.begin(self, loss)
        world = membership.enter(self)
        watch: Any = contextlib.nullcontext()
        if store is not None:
            watch = StandstillWatch(
                store, self.rank, membership.ranks_at_a_standstill, world.waiting, report, leads=lambda: self.record.leads
            )
        with watch:
            self.pace.sleep_until(self.began + self.prepared.checkpoint.began)
            self.saving.saver.begin()
            gc.freeze()
            try:
                membership.run(self, world)
            finally:
                gc.unfreeze()
                self.last = world.last
        self.saving.end(world.mailbox.states)
        self.transports = membership.leave(self, world)
        self.parts.leader = membership.leader
        self.clocks.change_leader(membership.leader)

    def check_same_task(self, transport: Transport, loss: float) -> None:
        """A collective of all ranks: raise ValueError if they have different tasks. `loss` is this rank's loss of the first samples."""
        losses = transport.control.gather_numbers(loss, float(self.prepared.start.version))
        check_same_task(losses, self.experiment.workload.name)

    def agree_on_begin(self, transport: Transport) -> float:
        """A collective of all ranks: read their clocks. Returns the time at which the run's clock is at 0, by this host's clock."""
        return self.clocks.begin(transport, self.pace.clock) - self.prepared.checkpoint.began

    def mailbox(self, transport: Transport, **options: Any) -> Mailbox:
        """This rank's mailbox among the members of the transport."""
        experiment, rank = self.experiment, self.rank
        peers = [peer for peer in experiment.peers(rank) if peer in transport.members]
        links = LinkEmulator.of_run(experiment, rank, began=self.began) if self.emulates_links else None
        with self._uncapped():
            return Mailbox(
                transport, peers, described_message_seconds(experiment, rank), self.pace, began=self.began,
                links=links, device=self.prepared.task.device, usual=nbytes(self.prepared.start.weights), answering=self.saving,
                on_loss=self.membership.lose, **options,
            )  # fmt: skip

    def record_end(self, result: State | None) -> None:
        """On the leader: record what its program returned, see `Coordination.program`."""
        if self.record.leads:
            self.history.record_discarded(result)

    def record_absences_before(self, seconds: float) -> list[tuple[int, float, float]]:
        """On the leader: (rank, from, until) of each absence that has ended at this second of the run. The trace then contains them.

        A current absence is recorded at its end, as in simulation.
        """
        ended = [absence for absence in self._absences(seconds) if absence[2] < seconds]
        record = interval_recorder([self.trace], DOWN)
        for rank, start, end in ended:
            if record is not None and start >= self._recorded_absences.get(rank, start):
                record((start, end, rank, DOWN, 0, 0, 0, 0))
            self._recorded_absences[rank] = end
        return ended

    def have_recorded_absences(self, seconds: float) -> None:
        """On a new leader: the trace contains the absences that ended by this second of the run."""
        for rank, start, end in self._absences(seconds):
            if start < end < seconds:
                self._recorded_absences[rank] = end

    def record_absences(self) -> list[RankActivity]:
        """On the leader, after all ranks' results: record each rank's absences.

        Returns each worker's activity without its current absence, for a checkpoint.
        """
        seconds, activity = self.metrics.applied.seconds, self.metrics.activity
        present = set(self.membership.members) - self.membership.ledger.unannounced.keys()
        self.absent_at_end = frozenset(range(self.experiment.num_workers)) - present
        ended = self.record_absences_before(seconds)
        for rank, start, end in ended:
            activity[rank].add_absence(start, end)
        copies = [RankActivity.of_numbers(worker.as_numbers(), worker.num_ahead) for worker in activity]
        record = interval_recorder(self.recorders, DOWN)
        for rank, start, end in self._absences(seconds):
            if record is not None and (rank, start, end) not in ended:
                record((start, end, rank, DOWN, 0, 0, 0, 0))
        return copies

    def _absences(self, seconds: float) -> list[tuple[int, float, float]]:
        absences = self.membership.ledger.absences(self.began, self.began + seconds)
        return [(rank, start, end) for rank, start, end in absences if start < end]

    def close(self) -> None:
        """Close all recorders. On the leader, call it after the results of all ranks are collected."""
        if self.record.leads:
            self.history.close()
            self.trace.close()  # which the history does not know on a rank that did not lead from the beginning
            return
        for recorder in self.recorders:
            recorder.close(self.last)

    @property
    def outcome(self) -> RunOutcome:
        """The outcome, on the leader, when `metrics` contains all ranks' activity and the history is closed."""
        return self.record.outcome(self.absent_at_end, num_restarts=self.membership.num_restarts)


def prepare_rank(
    transport: Transport | None, pace: Pace, experiment: Experiment, task: Task, optimizers: Optimizers, *,
    checkpoint: Checkpoint | None = None, absent: Collection[int] = (),
) -> Preparation:  # fmt: skip
    """Prepare a run. All ranks measure the workers if necessary. A rank without a transport joins later."""
    profile = Profile if transport is None else partial(measured_profile, experiment, task, transport, pace)
    return prepare(experiment, task, optimizers, profile=profile, checkpoint=checkpoint, absent=absent)


def measured_profile(experiment: Experiment, task: Task, transport: Transport, pace: Pace) -> Profile:
    """The profile of all workers, measured at the same time and gathered."""
    rank = transport.rank
    num, least_seconds = experiment.coordination.allocation.repetitions, 0.0
    batch = experiment.profile_batches[min(rank, experiment.num_workers - 1)]
    weights = task.initial()
    times = None
    if rank < experiment.num_workers:
        node = experiment.cluster.nodes[rank]
        times = StepTimes(node, seed=experiment.seed, rank=rank, stream=PROFILING)
        least_seconds = seconds_for_quota(*own_quota(), experiment.widths[rank])
        in_passes(task, weights, batch, node.micro_batch)  # initialises libraries
        task.device.synchronise()
    transport.control.barrier()
    began = at = pace.clock()
    moments = [began]
    if times is not None:
        while len(moments) <= num or at - began < least_seconds:
            in_passes(task, weights, batch, node.micro_batch)
            task.device.synchronise()
            at = pace.due("profile", at, times.seconds(batch.samples, at - began))
            moments.append(at)
    lengths = [int(length) for (length,) in transport.control.gather_numbers(len(moments))]
    ranks = transport.control.gather_numbers(*moments, *[at] * (max(lengths) - len(moments)))
    workers = [rank[:length] for rank, length in zip(ranks[: experiment.num_workers], lengths, strict=False)]
    longest = max(worker[-1] - worker[0] for worker in workers)
    took = longest + Collectives(experiment.cluster, seed=experiment.seed).gather_seconds() if pace.pad else pace.clock() - began
    return Profile([[end - start for start, end in pairwise(worker)] for worker in workers], took)


def described_message_seconds(experiment: Experiment, rank: int) -> Callable[[int, int], float]:
    """The described seconds of a message of this size from a peer to this rank. Call the function once for each message, in order."""
    cluster, jitters = experiment.cluster, {}
    if cluster.network.jitter_seconds is not None:
        jitters = {peer: Jitter(cluster, peer, rank, seed=experiment.seed) for peer in range(experiment.num_ranks)}

    def seconds(peer: int, nbytes: int) -> float:
        without_jitter = cluster.message_seconds(peer, rank, nbytes)
        return without_jitter + jitters[peer].next() if jitters else without_jitter

    return seconds


def warm_up(prepared: Preparation, *, samples: int) -> float:
    """Compute and discard a gradient and a step, because the first ones initialise libraries, which must not count in the run.

    Returns the mean loss of the first samples, at the initial weights of the run.
    """
    task, start = prepared.task, prepared.start
    gradient, _ = task.gradient(start.weights, Batch(0, samples))
    loss = task.loss_at(start.weights, Batch(0, samples))
    for optimizer in prepared.optimizers:
        if optimizer is not None:
            optimizer.step(optimizer.initial(), start.weights, gradient, 0)
    task.device.synchronise()
    return loss


def check_same_task(begins: Sequence[Sequence[float]], workload: str) -> None:
    """Raise the same ValueError on each rank if the ranks have different losses of the same samples at the first weights.

    Also if they continue from different versions. `begins` contains the loss and the version of each rank.
    """
    (first, version), *others = begins
    for rank, (loss, others_version) in enumerate(others, 1):
        if others_version != version:
            raise ValueError(
                f"rank 0 resumes from version {version:.0f} and rank {rank} from version {others_version:.0f}: "
                "give all hosts the same checkpoints, or a folder that they share"
            )
        if not (math.isclose(first, loss, rel_tol=SAME_LOSS) or (math.isnan(first) and math.isnan(loss))):
            raise ValueError(
                f"workload={workload} differs by rank: the same samples at the first weights have a loss of {first:g} on rank 0 "
                f"and of {loss:g} on rank {rank}: give the same files to all, and a seed to all that the model and the data draw"
            )
