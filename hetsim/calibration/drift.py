"""Find the numbers that have changed since an earlier calibration by more than a measurement varies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import stdev

from hetsim.calibration.readings import EXCHANGES, IN_TRAINING, RankReadings, Reading
from hetsim.cluster.compute_times import interpolate
from hetsim.cluster.model import Cluster, NodeSpec

NUM_PARTS = 4
"""The number of consecutive parts of the readings. The variation between parts shows how much a number varies."""
BEYOND = 2.0
"""A number has drifted if it has changed by more than this many standard deviations of the parts."""

Quantity = tuple[str, str]
"""An object and a number of it: ("node 0", "seconds_per_update")."""


@dataclass(frozen=True)
class Drift:
    """The old and the new value of a number."""

    of: str
    quantity: str
    old: float
    new: float
    deviation: float
    """The standard deviation of the new number over the parts of its measurement."""

    @property
    def ratio(self) -> float | None:
        """The new value divided by the old one; None if the old one was 0."""
        return self.new / self.old if self.old else None

    @property
    def has_drifted(self) -> bool:
        """Whether the number has changed by more than it varies."""
        return abs(self.new - self.old) > BEYOND * self.deviation


def drifts(old: Cluster, new: Cluster, part_clusters: Sequence[Cluster], *, samples: Sequence[Sequence[int]], nbytes: int) -> list[Drift]:
    """All numbers of the new cluster with the old ones. `part_clusters` are the new cluster, fitted to parts of its readings.

    Raises ValueError if the clusters have different numbers of nodes. Gradients are compared at the batch sizes of each node, messages and
    all-reduces at vectors of `nbytes` bytes.
    """
    check_comparable(old, new)
    lines = [not any(cluster.nodes[rank].table for cluster in (old, new)) for rank in range(new.num_workers)]
    old_numbers, new_numbers, *part_numbers = (
        quantities(cluster, samples=samples, nbytes=nbytes, lines=lines) for cluster in (old, new, *part_clusters)
    )
    return [
        Drift(*key, old_numbers[key], number, _deviation([numbers[key] for numbers in part_numbers if key in numbers]))
        for key, number in new_numbers.items()
        if key in old_numbers and (number or old_numbers[key])
    ]


def check_comparable(old: Cluster, new: Cluster) -> None:
    """Raise ValueError if the clusters have different numbers of nodes."""
    if old.num_workers != new.num_workers:
        raise ValueError(f"it has {old.num_workers} nodes, and the cluster that is measured {new.num_workers}: compare it with one like it")


def quantities(cluster: Cluster, *, samples: Sequence[Sequence[int]], nbytes: int, lines: Sequence[bool]) -> dict[Quantity, float]:
    """The measured numbers of a cluster. `lines` marks the nodes whose gradient times are a line in all clusters."""
    numbers: dict[Quantity, float] = {}
    for rank, node in enumerate(cluster.nodes):
        of, sizes = f"node {rank}", sorted(samples[rank])
        if lines[rank]:
            numbers |= {(of, "seconds_per_sample"): node.seconds_per_sample, (of, "overhead_seconds"): node.overhead_seconds}
        for size in dict.fromkeys((sizes[0], sizes[len(sizes) // 2], sizes[-1])):
            numbers[of, f"gradient of {size} samples"] = _gradient(node, size)
        for local in (False, True):
            numbers[of, f"seconds_per_{'local_' * local}update"] = node.update_seconds(local=local)
        numbers[of, "cold_seconds"] = node.cold_seconds
        numbers |= {(of, "first_seconds"): node.first_seconds, (of, "program_seconds"): node.program_seconds}
    numbers["server", "seconds_per_update"] = cluster.server.seconds_per_update
    numbers["server", "seconds_per_vector_operation"] = cluster.server.seconds_per_vector_operation
    numbers["server", "program_seconds"] = cluster.server.program_seconds
    network, of = cluster.network, f"message of {nbytes} bytes"
    numbers[of, "seconds"] = network.latency_seconds + nbytes / network.bytes_per_second
    if (cpu := network.cpu) is not None:
        numbers |= {
            (of, "CPU-seconds at each end"): (cpu.send(nbytes) + cpu.receive(nbytes)) / 2,
            (of, "thread_seconds"): cpu.thread_seconds,
        }
    of = f"all-reduce of {nbytes} bytes"
    if network.all_reduce_table:
        numbers[of, "seconds"] = interpolate(network.all_reduce_table, nbytes)
    if cpu is not None:
        numbers[of, "CPU-seconds of each"] = cpu.collective(nbytes)
    for name, host in cluster.hosts.items():
        numbers[name, "speed of busy cores"] = host.speed(host.cores)
    return numbers


def split_readings(measured: RankReadings) -> list[RankReadings]:
    """The readings of each kind and size, divided into consecutive parts. If there are too few, each part contains all of them.

    The readings of a method in training stay in their order, because the rounds of all ranks belong together.
    """
    divided = [_split_rank(readings) for readings in measured.readings]
    return [RankReadings([of_rank[part] for of_rank in divided], measured.facts, measured.num_parameters) for part in range(NUM_PARTS)]


def _split_rank(readings: Sequence[Reading]) -> list[list[Reading]]:
    alike: Mapping[tuple[str, int], list[Reading]] = defaultdict(list)
    method = ""
    for reading in readings:
        method = reading.kind if reading.kind in EXCHANGES else method
        alike[(method, 0) if reading.kind in IN_TRAINING else (reading.kind, reading.size)].append(reading)
    pieces: list[list[Reading]] = [[] for _ in range(NUM_PARTS)]
    for group in alike.values():
        for place, piece in enumerate(pieces):
            piece += group[len(group) * place // NUM_PARTS : len(group) * (place + 1) // NUM_PARTS] if len(group) >= NUM_PARTS else group
    return pieces


def _gradient(node: NodeSpec, samples: int) -> float:
    """The seconds of a node's gradient, before noise."""
    return interpolate(node.table, samples) if node.table else node.overhead_seconds + samples * node.seconds_per_sample


def _deviation(numbers: Sequence[float]) -> float:
    return stdev(numbers) if len(numbers) > 1 else 0.0


def format_table(drifted: Sequence[Drift]) -> str:
    """A table for the terminal. A star marks numbers that have drifted."""
    rows = [("", "", "old", "new", "ratio", "spread", "")]
    for drift in drifted:
        ratio = "–" if drift.ratio is None else f"{drift.ratio:.3g}"
        spread = f"{100 * drift.deviation / drift.new:.1f} %" if drift.new else "–"
        rows.append((drift.of, drift.quantity, f"{drift.old:.4g}", f"{drift.new:.4g}", ratio, spread, "*" if drift.has_drifted else ""))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) if place < 2 else cell.rjust(width) for place, (cell, width) in enumerate(zip(row, widths, strict=True))]
        lines.append("  ".join(cells).rstrip())
    num = sum(drift.has_drifted for drift in drifted)
    by = f"by more than {BEYOND:g} times what {NUM_PARTS} parts of this measurement differ by (spread, a standard deviation)"
    return "\n".join([*(f"  {line}" for line in lines), f"{num} of {len(drifted)} numbers have drifted (*): {by}"])
