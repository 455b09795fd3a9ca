"""The first sentences about a job's stragglers: the most costly causes, what they cost, and what would help."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hetsim.results.writing.describe import duration, listed_in_words, numbers_in_words
from hetsim.straggling.accounting import COMMUNICATION, UNEXPLAINED, WAITING, Part
from hetsim.straggling.job import Floats
from hetsim.straggling.judging import COLLECTIVES, COMPUTING, LEAST_COST, LINKS, Judged, JudgedJob, Spell, Straggler, lost_seconds
from hetsim.straggling.replay import Replay

MAX_NAMED, MAX_SPELLS = 3, 3
ALIKE = 1.1
"""Ranks whose slowdowns differ by at most this factor share a sentence."""
MUCH = 0.1
"""The share of the job's time from which communication, waiting and unexplained time are reported in the first sentence."""


def share(value: float) -> str:
    """A share in percent."""
    return f"{100 * value:.1f} %" if abs(value) < 0.0995 else f"{100 * value:.0f} %"


def verdict(judged_job: JudgedJob, replay: Replay | None, parts: Sequence[Part]) -> str:
    """One or two sentences for each of the first causes, and what would help."""
    job = judged_job.job
    causes = sorted([*_causes(judged_job, replay), *_slow_links(judged_job, parts)], key=lambda cause: -cause[0])
    named = [sentence for cost, sentence in causes[:MAX_NAMED] if cost >= LEAST_COST]
    if not causes:
        sends = "" if judged_job.links is None else " and send"
        named = [f"No rank is slow in {job.num_steps} steps: all {job.num_ranks} compute{sends} for about as long as the fastest rank."]
    elif not named:
        named = [f"No rank costs the job {share(LEAST_COST)} of its time; the table has {len(judged_job.stragglers)} with slow steps."]
    named[0] = "; ".join([named[0][:-1], *_large_parts(job.seconds, parts)]) + "."
    if (more := len(causes) - len(named)) > 0 and causes[0][0] >= LEAST_COST:
        named.append(f"{more} more {'is' if more == 1 else 'are'} in the table.")
    if len(causes) > 1 and judged_job.cost is not None and judged_job.cost >= LEAST_COST:
        named.append(f"Together they cost {share(judged_job.cost)}.")
    if replay is not None and (savings := _savings(replay)):
        named.append(savings)
    return " ".join(named)


def _large_parts(seconds: float, parts: Sequence[Part]) -> Iterator[str]:
    """What takes much time although no rank is to blame."""
    sums = {part.name: part.seconds / seconds for part in parts}
    if abs(unexplained := sums[UNEXPLAINED]) > MUCH:
        yield f"{share(unexplained)} of the time is unexplained"
    if sums[COMMUNICATION] > MUCH:
        yield f"{share(sums[COMMUNICATION])} is communication"
    if sums[WAITING] > MUCH:
        yield f"{share(sums[WAITING])} is waiting"


def _causes(judged_job: JudgedJob, replay: Replay | None) -> Iterator[tuple[float, str]]:
    """The cost and the sentence of each group of stragglers of one kind."""
    groups: list[list[Straggler]] = []
    for straggler in sorted(judged_job.stragglers, key=_kind):
        last = groups[-1] if groups else None
        if (
            last
            and straggler.rank is not None
            and _kind(last[0])[:-1] == _kind(straggler)[:-1]
            and straggler.slowdown <= ALIKE * last[0].slowdown
        ):
            last.append(straggler)
        else:
            groups.append([straggler])
    for group in groups:
        saved = _saved(judged_job, group, replay)
        cost = _cost(judged_job, group) if saved is None else saved
        of_what = "job's" if saved is not None or judged_job.job.collectives is not None else "ranks'"
        yield cost, f"{_sentence(judged_job, group)}{_phase(judged_job, group)}, which costs {share(cost)} of the {of_what} time."


def _slow_links(judged_job: JudgedJob, parts: Sequence[Part]) -> Iterator[tuple[float, str]]:
    """The cost and the sentence of links that the config describes as slow."""
    job = judged_job.job
    if (links := job.slow_links) is not None:
        cost = sum(part.seconds for part in parts if part.of == LINKS) / job.seconds
        who = _ranks(links.ranks, job.num_ranks)
        have = "has a link" if len(links.ranks) == 1 else "have links"
        times = f"{links.slowdown:.3g} times slower than the fastest one"
        yield cost, f"{who} {have} that the config describes as {times}, which costs {share(cost)} of the job's time."


def _kind(straggler: Straggler) -> tuple[Any, ...]:
    """Stragglers that are equal in all but the last value share a sentence if their slowdowns are alike."""
    return straggler.part, straggler.rank is None, straggler.kinds, straggler.slowdown


def _saved(judged_job: JudgedJob, group: Sequence[Straggler], replay: Replay | None) -> float | None:
    """The share of the job's time that the replay saves, for a job whose trace does not show it."""
    if replay is None or judged_job.job.collectives is not None:
        return None
    ranks = {straggler.rank for straggler in judged_job.stragglers}
    of_group = {straggler.rank for straggler in group}
    change = f"rank {group[0].rank}" if len(of_group) == 1 else "all of them" if ranks == of_group else ""
    return replay.saved.get(f"{change} at the median")


def _cost(judged_job: JudgedJob, group: Sequence[Straggler]) -> float:
    """The share of the job's time that a group costs; of all ranks' time in a job with a server."""
    judged, seconds = _of_part(judged_job, group[0].part)
    losses = lost_seconds(
        seconds, judged.healed(seconds, [replace(s, ranks=s.ranks or (0,)) for s in group]), judged_job.job.collectives is not None
    )
    return float(losses.sum()) / judged_job.job.seconds


def _of_part(judged_job: JudgedJob, part: str) -> tuple[Judged, Floats]:
    job = judged_job.job
    judged, seconds = {
        COMPUTING: (judged_job.computing, job.computing),
        LINKS: (judged_job.links, job.links),
        COLLECTIVES: (judged_job.collectives, job.collectives),
    }[part]
    assert judged is not None
    assert seconds is not None
    return judged, np.nan_to_num(seconds.reshape(len(judged.slowdown), -1))


def _sentence(judged_job: JudgedJob, group: Sequence[Straggler]) -> str:
    first, job = group[0], judged_job.job
    ranks = sorted({rank for straggler in group for rank in straggler.ranks})
    many = first.part != COLLECTIVES and len(ranks) > 1
    who = "The all-reduce" if first.part == COLLECTIVES else _ranks(ranks, job.num_ranks)
    if first.kinds in (("stalls",), ("periodic",)) and first.part != LINKS:
        return f"{who} {'stall' if many else 'stalls'} {_stalls(judged_job, group)}"
    whose = "" if first.part == COLLECTIVES else f"{'their' if many else 'its'} {first.part} "
    takes = "take" if first.part == LINKS else "takes"
    how = []
    if first.slowdown > 1:
        slowdown = sum(straggler.slowdown for straggler in group) / len(group)
        slow = {straggler.rank for straggler in judged_job.stragglers if straggler.part == first.part and straggler.slowdown > 1}
        pace = "the fastest rank's" if len(slow) == job.num_ranks - 1 else "the fastest ranks'"
        how.append(f"{whose}always {takes} {slowdown:.2f} times as long as {pace}")
    if first.spells:
        mean = sum(spell.factor for spell in first.spells) / len(first.spells)
        often = f"every {first.period:.3g} steps" if first.period else _steps(first.spells)
        how.append(f"{'' if how else whose}{takes} {mean:.2f} times as long {often}")
    return f"{who} {'are' if many else 'is'} slow{' together' if first.rank is None and many else ''}: {', and '.join(how)}"


def _phase(judged_job: JudgedJob, group: Sequence[Straggler]) -> str:
    """Whether most of the lost seconds are spent in loading data, in words."""
    job = judged_job.job
    if job.loading is None or group[0].part != COMPUTING:
        return ""
    excess = np.nan_to_num(job.computing - judged_job.computing.healed(job.computing, group))
    loading = np.maximum(0.0, job.loading - np.median(job.loading, axis=1).min())
    in_loading = np.minimum(loading, excess).sum()
    return " (in loading data)" if in_loading > excess.sum() / 2 else ""


def _stalls(judged_job: JudgedJob, group: Sequence[Straggler]) -> str:
    """How often, when, with whom and how long these ranks stall."""
    judged, seconds = _of_part(judged_job, group[0].part)
    excess = seconds - judged.usual
    spells = [spell for straggler in group for spell in straggler.spells]
    lengths = [
        excess[list(straggler.ranks or (0,)), spell.first : spell.last + 1].sum(axis=1).max()
        for straggler in group
        for spell in straggler.spells
    ]
    how_long = f"for {duration(float(np.median(lengths)))}{' each' if len(spells) > 1 else ''}"
    periods = [straggler.period for straggler in group if straggler.period]
    if len(group) == 1:
        together = "together " if len(group[0].ranks) > 1 else ""
        when = f"every {periods[0]:.3g} steps" if periods else _steps(spells)
        return f"{together}{when} {how_long}"
    counts = Counter(step for spell in spells for step in range(spell.first, spell.last + 1))
    alone = sum(number == 1 for number in counts.values()) > len(counts) / 2
    often = f"every {np.median(periods):.3g} steps" if periods else f"{len(spells)} times in {judged_job.job.num_steps} steps"
    return f"{often}, {'each alone' if alone else 'mostly several together'}, {how_long}"


def _ranks(ranks: Sequence[int], num_ranks: int) -> str:
    """The ranks in words: Rank 3; Ranks 0 to 6 of 8; All 4 ranks."""
    if len(ranks) == 1:
        return f"Rank {ranks[0]}"
    if len(ranks) == num_ranks:
        return f"All {num_ranks} ranks"
    return f"Ranks {numbers_in_words(ranks)} of {num_ranks}"


def _steps(spells: Sequence[Spell]) -> str:
    """In which steps these spells are: in step 15; in steps 15, 35 and 40 to 55."""
    steps = [f"{spell.first}" if spell.first == spell.last else f"{spell.first} to {spell.last}" for spell in spells[:MAX_SPELLS]]
    more = [f"{len(spells) - len(steps)} more times"] if len(spells) > len(steps) else []
    return f"in step{'' if steps[0].isdigit() and len(spells) == 1 else 's'} {listed_in_words([*steps, *more])}"


def _savings(replay: Replay) -> str:
    savings = []
    for change, saved in replay.saved.items():
        if "median" in change:
            continue
        who = (
            "leaving the rank out" if change.startswith("without rank") else "leaving them out" if change.startswith("without") else change
        )
        savings.append(f"{who} would save {share(saved) if saved > 0 else 'nothing'}")
    text = "; ".join(savings)
    return f"{text[:1].upper()}{text[1:]}." if text else ""
