"""One rank's run: its profile, the common start of all ranks, and its program."""

from __future__ import annotations

import contextlib
import gc
import math
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
from hetsim.distributed.pacing.cgroups import own_quota
from hetsim.distributed.pacing.link_emulator import LinkEmulator
from hetsim.distributed.pacing.padding import Pace
from hetsim.distributed.rank.checkpointing import Saving
from hetsim.distributed.rank.parts import RankParts
from hetsim.distributed.rank.standstill import StandstillWatch, Store
from hetsim.distributed.rank.world import ProcessWorld
from hetsim.effects import Batch, Node
from hetsim.errors import RunFailed
from hetsim.runtime.experiment import Experiment, Optimizers
from hetsim.runtime.nonfinite import NonfiniteGradients
from hetsim.runtime.preparation import Preparation, prepare
from hetsim.runtime.profiling import Profile, seconds_for_quota
from hetsim.runtime.rank import Checkpoint, RankState
from hetsim.runtime.recording.history import History
from hetsim.runtime.recording.metrics import Metrics
from hetsim.runtime.recording.outcome import RunOutcome
from hetsim.runtime.recording.recorder import Recorder
from hetsim.runtime.recording.run_record import RunRecord
from hetsim.runtime.recording.trace import Trace
from hetsim.vector import nbytes
from hetsim.workloads.task import Task, in_passes

SAME_LOSS = 1e-3
"""The maximum relative difference of two losses of the same samples. Different machines may compute different last bits."""


class RankRun:
    """One rank's part of a run. After `run`, its results are in `metrics`. On the leader, they are in `record`, too.

    A rank that does not lead copies versions to `copied_to` if it may lead later. Threads that only move messages are started in a block
    `uncapped()`. Without a `reduction`, all-reduces use the transport, in rank order.
    """

    def __init__(
        self,
        prepared: Preparation,
        trace: Trace,
        *,
        transport: Transport,
        pace: Pace,
        reduction: Reduction | None = None,
        clocks: Clocks | None = None,
        keep: Callable[[RankState], None] | None = None,
        recorders: Sequence[Recorder] = (),
        copied_to: Sequence[Recorder] = (),
        saver: Saver | NoSaver | None = None,
        joined: bool = False,
        uncapped: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
        micro_batch: int | None = None,
        leader: int | None = None,
    ) -> None:
        self.experiment = experiment = prepared.experiment
        self.prepared = prepared
        self.rank = rank = transport.rank
        self.transport = transport
        self.joined = joined
        """Whether this rank joins a running run."""
        self.begun = pace.clock()
        """The start of the run's processes, or at least of this one, by this host's clock."""
        self.pace = pace
        self.reduction = reduction
        self.clocks = clocks or Clocks.shared(experiment.num_ranks, leader=experiment.leader)
        self.trace = trace
        self.emulates_links = pace.pad and experiment.coordination.needs_server and experiment.cluster.shares_links
        """Whether messages are held as if they shared the described links."""
        self._uncapped = uncapped
        self.metrics = Metrics(
            experiment.num_workers, num_ahead=experiment.coordination.num_ahead, weights=experiment.weights_of(prepared.task)
        )
        self.clocks.seconds_before = prepared.checkpoint.began
        profile = prepared.profile
        profile.record([trace, *recorders], experiment.profile_batches, [rank] if rank < len(profile.seconds) else [])
        self.recorders: list[Recorder] = [self.metrics, trace, *recorders]
        self.last = prepared.start
        """The state that this rank committed last. On a worker of a server, the state at the beginning."""
        self.absent_at_end: frozenset[int] = frozenset()
        leader = experiment.leader if leader is None else leader
        leads = rank == leader
        observers = [trace, *recorders] if leads else copied_to
        keeps = experiment.checkpoint.enabled
        self.record = RunRecord(prepared, self.metrics, observers, at_once=False, keeps=keeps, leads=leads)
        state = prepared.rank_state(rank)
        self.saving = Saving(
            prepared, state, self.record, trace, clocks=self.clocks, saver=saver or NoSaver(), joined=self.joined,
            absences=self.absences_over, on_saved=self.have_saved,
        )  # fmt: skip
        self.parts = RankParts(
            prepared=prepared, state=state, leader=leader, pace=pace, record=self.record, recorders=self.recorders, saving=self.saving,
            nonfinite=NonfiniteGradients(experiment.nonfinite, self.metrics.activity), keep=keep, micro_batch=micro_batch,
        )  # fmt: skip

    @property
    def history(self) -> History:
        """The versions of the run. On a rank that does not lead, the versions in its copy."""
        return self.record.history

    def run(self, store: Store | None = None, report: Callable[[RunFailed], None] | None = None) -> None:
        """Run this rank's program with those of the other ranks. `report(error)` is called on the leader if no rank can continue."""
        experiment, rank, transport = self.experiment, self.rank, self.transport
        coordination, num_workers = experiment.coordination, experiment.num_workers
        loss = warm_up(self.prepared, samples=experiment.first_samples)
        check_same_task(transport.control.gather_numbers(loss, float(self.prepared.start.version)), experiment.workload.name)
        started = self.clocks.begin(transport, self.pace.clock)
        began = started - self.prepared.checkpoint.began  # when the run's clock was at 0
        mailbox = self.mailbox(transport, began=began)
        reduction = self.reduction or Reduction.by_gloo(transport, self.prepared.task.device, "ordered")
        world = ProcessWorld(self.parts, transport=transport, mailbox=mailbox, reduction=reduction, began=began)
        leads = self.record.leads
        watch: Any = contextlib.nullcontext()
        if store is not None:
            watch = StandstillWatch(store, rank, lambda: range(experiment.num_ranks), world.waiting, report, leads=lambda: leads)
        program = coordination.program(Node(rank, num_workers, self.parts.state.own), self.prepared.plan, self.prepared.start)
        with watch:
            self.pace.sleep_until(started)
            gc.freeze()
            try:
                result: State | None = world.run(program)
            finally:
                gc.unfreeze()
            self.last = world.last
            if leads:
                self.history.record_discarded(result)
            mailbox.close()
            self.saving.end(mailbox.states)
            transport.control.barrier()  # until all programs have ended, or the watch reports a standstill
        self.clocks.finish(transport, self.pace.clock)

    def mailbox(self, transport: Transport, *, began: float, **options: Any) -> Mailbox:
        """This rank's mailbox among the members of the transport."""
        experiment, rank = self.experiment, self.rank
        peers = [peer for peer in experiment.peers(rank) if peer in transport.members]
        links = LinkEmulator.of_run(experiment, rank, began=began) if self.emulates_links else None
        with self._uncapped():
            return Mailbox(
                transport, peers, described_seconds(experiment, rank), self.pace, began=began,
                links=links, device=self.prepared.task.device, usual=nbytes(self.prepared.start.weights), answering=self.saving, **options,
            )  # fmt: skip

    @property
    def sources(self) -> Mapping[int, Transport]:
        """On the leader, after the run: the transport for each rank's results."""
        return {rank: self.transport for rank in self.transport.members if rank != self.rank}

    def survives(self, rank: int) -> bool:
        """Whether the run survives the loss of this rank."""
        return False

    def finish_clocks(self, transport: Transport, rank: int, peer: int) -> None:
        """Compare the clock of `rank` with the leader's, unless all ranks have done so together. `peer` is the other rank."""

    def seen_lost(self) -> list[tuple[int, float]]:
        """(rank, second of the run) of each loss that only this rank has noticed."""
        return []

    def have_seen_lost(self, lost: Sequence[tuple[int, float]], rate: float, shift: float) -> None:
        """On the leader: record these losses, with their times converted to this clock by `rate` and `shift`."""

    def absences_over(self, seconds: float) -> list[tuple[int, float, float]]:
        """On the leader: (rank, from, until) of each absence that has ended at this second of the run."""
        return []

    def have_saved(self, version: int) -> None:
        """On the leader: record that the checkpoint at this version is complete."""

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
        return self.record.outcome(self.absent_at_end)


def prepared_by(
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


def described_seconds(experiment: Experiment, rank: int) -> Callable[[int, int], float]:
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
    for rank, (loss, its) in enumerate(others, 1):
        if its != version:
            raise ValueError(
                f"rank 0 resumes from version {version:.0f} and rank {rank} from version {its:.0f}: give all hosts the same checkpoints, "
                "or a folder that they share"
            )
        if not (math.isclose(first, loss, rel_tol=SAME_LOSS) or (math.isnan(first) and math.isnan(loss))):
            raise ValueError(
                f"workload={workload} differs by rank: the same samples at the first weights have a loss of {first:g} on rank 0 "
                f"and of {loss:g} on rank {rank}: give the same files to all, and a seed to all that the model and the data draw"
            )
