"""What the command hands to Hydra, and to the processes that Hydra's launchers start."""

from __future__ import annotations

from omegaconf import DictConfig

from hetsim.cli import job, provenance
from hetsim.cli.outcomes import Outcome


def task(config: DictConfig) -> Outcome | None:
    """Run one job."""
    return job.job(config)


# On import, as a launcher's processes import this module and nothing else before they compose the run's config and name its folder.
provenance.install()
