"""A sweep: all combinations of the values that were typed, each as a run of its own."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

from hydra._internal.callbacks import Callbacks
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import OmegaConf, open_dict

from hetsim import checks
from hetsim.config.compose import Composed, run_of_sweep
from hetsim.config.compositions import parsed, written_out
from hetsim.config.errors import USERS, sentence
from hetsim.config.typed import as_typed, check_folder, words_and_choices
from hetsim.distributed.environment import is_launched
from hetsim.errors import RunFailed
from hetsim.files.folder import abandon
from hetsim.files.lock import only_run_in
from hetsim.files.writing import unfinished, write_text
from hetsim.pool.engines import check_engine
from hetsim.sweeps.grid import Grid, check_number, is_of_grid, num_values
from hetsim.sweeps.job import Outcome, finished_outcome
from hetsim.sweeps.launchers import LAUNCHERS, RAY, SweepSettings
from hetsim.sweeps.single import check_no_links, is_plain

OWN_NAME = "${hetsim.folder:}"
"""The name of a run's folder in conf/config.yaml."""
MAX_JOBS = 10_000
"""The maximum number of simultaneous jobs."""
LOCK_SECONDS = (0.1, 0.3, 0.6)
"""Pauses in which the system releases the locks of killed processes."""
AGAIN = "the same command with the same hydra.sweep.dir runs what is missing"
SWEEPER = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"

# On import, as Hydra's own launchers are in its store once they are imported.
ConfigStore.instance().store(
    group="hydra/launcher", name="ray", node={"_target_": RAY, "n_jobs": None, "num_cpus": 1, "num_gpus": 0}, provider="hetsim"
)


class Sweep:
    """The runs of a command, and how they ended.

    Args:
        words: the typed words, also those for Hydra.
        config_dir: a folder of further configs.
        name: the primary config.
    """

    def __init__(self, words: Sequence[str], config_dir: str | Path | None = None, name: str = "config") -> None:
        """Raise ValueError or HydraException for words that make no sweep, and for folders that it cannot use."""
        words, self.choices = words_and_choices(words, config_dir, name)
        self.config = self.choices.by_hydra(words, RunMode.MULTIRUN)
        self.hydra_words = [word for word in words if parsed(word).is_hydra_override()]
        self.folder = Path(os.path.abspath(written_out(self.config, "hydra.sweep.dir")))
        self.outcomes: dict[int, Outcome] = {}
        sweeper, launcher = (_settings(self.config.hydra[part]) for part in ("sweeper", "launcher"))
        params = [f"{key}={value}" for key, value in (sweeper.get("params") or {}).items()]
        self._combine([*params, *(word for word in words if word not in self.hydra_words)])
        self._batch: int | None = sweeper.get("max_batch_size")
        target = launcher.pop("_target_", None)
        self._check(sweeper, target, launcher)
        hydra = None if is_plain(self.config) else (self.choices.folders, name, tuple(self.hydra_words))
        self._launch, self._settings = LAUNCHERS[target], SweepSettings(self.folder, launcher, self.config.hydra.verbose is True, hydra)

    def _combine(self, words: Sequence[str]) -> None:
        """Set the words of each run. Raises ValueError if there are too many to list."""
        overrides = OverridesParser.create(config_loader=self.choices.loader).parse_overrides([*words])
        number = 1
        for override in overrides:
            number *= num_values(override)
        check_number(number)
        (self.runs,) = BasicSweeper.split_arguments([override for override in overrides if not is_of_grid(override)], None)
        if "grid" in self.config:
            grid = Grid(self.config, self.choices.loader)
            check_number(sum(map(grid.num_runs, self.runs)))
            self.runs = [run for combined in self.runs for run in grid.runs(combined)]

    def _check(self, sweeper: Mapping[str, Any], target: object, launcher: Mapping[str, Any]) -> None:
        if sweeper.get("_target_") != SWEEPER:
            raise ValueError("hydra/sweeper must be basic: hetsim-search searches by Optuna")
        if target not in LAUNCHERS:
            raise ValueError("hydra/launcher must be basic, joblib, submitit_local, submitit_slurm or ray")
        if self._batch is not None and self._batch < 1:
            raise ValueError(f"hydra.sweeper.max_batch_size must be at least 1, not {self._batch}, or null")
        jobs = launcher.get("n_jobs")
        if isinstance(jobs, int) and jobs > MAX_JOBS:
            raise ValueError(f"hydra.launcher.n_jobs must be at most {MAX_JOBS}, not {jobs}")
        place = os.path.relpath(self.folder)
        if self.folder.is_symlink():
            raise ValueError(f"{place} is a link, and would be written through: set hydra.sweep.dir to another folder")
        check_folder("hydra.sweep.dir", self.folder)
        for path in self.folder.iterdir() if self.folder.is_dir() else ():  # multirun.yaml, .submitit, a run's folder
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                raise ValueError(f"{path} is a link or a pipe, and would be written through: remove it")

    def run(self) -> list[Outcome]:
        """Execute the runs that are missing in the folder. Returns the outcomes of all, in order."""
        if not self.runs:
            raise ValueError("the sweep has no runs: give each key a value (glob(…) is for groups of choices)")
        if self._settings.hydra is not None:
            check_no_links(self.folder)
        self._check_choices()
        self.folder.mkdir(parents=True, exist_ok=True)
        write_text(self.folder / "multirun.yaml", OmegaConf.to_yaml(self.config))
        callbacks = Callbacks(self.config)
        callbacks.on_multirun_start(config=self.config, config_name=self.choices.name)
        missing = self._missing()
        for first in missing:
            batch = chain([first], missing if self._batch is None else islice(missing, self._batch - 1))
            self.outcomes.update(self._launch(self._settings, batch))
        callbacks.on_multirun_end(config=self.config, config_name=self.choices.name)
        return [self.outcomes[number] for number in sorted(self.outcomes)]

    def _check_choices(self) -> None:
        """Compose the first run of each choice of groups and keys, so that an error is reported before any run starts."""
        first_of_kind: dict[tuple[Any, ...], list[str]] = {}
        for words in self.runs:
            words = [*self.hydra_words, *words]
            first_of_kind.setdefault(self.choices.kind_of(words), words)
        for words in first_of_kind.values():
            self.choices.config(words)

    def _missing(self) -> Iterator[tuple[int, Composed]]:
        """The runs whose result is not in their folder, one by one."""
        for number, words in enumerate(self.runs):
            try:
                config = self._composed(number, words)
            except USERS as error:
                print(f"hetsim: error: {sentence(error)}", file=sys.stderr, flush=True)
                self.outcomes[number] = Outcome(" ".join(words), tuple(words), failure=sentence(error))
                continue
            outcome = None if is_launched() else finished_outcome(config, self.folder)  # a launcher's ranks must agree
            if outcome is None:
                yield number, config
            else:
                self.outcomes[number] = outcome

    def _composed(self, number: int, words: Sequence[str]) -> Composed:
        """The config of a run in its folder."""
        words = [*self.hydra_words, *words]
        if OmegaConf.to_container(self.config.hydra.sweep, resolve=False)["subdir"] == OWN_NAME:  # type: ignore[index,call-overload]
            return run_of_sweep(self.choices, words, self.folder)
        config = self.choices.config(words)
        OmegaConf.copy_cache(self.config, config)  # the time is that of the sweep
        with open_dict(config):
            config.hydra.job.num, config.hydra.job.id, config.hydra.sweep.dir = number, str(number), str(self.folder)
        return run_of_sweep(self.choices, words, self.folder, os.path.normpath(written_out(config, "hydra.sweep.subdir")))

    def remove_unfinished(self) -> None:
        """Remove unfinished files of runs that a signal ended. Runs in other processes were killed, or still run, as on a cluster."""
        for pause in (0.0, *LOCK_SECONDS):
            time.sleep(pause)
            for path in list(self.folder.rglob(unfinished(Path("config.yaml")).name)):
                with contextlib.suppress(OSError, RunFailed), only_run_in(path.parent):
                    abandon(path.parent)


def _settings(part: Any) -> dict[str, Any]:
    entries = OmegaConf.to_container(part, resolve=True)
    assert isinstance(entries, dict)
    return {str(key): value for key, value in entries.items()}


def swept(words: Iterable[str], *, processes: int | None, config_dir: Path | None, engine: str = "local") -> tuple[Path, list[Outcome]]:
    """The folder of a sweep, and its runs' outcomes. Raises ValueError for an invalid sweep, and RunFailed if it ended early."""
    check_engine(engine)
    if processes is not None:
        checks.whole("processes", processes)
    several = engine == "local" and processes is not None and processes > 1
    launcher = ["hydra/launcher=joblib"] if several else ["hydra/launcher=ray"] if engine == "ray" else []
    if launcher and processes is not None:
        launcher.append(f"hydra.launcher.n_jobs={processes}")
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            sweep = Sweep([*words, *launcher], config_dir)
            outcomes = sweep.run()
        return Path(os.path.relpath(sweep.folder)), outcomes
    except RunFailed:
        raise
    except USERS as error:
        raise ValueError(sentence(error)) from None
    except Exception as error:
        raise launch_failure(error) from None  # what a job says of its end is in its log


def words_of(varied: Mapping[str, Any]) -> list[str]:
    """The command-line arguments that give each key its value, or each of the values in a list."""
    words = []
    for key, value in varied.items():
        values = [*value] if isinstance(value, list | tuple | range) else [value]
        if not isinstance(key, str) or not values:
            raise ValueError(f"{key} has no values: list some, or leave it out")
        words.append(f"{key}={','.join(map(as_typed, values))}")
    return words


def launch_failure(error: Exception) -> RunFailed:
    """The error that ended a sweep early, as a sentence that shows how to resume."""
    if isinstance(error, RuntimeError) and type(error).__module__.startswith("submitit"):
        return RunFailed(f"a job was lost ({str(error).splitlines()[0]}): see the logs in the sweep's .submitit; {AGAIN}")
    reason = f"{type(error).__name__}: {sentence(error)}"
    return RunFailed(f"the sweep broke off ({reason}): {AGAIN}; hydra.verbose=true shows the traceback")


def closing_line(outcomes: Sequence[Outcome], folder: str) -> str:
    """A line with the number of runs in the sweep's folder now, and the number of earlier ones."""
    num_finished = sum(outcome.failure is None for outcome in outcomes)
    already = sum(outcome.already for outcome in outcomes)
    of = "" if num_finished == len(outcomes) else f" of {len(outcomes)}"
    return f"{num_finished}{of} run{'' if len(outcomes) == 1 else 's'}{f' ({already} were there already)' if already else ''} in {folder}"


def failure_lines(outcomes: Sequence[Outcome]) -> str:
    """A line with the error of each failed run; empty without failures."""
    failed = [outcome for outcome in outcomes if outcome.failure is not None]
    lines = [f"hetsim: {len(failed)} of {len(outcomes)} runs failed:", *(f"  {outcome.run}: {outcome.failure}" for outcome in failed)]
    return "\n".join(lines) if failed else ""
