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
from typing import Any

from hydra.core.utils import JobStatus

from hetsim.config.errors import USERS, sentence
from hetsim.sweeps.json_process import answering
from hetsim.sweeps.record import SweepRecord
from hetsim.sweeps.sent_runs import received, run_sent


def sendable(content: object) -> str:
    """An object, for a line of JSON to this process."""
    return base64.b64encode(pickle.dumps(content)).decode()


def main() -> None:
    """The first line is what all runs have in common, each other line a run."""
    with answering() as answers:
        common = base64.b64decode(json.loads(sys.stdin.readline()))
        context, *_ = received(common)
        its = (each for each in context.callbacks.callbacks if isinstance(each, SweepRecord))
        SweepRecord.current = next(its)  # it is no copy then, and writes no outcomes: they are sent
        for line in sys.stdin:
            print(json.dumps(_answer(common, json.loads(line))), file=answers, flush=True)


def _answer(common: bytes, question: dict[str, Any]) -> dict[str, Any]:
    typed, template, number = pickle.loads(base64.b64decode(question["run"]))
    told, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(errors):
        try:
            ended = run_sent(common, typed, template, number, sweep=question["folder"])
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
