"""One run as its config describes it: built by `hetsim.cli`, read by both backends."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

from hetsim import checks
from hetsim.cluster.faults import WeightCheckpoints
from hetsim.cluster.model import Cluster
from hetsim.coordination.base import Coordination
from hetsim.coordination.bookkeeping.pools import AlignedPools, Pools
from hetsim.coordination.bookkeeping.regions import Regions
from hetsim.coordination.plan import Plan
from hetsim.effects import Batch, Contribution
from hetsim.runtime.budget import Budget
from hetsim.runtime.checkpointing import Checkpointing
from hetsim.runtime.recording import loggers
from hetsim.runtime.recording.curve import Point
from hetsim.runtime.recording.trace import DETAILS
from hetsim.workloads import device
from hetsim.workloads.partition import Partition
from hetsim.workloads.phantom import PhantomWorkload
from hetsim.workloads.task import Optimizer, OptimizerRecipe, Task, Workload

NEVER_SAVED = Checkpointing()
PARTITIONS = ("even", "contiguous", "dirichlet", "by_class", "by_file")


MAX_REPEATS = 1000
"""The maximum number of times that a global batch may contain each sample. More are probably a mistake, and slow to draw."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A method on a cluster, with its workload, optimizers, seed and budget, and what the run records."""

    method: str
    coordination: Coordination
    cluster: Cluster
    workload: Workload
    optimizer: OptimizerRecipe
    local_optimizer: OptimizerRecipe | None = None
    regional_optimizer: OptimizerRecipe | None = None
    budget: Budget
    batch_size: int
    seed: int = 0
    dtype: str = "float32"
    threads: int = 1
    device: str = "cpu"
    """The default device of ranks whose nodes do not set it: cpu, cuda or cuda:K."""
    autocast: str | None = None
    """The type of a model's matrix products (bfloat16), if it differs from the weights' `dtype`; None: the same type."""
    evaluate_every_epochs: float | None = 1
    evaluate_every_seconds: float | None = None
    """The interval of evaluations in seconds of the run's clock. It is used in addition to the interval in epochs. None: only epochs."""
    stop_when_diverged: bool = False
    data: str = "shared"
    """Whether all workers share the training samples (shared), or each worker has its own from the partition (owned)."""
    partition: Partition | None = None
    epochs: str = "independent"
    """The epochs of owned data: each pool has its own (independent), or all pools begin an epoch together (aligned)."""
    trace: str = "full"
    pictures: bool = True
    logger: str | None = None
    """A further logger for the finished run: tensorboard, wandb or mlflow."""
    nonfinite: str = "skip"
    """The treatment of a gradient with a NaN or an infinity: leave it out (skip), or end the run (fail)."""
    save_weights: str | None = None
    """The weights in the run's weights.safetensors: the final ones, or those of the best version on the learning curve."""
    checkpoint: Checkpointing = NEVER_SAVED
    resume: Path | None = None
    """The checkpoint file from which the run resumes."""
    watch: Callable[[Point], None] | None = None
    """Called with each evaluation in virtual time. An exception from it ends the run. Real runs are evaluated after their end."""
    doubts: tuple[str, ...] = ()
    """Warnings about values of the config that are almost surely mistakes."""

    def __post_init__(self) -> None:
        """Check everything that needs neither data nor torch."""
        checks.whole("seed", self.seed, least=0, most=2**63 - 1)
        checks.whole("batch_size", self.batch_size)
        if checks.whole("threads", self.threads) > (cores := os.cpu_count() or 1):
            raise ValueError(f"threads={self.threads} is more than the {cores} cores of this machine: lower it")
        checks.choice("dtype", self.dtype, ("float32", "float64"))
        checks.choice("trace", self.trace, DETAILS)
        checks.device("device", self.device)
        self._check_autocast()
        if self.evaluate_every_epochs is None and self.evaluate_every_seconds is None:
            raise ValueError("evaluate_every_epochs and evaluate_every_seconds are both null: give one, such as evaluate_every_epochs=1")
        for key in ("evaluate_every_epochs", "evaluate_every_seconds"):
            if getattr(self, key) is not None:
                checks.number(key, getattr(self, key))
        checks.flag("pictures", self.pictures)
        if self.logger is not None:
            loggers.check(self.logger)
        if self.save_weights is not None:
            checks.choice("save_weights", self.save_weights, ("final", "best"))
            if isinstance(self.workload, PhantomWorkload):
                raise ValueError(f"save_weights would do nothing, because workload={self.workload.name} has no weights: leave it out")
        checks.choice("nonfinite", self.nonfinite, ("skip", "fail"))
        checks.flag("stop_when_diverged", self.stop_when_diverged)
        self._check_data()
        allocation = self.coordination.allocation
        if allocation.has("observe_profile") and not (allocation.has("observe") or allocation.repetitions):
            raise ValueError(
                f"{type(allocation).__name__}.observe_profile would never be called, because allocation.repetitions=0: raise it, or write "
                "observe, which is called during the run"
            )
        if allocation.leaves_out and not self.coordination.may_leave_out:
            raise ValueError(
                f"allocation is {type(allocation).__name__}, which may leave out workers, and {type(self.coordination).__name__} needs a "
                "gradient of each: take coordination=all_reduce, or another allocation such as dbs"
            )
        if allocation.leaves_out and self.data == "owned":
            raise ValueError(
                f"allocation is {type(allocation).__name__}, which may leave out workers, and with data=owned nobody would see their "
                "samples: leave out data=owned, or take another allocation such as dbs"
            )
        if self.batch_size < self.num_workers and not allocation.leaves_out:
            raise ValueError(f"batch_size={self.batch_size} is less than one sample for each of {self.num_workers} workers: raise it")
        allocation.initial_within(self.num_workers, self.batch_size, self.cluster.max_samples)
        self.coordination.admission.initial(self.num_workers)
        self.coordination.check(self.num_workers)
        self._check_regions()
        self._check_optimizers()
        checks.name("workload.name", self.workload.name)
        self.workload.check()

    @property
    def num_workers(self) -> int:
        """N."""
        return self.cluster.num_workers

    @property
    def weight_checkpoints(self) -> WeightCheckpoints | None:
        """The described checkpoints of the training. None with a server, which always has the weights."""
        return None if self.coordination.needs_server else self.cluster.faults.checkpoint

    @cached_property
    def regions(self) -> Regions | None:
        """The local server of each worker; None in methods without local servers."""
        return self.coordination.regions(self.cluster.regions)

    @property
    def num_ranks(self) -> int:
        """The number of programs: the workers, a server if the method has one, and local servers."""
        return self.num_workers + self.coordination.needs_server + (0 if self.regions is None else self.regions.num_regions)

    @property
    def servers(self) -> range:
        """The ranks of all servers."""
        return range(self.num_workers, self.num_ranks)

    def server_of(self, rank: int) -> int:
        """The rank of a worker's server."""
        return self.num_workers if self.regions is None else self.regions.server_of(rank)

    def peers(self, rank: int) -> Sequence[int]:
        """The ranks with which a rank exchanges messages. Empty without a server."""
        if not self.coordination.needs_server:
            return []
        if self.regions is not None:
            return self.regions.peers(rank)
        return range(self.num_workers) if rank == self.num_workers else [self.num_workers]

    def workers_of(self, rank: int) -> Sequence[int]:
        """The workers that exchange messages with this rank. Empty for a worker."""
        return [peer for peer in self.peers(rank) if peer < self.num_workers] if rank in self.servers else []

    @property
    def leader(self) -> int:
        """The rank whose commits count: the server, or without one rank 0 until it is lost."""
        return self.num_workers if self.coordination.needs_server else 0

    @property
    def profile_batches(self) -> tuple[Batch, ...]:
        """Each worker's batch for measurements before the run: B samples, or as many as fit into its memory."""
        max_samples = self.cluster.max_samples or (self.batch_size,) * self.num_workers
        owned = self.data == "owned"
        return tuple(Batch(0, min(self.batch_size, bound), rank if owned else 0) for rank, bound in enumerate(max_samples))

    @property
    def first_samples(self) -> int:
        """The number of samples of the warm-up: an even share, or a worker's micro-batch if that is smaller."""
        return min([-(-self.batch_size // self.num_workers), *self._micro_batches])

    @property
    def _micro_batches(self) -> list[int]:
        return [node.micro_batch for node in self.cluster.nodes if node.micro_batch is not None]

    def device_of(self, rank: int) -> str:
        """The device of a rank, as the cluster or the config names it."""
        end = self.cluster.end(rank)
        return end.device or self.device

    @property
    def widths(self) -> tuple[int, ...]:
        """The number of host cores that each worker's program, and a server's, uses: `threads`, or one if a GPU computes."""
        usual = self.device if self.cluster.calibrated is None else self.cluster.calibrated.device
        named = [*(node.device for node in self.cluster.nodes), self.cluster.server.device]
        return tuple(self.threads if (name or usual) == "cpu" else 1 for name in named)

    @property
    def imports(self) -> tuple[str, ...]:
        """Modules that `load` imports."""
        recipes = (recipe for recipe in (self.local_optimizer, self.regional_optimizer) if recipe is not None)
        return (*self.workload.imports, *self.optimizer.imports, *(module for recipe in recipes for module in recipe.imports))

    def plan(self, task: Task) -> Plan:
        """The plan that assigns this task's samples."""
        positions = self.budget.num_positions(task.num_samples)
        pools = None
        if task.pools is not None:
            pools = (AlignedPools if self.epochs == "aligned" else Pools)(task.pools, positions)
        return Plan(
            self.num_workers,
            self.batch_size,
            positions,
            task.num_samples,
            task.num_parameters,
            self.cluster.max_samples,
            pools=pools,
            regions=self.regions,
            least_share=0 if self.coordination.allocation.leaves_out else 1,
        )

    def weights_of(self, task: Task) -> Callable[[Sequence[Contribution]], Iterable[tuple[int, float]]]:
        """A function that returns the factors of the contributions to a version."""
        return partial(self.coordination.weights, plan=self.plan(task))

    @contextlib.contextmanager
    def loaded(self, on: str | None = None, *, num_sharing: int = 1) -> Iterator[tuple[Task, Optimizers]]:
        """The same as `load`, for a block in which PyTorch uses the run's number of threads. Afterwards, it is as before."""
        task, optimizers = self.load(on, num_sharing=num_sharing)
        with contextlib.closing(task), task.device.computing(self.threads):
            yield task, optimizers

    def load(self, on: str | None = None, *, num_sharing: int = 1) -> tuple[Task, Optimizers]:
        """Load data, model and optimizers on a device of `num_sharing` ranks. Raises ValueError for weights without an effect."""
        loaded_device = device.device(on or self.device, self.autocast, num_sharing=num_sharing)
        if self.workload.has_model:
            device.keep_kernels()
        task = self.workload.load(seed=self.seed, dtype=self.dtype, device=loaded_device)
        with contextlib.ExitStack() as refused:
            refused.callback(task.close)
            if self.partition is not None:
                divisible = task.divisible(self.workload.name)
                task.divide(self.partition.pools(divisible, self.num_workers, seed=self.seed))
            if self.batch_size > MAX_REPEATS * task.num_samples and not isinstance(self.workload, PhantomWorkload):
                raise ValueError(
                    f"batch_size={self.batch_size} is more than {MAX_REPEATS} times the number of samples of "
                    f"workload={self.workload.name}, {task.num_samples}: lower it, because a batch would repeat each sample"
                )
            optimizers = self._optimizers(task)
            refused.pop_all()
        return task, optimizers

    def _optimizers(self, task: Task) -> Optimizers:
        optimizer = task.optimizer(self.optimizer)
        local = None if self.local_optimizer is None else task.optimizer(self.local_optimizer)
        regional = None if self.regional_optimizer is None else task.optimizer(self.regional_optimizer)
        if self.budget.epochs is not None and self.budget.updates is None and self.budget.seconds is None:
            for either in (optimizer, local):
                if either is not None:
                    either.foresee(math.ceil(self.budget.epochs))
        fragments = getattr(self.coordination, "fragments", 1)
        if optimizer.by_parameter and fragments > 1:
            raise ValueError(
                f"optimizer._target_={self.optimizer.optimizer.target} steps parameter by parameter, but coordination.fragments="
                f"{fragments} cuts the vector anywhere: type coordination.fragments=1 or optimizer=nesterov"
            )
        if self.coordination.relies_on_scale(self.num_workers) and not optimizer.scale_sensitive:
            raise ValueError(
                f"optimizer._target_={self.optimizer.optimizer.target} does not depend on a gradient's scale, so weighting or discounting "
                "single gradients would do nothing: use torch.optim.SGD, or weighting=per_worker discount=none"
            )
        return Optimizers(optimizer, local, regional)

    def _check_data(self) -> None:
        """Raise ValueError for a partition of shared data, and for owned data without a partition."""
        checks.choice("data", self.data, ("shared", "owned"))
        epochs: object = self.epochs
        if isinstance(epochs, int | float):
            number = checks.shown(epochs)
            raise ValueError(f"epochs must be independent or aligned, not {number}: for the length of the run type budget.epochs={number}")
        checks.choice("epochs", self.epochs, ("independent", "aligned"))
        if self.data == "owned":
            if self.partition is None:
                raise ValueError(
                    f"data=owned needs a partition, which assigns each sample to a worker: add partition={' or '.join(PARTITIONS)}"
                )
            if self.epochs == "aligned" and not self.coordination.aligns_epochs:
                raise ValueError(
                    f"epochs=aligned lets workers wait at the end of an epoch, but {type(self.coordination).__name__} hands ranges out "
                    "ahead, to workers that never wait: take epochs=independent, or coordination=one_step_delay_all_reduce"
                )
        elif self.partition is not None:
            raise ValueError("partition would do nothing with data=shared, where all workers share one training set: add data=owned")
        elif self.epochs != "independent":
            raise ValueError(
                f"epochs={self.epochs} would do nothing with data=shared, where all workers share the same epochs: add data=owned"
            )

    def _check_regions(self) -> None:
        """Raise ValueError for impossible regions, or for local servers whose cores are not described."""
        if self.regions is not None and self.cluster.shares_cores:
            raise ValueError(
                f"cluster={self.cluster.name} has hosts, CPU work of messages or quotas by periods, which are not described for local "
                "servers: leave them out, or take a method with one server"
            )

    def _check_autocast(self) -> None:
        """Raise ValueError for an autocast that would have no effect."""
        if self.autocast is None:
            return
        checks.choice("autocast", self.autocast, ("bfloat16",))
        if not self.workload.has_model:
            raise ValueError(f"autocast={self.autocast} would do nothing, because workload={self.workload.name} has no model: leave it out")
        if self.dtype != "float32":
            raise ValueError(f"autocast={self.autocast} is for weights of dtype=float32, not {self.dtype}: leave one of them out")

    def _check_optimizers(self) -> None:
        """Raise ValueError for an optimizer that has no effect, is missing, or does not suit the compensation."""
        coordination = type(self.coordination).__name__
        if self.local_optimizer is not None and not self.coordination.takes_local_steps:
            raise ValueError(
                f"local_optimizer would do nothing, because in {coordination} no worker takes local steps: take local_optimizer=none"
            )
        if self.local_optimizer is None and self.coordination.needs_local_steps is not None:
            raise ValueError(f"local_optimizer is none, but {self.coordination.needs_local_steps}: add one, such as local_optimizer=sgd")
        if self.regional_optimizer is not None and not self.coordination.has_local_servers:
            raise ValueError(
                f"regional_optimizer would do nothing, because {coordination} has no local servers: take regional_optimizer=none"
            )
        if self.regional_optimizer is None and self.coordination.has_local_servers:
            raise ValueError(
                "regional_optimizer is none, but local servers step along what workers push: add one, such as "
                "regional_optimizer=delayed_nesterov"
            )
        recipe, schedule = self.optimizer.optimizer, self.optimizer.schedule
        self.coordination.compensation.suits(recipe.target, recipe.options, None if schedule is None else schedule.target)


class Optimizers(NamedTuple):
    """The optimizer that makes versions, and the optimizers of local steps and of local servers, if there are any."""

    main: Optimizer
    local: Optimizer | None = None
    regional: Optimizer | None = None
