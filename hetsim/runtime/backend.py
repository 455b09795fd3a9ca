"""The interface of `backend=`: the world that answers a method's effects, and how it starts a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from hetsim.memory import check_fits
from hetsim.runtime.experiment import Experiment


class Backend(ABC):
    """Runs an experiment in its world."""

    name: ClassVar[str]

    def check(self, experiment: Experiment) -> None:
        """Raise ValueError if this backend cannot run the experiment."""
        workload = experiment.workload
        check_fits(f"workload={workload.name}", self.num_copies(experiment) * workload.peak_bytes(experiment.dtype), workload.smaller)

    def num_copies(self, experiment: Experiment) -> int:
        """The number of this machine's processes that load the workload separately."""
        return 1

    def leads(self, experiment: Experiment) -> bool:
        """Whether this process writes the run's files, or starts the process that does. Under a launcher, one of several processes does."""
        return True

    @abstractmethod
    def run(self, experiment: Experiment, folder: Path, config: str) -> dict[str, Any] | None:
        """Run the experiment, and write its files and config to the folder. Returns the summary; None on ranks that do not lead."""
