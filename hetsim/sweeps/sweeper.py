"""Hydra's basic sweeper, which also varies the values of a grid, and finds finished runs before it launches any."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from hetsim import checks
from hetsim.config.guard.compositions import ONLY_HYDRA, compositions
from hetsim.config.guard.references import NAME
from hetsim.config.written_config import identity
from hetsim.distributed.environment import is_launched
from hetsim.files.identity import folder_name
from hetsim.files.writing import write_text
from hetsim.sweeps.execute import is_plain
from hetsim.sweeps.grid import Grid, is_of_grid
from hetsim.sweeps.job import finished_outcome
from hetsim.sweeps.record import SweepRecord
from hetsim.sweeps.sweep_size import check_number
from hetsim.sweeps.varied import Varied

OWN_NAME = "${hetsim.folder:}"
"""The name of a run's folder in conf/config.yaml."""
FIXED = re.compile(r"\$\{now:[^${}]*\}")
"""A reference with the same value in all runs of a sweep."""
MAX_VARIED = 500
"""The maximum number of resolved configs in memory."""


class CombinationsSweeper(Sweeper):
    """`hydra/sweeper=basic`: all combinations of the values in the lists.

    Each choice of groups is composed before any launch, so that errors are reported at once. Finished runs are not launched, if hetsim can
    find their folders without composing each.
    """

    def __init__(self, max_batch_size: int | None, params: Mapping[str, str] | None = None) -> None:
        self.max_batch_size = max_batch_size
        self.params = params or {}

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Set up, as Hydra's sweeper does."""
        self.hydra_context, self.config = hydra_context, config
        self.launcher = Plugins.instance().instantiate_launcher(hydra_context, task_function, config)

    def sweep(self, arguments: list[str]) -> None:
        """Launch the unfinished runs, in batches of `max_batch_size`."""
        assert self.config is not None
        assert self.hydra_context is not None
        assert self.launcher is not None
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        overrides = parser.parse_overrides([*(f"{key}={value}" for key, value in self.params.items()), *arguments])
        for override in overrides:
            check_names(override)
        (runs,) = BasicSweeper.split_arguments([override for override in overrides if not is_of_grid(override)], None)
        if "grid" in self.config:
            runs = self._with_grid(runs)
        folder = Path(self.config.hydra.sweep.dir)
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "multirun.yaml", OmegaConf.to_yaml(self.config))
        if not runs:
            return  # the record says so
        number, checked = 0, _Checked(self)
        checked.seal(runs)
        for batch in BasicSweeper.split_overrides_to_chunks(runs, self.max_batch_size):
            missing = [words for words in batch if not checked.has_finished(words)]
            for returned in self.launcher.launch(missing, initial_job_idx=number) if missing else ():
                _ = returned.return_value  # raises what ended the job
            number += len(batch)

    def _with_grid(self, runs: Sequence[Sequence[str]]) -> list[list[str]]:
        assert self.config is not None
        assert self.hydra_context is not None
        grid = Grid(self.config, self.hydra_context.config_loader)
        check_number(sum(map(grid.num_runs, runs)))
        return [run for words in runs for run in grid.runs(words)]


def check_names(override: Override) -> None:
    """Raise ValueError if a glob finds a file whose name has a further meaning, because it may come from somebody else."""
    if isinstance(override.value(), Glob):
        for name in override.sweep_string_iterator():
            if not NAME.fullmatch(name):
                raise ValueError(
                    f"{override.input_line} finds {checks.shown(name)}, which is not a plain name: rename the file, or list the choices"
                )


class _Checked:
    """The runs of a sweep, one by one, before their launch."""

    def __init__(self, sweeper: CombinationsSweeper) -> None:
        assert sweeper.config is not None
        assert sweeper.hydra_context is not None
        self.config = sweeper.config
        self.loader = sweeper.hydra_context.config_loader
        self.known = compositions(self.loader, self.config)
        self.varied: dict[tuple[tuple[str, ...], ...], Varied | None] = {}
        sweep: Any = OmegaConf.to_container(self.config.hydra.sweep, resolve=False)
        told = sweep["subdir"] == OWN_NAME and "$" not in FIXED.sub("", str(sweep["dir"])) and is_plain(self.config)
        self.folder = Path(self.config.hydra.sweep.dir) if told and not is_launched() else None  # a launcher's ranks must agree

    def seal(self, runs: Sequence[Sequence[str]]) -> None:
        """With configs from files, compose everything now, so that a run's files cannot become part of another run's config."""
        if self.known.of_others:
            for typed in runs:
                if self.known.words(typed) is None:
                    raise ValueError(ONLY_HYDRA)
                self._composed(typed)
            self.known.sealed = True

    def has_finished(self, typed: Sequence[str]) -> bool:
        """Whether the run is finished. If so, its outcome is recorded. Raises HydraException if its choices make no config."""
        varied, words = self._composed(typed), self.known.words(typed)
        if varied is None or words is None or SweepRecord.current is None:
            return False
        entries = None if self.folder is None else varied.of(words)
        if entries is None or self.folder is None:
            return False
        with contextlib.suppress(Exception):  # the run itself says what is wrong
            own = identity(entries)
            outcome = finished_outcome(self.folder / folder_name(entries, own), typed, own, self.config)
            if outcome is not None:
                SweepRecord.current.outcomes.append(outcome)
            return outcome is not None
        return False

    def _composed(self, typed: Sequence[str]) -> Varied | None:
        """The `Varied` of the first run with these choices, which is composed to check it; None if hetsim cannot vary its config."""
        words = self.known.words(typed)
        key = (tuple(typed),) if words is None else (words.chosen, tuple(override.get_key_element() for override in words.values))
        if key not in self.varied:
            self.loader.load_sweep_config(self.config, [*typed])
            found = None
            if words is not None and SweepRecord.current is not None:
                with contextlib.suppress(Exception):
                    found = Varied(self.known.template(words), words)
            if len(self.varied) >= MAX_VARIED:
                self.varied.pop(next(iter(self.varied)))
            self.varied[key] = found
        return self.varied[key]
