"""The config's description of the user's own workload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from hetsim import checks
from hetsim.trust.names import argument_names, check_function, required_arguments, resolve_function
from hetsim.workloads.device import Device
from hetsim.workloads.own.training import Training
from hetsim.workloads.own.users_code import users_code
from hetsim.workloads.task import Task, Workload

KEY = "workload.module"
MAX_LOADER_WORKERS = 64
LOADER_WORKER_BYTES = 150_000_000
"""The minimum memory of a Python process with PyTorch that it shares with no other process."""


@dataclass(frozen=True, kw_only=True)
class Own(Workload):
    """The result of a function in a trusted module: a model, data, a loss and metrics.

    `module` names the function, as mymodel:build. `options` are its arguments, as plain values.
    """

    module: str
    options: Mapping[str, Any] = field(default_factory=dict)
    num_samples: int | None = None
    """The number of training samples to use; every run uses the same ones."""
    loader_workers: int = 0
    """The number of processes that read samples for each rank. With 0, each rank reads its own samples."""
    name: str = "own"
    trust: tuple[str, ...] = ()
    """The modules whose code may run."""

    takes_trust: ClassVar[bool] = True
    has_model: ClassVar[bool] = True
    imports: ClassVar[tuple[str, ...]] = ("hetsim.workloads.own.task",)
    smaller: ClassVar[str] = "lower workload.loader_workers"

    def __post_init__(self) -> None:
        checks.mapping("workload.options", self.options, optional=None)
        if self.num_samples is not None:
            checks.whole("workload.num_samples", self.num_samples)
        checks.whole("workload.loader_workers", self.loader_workers, least=0, most=MAX_LOADER_WORKERS)

    def check(self) -> None:
        check_function(self.module, key=KEY, trust=self.trust)

    def peak_bytes(self, dtype: str) -> int:
        return self.loader_workers * LOADER_WORKER_BYTES

    def load(self, *, seed: int, dtype: str, device: Device) -> Task:
        from hetsim.workloads.own.loader_workers import LoaderWorkers
        from hetsim.workloads.own.task import OwnTask

        workers = None
        if self.loader_workers:
            workers = LoaderWorkers(partial(self.make, seed), function=self.module, count=self.loader_workers)
        try:
            return OwnTask(
                self.make(seed), function=self.module, num_samples=self.num_samples, seed=seed, dtype=dtype, device=device, workers=workers
            )
        except BaseException:
            if workers is not None:
                workers.close()
            raise

    def make(self, seed: int) -> Training:
        """The function's result, with all generators seeded, so that it is the same in each process of a run."""
        from hetsim.workloads.own.chance import fixed_seed

        function = resolve_function(self.module, key=KEY, trust=self.trust)
        arguments = argument_names(function)
        for option in self.options:
            if option not in arguments:
                raise ValueError(
                    f"workload.options.{option} is not an argument of {self.module} ({', '.join(arguments) or 'it has none'})"
                    + (checks.suggestion(option, arguments) or ": " + checks.without(f"workload.options.{option}"))
                )
        for option in required_arguments(function):
            if option not in self.options:
                raise ValueError(f"workload.options.{option} is missing: give it a value, as in +workload.options.{option}=…")
        with fixed_seed(seed), users_code(self.module, "the function"):
            training = function(**self.options)
        if not isinstance(training, Training):
            raise ValueError(f"{KEY}={self.module} returns {checks.shown(training)}: return a hetsim.Training")
        return training
