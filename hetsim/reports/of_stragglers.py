"""The report of a job's stragglers."""

from __future__ import annotations

from hetsim.reports.page import Page, Sheet
from hetsim.straggling.findings import Findings
from hetsim.straggling.picture import picture
from hetsim.straggling.text import changes, heads, rows


def page(its: Findings, command: str) -> Page:
    """The report of these findings, which this command printed."""
    saved = changes(its.replay)
    return Page(
        question=f"Who is slow in {its.found.job.source}, and what if not?",
        answer=its.verdict,
        figures=[("Each rank in each step: how many times as long as the median rank; grey where there is no step", picture(its.found))],
        sheets=[Sheet("Ranks", heads(its.found), rows(its.found)), *([Sheet("Replayed", ("change", "saves"), saved)] if saved else [])],
        remarks=its.remarks,
        command=command,
    )
