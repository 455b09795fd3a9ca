"""A process that makes runs of a sweep on a node of a Ray cluster: a line of JSON for each, and a line for how it ended.

What Hydra needs comes from the process of the sweep, as a pickle. What goes back there is text.
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
from hetsim.sweeps.json_process import answering
from hetsim.sweeps.record import SweepRecord
from hetsim.sweeps.sent_runs import common_of, received, run_sent


def sendable(launcher: Launcher, templates: Mapping[tuple[str, ...], Template]) -> str:
    """What all runs of a launcher have in common, as the first line for this process: Hydra's state, and what the runs are composed of."""
    return base64.b64encode(pickle.dumps((pickle.dumps(common_of(launcher)), dict(templates)))).decode()


def main() -> None:
    """The first line is what all runs have in common, each other line a run."""
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
