"""Files with the times at which nodes are present: counts of nodes at a fixed interval, or starts and stops of each node.

They are read only as numbers. No error quotes their content, because the config may come from somebody else, and the file is the user's.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from hetsim import checks
from hetsim.cluster.factors import regular_file

MAX_BYTES = 16_000_000
COLUMNS = ["node", "start", "stop"]
EXAMPLE = '{"metadata": {"gap_seconds": 300}, "data": [4, 4, 3]}'

Interval = tuple[float, float]
"""The start and the end, in seconds."""


def read_absences(key: str, value: Any, num_nodes: int) -> dict[int, list[Interval]]:
    """When each node is absent, from a file. Raises ValueError if the file is invalid."""
    if not isinstance(value, str):
        raise ValueError(f"{key} must be the name of a file, .json or .csv, not {checks.shown(value)}")
    try:
        with regular_file(value).open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ValueError(f"it has over {MAX_BYTES} bytes")
        text = content.decode("utf-8-sig")
        present = _read_counts(text, num_nodes) if value.endswith(".json") else _read_pairs(text, num_nodes)
    except (OSError, ValueError, csv.Error, RecursionError) as error:
        explained = isinstance(error, ValueError) and not isinstance(error, json.JSONDecodeError | UnicodeDecodeError)
        reason = error.strerror if isinstance(error, OSError) else error if explained else "it cannot be parsed"
        raise ValueError(
            f"{key}={value} cannot be read ({reason}): give a .json file such as {EXAMPLE}, or a .csv file with the columns node,start,stop"
        ) from None
    return {rank: gaps for rank, intervals in present.items() if (gaps := [*_gaps(intervals)])}


def _read_counts(text: str, num_nodes: int) -> dict[int, list[Interval]]:
    """When each node is present, from counts. The lowest ranks are present. The last count holds to the end."""
    content = json.loads(text)
    metadata = content.get("metadata") if isinstance(content, Mapping) else None
    gap: Any = metadata.get("gap_seconds") if isinstance(metadata, Mapping) else None
    counts: Any = content.get("data") if isinstance(content, Mapping) else None
    if not isinstance(counts, list) or not counts or not all(type(count) is int and count >= 0 for count in counts):
        raise ValueError("its data is not a list of numbers of nodes")
    if type(gap) not in (int, float) or not checks.MIN_SECONDS <= gap <= checks.MAX_SECONDS / len(counts):
        raise ValueError("its metadata.gap_seconds is not a number of seconds")
    if max(counts) > num_nodes:
        raise ValueError(f"it counts more nodes than the {num_nodes} of this cluster")
    return {rank: [*_present_intervals(rank, counts, gap)] for rank in range(num_nodes)}


def _present_intervals(rank: int, counts: Sequence[int], gap: float) -> Iterator[Interval]:
    place = 0
    for is_present, group in groupby(count > rank for count in counts):
        begin, place = place, place + len([*group])
        if is_present:
            yield begin * gap, math.inf if place == len(counts) else place * gap


def _read_pairs(text: str, num_nodes: int) -> dict[int, list[Interval]]:
    """When each named node is present. The earliest start becomes second 0. A row without a stop lasts to the end."""
    head, *rows = [*csv.reader(text.splitlines())] or [[]]
    if [name.strip() for name in head] != COLUMNS:
        raise ValueError(f"its first line is not {','.join(COLUMNS)}")
    pairs: list[tuple[int, float, float]] = []
    for line, row in enumerate(rows, start=2):
        if not row:
            continue
        try:
            node, start, stop = int(row[0]), float(row[1]), float(row[2]) if row[2].strip() else math.inf
        except (ValueError, IndexError):
            raise ValueError(f"its line {line} is not a node and two moments in seconds") from None
        if not 0 <= node < num_nodes:
            raise ValueError(f"the node of its line {line} is none of the {num_nodes} of this cluster, counted from 0")
        if not (abs(start) <= checks.MAX_SECONDS and start <= stop):
            raise ValueError(f"its line {line} stops before it starts")
        pairs.append((node, start, stop))
    if not pairs:
        raise ValueError("it has no rows")
    first = min(start for _, start, _ in pairs)
    by_node: dict[int, list[Interval]] = {}
    for node, start, stop in sorted(pairs):
        by_node.setdefault(node, []).append((start - first, stop - first))
    return by_node


def _gaps(intervals: Iterable[Interval]) -> Iterator[Interval]:
    """The times between these intervals, which are in order and may touch or overlap. Empty times are left out."""
    until = 0.0
    for start, stop in intervals:
        if stop > start > until:
            yield until, start
        until = max(until, stop) if stop > start else until
    if until < math.inf:
        yield until, math.inf
