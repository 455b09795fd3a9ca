"""Find the slow ranks of a job, the times when they are slow, and their cost.

Let t be the seconds of a rank in a step. log t is the sum of the rank's level, a part that all ranks share in the step, and a rest. A
level above the median level is chronic slowness. A rest far above the noise is a spell, or one of several periodic events.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    """A rank with slow computing or slow links. Rank None: the collectives of all ranks."""

    rank: int | None
    part: str
    slowdown: float
    """Its usual step's time, relative to the median rank's. 1.0 if the rank is only slow at times."""
    spells: tuple[Spell, ...]
    period: float | None
    """The steps between the beginnings of its spells if they are periodic; else None."""
    cost: float | None = None
    """The share of the job's time that it would save at the median speed; None if only a simulation can show it."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of slowness: chronic, periodic, spells."""
        often = ("periodic",) if self.period is not None else ("spells",) if self.spells else ()
        return (("chronic",) if self.slowdown > 1 else ()) + often


@dataclass(frozen=True)
class Judged:
    """The result for one matrix of seconds: levels of ranks, heat of each step, and the steps' times at the median."""

    slowdown: Floats
    """Each rank's usual step, relative to the median rank's."""
    heat: Floats
    """The factor of each step on the median rank's usual step at that time, by rank and step; NaN without a step."""
    healed: Floats
    """The seconds of each step if its rank were as fast as the median, by rank and step."""
    stragglers: tuple[Straggler, ...]


@dataclass(frozen=True)
class JudgedJob:
    """The results about a job. `cost` is the cost of all stragglers together."""

    job: Job
    computing: Judged
    links: Judged | None
    stragglers: tuple[Straggler, ...]
    cost: float | None


def lower_median(values: Floats) -> Floats:
    """The lower median along the first axis. Of two ranks, it is the faster one."""
    kept: Floats = np.sort(values, axis=0)[(len(values) - 1) // 2]
    return kept


def judge(seconds: Floats, part: str) -> Judged:
    """The stragglers among the rows of a matrix of seconds (ranks, steps)."""
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
    rest = np.where(valid, rest - shared, 0.0)
    base = float(lower_median(level))
    excess = level - base
    chronic = (excess > log(LEAST_SLOWDOWN)) & (excess > SURE_LEVEL * error)
    on_average, error = _levels_of_means(seconds[:, kept], valid[:, kept])
    often = (on_average > log(LEAST_SLOWDOWN)) & (on_average > SURE_LEVEL * error) & ~chronic
    healed = logs - np.where(chronic, excess, 0.0)[:, None]
    stragglers = []
    for rank, row in enumerate(rest):
        spells = tuple(_spells(row, valid[rank], noise[rank], noise_of_windows[rank]))
        period = _period(spells)
        if period is None:
            spells = tuple(spell for spell in spells if spell.num_slow >= LEAST_STEPS_OF_SPELL)
        if often[rank] and period is None:
            chronic[rank], excess[rank], spells = True, on_average[rank], ()
            healed[rank] -= excess[rank]
        for spell in spells:
            steps = slice(spell.first, spell.last + 1)
            healed[rank, steps] = np.minimum(healed[rank, steps], base + shared[steps])
        if chronic[rank] or spells:
            stragglers.append(Straggler(rank, part, float(np.exp(excess[rank])) if chronic[rank] else 1.0, spells, period))
    heat = np.where(valid, np.exp(logs - base - shared), np.nan)
    return Judged(np.exp(excess), heat, np.where(valid, np.exp(healed), np.nan), tuple(stragglers))


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
    """For each rank, its mean step's level relative to the median rank's, and its standard error. Some ranks stall often, as by a quota."""
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
    return level - lower_median(level), np.hypot(error, np.median(error))


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
    """The stragglers of a job, the most costly first."""
    computing = judge(job.computing, COMPUTING)
    if job.collectives is None:
        links = None if job.links is None else judge(job.links, LINKS)
        every = (*computing.stragglers, *(links.stragglers if links else ()))
        return JudgedJob(job, computing, links, every, None if every else 0.0)
    total = job.seconds
    longest = _longest(job.computing)
    stragglers = []
    for straggler in computing.stragglers:
        assert straggler.rank is not None
        healed = job.computing.copy()
        healed[straggler.rank] = computing.healed[straggler.rank]
        stragglers.append(replace(straggler, cost=float((longest - _longest(healed)).sum()) / total))
    cost = float((longest - _longest(computing.healed)).sum()) / total if stragglers else 0.0
    alone = judge(job.collectives[None, :], COLLECTIVES)
    for straggler in alone.stragglers:
        saved = float((job.collectives - np.nan_to_num(alone.healed[0], nan=0.0))[job.collectives > 0].sum()) / total
        stragglers.append(replace(straggler, rank=None, cost=saved))
        cost += saved
    return JudgedJob(job, computing, None, tuple(sorted(stragglers, key=lambda straggler: -(straggler.cost or 0.0))), cost)


def _longest(seconds: Floats) -> Floats:
    """The longest seconds of each step."""
    longest: Floats = np.nanmax(np.where(np.isfinite(seconds), seconds, 0.0), axis=0)
    return longest
