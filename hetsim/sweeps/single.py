"""A single run, and runs with what was typed for Hydra around them: its own files, another folder, logging, variables, callbacks."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from hydra._internal.callbacks import Callbacks
from hydra.core.utils import run_job
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, open_dict

from hetsim import checks
from hetsim.config.compose import run_of
from hetsim.config.compositions import Compositions, hydra_version, written_out
from hetsim.config.typed import words_and_choices
from hetsim.sweeps.job import Outcome, job


def run_single(words: Sequence[str], *, config_dir: str | None, name: str, verbose: bool) -> Outcome:
    """Execute the run of a command, and print how it ended."""
    words, choices = words_and_choices(words, config_dir, name)
    config = choices.config(words)
    run = run_of(choices, words, Path(written_out(config, "hydra.run.dir")))
    if "resume=auto" in words and not any(word.startswith("hydra.run.dir=") for word in words):
        raise ValueError("resume=auto resumes the run in its own folder, which has a new name each time: type hydra.run.dir=FOLDER")
    if is_plain(config):
        return job(run, verbose=verbose)
    run = replace(run, folder=Path(os.path.abspath(run.folder)))
    callbacks = Callbacks(config)
    callbacks.on_run_start(config=config, config_name=name)
    outcome = run_by_hydra(choices, config, run.folder, partial(job, run, verbose=verbose), callbacks)
    callbacks.on_run_end(config=config, config_name=name, job_return=None)
    return outcome


def is_plain(config: DictConfig) -> bool:
    """Whether Hydra has nothing to do around a run of this config, with Hydra's part."""
    settings = config.hydra
    quiet = settings.verbose is False and all(
        logging is not None and logging.get("root", "") is None for logging in (settings.job_logging, settings.hydra_logging)
    )
    return quiet and not any((settings.output_subdir, settings.job.chdir, settings.job.env_set, settings.callbacks))


def run_by_hydra(
    choices: Compositions, config: DictConfig, folder: Path, task: Callable[[], Outcome], callbacks: Callbacks | None = None
) -> Outcome:
    """The outcome of a task that Hydra calls in this folder, with the settings of this config."""
    check_no_links(folder)
    with open_dict(config):
        config.hydra.run.dir = str(folder)
        config.hydra.mode = config.hydra.mode or RunMode.RUN
    context = HydraContext(config_loader=choices.loader, callbacks=callbacks or Callbacks(config))
    with hydra_version():
        ended = run_job(lambda _: task(), config, "hydra.run.dir", None, context)
    outcome: Outcome = ended.return_value  # it raises the task's error
    return outcome


def check_no_links(folder: Path) -> None:
    """Raise ValueError if Hydra would write its own files or a log through a link or a pipe in this folder."""
    for path in (folder, *checks.entries_below(folder)):
        if path.is_symlink() or (path.exists() and not (path.is_file() or path.is_dir())):
            raise ValueError(f"{path} is a link or a pipe, and would be written through: remove it")
