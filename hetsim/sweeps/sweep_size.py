"""Count the runs of a sweep before Hydra lists them."""

from __future__ import annotations

import math
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, RangeSweep
from omegaconf import OmegaConf

MAX_RUNS = 1_000_000
"""The maximum number of runs of a sweep."""
MAX_JOBS = 10_000
"""The maximum number of simultaneous jobs."""


def check_sweep_size(hydra: Any) -> None:
    """Raise ValueError if a sweep, from Hydra's part of its config, is too large to list or start."""
    sweeper = OmegaConf.to_container(hydra.sweeper, resolve=True)
    launcher = OmegaConf.to_container(hydra.launcher, resolve=True)
    assert isinstance(sweeper, dict)
    assert isinstance(launcher, dict)
    _check_bound("hydra.launcher.n_jobs", launcher.get("n_jobs"), MAX_JOBS)
    batch = sweeper.get("max_batch_size")
    if batch is not None and batch < 1:
        raise ValueError(f"hydra.sweeper.max_batch_size must be at least 1, not {batch}, or null")
    words = [f"{key}={value}" for key, value in (sweeper.get("params") or {}).items()]
    typed: Any = OmegaConf.to_container(hydra.overrides.task, resolve=False)
    words += typed
    runs = 1
    for override in OverridesParser.create().parse_overrides(words):
        runs *= num_values(override)
    check_number(runs)


def num_values(override: Override) -> int:
    """The number of values in an argument, without listing them. Raises ValueError for an endless range."""
    value = override.value()
    if isinstance(value, RangeSweep):
        if not value.step:
            raise ValueError(f"{override.input_line} has a step of 0: give it another")
        assert value.start is not None
        assert value.stop is not None
        return max(0, math.ceil((value.stop - value.start) / value.step))
    return len(value.list) if isinstance(value, ChoiceSweep) else 1


def check_number(runs: int) -> None:
    """Raise ValueError for a number of runs that is too large to list."""
    if runs > MAX_RUNS:
        raise ValueError(f"the sweep would have {runs} runs: at most {MAX_RUNS} can be listed")


def _check_bound(key: str, value: Any, most: int) -> None:
    if isinstance(value, int) and value > most:
        raise ValueError(f"{key} must be at most {most}, not {value}")
