"""Check whether a recommendation holds within the intervals of estimated GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from hetsim.advice.candidates import Candidate
from hetsim.advice.question import BASELINE
from hetsim.advice.timing import Timed, Timing, ranked
from hetsim.catalogue.times import Times
from hetsim.config.named_gpus import Named

CLEARLY = 0.99
"""Another choice is better if it takes at most this fraction of the recommendation's time."""
LOOKED_AT = 12
"""The number of choices that are timed again at each end of the intervals: the fastest on each set of nodes."""


def intervals(named: Named | None, timing: Timing, even: Candidate, timed: Sequence[Timed]) -> Iterator[str]:
    """Sentences on how each named GPU's time is known, and whether the first choice is the best at both ends of the intervals."""
    if named is None:
        return
    yield from map(str, named.times.values())
    if {each.candidate.method.name for each in timed} == {BASELINE}:
        tried = "with every split and " if even.allocation is None else ""
        yield f"ddp was tried {tried}on every set of GPUs: name other candidates by method=ssgd,dbs_sgd (hetsim-methods)"
    unsure = {name: its for name, its in named.times.items() if its.error}
    alike = [each.candidate for each in timed if each.candidate.synchronous] or [each.candidate for each in timed]
    if not unsure or not alike:
        return
    pool = _pool(alike, named, unsure)
    gains, flips = [], []
    for slower, said in _ends(named, unsure):
        found = ranked(timing.times([*pool, even], slower=slower))
        seconds = {each.candidate: each.mean for each in found}
        if alike[0] not in seconds or even not in seconds:
            continue
        gains.append(seconds[even] / seconds[alike[0]])
        best = next(each.candidate for each in found if each.candidate.synchronous or each.candidate == alike[0])
        if seconds[best] < CLEARLY * seconds[alike[0]]:
            flips.append(f"if {said}, {best.label} is better: {seconds[even] / seconds[best]:.3g} times as fast as plain DDP")
    if not gains:
        return
    of = " and ".join(unsure)
    yield (
        f"the recommendation {'changes' if flips else 'stays best'} across the error range of {of} (gain {min(gains):.3g} to "
        f"{max(gains):.3g} times)"
    )
    yield from dict.fromkeys(flips)


def _pool(alike: Sequence[Candidate], named: Named, unsure: Mapping[str, Times]) -> list[Candidate]:
    """The fastest candidate on each set of nodes, and the first choice with and without all GPUs of each estimated name."""
    fastest: dict[tuple[int, ...], Candidate] = {}
    for each in alike:
        fastest.setdefault(each.leave_out, each)
    found = [*fastest.values()][:LOOKED_AT]
    every = sum(map(len, named.ranks.values()))
    for name in unsure:
        its = named.ranks[name]
        for out in ({*alike[0].leave_out} | {*its}, {*alike[0].leave_out} - {*its}):
            if len(out) < every:
                found.append(replace(alike[0], leave_out=tuple(sorted(out))))
    return [*dict.fromkeys(found)]


def _ends(named: Named, unsure: Mapping[str, Times]) -> Iterator[tuple[list[tuple[int, float]], str]]:
    """Both ends of each interval: one estimated GPU slower or faster by its error, all others unchanged, and a description."""
    for name, its in unsure.items():
        for factor in (1 + its.error, 1 / (1 + its.error)):
            yield [(rank, factor) for rank in named.ranks[name]], f"{name} takes {factor:.3g} times as long"
