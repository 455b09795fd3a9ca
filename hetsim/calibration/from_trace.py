"""Make a cluster from the trace of a training run, such as the trace of `Team(trace=…)`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetsim.calibration.fit import LEAST_SECONDS, FittedLine, four_digits
from hetsim.calibration.noise import Noise

COLD_VERSIONS = 2
"""The number of first versions that are left out, because memory is allocated and kernels are chosen in them."""
LEAST_GRADIENTS = 4
FASTEST = 1e12
"""The bytes per second if nothing was sent."""


@dataclass(frozen=True)
class Intervals:
    """Intervals of one kind of all ranks, in order of time: seconds, and gradients' samples or all-reduces' bytes."""

    rank: NDArray[np.int64]
    version: NDArray[np.int64]
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    size: NDArray[np.int64]

    def of(self, rank: int) -> Intervals:
        """The intervals of one rank."""
        selected = self.rank == rank
        return Intervals(self.rank[selected], self.version[selected], self.start[selected], self.end[selected], self.size[selected])

    @property
    def seconds(self) -> NDArray[np.float64]:
        """The lengths of the intervals."""
        return np.maximum(self.end - self.start, LEAST_SECONDS)


@dataclass(frozen=True)
class FromTrace:
    """The cluster, and for each node the error of a line that is fitted to the first half of its gradients, on the second half's mean."""

    config: dict[str, Any]
    errors: tuple[float, ...]
    sizes: tuple[tuple[int, ...], ...]
    """The batch sizes that each node computed."""


def cluster_of(name: str, num_workers: int, gradients: Intervals, updates: Intervals, all_reduces: Intervals) -> FromTrace:
    """Fit a cluster to the times of the run. Raises ValueError if a node has too few gradients."""
    nodes, errors, sizes = list[dict[str, Any]](), list[float](), list[tuple[int, ...]]()
    for rank in range(num_workers):
        of_rank = gradients.of(rank)
        kept = (of_rank.version >= COLD_VERSIONS) & (of_rank.size > 0)
        size, seconds = of_rank.size[kept], of_rank.seconds[kept]
        if len(size) < LEAST_GRADIENTS:
            raise ValueError(
                f"rank {rank} computed {len(size)} gradients after the first {COLD_VERSIONS}, and a node's time needs {LEAST_GRADIENTS}: "
                "give the trace of a longer run"
            )
        line = _line(size, seconds)
        half = len(size) // 2
        first = _line(size[:half], seconds[:half])
        errors.append(abs(sum(map(first, size[half:].tolist())) / float(seconds[half:].sum()) - 1))
        factors = seconds / np.array([line(samples) for samples in size.tolist()])
        noise = Noise.fit((factors / factors.mean()).tolist())
        update_seconds = updates.of(rank).seconds
        nodes.append(
            {
                "count": 1,
                "seconds_per_sample": max(four_digits(line.slope), LEAST_SECONDS),
                "overhead_seconds": four_digits(line.constant),
                "seconds_per_update": four_digits(median(update_seconds)) if len(update_seconds) else 0.0,
                **noise.as_row(None),
            }
        )
        sizes.append(tuple(sorted(set(size.tolist()))))
    server = {"seconds_per_update": max(node["seconds_per_update"] for node in nodes)}
    config = {"name": name, "nodes": nodes, "network": _network(all_reduces, num_workers), "server": server}
    return FromTrace(config, tuple(errors), tuple(sizes))


def _network(all_reduces: Intervals, num_workers: int) -> dict[str, Any]:
    """An all-reduce takes its measured time after the last rank's entry. Links are as fast as in a ring that takes this time."""
    took = []
    for version in np.unique(all_reduces.version[all_reduces.version >= COLD_VERSIONS]):
        of_version = all_reduces.version == version
        took.append(float(all_reduces.end[of_version].min() - all_reduces.start[of_version].max()))
    if not took or num_workers < 2:
        return {"latency_seconds": 0.0, "bytes_per_second": FASTEST}
    seconds = four_digits(max(LEAST_SECONDS, median(took)))
    nbytes = max(8, int(all_reduces.size.max()))
    speed = four_digits(min(FASTEST, 2 * (num_workers - 1) * nbytes / (num_workers * seconds)))
    return {"latency_seconds": 0.0, "bytes_per_second": speed, "all_reduce_table": [[nbytes, seconds]]}


def _line(sizes: NDArray[np.int64], seconds: NDArray[np.float64]) -> FittedLine:
    """Fit the relative errors of each size's mean by least squares, weighted by counts. With one size, the line goes through the origin."""
    from scipy.optimize import nnls

    x, counts = np.unique(sizes, return_counts=True)
    y = np.array([fmean(seconds[sizes == size].tolist()) for size in x])
    if len(x) == 1:
        return FittedLine(0.0, float(y[0] / x[0]))
    weight = np.sqrt(counts)
    (constant, slope), _ = nnls(np.stack([weight / y, weight * x / y], axis=1), weight)
    return FittedLine(float(constant), float(slope))


def remarks(result: FromTrace, source: str) -> Sequence[str]:
    """Remarks for readers of the file."""
    alike = [rank for rank, sizes in enumerate(result.sizes) if len(sizes) == 1]
    lines = [
        f"Made by hetsim-calibrate from the trace of {source}: times hold for what it trained, as it trained it.",
        "A line that is fitted to the first half of a node's gradients is off the second half by "
        + ", ".join(f"{100 * error:.1f} %" for error in result.errors)
        + ".",
        "An all-reduce is what is left of it after the last rank has its gradients: what overlaps with computing costs nothing here.",
        "Links are those of a ring that takes so long: messages of a server were not measured.",
        "An update is all that the loop does between a reduction and the next batch.",
    ]
    if alike:
        lines.append(f"Node {', '.join(map(str, alike))} computed batches of one size: its overhead is in its seconds per sample.")
    return lines
