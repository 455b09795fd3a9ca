"""A method's program on this rank, one epoch of the loop after another."""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch

from hetsim.checkpoints.file import pack_state, unpack_state
from hetsim.coordination.plan import Split
from hetsim.coordination.state import State
from hetsim.distributed.communication.mailbox import Mailbox
from hetsim.distributed.communication.reduction import Reduction
from hetsim.distributed.pacing.padding import Pace
from hetsim.distributed.rank.world import RankParts, Request
from hetsim.effects import Batch, Node
from hetsim.loop.lanes import Lanes
from hetsim.loop.model import ModelTask, UsersOptimizer
from hetsim.loop.plan import EpochPlan, foreseen
from hetsim.loop.trace import TeamTrace
from hetsim.loop.world import Asked, LoopWorld
from hetsim.policies.allocation.base import signature
from hetsim.runtime.experiment import Experiment, Optimizers
from hetsim.runtime.preparation import change_num_workers, prepare
from hetsim.runtime.profiling import Profile
from hetsim.runtime.rank import Checkpoint
from hetsim.vector import nbytes

SAME = 1e-5
"""The largest relative difference of numbers that are equal on all ranks. GPUs and CPUs round differently."""
MAX_FORESEEN = 100_000
"""The number of global batches after the last commit among which a range is looked for."""


class EpochPrograms:
    """The program of this rank. An epoch of the loop is a run of the program, which begins in the state in which the last one ended.

    So all ranks have the same weights between two epochs, and a method never exchanges in the middle of a script's evaluation.
    """

    def __init__(
        self, experiment: Experiment, lanes: Lanes, task: ModelTask, optimizer: UsersOptimizer, pace: Pace, *, classes: Mapping[str, type],
        trace: Path | None = None,
    ) -> None:  # fmt: skip
        self.experiment = experiment
        self.epoch = 0
        """The number of complete epochs."""
        self.asked: Asked | None = None
        """The gradient that the program asks for; None before and after an epoch."""
        self._lanes = lanes
        self._optimizer = optimizer
        self._rank: int = lanes.everyone.rank
        self._pace = pace
        self._classes = classes
        others = (experiment.optimizer, experiment.local_optimizer, experiment.regional_optimizer)
        main, local, regional = (None if recipe is None else task.optimizer(recipe) for recipe in others)
        if experiment.coordination.trains_locally:
            assert main is not None
            optimizers = Optimizers(main, optimizer, regional)
        else:
            optimizers = Optimizers(optimizer, local, regional)
        described = signature((experiment.coordination, experiment.batch_size, experiment.seed, task.num_parameters, trace is None))
        lanes.check_agreed("the model, the method, batch_size, seed and trace", zlib.crc32(described.encode()))
        reduction = Reduction.by_gloo(lanes.everyone, task.device, "native")
        if not task.reduces:  # all begin with the weights of the first rank, as under DDP
            weights = task.weights()
            task.place(reduction.main(weights if self._rank == 0 else torch.zeros_like(weights), in_place=True))
        prepared = prepare(experiment, task, optimizers, profile=Profile)
        self.state: State = prepared.start
        """The state of the last commit."""
        plan = prepared.plan
        self._plan = EpochPlan(
            plan.num_workers, plan.batch_size, task.num_samples, task.num_samples, plan.num_parameters, plan.max_samples,
            regions=plan.regions, least_share=plan.least_share,
        )  # fmt: skip
        self._steps: Generator[Request, None, Any] | None = None
        self.trace = None if trace is None else TeamTrace(trace, lanes, prepared, pace, device=task.trained[0].device.type)
        parts = RankParts(
            prepared=prepared, state=prepared.rank_state(self._rank), leader=experiment.leader, pace=pace, record=cast(Any, None),
            recorders=[] if self.trace is None else self.trace.recorders, saving=cast(Any, None), nonfinite=cast(Any, None),
        )  # fmt: skip
        self._began = pace.clock() if self.trace is None else self.trace.began
        self._world = LoopWorld(
            parts, transport=lanes.everyone, mailbox=cast(Any, None), began=self._began,
            committed=None if self.trace is None else self.trace.commit, reduction=reduction,
        )  # fmt: skip

    def begin_epoch(self) -> None:
        """Begin the program of this epoch, unless it has begun. A server's whole epoch passes."""
        if self._steps is not None:
            return
        experiment, world = self.experiment, self._world
        world.mailbox = Mailbox(
            self._lanes.everyone, experiment.peers(self._rank), lambda *_: 0.0, self._pace, began=self._began, device=world.task.device,
            usual=nbytes(self.state.weights),
        )  # fmt: skip
        world.last = self.state
        self.plan = self._plan.of_epoch(self.epoch)
        served_locally = experiment.regions is not None and self._rank < experiment.num_workers
        local_server = experiment.server_of(self._rank) if served_locally else None
        node = Node(self._rank, experiment.num_workers, world.state.own, local_server=local_server)
        self._steps = world.steps(experiment.coordination.program(node, self.plan, self.state), now=True)
        self.advance()

    def advance(self) -> None:
        """Run the program to the next gradient that it asks for, or to the end of its epoch."""
        assert self._steps is not None
        try:
            self.asked = cast(Asked, next(self._steps))
            self.state = self._world.last
        except StopIteration as ended:
            self.asked, self._steps = None, None
            self._end_epoch(self._world.last if ended.value is None or not isinstance(ended.value, State) else ended.value)

    def _end_epoch(self, state: State) -> None:
        """All ranks continue from the leader's state at the end of an epoch."""
        world = self._world
        world.mailbox.close()
        self._lanes.everyone.control.barrier()
        if self.trace is not None:
            self.trace.collect()
        self.epoch += 1
        if self.experiment.coordination.needs_server:
            state = self._from_leader(replace(state, outstanding=()))
        self.state = replace(state, next_sample=self.epoch * self._plan.per_epoch, outstanding=())
        world.state.set_commit(state.version, self.epoch)
        world.task.place(state.weights)
        if not self.experiment.coordination.needs_server:
            self._check_alike()

    def _check_alike(self) -> None:
        """Raise ValueError on all ranks if their learning rates, or the weights of a model that reduces its gradients, differ."""
        rows = self._lanes.everyone.control.gather_numbers(self._optimizer.learning_rate, self._world.task.squared_norm())
        for numbers, what, remedy in zip(
            zip(*rows, strict=True),
            ("learning rates", "squared norms of the weights"),
            ("step the scheduler alike on all ranks", "all ranks must take the same steps of the optimizer"),
            strict=True,
        ):
            if max(numbers) - min(numbers) > SAME * max(map(abs, numbers)):
                shown = ", ".join(f"{number:.6g}" for number in numbers)
                raise ValueError(f"after epoch {self.epoch - 1}, the {what} of the ranks differ ({shown}): {remedy}")

    def _from_leader(self, state: State) -> State:
        control, leader = self._lanes.everyone.control, self.experiment.leader
        if self._rank != leader:
            return cast(State, unpack_state(b"".join(control.receive_bytes(leader)), self._classes))
        content = pack_state(state)
        for rank in control.members:
            if rank != leader:
                control.send_bytes([content], rank)
        return state

    def split_of(self, batch: Batch) -> Split | None:
        """The global batch that contains this range of this rank, as far as it is foreseen."""
        start, shares = self.state.next_sample, self.shares
        for _ in range(MAX_FORESEEN):
            if not self.plan.has_next(start):
                break
            split = self.plan.split(start, shares)
            if split[self._rank] == batch:
                return split
            start = split.stop
        return None

    def foresee(self, batch: Batch) -> Iterator[Batch]:
        """This range, and those of this epoch that will probably be asked for after it."""
        split = self.split_of(batch)
        return iter((batch,)) if split is None else foreseen(self.plan, self._rank, split.start, self.shares)

    def num_steps(self) -> int:
        """The number of this rank's gradients in a whole epoch, if the shares do not change."""
        if self._rank >= self.experiment.num_workers:
            return 0
        return sum(1 for _ in foreseen(self._plan, self._rank, 0, self.shares))

    @property
    def shares(self) -> tuple[int, ...]:
        """The number of each worker's samples in a whole batch after the last commit."""
        return self.experiment.coordination.allocation.shares(self.state.allocation)

    def saved(self) -> torch.Tensor:
        """The state of the last commit and of this rank, as bytes."""
        rank = self._world.state.snapshot()
        content = {
            "size": self.experiment.num_ranks,
            "batch_size": self.experiment.batch_size,
            "epoch": self.epoch,
            "state": replace(self.state, outstanding=()),
            "rank": rank,
        }
        return torch.frombuffer(bytearray(pack_state(content)), dtype=torch.uint8)

    def resume(self, saved: torch.Tensor) -> None:
        """Continue from what `saved` returned, before the first epoch begins.

        On another rank, or with another number of ranks, what belongs to one rank begins anew, as after a rank's restart.
        """
        experiment, world = self.experiment, self._world
        content = unpack_state(saved.cpu().numpy().tobytes(), self._classes)
        if content["batch_size"] != experiment.batch_size:
            raise ValueError(f"this state has batch_size={content['batch_size']}, and this Team has {experiment.batch_size}: take the same")
        self.epoch, self.state, size = content["epoch"], content["state"], content["size"]
        if content["rank"].rank == self._rank and size == experiment.num_ranks:
            world.state = world.parts.state = content["rank"]
        elif experiment.coordination.needs_server or experiment.regions is not None:
            raise ValueError(
                f"this state is of rank {content['rank'].rank} of {size}, and method={experiment.method} resumes each rank from its own, "
                "with as many ranks: load the state that this rank saved"
            )
        else:
            before = Checkpoint(state=self.state, ranks=(content["rank"],) * size)
            after = before if size == experiment.num_ranks else change_num_workers(before, experiment, self._plan, world.optimizers, size)
            self.state = after.state
            world.prepared.restart(world.state, self.state, optimizer=content["rank"].optimizer)
        world.task.place(self.state.weights)

    def close(self) -> None:
        """End the program, wherever it is. With a trace, all ranks call this method."""
        if self._steps is not None:
            self._steps.close()
            self._steps = None
            if self.trace is not None:
                self.trace.collect()
        if self.trace is not None:
            self.trace.close()
