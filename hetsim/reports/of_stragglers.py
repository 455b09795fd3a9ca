"""The report of a job's stragglers."""

from __future__ import annotations

from hetsim.reports.page import Page, Sheet
from hetsim.straggling.findings import Findings
from hetsim.straggling.picture import picture
from hetsim.straggling.text import changes, heads, rows


def page(its: Findings, command: str) -> Page:
    """The report of these findings. `command` has printed them."""
    saved = changes(its.replay)
    return Page(
        question=f"Which ranks of {its.found.job.source} are slow, and what do they cost?",
        answer=its.verdict,
        figures=[("Time of each rank in each step, divided by the median rank's; grey: no step", picture(its.found))],
        sheets=[
            Sheet("Ranks", heads(its.found), rows(its.found)),
            *([Sheet("The job, replayed", ("change", "saves"), saved)] if saved else []),
        ],
        remarks=its.remarks,
        command=command,
    )
