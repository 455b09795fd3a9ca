"""One run of the command: start it unless its folder contains it, and report how it ended."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

from hetsim import checks
from hetsim.config.compose import Composed
from hetsim.config.errors import USERS, report, sentence, show_notes, show_traceback
from hetsim.config.resumed import finished_already
from hetsim.distributed.environment import first_rank
from hetsim.files.folder import remove_error, write_error
from hetsim.files.identity import finished_summary
from hetsim.files.lock import folder_lock, only_run_in, remove_if_empty
from hetsim.memory import out_of_memory
from hetsim.results.writing.describe import describe, one_line

ALREADY = "is there already"


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    run: str
    """The name of its folder."""
    words: tuple[str, ...]
    """The words that were typed for it."""
    already: bool = False
    """Whether its folder contained its result."""
    failure: str | None = None
    """The sentence of its error; None if it succeeded."""


def job(config: Composed, *, sweep: Path | None = None, verbose: bool = False) -> Outcome:
    """Execute a run: a single one, or one of a sweep in this folder, whose other runs continue if it fails."""
    return _single_run(config, verbose) if sweep is None else _run_of_sweep(config, sweep, verbose)


def _single_run(config: Composed, verbose: bool) -> Outcome:
    from hetsim.config.start import start

    name = checks.printable(os.path.relpath(config.folder))
    summary = failure = None
    told: list[str] = []

    def tell(warning: str) -> None:
        print(f"hetsim: warning: {warning}", file=sys.stderr, flush=True)
        told.append(warning)

    try:
        if config.folder.is_symlink():
            raise ValueError(f"{config.folder} is a link, and would be written through: set hydra.run.dir to another folder")
        if finished_already(config.entries, config.words, config.folder) is not None:
            if first_rank():
                print(f"{name} holds this run, finished: nothing is left to do", flush=True)
            return Outcome(name, config.words, already=True)
        summary = start(config, only_run_in, tell=tell)
    except Exception as error:
        if not isinstance(error, USERS) and out_of_memory(error) is not None:
            raise
        if verbose or not isinstance(error, USERS):
            show_traceback()
        else:
            report(error)
        failure = sentence(error)
    finally:
        if summary is None:
            remove_if_empty(config.folder)
    if summary is not None:
        print(describe(summary))
        for warning in summary["warnings"]:
            if warning not in told:
                tell(warning)
        print(f"  files in {name}", flush=True)
    return Outcome(name, config.words, failure=failure)


def _run_of_sweep(config: Composed, sweep: Path, verbose: bool) -> Outcome:
    """Execute a run. A failure is reported here and in the folder."""
    from hetsim.config.start import start

    name, folder = os.path.relpath(config.folder, sweep), config.folder
    if link := link_to(folder, sweep):
        reason = f"{link} is a link or a pipe, and would be written through: remove it"
        print(f"hetsim: error: {reason}", file=sys.stderr, flush=True)
        return Outcome(name, config.words, failure=reason)
    try:
        with folder_lock(folder) if first_rank() else contextlib.nullcontext():  # a launcher's ranks share the folder
            summary = finished_summary(folder, config.identity)
            already = summary is not None
            summary = start(config, goes_on=True) if summary is None else summary
    except Exception as error:
        if verbose:
            show_traceback()
        else:
            show_notes(error)
        expected = isinstance(error, USERS)
        reason = sentence(error) if expected else f"{type(error).__name__} in hetsim's own code: {sentence(error)}"
        if not (folder / "summary.json").exists():  # of another run, which did not fail
            write_error(folder, reason, "" if expected else traceback.format_exc())
        print(f"hetsim: error: {reason}", file=sys.stderr, flush=True)
        return Outcome(name, config.words, failure=reason)
    remove_error(folder)
    if summary is not None:
        print(f"{name}: {ALREADY if already else one_line(summary)}", flush=True)
        for warning in () if already else summary["warnings"]:
            print(f"hetsim: warning: {name}: {warning}", file=sys.stderr, flush=True)
    return Outcome(name, config.words, already)


def finished_outcome(config: Composed, sweep: Path) -> Outcome | None:
    """The outcome of a run if its folder in the sweep contains its result. None otherwise, or if its path contains a link."""
    if link_to(config.folder, sweep) or finished_summary(config.folder, config.identity) is None:
        return None
    remove_error(config.folder)
    name = os.path.relpath(config.folder, sweep)
    print(f"{name}: {ALREADY}", flush=True)
    return Outcome(name, config.words, already=True)


def link_to(folder: Path, sweep: Path) -> Path | None:
    """The first link in the path from the sweep's folder to a run's folder; None without a link."""
    return next((path for path in (folder, *folder.parents) if sweep in path.parents and path.is_symlink()), None)
