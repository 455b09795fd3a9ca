"""The numbers of each of very many workers: rows of per_worker.parquet, and quantiles in summary.json."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hetsim.files.writing import begun

MAX_LISTED = 10_000
"""Up to this number of workers, summary.json lists each of them."""
PARTS = {"min": 0.0, "p5": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95, "max": 1.0}
"""The quantiles in summary.json."""
LISTS = {"batch_sizes": "batch_size", "weight_shares": "weight_share"}
"""Entries of a summary with a number for each worker, and their columns."""
TABLES = {"per_worker": "", "pools": "pool_"}
"""Entries with a mapping for each worker, and the prefixes of their columns."""


def quantile_summary(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The summary with quantiles instead of a number for each worker."""
    entries: dict[str, Any] = {key: quantiles(summary[key]) for key in LISTS}
    for key in TABLES:
        rows = summary[key]
        entries[key] = None if rows is None else {name: quantiles(row[name] for row in rows) for name in rows[0] if name != "rank"}
    return {**summary, **entries}


def write_workers(path: Path, summary: Mapping[str, Any]) -> None:
    """Write a row for each worker, in rank order."""
    import pyarrow as pa
    from pyarrow import parquet

    columns = {prefix + name: [row[name] for row in summary[key]] for key, prefix in TABLES.items() for name in (summary[key] or [{}])[0]}
    columns |= {column: summary[key] for key, column in LISTS.items()}
    columns.pop("pool_rank", None)
    with begun(path) as file:
        parquet.write_table(pa.table(columns), file)


def quantiles(values: Iterable[float | None]) -> dict[str, float | None]:
    """The `PARTS` of the values by nearest rank, without the missing ones; None if all are missing. False counts as 0."""
    present: Sequence[float] = sorted(+value for value in values if value is not None)
    return {name: present[round(part * (len(present) - 1))] if present else None for name, part in PARTS.items()}
