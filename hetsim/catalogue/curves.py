"""Batch curves of a GPU: measured points, or a straight line if only one batch size was measured or estimated.

On a line, a fixed share of the seconds at the largest batch does not depend on the batch size. It is the median share of the model's
measured curves. If one GPU is left out, lines predict its curve better than powers of the batch size (`benchmarks/catalogue.py`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from hetsim.catalogue.tables import MeasuredStep

Table = tuple[tuple[int, float], ...]
"""(samples, seconds), rising in samples."""
SPREAD = 1.9
"""The minimum ratio of a curve's largest to its smallest batch that determines a share."""
SHARES = np.linspace(0.0, 0.95, 96)


def measured_curve(rows: Iterable[MeasuredStep]) -> Table:
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


def fixed_share(curve: Table) -> float:
    """The fixed share of the line through a curve's largest batch that is nearest to the curve, in logarithms."""
    largest, last = curve[-1]
    batches, seconds = np.array([point[0] for point in curve[:-1]]), np.array([point[1] for point in curve[:-1]])
    lines = SHARES[:, None] + (1 - SHARES[:, None]) * batches / largest
    return float(SHARES[np.argmin((np.log(lines * last / seconds) ** 2).sum(axis=1))])


def curves(rows: Sequence[MeasuredStep]) -> dict[tuple[str, ...], Table]:
    """The measured curves that determine a share, by GPU, source, model and precision."""
    by_gpu: dict[tuple[str, ...], list[MeasuredStep]] = {}
    for row in rows:
        by_gpu.setdefault((row.gpu, *row.series), []).append(row)
    by_key = {key: measured_curve(steps) for key, steps in by_gpu.items() if len(steps) > 1}
    return {key: curve for key, curve in by_key.items() if len(curve) > 1 and curve[-1][0] >= SPREAD * curve[0][0]}


def usual_share(rows: Sequence[MeasuredStep], model: str, *, without: Collection[str] = ()) -> float:
    """The median share of the model's curves, or of all curves if it has none. The GPUs in `without` are left out."""
    shares = {key: fixed_share(curve) for key, curve in curves(rows).items() if key[0] not in without}
    of_model = [share for key, share in shares.items() if key[2] == model]
    return statistics.median(of_model or shares.values()) if shares else 0.0


def leave_one_out_errors(rows: Sequence[MeasuredStep]) -> list[float]:
    """The relative error of the line, by the model's curves of other GPUs, at each measured batch size except a curve's largest."""
    errors = []
    for (gpu, _, model, _), curve in curves(rows).items():
        (largest, seconds) = curve[-1]
        if any(key[0] != gpu and key[2] == model for key in curves(rows)):
            share = usual_share(rows, model, without=(gpu,))
            errors += [
                math.exp(abs(math.log(seconds * (share + (1 - share) * batch / largest) / measured))) - 1 for batch, measured in curve[:-1]
            ]
    return errors
