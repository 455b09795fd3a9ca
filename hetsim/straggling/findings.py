"""All results about a job's stragglers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hetsim.straggling import text
from hetsim.straggling.judging import Found, Straggler, found
from hetsim.straggling.reading import read_job
from hetsim.straggling.replay import Replay, replay_or_none


@dataclass(frozen=True)
class Findings:
    """The stragglers, and the replay of the job; None with a reason without a replay."""

    found: Found
    replay: Replay | None
    why: str

    @property
    def verdict(self) -> str:
        """A sentence: the slow ranks, their cost, and what would help."""
        return text.verdict(self.found, self.replay)

    @property
    def remarks(self) -> list[str]:
        """Remarks, a clause each."""
        return list(text.remarks(self.found, self.replay, self.why))

    def __str__(self) -> str:
        return text.text(self.found, self.replay, self.why)


def find(places: Sequence[Path], *, replay: bool = True) -> Findings:
    """Find the stragglers of the job at these places. Raises ValueError if no job can be read."""
    stragglers = found(read_job(list(places)))
    return Findings(stragglers, *(replay_or_none(stragglers) if replay else (None, "")))


def document(its: Findings) -> dict[str, Any]:
    """The findings as JSON data: times in seconds, shares from 0 to 1."""
    job, links = its.found.job, its.found.links
    return {
        "source": job.source,
        "num_ranks": job.num_ranks,
        "num_steps": job.num_steps,
        "seconds": job.seconds,
        "verdict": its.verdict,
        "cost": its.found.cost,
        "computing": _numbers(its.found.computing.slowdown),
        "links": None if links is None else _numbers(links.slowdown),
        "stragglers": [_straggler(each) for each in its.found.stragglers],
        "replay": None if its.replay is None else {"error": its.replay.error, "saved": dict(its.replay.saved)},
        "remarks": its.remarks,
    }


def _straggler(each: Straggler) -> dict[str, Any]:
    spells = [{"first_step": spell.first, "last_step": spell.last, "slowdown": spell.factor} for spell in each.spells]
    kinds = list(each.kinds)
    return {"rank": each.rank, "part": each.part, "kinds": kinds, "slowdown": each.slowdown, "cost": each.cost} | {
        "period_steps": each.period,
        "spells": spells,
    }


def _numbers(values: Any) -> list[float]:
    return [float(value) for value in np.asarray(values)]
