"""One job of Hydra: a single run, or one run of a sweep."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hetsim.cli import sweep
from hetsim.cli.build import _used, build_experiment
from hetsim.cli.errors import USERS, _tell, _verbose, sentence
from hetsim.cli.methods import configs
from hetsim.results.folder import folder_lock
from hetsim.results.identity import config_header, finished_summary, folder_name, identity_of
from hetsim.results.summary import describe, one_line

failures: list[BaseException] = []  # of the one run of this command, told already


def job(config: DictConfig) -> sweep.Outcome | None:
    """One run, or one of a sweep's: it may be in a process of its own."""
    folder = Path(HydraConfig.get().runtime.output_dir)
    if HydraConfig.get().mode == RunMode.MULTIRUN:
        return _of_sweep(config, folder)
    _single(config, folder)
    return None


_app = hydra.main(version_base="1.3", config_path=str(configs()), config_name="config")(job)


def _single(config: DictConfig, folder: Path) -> None:
    summary = None
    try:
        summary = _run(config, folder)
    except USERS as error:
        if _verbose():
            raise
        if os.environ.get("RANK", "0") == "0" or not isinstance(error, ValueError):  # of torchrun's ranks, one tells what all see
            _tell(error)
        failures.append(error)
    finally:
        if summary is None:
            with contextlib.suppress(OSError):
                folder.rmdir()  # Hydra made it; if anything is in it, it is somebody's
    if summary is not None:
        print(describe(summary))
        for warning in summary["warnings"]:
            print(f"hetsim: warning: {warning}", file=sys.stderr)
        print(f"  files in {os.path.relpath(folder)}", flush=True)


def _of_sweep(config: DictConfig, folder: Path) -> sweep.Outcome:
    """Skip what is there. What fails is told here and in the run's folder, and does not keep the other runs from running."""
    settings = HydraConfig.get()
    name, typed = os.path.relpath(folder, settings.sweep.dir), tuple(settings.overrides.task)
    if multiprocessing.get_start_method(allow_none=True) == "loky":
        multiprocessing.set_start_method(None, force=True)  # joblib's own is unknown to the processes that backend=dist starts
    worst = sweep.DIRECTIONS.get(_direction(settings) or "minimize", 0.0)
    try:
        with folder_lock(folder):
            summary = finished_summary(folder, identity_of(_entries(config)))
            already = summary is not None
            summary = _run(config, folder) if summary is None else summary
            objective = sweep.objective(config.objective, summary or {}, folder, worst=worst)
    except Exception as error:
        if settings.verbose is True:
            raise
        known = isinstance(error, USERS)
        reason = sentence(error) if known else f"{type(error).__name__} in hetsim's own code: {sentence(error)}"
        sweep.failed(folder, reason, "" if known else traceback.format_exc())
        print(f"hetsim: error: {reason}", file=sys.stderr, flush=True)
        return sweep.Outcome(name, typed, worst, failure=reason)
    sweep.succeeded(folder)
    if summary is not None:
        told = "is there already" if already else one_line(summary)
        print(f"{name}: {told}", flush=True)
        for warning in () if already else summary["warnings"]:
            print(f"hetsim: warning: {name}: {warning}", file=sys.stderr, flush=True)
    return sweep.Outcome(name, typed, objective, already)


def _run(config: DictConfig, folder: Path) -> dict[str, Any] | None:
    typed = HydraConfig.get().overrides.task
    _used(config, typed)
    made, backend = build_experiment(config)
    entries = _entries(config)
    return backend.run(made, folder, config_header(identity_of(entries), typed) + OmegaConf.to_yaml(OmegaConf.create(entries)))


def _entries(config: DictConfig) -> dict[str, Any]:
    """The config without Hydra's own part, resolved; as it stands if it cannot be, which the run will tell."""
    own = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"]) if "hydra" in config else config
    try:
        entries = OmegaConf.to_container(own, resolve=True)
    except OmegaConfBaseException:
        entries = OmegaConf.to_container(own)
    assert isinstance(entries, dict)
    return {str(key): value for key, value in entries.items()}


OmegaConf.register_new_resolver("hetsim.folder", lambda *, _root_: folder_name(_entries(_root_)), replace=True)


def _direction(settings: Any) -> str | None:
    """Which way a search goes; None where a sweep is no search."""
    direction = settings.sweeper.get("direction")
    return None if direction is None else str(getattr(direction, "name", direction))
