"""The report of an advice."""

from __future__ import annotations

from hetsim.advice.advice import Advice
from hetsim.advice.picture import picture
from hetsim.advice.text import decision, ranking, remarks
from hetsim.reports.page import Page, Sheet


def page(found: Advice, command: str) -> Page:
    """The report of an advice. `command` has printed the advice."""
    stopped = [f"stopped {found.stopped}: this is the best so far"] if found.stopped else []
    of_what = "" if found.workload == "phantom" else f", for {found.workload}"
    return Page(
        question=f"Which method, split and nodes are fastest on {found.cluster}{of_what}?",
        answer=" ".join([found.sentence, *([found.split.sentence] if found.split else [])]),
        figures=[(f"Seconds to {found.what}, by {found.num_runs} simulated runs", picture(found))],
        sheets=[Sheet("The choices", *decision(found)), Sheet("All methods, the best first", *ranking(found))],
        remarks=[*stopped, *remarks(found)],
        command=command,
    )
