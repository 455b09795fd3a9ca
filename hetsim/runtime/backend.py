"""What a config selects with `backend=`: a world, and how a run in it is started."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from hetsim.runtime.experiment import Experiment


class Backend(ABC):
    """A world that answers a method's questions."""

    name: ClassVar[str]

    def check(self, experiment: Experiment) -> None:  # noqa: B027
        """Raise ValueError, with one sentence, if this experiment cannot run here."""

    @abstractmethod
    def run(self, experiment: Experiment, folder: Path, config: str) -> dict[str, Any] | None:
        """Run it, leave its files and its resolved config in the folder; the summary (None on ranks that do not lead)."""
