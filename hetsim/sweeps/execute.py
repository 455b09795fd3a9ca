"""One run of a sweep in this process: like Hydra's `run_job`, without steps that cost more than a small simulation."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus, run_job
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from hetsim.config.guard.compositions import own_config
from hetsim.config.guard.folders import check_no_links
from hetsim.config.guard.plugins import RECORD
from hetsim.config.written_config import resolved_once


def execute(
    context: HydraContext, task: TaskFunction, master: DictConfig, typed: Sequence[str],
    *, number: int, job_id: Any, sweep: str | None = None,
) -> JobReturn:  # fmt: skip
    """Compose and run the overrides of a run. Returns how it ended, without its configs. `sweep` is another folder for the runs.

    Hydra's `run_job` copies the config three times, because it also serves programs that change it. If Hydra has nothing else to do around
    a run (its own files, another folder, logging, variables, callbacks), the run gets its own config here.
    """
    whole = context.config_loader.load_sweep_config(master, [*typed])
    with open_dict(whole):
        whole.hydra.job.id = job_id
        whole.hydra.job.num = number
        if sweep is not None:
            whole.hydra.sweep.dir = sweep
    own = own_config(context.config_loader, master, typed, whole) if is_plain(whole) else None
    if own is None:
        check_no_links(Path(str(OmegaConf.select(whole, "hydra.sweep.dir")), str(OmegaConf.select(whole, "hydra.sweep.subdir"))))
        ended = run_job(
            hydra_context=context, task_function=task, config=whole, job_dir_key="hydra.sweep.dir", job_subdir_key="hydra.sweep.subdir"
        )
        return JobReturn(overrides=ended.overrides, status=ended.status, _return_value=ended._return_value)
    with resolved_once(whole, own):
        return _run(context, task, whole, own, typed)


def is_plain(config: DictConfig) -> bool:
    """Whether Hydra has nothing to do around a run of this config."""
    settings = config.hydra
    quiet = settings.verbose is False and settings.job_logging is not None and settings.job_logging.get("root", "") is None
    asked = (settings.output_subdir, settings.job.chdir or None, settings.job.env_set or None)
    callbacks = [callback.get("_target_") for callback in (settings.callbacks or {}).values()]
    return quiet and asked == (None, None, None) and callbacks == [RECORD]


def _run(context: HydraContext, task: TaskFunction, whole: DictConfig, own: DictConfig, typed: Sequence[str]) -> JobReturn:
    hydra = HydraConfig.instance()
    before = hydra.cfg
    OmegaConf.set_readonly(whole.hydra, True)
    hydra.cfg = whole  # type: ignore[assignment]
    try:
        folder = os.path.join(str(OmegaConf.select(whole, "hydra.sweep.dir")), str(OmegaConf.select(whole, "hydra.sweep.subdir")))
        with read_write(whole.hydra.runtime), open_dict(whole.hydra.runtime):
            whole.hydra.runtime.output_dir = os.path.abspath(folder)
        Path(folder).mkdir(parents=True, exist_ok=True)
        ended = JobReturn(overrides=[*typed])
        context.callbacks.on_job_start(config=whole, task_function=task)
        try:
            ended.return_value = task(own)
            ended.status = JobStatus.COMPLETED
        except Exception as error:
            ended.return_value = error
            ended.status = JobStatus.FAILED
        context.callbacks.on_job_end(config=whole, job_return=ended)
        return ended
    finally:
        hydra.cfg = before
