"""Batch curves of a GPU: measured points, or a straight line if only one batch size was measured or estimated.

On a line, a fixed share of the seconds at the largest batch does not depend on the batch size. It is the median share of the model's
measured curves. If one GPU is left out, lines predict its curve better than powers of the batch size (`benchmarks/catalogue.py`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from hetsim.catalogue.tables import Row

Table = tuple[tuple[int, float], ...]
"""(samples, seconds), rising in samples."""
SPREAD = 1.9
"""The minimum ratio of a curve's largest to its smallest batch that determines a share."""
SHARES = np.linspace(0.0, 0.95, 96)


def measured(rows: Iterable[Row]) -> Table:
    """The seconds by batch size. Several measurements of a batch size are averaged geometrically."""
    by_batch: dict[int, list[float]] = {}
    for row in rows:
        by_batch.setdefault(row.batch, []).append(row.seconds)
    table = [(batch, statistics.geometric_mean(by_batch[batch])) for batch in sorted(by_batch)]
    while len(table) > 1 and table[-1][1] < table[-2][1]:  # a cluster's table continues as between its last two points
        del table[-2]
    return tuple(table)


def line(batch: int, seconds: float, share: float) -> Table:
    """A line through this point, with this fixed share of its seconds."""
    return ((1, seconds * (share + (1 - share) / batch)), (batch, seconds)) if batch > 1 else ((1, seconds), (2, seconds * (2 - share)))


def share_of(curve: Table) -> float:
    """The fixed share of the line through a curve's largest batch that is nearest to the curve, in logarithms."""
    largest, last = curve[-1]
    batches, seconds = np.array([each[0] for each in curve[:-1]]), np.array([each[1] for each in curve[:-1]])
    lines = SHARES[:, None] + (1 - SHARES[:, None]) * batches / largest
    return float(SHARES[np.argmin((np.log(lines * last / seconds) ** 2).sum(axis=1))])


def curves(rows: Sequence[Row]) -> dict[tuple[str, ...], Table]:
    """The measured curves that determine a share, by GPU, source, model and precision."""
    by_gpu: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        by_gpu.setdefault((row.gpu, *row.series), []).append(row)
    found = {key: measured(its) for key, its in by_gpu.items() if len(its) > 1}
    return {key: curve for key, curve in found.items() if len(curve) > 1 and curve[-1][0] >= SPREAD * curve[0][0]}


def usual_share(rows: Sequence[Row], model: str, *, without: Collection[str] = ()) -> float:
    """The median share of the model's curves, or of all curves if it has none. The GPUs in `without` are left out."""
    known = {key: share_of(curve) for key, curve in curves(rows).items() if key[0] not in without}
    of_model = [share for key, share in known.items() if key[2] == model]
    return statistics.median(of_model or known.values()) if known else 0.0


def errors_left_out(rows: Sequence[Row]) -> list[float]:
    """The relative error of the line, by the model's curves of other GPUs, at each measured batch size except a curve's largest."""
    errors = []
    for (gpu, _, model, _), curve in curves(rows).items():
        (largest, seconds) = curve[-1]
        if any(key[0] != gpu and key[2] == model for key in curves(rows)):
            share = usual_share(rows, model, without=(gpu,))
            errors += [math.exp(abs(math.log(seconds * (share + (1 - share) * batch / largest) / its))) - 1 for batch, its in curve[:-1]]
    return errors
