"""Find the slow ranks of a job, the times when they are slow, and their cost.

Let t be the seconds of a rank in a step. log t is the sum of the rank's level, a part that all ranks share in the step, and a rest. A
level above that of the fast ranks is chronic slowness. A rest far above the noise is a spell, a stall, or one of several periodic events.
If the shared part is far above its noise, the ranks are slow together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import log

import numpy as np
from numpy.typing import NDArray

from hetsim.straggling.job import Floats, Job

LEAST_SLOWDOWN = 1.1
"""The minimum slowdown of a straggler over the median: Lin et al., Understanding stragglers in large model training, OSDI 2025."""
LEAST_SPELL, LEAST_EVENT = 1.2, 1.5
"""The minimum factor on the usual time: for the median of `WINDOW` steps, and for a single step."""
WINDOW = 5
SURE_LEVEL, SURE_SPELL, SURE_EVENT = 5.0, 7.0, 5.0
"""The minimum significance: in standard errors of a level, and in standard deviations of windows' medians and of single steps."""
FEW = 10
"""The number of steps at which a noise estimate is doubled. With more steps, the factor is smaller."""
BLOCKS = 10
"""The number of blocks of consecutive steps. The differences of their levels show the error of a rank's level under lasting noise."""
COLD = 2
"""The number of first steps that are left out, because memory is allocated and kernels are chosen in them."""
LEAST_COST = 0.01
"""Stalls and slow ranks that cost less than this share of the job's time are not worth a sentence."""
LEAST_EVENTS, LEAST_STEPS_OF_SPELL = 5, 3
OFF_PERIOD = 0.05
"""The maximum deviation of a gap from the period, as a fraction (or one step). One gap in five may deviate more."""
TINY = 1e-9
COMPUTING, LINKS, COLLECTIVES = "computing", "links", "all-reduce"


@dataclass(frozen=True)
class Spell:
    """The steps from `first` to `last`, in which work takes `factor` times the usual time."""

    first: int
    last: int
    factor: float
    num_slow: int
    """The number of its slow steps. A step between slow ones may be normal."""


@dataclass(frozen=True)
class Straggler:
    """A rank with slow computing or slow links. Rank None: the ranks in `ranks` together."""

    rank: int | None
    part: str
    slowdown: float
    """Its usual step's time, relative to the fast ranks'. 1.0 if the rank is only slow at times."""
    spells: tuple[Spell, ...]
    period: float | None
    """The steps between the beginnings of its spells if they are periodic; else None."""
    ranks: tuple[int, ...] = ()
    """The ranks that are slow in the same steps. For a single rank, only this rank."""
    cost: float | None = None
    """The share of the job's time that it would save at the pace of the fast ranks; None if only a simulation can show it."""

    def healed(self, seconds: Floats, usual: Floats) -> Floats:
        """The seconds of its ranks without its slowness. `usual` are their usual seconds without it."""
        healed: Floats = seconds / self.slowdown
        for spell in self.spells:
            steps = slice(spell.first, spell.last + 1)
            healed[:, steps] = np.minimum(healed[:, steps], usual[:, steps])
        return healed

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of slowness: chronic, periodic, spells, stalls."""
        lasting = any(spell.num_slow >= LEAST_STEPS_OF_SPELL for spell in self.spells)
        often = ("periodic",) if self.period is not None else ("spells",) if lasting else ("stalls",) if self.spells else ()
        return (("chronic",) if self.slowdown > 1 else ()) + often


@dataclass(frozen=True)
class Judged:
    """The result for one matrix of seconds: levels of ranks, heat of each step, and the usual times of steps."""

    slowdown: Floats
    """Each rank's usual step, relative to the fast ranks' median."""
    heat: Floats
    """The factor of each step on the fast ranks' usual step at that time, by rank and step; NaN without a step."""
    usual: Floats
    """The seconds of each step at the rank's usual pace, by rank and step."""
    stragglers: tuple[Straggler, ...]

    def healed(self, seconds: Floats, stragglers: Iterable[Straggler]) -> Floats:
        """These seconds without the slowness of these stragglers."""
        healed, usual = seconds.copy(), self.usual.copy()
        for straggler in stragglers:
            ranks = list(straggler.ranks)
            usual[ranks] /= straggler.slowdown
            healed[ranks] = straggler.healed(healed[ranks], usual[ranks])
        return healed


@dataclass(frozen=True)
class JudgedJob:
    """The results about a job. `cost` is the cost of all stragglers together."""

    job: Job
    computing: Judged
    links: Judged | None
    collectives: Judged | None
    stragglers: tuple[Straggler, ...]
    cost: float | None


def lower_median(values: Floats) -> Floats:
    """The lower median along the first axis. Of two ranks, it is the faster one."""
    kept: Floats = np.sort(values, axis=0)[(len(values) - 1) // 2]
    return kept


def judge(seconds: Floats, part: str) -> Judged:
    """The stragglers among the rows of a matrix of seconds (ranks, steps), with stalls that may be too rare to matter."""
    valid = np.isfinite(seconds) & (seconds > 0)
    logs = np.log(np.where(valid, np.maximum(seconds, TINY), 1.0))
    usual = np.median(logs[valid]) if valid.any() else 0.0
    medians = np.array([np.median(row[row_valid]) if row_valid.any() else usual for row, row_valid in zip(logs, valid, strict=True)])
    logs = np.where(valid, logs, medians[:, None])
    alone = len(logs) == 1  # nothing is shared
    shared = np.zeros(seconds.shape[1]) if alone else np.median(logs - medians[:, None], axis=0)
    kept = slice(min(COLD, max(0, seconds.shape[1] - 2 * BLOCKS)), None)
    level = np.array([np.median((row - shared)[kept]) for row in logs])
    rest = logs - level[:, None]
    around = rest - (0.0 if alone else rest.mean(axis=0))
    noise, noise_of_windows = (_deviation(values) for values in (around, _window_medians(around)))
    error = _error_of_level(around[:, kept], noise)
    error = np.hypot(error, np.median(error))
    shared = shared if alone else lower_median(rest)
    excess = level - _level_of_fast_ranks(level, error)
    chronic = (excess > log(LEAST_SLOWDOWN)) & (excess > SURE_LEVEL * error)
    on_average, error = _levels_of_means(seconds[:, kept], valid[:, kept])
    often = (on_average > log(LEAST_SLOWDOWN)) & (on_average > SURE_LEVEL * error) & ~chronic
    stragglers = [] if alone else list(_slow_together(rest, shared, part))
    for straggler in stragglers:
        for spell in straggler.spells:
            steps = slice(spell.first, spell.last + 1)
            shared[steps] = np.minimum(shared[steps], np.median(shared))
    shared[:COLD] = np.minimum(shared[:COLD], np.median(shared))
    deviation = np.where(valid, rest - shared, 0.0)
    separate = deviation.copy()
    for straggler in stragglers:
        for spell in straggler.spells:
            separate[list(straggler.ranks), spell.first : spell.last + 1] = 0.0
    for rank, row in enumerate(separate):
        spells = tuple(_spells(row, valid[rank], noise[rank], noise_of_windows[rank]))
        period = _period(spells)
        if often[rank] and period is None:
            chronic[rank], excess[rank], spells = True, on_average[rank], ()
        least = LEAST_STEPS_OF_SPELL if period is None else 1
        rare = tuple(spell for spell in spells if spell.num_slow < least)
        lasting = tuple(spell for spell in spells if spell.num_slow >= least)
        if chronic[rank] or lasting:
            slowdown = float(np.exp(excess[rank])) if chronic[rank] else 1.0
            stragglers.append(Straggler(rank, part, slowdown, lasting, period, (rank,)))
        if rare:
            stragglers.append(Straggler(rank, part, 1.0, rare, None, (rank,)))
    heat = np.where(valid, np.exp(deviation + excess[:, None]), np.nan)
    return Judged(np.exp(excess), heat, np.exp(level[:, None] + shared), tuple(stragglers))


def _level_of_fast_ranks(level: Floats, error: Floats) -> float:
    """The lower median of the ranks that are as fast as the fastest one, within the error."""
    fast = level - level.min() <= np.maximum(log(LEAST_SLOWDOWN), SURE_LEVEL * error)
    return float(lower_median(level[fast]))


def _slow_together(rest: Floats, shared: Floats, part: str) -> Iterator[Straggler]:
    """The times in which most ranks are slow in the same steps."""
    around = shared - np.median(shared)
    noise, noise_of_windows = (float(_deviation(values)[0]) for values in (around[None], _window_medians(around[None])))
    spells = tuple(_spells(around, np.ones(len(around), bool), noise, noise_of_windows))
    if spells:
        slow = np.concatenate([rest[:, spell.first : spell.last + 1] > log(spell.factor) / 2 for spell in spells], axis=1)
        ranks = tuple(np.flatnonzero(slow.mean(axis=1) > 1 / 2).tolist())
        yield Straggler(None, part, 1.0, spells, _period(spells), ranks)


def _window_medians(rows: Floats) -> Floats:
    """The median of the window around each step."""
    padded = np.pad(rows, ((0, 0), (WINDOW // 2, WINDOW // 2)))
    medians: Floats = np.median(np.lib.stride_tricks.sliding_window_view(padded, WINDOW, axis=1), axis=2)
    return medians


def _deviation(rows: Floats) -> Floats:
    """The deviation of each row around its median, from the median of absolute deviations.

    It is corrected for the part that the mean over few rows absorbs. It is enlarged if there are few steps, because it may be too small by
    chance.
    """
    deviations = np.abs(rows - np.median(rows, axis=1, keepdims=True))
    lost = len(rows) / max(1, len(rows) - 1)
    deviation: Floats = np.maximum(TINY, 1.4826 * lost**0.5 * (1 + FEW / rows.shape[1]) * np.median(deviations, axis=1))
    return deviation


def _levels_of_means(seconds: Floats, valid: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """For each rank, its mean step's level relative to the fast ranks', and its standard error. Some ranks stall often, as by a quota."""
    blocks = []
    splits = (np.array_split(matrix, min(BLOCKS, seconds.shape[1]), axis=1) for matrix in (seconds, valid))
    for block, block_valid in zip(*splits, strict=True):
        sums, counts = np.where(block_valid, block, 0.0).sum(axis=1), block_valid.sum(axis=1)
        blocks.append(np.where(counts, sums, block[block_valid].sum()) / np.where(counts, counts, max(1, block_valid.sum())))
    logs = np.log(np.maximum(TINY, np.array(blocks).T))
    around = logs - logs.mean(axis=0)
    level = np.median(logs - np.median(logs, axis=0), axis=1)
    lost = len(logs) / max(1, len(logs) - 1)
    error = (1 + FEW / seconds.shape[1]) * (lost / logs.shape[1]) ** 0.5 * np.std(around, axis=1, ddof=1)
    error = np.hypot(error, np.median(error))
    return level - _level_of_fast_ranks(level, error), error


def _error_of_level(rows: Floats, noise: Floats) -> Floats:
    """The standard error of each row's median, from the noise of steps or of blocks, whichever is larger."""
    blocks = [np.median(block, axis=1) for block in np.array_split(rows, min(BLOCKS, rows.shape[1]), axis=1)]
    slow = (1 + FEW / rows.shape[1]) * np.std(blocks, axis=0, ddof=1) / len(blocks) ** 0.5
    error: Floats = np.maximum(1.2533 * noise / rows.shape[1] ** 0.5, slow)
    return error


def _spells(rest: Floats, valid: NDArray[np.bool_], noise: float, noise_of_windows: float) -> Iterator[Spell]:
    """Runs of slow steps. Each step, or the median of its window, is far above the noise."""
    lasting = _window_medians(rest[None, :])[0] > max(log(LEAST_SPELL), SURE_SPELL * noise_of_windows)
    lasting &= rest > log(LEAST_SPELL) / 2  # a window begins before its spell
    slow = (lasting | (rest > max(log(LEAST_EVENT), SURE_EVENT * noise))) & valid
    slow[:COLD] = False
    edges = np.flatnonzero(np.diff(np.r_[0, slow.astype(np.int8), 0]))
    runs: list[list[int]] = []
    for first, last in edges.reshape(-1, 2).tolist():
        if runs and first - runs[-1][1] <= 1:  # a step between is of the same spell
            runs[-1][1] = last
        else:
            runs.append([first, last])
    for first, last in runs:
        yield Spell(first, last - 1, float(np.exp(rest[first:last].mean())), int(slow[first:last].sum()))


def _period(spells: Sequence[Spell]) -> float | None:
    """The steps between the beginnings of spells, if these distances are nearly equal; else None."""
    if len(spells) < LEAST_EVENTS:
        return None
    gaps = np.diff([spell.first for spell in spells])
    period = float(np.median(gaps))
    off = np.abs(gaps - period) > max(1.0, OFF_PERIOD * period)
    return float(gaps[~off].mean()) if off.sum() <= len(gaps) // 5 else None


def judge_job(job: Job) -> JudgedJob:
    """The stragglers of a job, the most costly first. Stalls that cost less than `LEAST_COST` of the job together are left out."""
    computing = judge(job.computing, COMPUTING)
    links = None if job.links is None else judge(job.links, LINKS)
    collectives = None if job.collectives is None else judge(job.collectives[None, :], COLLECTIVES)
    stragglers = _costly(job, computing, job.computing)
    if links is not None and job.links is not None:
        stragglers += _costly(job, links, job.links)
    if collectives is None or job.collectives is None:
        return JudgedJob(job, computing, links, None, tuple(stragglers), None if stragglers else 0.0)
    costs = _costs_alone(job, computing, stragglers)
    cost = _cost(job, computing, job.computing, stragglers) if stragglers else 0.0
    of_collectives = _costly(job, collectives, job.collectives[None, :])
    costs += [_cost(job, collectives, job.collectives[None, :], [straggler]) for straggler in of_collectives]
    cost += sum(costs[len(stragglers) :])
    stragglers += [replace(straggler, rank=None) for straggler in of_collectives]
    every = [replace(straggler, cost=saved) for straggler, saved in zip(stragglers, costs, strict=True)]
    return JudgedJob(job, computing, None, collectives, tuple(sorted(every, key=lambda straggler: -(straggler.cost or 0.0))), cost)


def _costly(job: Job, judged: Judged, seconds: Floats) -> list[Straggler]:
    """The stragglers without stalls of no cost."""
    at_times = [straggler for straggler in judged.stragglers if straggler.rank is None or straggler.kinds == ("stalls",)]
    if _cost(job, judged, seconds, at_times) >= LEAST_COST:
        return list(judged.stragglers)
    return [straggler for straggler in judged.stragglers if straggler not in at_times]


def _cost(job: Job, judged: Judged, seconds: Floats, stragglers: Sequence[Straggler]) -> float:
    """The share of the job's time that these stragglers cost."""
    return float(lost_seconds(seconds, judged.healed(seconds, stragglers), job.collectives is not None).sum()) / job.seconds


def _costs_alone(job: Job, judged: Judged, stragglers: Sequence[Straggler]) -> list[float]:
    """The share of the job's time that each of these stragglers would save if the others stayed slow."""
    seconds = np.nan_to_num(job.computing)
    second, longest = np.partition(seconds, len(seconds) - 2, axis=0)[-2:]
    costs = []
    for straggler in stragglers:
        if straggler.rank is None:
            costs.append(_cost(job, judged, job.computing, [straggler]))
            continue
        row, usual = seconds[[straggler.rank]], judged.usual[[straggler.rank]] / straggler.slowdown
        others = np.where(row[0] == longest, second, longest)
        costs.append(float((longest - np.maximum(others, straggler.healed(row, usual)[0])).sum()) / job.seconds)
    return costs


def lost_seconds(seconds: Floats, healed: Floats, waits_for_all: bool) -> Floats:
    """For each rank, the seconds of the job that it costs that steps take these seconds instead of the healed ones.

    If all ranks wait for the slowest one, a step loses the difference of the longest times. Ranks that are slower than the longest healed
    time share this loss: of two ranks, both cause the loss up to the faster one's time, and the slower one the rest (the Shapley value).
    Otherwise, the job loses the mean over ranks.
    """
    seconds, healed = np.nan_to_num(seconds), np.nan_to_num(healed)
    if not waits_for_all:
        return np.asarray((seconds - healed).sum(axis=1) / len(seconds))
    above = np.maximum(0.0, seconds - healed.max(axis=0))
    order = np.argsort(above, axis=0)
    more = np.diff(np.take_along_axis(above, order, axis=0), axis=0, prepend=0.0)
    shares = np.cumsum(more / np.arange(len(above), 0, -1)[:, None], axis=0)
    placed = np.empty_like(shares)
    np.put_along_axis(placed, order, shares, axis=0)
    return np.asarray(placed.sum(axis=1))
