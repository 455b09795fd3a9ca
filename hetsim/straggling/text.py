"""The findings as text: a verdict, a table of the ranks, and possible savings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hetsim.straggling.judging import COLLECTIVES, LINKS, Found, Straggler
from hetsim.straggling.replay import Replay

LEAST_COST = 0.01
"""A slow rank that costs less than this share of the job's time is only in the table."""
MAX_ROWS, MAX_NAMED, MAX_SPELLS = 16, 3, 3


def share(value: float) -> str:
    """A share in percent."""
    return f"{100 * value:.1f} %" if abs(value) < 0.0995 else f"{100 * value:.0f} %"


def verdict(found: Found, replay: Replay | None) -> str:
    """One or two sentences for each of the first stragglers, and what would help."""
    job = found.job
    if not found.stragglers:
        sends = "" if found.links is None else " and send"
        return f"No rank is slow in {job.num_steps} steps: all {job.num_ranks} compute{sends} for about as long as the median rank."
    named = [each for each in found.stragglers if each.cost is None or each.cost >= LEAST_COST or "chronic" in each.kinds]
    if not named:
        return f"No rank costs the job {share(LEAST_COST)} of its time; the table has {len(found.stragglers)} with slow steps."
    sentences = [_sentence(each, replay) for each in named[:MAX_NAMED]]
    if (more := len(found.stragglers) - len(named[:MAX_NAMED])) > 0:
        sentences.append(f"{more} more {'is' if more == 1 else 'are'} in the table.")
    if len(found.stragglers) > 1 and found.cost is not None:
        sentences.append(f"Together they cost {share(found.cost)}.")
    if replay is not None and (helps := _helps(replay)):
        sentences.append(helps)
    return " ".join(sentences)


def _sentence(each: Straggler, replay: Replay | None) -> str:
    who = "the all-reduce" if each.rank is None else f"rank {each.rank}"
    whose = "" if each.part == COLLECTIVES else f"its {each.part} "
    how = []
    if each.slowdown > 1:
        how.append(f"{whose}always take{'s' * (each.part != LINKS)} {each.slowdown:.2f} times as long as the median's")
    if each.spells:
        mean = sum(spell.factor for spell in each.spells) / len(each.spells)
        often = f"every {each.period:.3g} steps" if each.period else _spells(each)
        how.append(f"{'' if how else whose}take{'s' * (each.part != LINKS)} {mean:.2f} times as long {often}")
    saved = each.cost if each.cost is not None else (replay.saved.get(f"rank {each.rank} at the median") if replay else None)
    cost = "" if saved is None else f", which costs {share(saved)} of the job's time"
    return f"{who[0].upper()}{who[1:]} is slow: {', and '.join(how)}{cost}."


def _spells(each: Straggler) -> str:
    said = [f"{spell.first}" if spell.first == spell.last else f"{spell.first} to {spell.last}" for spell in each.spells[:MAX_SPELLS]]
    more = len(each.spells) - len(said)
    return f"in steps {', '.join(said)}{f' and {more} more spells' if more else ''}"


def _helps(replay: Replay) -> str:
    said = []
    for change, saved in replay.saved.items():
        if "median" in change:
            continue
        who = (
            "leaving the rank out" if change.startswith("without rank") else "leaving them out" if change.startswith("without") else change
        )
        said.append(f"{who} would save {share(saved) if saved > 0 else 'nothing'}")
    text = "; ".join(said)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def heads(found: Found) -> tuple[str, ...]:
    """The heads of the table's columns."""
    return "rank", "computing", *(() if found.links is None else ("links",)), "slow", "costs"


def rows(found: Found) -> list[tuple[str, ...]]:
    """The ranks in the table, the slow ones first."""
    by_rank: dict[int, list[Straggler]] = {}
    for each in found.stragglers:
        by_rank.setdefault(-1 if each.rank is None else each.rank, []).append(each)
    order = [rank for rank in by_rank if rank >= 0] + [rank for rank in range(found.job.num_ranks) if rank not in by_rank]
    told = [_row(found, rank, by_rank.get(rank, [])) for rank in order]
    if -1 in by_rank:
        (its,) = by_rank[-1]
        told.append(("all", "", f"{COLLECTIVES}: {', '.join(its.kinds)}", share(its.cost or 0.0)))
    return told


def _row(found: Found, rank: int, its: Sequence[Straggler]) -> tuple[str, ...]:
    links = () if found.links is None else (f"× {found.links.slowdown[rank]:.2f}",)
    slow = "; ".join(f"{each.part}: {', '.join(each.kinds)}" for each in its)
    costs = [each.cost for each in its if each.cost is not None]
    return f"{rank}", f"× {found.computing.slowdown[rank]:.2f}", *links, slow, share(sum(costs)) if costs else ""


def remarks(found: Found, replay: Replay | None, why: str) -> Iterator[str]:
    """Remarks for the reader."""
    job = found.job
    if job.collectives is not None:
        yield "a collective ends on all ranks together, so this trace does not show whose link is slow"
    if job.has_samples and _unequal(job.samples):
        yield "ranks have unequal shares of the batch: their steps are compared, not their samples"
    if replay is not None:
        yield f"the replay of the unchanged job takes {share(abs(replay.error))} {'longer' if replay.error > 0 else 'less'} than the trace"
        yield from replay.remarks
    if why:
        yield why


def _unequal(samples: Any) -> bool:
    means = [float(row[row > 0].mean()) for row in samples if (row > 0).any()]
    return bool(means) and max(means) > 1.05 * min(means)


def changes(replay: Replay | None) -> list[tuple[str, str]]:
    """The possible savings by change."""
    return [] if replay is None else [(change, share(saved)) for change, saved in replay.saved.items()]


def text(found: Found, replay: Replay | None, why: str = "") -> str:
    """The complete text."""
    told = rows(found)
    lines = [verdict(found, replay), "", *_aligned([heads(found), *told[:MAX_ROWS]])]
    if (more := len(told) - MAX_ROWS) > 0:
        lines.append(f"and {more} more ranks")
    if saved := changes(replay):
        lines += ["", *_aligned([("the job, replayed", "saves"), *saved])]
    return "\n".join([*lines, "", *remarks(found, replay, why)]).rstrip()


def _aligned(table: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
