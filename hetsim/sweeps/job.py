"""One job of Hydra: a single run, or one run of a sweep."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from hetsim import checks
from hetsim.config.arguments import verbose
from hetsim.config.errors import USERS, report, sentence, show_notes, show_traceback
from hetsim.config.guard.plugins import RECORD
from hetsim.config.resumed import automatic, finished_already, with_resumed
from hetsim.config.written_config import entries_of, identity, name_of_folder
from hetsim.distributed.environment import first_rank
from hetsim.errors import RunFailed
from hetsim.files.folder import remove_error, write_error
from hetsim.files.identity import finished_summary
from hetsim.files.lock import folder_lock, only_run_in, remove_if_empty
from hetsim.memory import out_of_memory
from hetsim.results.writing.describe import describe, one_line
from hetsim.sweeps.outcomes import Outcome

failures: list[BaseException] = []
"""The reported error of this command's single run. Hydra passes no return value of a single run to `main`."""
ALREADY = "is there already"


def job(config: DictConfig) -> Outcome | None:
    """Hydra's task function. It is called for a single run, or for each run of a sweep, perhaps in another process."""
    settings = HydraConfig.get()
    folder = Path(settings.runtime.output_dir)
    if settings.mode == RunMode.MULTIRUN:
        if not any(callback.get("_target_") == RECORD for callback in settings.callbacks.values()):
            raise RunFailed(f"hydra.callbacks lacks {RECORD}, which counts failed runs: leave hydra.callbacks as it is")
        return _run_of_sweep(config, folder)
    _single_run(config, folder)
    return None


def _single_run(config: DictConfig, folder: Path) -> None:
    from hetsim.config.start import start

    summary = None
    try:
        typed = typed_words()
        if "resume=auto" in typed and not any(word.startswith("hydra.run.dir=") for word in HydraConfig.get().overrides.hydra):
            raise ValueError("resume=auto resumes the run in its own folder, which has a new name each time: type hydra.run.dir=FOLDER")
        if folder.is_symlink():
            raise ValueError(f"{folder} is a link, and would be written through: set hydra.run.dir to another folder")
        config = with_resumed(automatic(config, typed, folder), typed)
        if finished_already(config, typed, folder) is not None:
            if first_rank():
                print(f"{checks.printable(os.path.relpath(folder))} holds this run, finished: nothing is left to do", flush=True)
            return
        summary = start(config, folder, typed, only_run_in)
    except USERS as error:
        if verbose(sys.argv):
            show_traceback()
        else:
            report(error)
        failures.append(error)
    except Exception as error:
        if out_of_memory(error) is not None:
            raise
        show_traceback()
        failures.append(error)
    finally:
        if summary is None:
            remove_if_empty(folder)  # Hydra made it; if it is not empty, its files are an earlier run's
    if summary is not None:
        print(describe(summary))
        for warning in summary["warnings"]:
            print(f"hetsim: warning: {warning}", file=sys.stderr)
        print(f"  files in {checks.printable(os.path.relpath(folder))}", flush=True)


def _run_of_sweep(config: DictConfig, folder: Path) -> Outcome:
    """Execute a run unless its folder contains its result. A failure is reported here and in the folder, and other runs continue."""
    from hetsim.config.start import start

    settings = HydraConfig.get()
    if config.get("resume") is not None:
        raise ValueError("resume continues a single run: leave -m out")
    sweep = Path(os.path.normpath(Path(settings.runtime.cwd, settings.sweep.dir)))  # the current folder may be the run's own
    name, typed = os.path.relpath(folder, sweep), typed_words()
    if link := _link_to(folder, sweep):
        reason = f"{link} is a link or a pipe, and would be written through: remove it"
        print(f"hetsim: error: {reason}", file=sys.stderr, flush=True)
        return Outcome(name, typed, failure=reason)
    try:
        with folder_lock(folder) if first_rank() else contextlib.nullcontext():  # a launcher's ranks share the folder
            summary = finished_summary(folder, identity(entries_of(config)))
            already = summary is not None
            summary = start(config, folder, typed, goes_on=True) if summary is None else summary
    except Exception as error:
        if settings.verbose is True:
            show_traceback()
        else:
            show_notes(error)
        expected = isinstance(error, USERS)
        reason = sentence(error) if expected else f"{type(error).__name__} in hetsim's own code: {sentence(error)}"
        if not (folder / "summary.json").exists():  # of another run, which did not fail
            write_error(folder, reason, "" if expected else traceback.format_exc())
        print(f"hetsim: error: {reason}", file=sys.stderr, flush=True)
        return Outcome(name, typed, failure=reason)
    remove_error(folder)
    if summary is not None:
        print(f"{name}: {ALREADY if already else one_line(summary)}", flush=True)
        for warning in () if already else summary["warnings"]:
            print(f"hetsim: warning: {name}: {warning}", file=sys.stderr, flush=True)
    return Outcome(name, typed, already)


def finished_outcome(folder: Path, typed: Sequence[str], identity: str, sweep: DictConfig) -> Outcome | None:
    """The outcome of the run with this identity, if its folder in the sweep contains it. None otherwise, or if its path contains a link."""
    if _link_to(Path(os.path.abspath(folder)), Path(os.path.abspath(sweep.hydra.sweep.dir))):
        return None
    summary = finished_summary(folder, identity)
    if summary is None:
        return None
    outcome = Outcome(folder.name, tuple(typed), already=True)
    remove_error(folder)
    print(f"{folder.name}: {ALREADY}", flush=True)
    return outcome


def _link_to(folder: Path, sweep: Path) -> Path | None:
    """The first link in the path from the sweep's folder to a run's folder; None without a link."""
    return next((path for path in (folder, *folder.parents) if sweep in path.parents and path.is_symlink()), None)


def typed_words() -> tuple[str, ...]:
    """The typed overrides of this run, with unresolved references."""
    words = OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False)
    assert isinstance(words, list)
    return tuple(map(str, words))


# On import, as the name of a run's folder refers to it.
OmegaConf.register_new_resolver("hetsim.folder", lambda *, _root_: name_of_folder(_root_), replace=True)
