"""The task function for Hydra, and for the processes of Hydra's launchers."""

from __future__ import annotations

import hydra
from omegaconf import DictConfig

from hetsim.config.guard import provenance
from hetsim.sweeps import job
from hetsim.sweeps.outcomes import Outcome
from hetsim.trust.shipped import configs


def task(config: DictConfig) -> Outcome | None:
    """Run one job."""
    return job.job(config)


def run_by_hydra() -> None:
    """Compose the typed config, and run its job, or all jobs of its sweep."""
    hydra.main(version_base="1.3", config_path=str(configs()), config_name="config")(task)()


# On import, as a launcher's processes import this module and nothing else before they compose the run's config and name its folder.
provenance.install()
