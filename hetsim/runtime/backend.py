"""What a config selects with `backend=`: the world that answers a method's effects, and how a run in it is started."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from hetsim.memory import check_fits
from hetsim.runtime.experiment import Experiment


class Backend(ABC):
    """Runs an experiment in a world of its kind."""

    name: ClassVar[str]

    def check(self, experiment: Experiment) -> None:
        """Raise ValueError, with one sentence, if this backend cannot run the experiment."""
        workload = experiment.workload
        check_fits(f"workload={workload.name}", self.num_copies(experiment) * workload.peak_bytes(experiment.dtype), workload.smaller)

    def num_copies(self, experiment: Experiment) -> int:
        """How many processes of this machine load the workload, each for itself."""
        return 1

    def leads(self, experiment: Experiment) -> bool:
        """Whether this process writes the run's files, or starts the one that does. Under a launcher one of several does."""
        return True

    @abstractmethod
    def run(self, experiment: Experiment, folder: Path, config: str) -> dict[str, Any] | None:
        """Run it, and write its files and its resolved config to the folder. Returns the summary; None on ranks that do not lead."""
