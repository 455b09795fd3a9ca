"""A process that executes a sweep's runs on a Ray node. It reads a JSON line for each run, and writes a line with its outcome.

Hydra's data come from the sweep's process as a pickle. Only text is sent back.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import pickle
import sys
from collections.abc import Mapping
from typing import Any

from hydra.core.utils import JobStatus
from hydra.plugins.launcher import Launcher

from hetsim.config.errors import USERS, sentence
from hetsim.config.guard.compositions import Compositions, Template, compositions
from hetsim.pool.json_process import answering
from hetsim.sweeps.record import SweepRecord
from hetsim.sweeps.sent_runs import common_of, received, run_sent


def sendable(launcher: Launcher, templates: Mapping[tuple[str, ...], Template]) -> str:
    """The common data of a launcher's runs as this process's first line: Hydra's state, and the templates of the configs."""
    return base64.b64encode(pickle.dumps((pickle.dumps(common_of(launcher)), dict(templates)))).decode()


def main() -> None:
    """The process's main function. The first line contains the common data, and each other line is a run."""
    with answering() as answers:
        common, templates = pickle.loads(base64.b64decode(json.loads(sys.stdin.readline())))
        context, _, master = received(common)
        known = compositions(context.config_loader, master)
        known.templates.update(templates)
        its = (each for each in context.callbacks.callbacks if isinstance(each, SweepRecord))
        SweepRecord.current = next(its)  # it is no copy then, and writes no outcomes: they are sent
        for line in sys.stdin:
            print(json.dumps(_answer(common, known, **json.loads(line))), file=answers, flush=True)


def _answer(common: bytes, known: Compositions, *, typed: list[str], number: int, folder: str) -> dict[str, Any]:
    told, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(errors):
        try:
            ended = run_sent(common, typed, known.known_template(typed), number, sweep=folder)
            error = None if ended.status is JobStatus.COMPLETED else ended._return_value
        except USERS as raised:  # there is no config to run
            error = raised
    printed = {"out": told.getvalue(), "err": errors.getvalue()}
    if isinstance(error, Exception):
        reason = sentence(error) if isinstance(error, USERS) else f"{type(error).__name__}: {sentence(error)}"
        return {**printed, "refused": reason}
    return {**printed, "outcome": ended.return_value.to_json()}


if __name__ == "__main__":
    main()
