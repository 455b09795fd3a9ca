"""Explain every second of a job: the parts of its time, which add up to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hetsim.straggling.job import Floats
from hetsim.straggling.judging import COLD, COLLECTIVES, COMPUTING, LINKS, Judged, JudgedJob, Straggler, lost_seconds

ALWAYS, AT_TIMES, FIRST = "always slower", "slow at times", "first steps"
COMMUNICATION, WAITING, ABSENT, UNEXPLAINED = "communication", "waiting", "absent", "unexplained"


@dataclass(frozen=True)
class Part:
    """A part of a job's seconds. Where ranks do not wait for each other in each step, it is the mean over ranks."""

    name: str
    seconds: float
    rank: int | None = None
    """The rank that causes this part; None for a part of all ranks."""
    of: str = ""
    """For what is slower than usual: computing, links or the all-reduce."""


def account(judged_job: JudgedJob) -> tuple[Part, ...]:
    """The parts of the job's time. They add up to the seconds of the job; all but the unexplained part are at least 0."""
    job = judged_job.job
    waits_for_all = job.collectives is not None
    slow, healed = _slowness(judged_job, judged_job.computing, job.computing, COMPUTING)
    fastest, waiting = float(healed.sum()) / len(healed), job.waiting
    if waits_for_all:
        longest = float(healed.max(axis=0).sum())
        fastest = min(longest, float(healed.sum(axis=1).min()))
        waiting = longest - fastest
    communication = 0.0
    for judged, seconds, name in ((judged_job.links, job.links, LINKS), (judged_job.collectives, job.collectives, COLLECTIVES)):
        if judged is not None and seconds is not None:
            slower, usual = _slowness(judged_job, judged, seconds.reshape(len(judged.slowdown), -1), name)
            slow += slower
            communication += float(usual.sum()) / len(usual)
    rest = job.seconds - fastest - waiting - job.absent - sum(part.seconds for part in slow)
    communication = min(communication, max(0.0, rest))  # more is hidden behind computing
    if (links := job.slow_links) is not None:
        slow += [Part(ALWAYS, links.share * communication / len(links.ranks), rank, LINKS) for rank in links.ranks]
        rest -= links.share * communication
        communication -= links.share * communication
    return (
        Part(COMPUTING, fastest),
        *sorted(slow, key=lambda part: -part.seconds),
        Part(COMMUNICATION, communication),
        Part(WAITING, waiting),
        *([Part(ABSENT, job.absent)] if job.absent else []),
        Part(UNEXPLAINED, rest - communication),
    )


def _slowness(judged_job: JudgedJob, judged: Judged, seconds: Floats, name: str) -> tuple[list[Part], Floats]:
    """The parts by which this work takes longer than at the pace of the fast ranks, and its seconds at this pace."""
    waits_for_all = judged_job.job.collectives is not None
    seconds = np.nan_to_num(seconds)
    stragglers = [straggler for straggler in judged_job.stragglers if straggler.part == name]
    warm = seconds.copy()
    warm[:, :COLD] = np.minimum(seconds[:, :COLD], judged.usual[:, :COLD])
    parts = [Part(FIRST, float(lost_seconds(seconds, warm, waits_for_all).sum()), of=name)]
    for title, some in _layers(stragglers):
        healed = judged.healed(warm, some)
        losses = lost_seconds(warm, healed, waits_for_all)
        if some and some[0].rank is None:
            parts.append(Part(title, float(losses.sum()), of=name))
        else:
            parts += [Part(title, float(loss), rank, name) for rank, loss in enumerate(losses)]
        warm = healed
    return [part for part in parts if part.seconds > 0], warm


def _layers(stragglers: Sequence[Straggler]) -> Iterator[tuple[str, list[Straggler]]]:
    """The stragglers in the order in which their slowness is taken away: what all have together, what some have at times, and always."""
    yield AT_TIMES, [straggler for straggler in stragglers if straggler.rank is None]
    alone = [straggler for straggler in stragglers if straggler.rank is not None]
    yield AT_TIMES, [replace(straggler, slowdown=1.0) for straggler in alone]
    yield ALWAYS, [replace(straggler, spells=()) for straggler in alone]
