"""`hetsim.stragglers`: which ranks of a job are slow, and what they cost."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetsim.api.calls import one_at_a_time
from hetsim.api.returned import InNotebooks, Run, as_picture, printable_errors
from hetsim.reports.page import Page
from hetsim.trust.libraries import keep_processes_out

if TYPE_CHECKING:
    from hetsim.straggling.findings import Findings


@dataclass(frozen=True, repr=False)
class Stragglers(InNotebooks):
    """The slow ranks of a job, as found by `hetsim-stragglers`."""

    data: dict[str, Any]
    """The output of `hetsim-stragglers --json`: `stragglers` (the most costly first), `replay`, `verdict` and further keys."""
    _found: Findings
    _command: str

    def picture(self) -> Any:
        """A matplotlib figure with the heat map of ranks and steps."""
        from hetsim.straggling.picture import picture

        return as_picture(picture(self._found.found))

    def _page(self) -> Page:
        from hetsim.reports import of_stragglers

        return of_stragglers.page(self._found, self._command)

    def __repr__(self) -> str:
        return str(self._found)


@one_at_a_time
@printable_errors
def stragglers(*traces: Run | str | Path, replay: bool = True) -> Stragglers:
    """Find the slow ranks of a job and what they cost, as `hetsim-stragglers` does.

    Args:
        traces: a run or its folder, the folder that a Team's `trace` names, or torch.profiler's files, one for each rank.
        replay: whether to simulate the job without slow ranks.

    Returns:
        The slow ranks, and the time that you would save without them.

    Raises:
        ValueError: hetsim found no readable job with several ranks.
    """
    if not traces:
        raise ValueError("no trace was given: give the folder of a run, or the files of torch.profiler")
    from hetsim.straggling.findings import document, find

    keep_processes_out()
    places = [trace.folder if isinstance(trace, Run) else Path(trace) for trace in traces]
    found = find(places, replay=replay)
    return Stragglers(document(found), found, shlex.join(["hetsim-stragglers", *map(str, places)]))
