"""The gain of each row over the baseline row of its group, for `--baseline`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hetsim.results.tables.estimates import Estimate, paired_ratio
from hetsim.results.tables.labels import value_text
from hetsim.results.tables.metrics import Metric
from hetsim.results.tables.rows import LEFT_OUT, RowGroup, TableRow
from hetsim.results.tables.typed_values import pairs, same
from hetsim.trust.shipped import choice


def add_gains(groups: Sequence[RowGroup], baseline: str, metric: Metric, remarks: list[str]) -> list[RowGroup]:
    """The groups with a gain in each row. Raises ValueError if no row matches the baseline, or several match a row equally well."""
    wanted = _wanted_values(baseline)
    matches = [_rows_on_all_nodes([row for row in group.rows if _matches(row, wanted)], wanted) for group in groups]
    if not any(matches):
        labels = [row.label for group in groups for row in group.rows]
        raise ValueError(f"--baseline {baseline}: no row is it; the rows are {'; '.join(labels[:6])}{' …' if labels[6:] else ''}")
    groups_with_gains = []
    for group, rows in zip(groups, matches, strict=True):
        if not rows:
            remarks.append(f"{group.label}: no row is {baseline}, so nothing has a gain there")
        if len(rows) > 1:
            remarks.append(
                f"{len(rows)} rows are {baseline}: the gain of each row is over the one that differs from it in the fewest keys; "
                "name more of its keys, as in KEY=VALUE,KEY=VALUE, to compare all rows with one"
            )
        if rows and any(number is not None and number <= 0 for row in group.rows for number in row.values(metric, group.target)):
            remarks.append(f"a gain is a ratio of numbers above zero, and {group.head(metric)} is not in every run")
        gained = [_row_with_gain(row, rows, group, baseline, metric, remarks) for row in group.rows]
        groups_with_gains.append(replace(group, rows=gained, baselines=rows))
    return groups_with_gains


def _wanted_values(baseline: str) -> dict[str, str]:
    values = pairs(baseline)
    if values is None:
        raise ValueError(f"--baseline {baseline}: name a row by its keys, such as method=ssgd or method=ssgd,batch_size=256")
    return values


def _rows_on_all_nodes(rows: list[TableRow], wanted: Mapping[str, str]) -> list[TableRow]:
    """The rows that use all nodes, if any do and the baseline does not name nodes. So all rows have one baseline."""
    on_all_nodes = [] if LEFT_OUT in wanted else [row for row in rows if not _left_out(_value(row.runs[0].config, LEFT_OUT))]
    return on_all_nodes or rows


def _matches(row: TableRow, wanted: Mapping[str, str]) -> bool:
    config = row.runs[0].config
    return all(
        any(_same(key, row_value, value) for row_value in (row.keys.get(key), _value(config, key)) if row_value is not None)
        for key, value in wanted.items()
    )


def _same(key: str, row_value: str, value: str) -> bool:
    return _left_out(row_value) == _left_out(value) if key == LEFT_OUT else same(key, row_value, value)


def _left_out(value: str) -> tuple[str, ...]:
    """The nodes in a typed list; none if the key is empty, null or missing."""
    return tuple(sorted(re.findall(r"\d+", value)))


def _value(config: Mapping[str, Any], key: str) -> str:
    """A row's value of a key, as a user would type it."""
    entry: Any = config
    for name in key.split("."):
        if isinstance(entry, Sequence) and not isinstance(entry, str) and name.isdecimal() and int(name) < len(entry):
            entry = entry[int(name)]
        else:
            entry = entry.get(name) if isinstance(entry, Mapping) else None
    return choice(key, entry) if isinstance(entry, Mapping) else value_text(entry)


def _row_with_gain(
    row: TableRow, baselines: Sequence[TableRow], group: RowGroup, baseline: str, metric: Metric, remarks: list[str]
) -> TableRow:
    """The row with its gain. Among several baselines, the one that differs from the row in the fewest keys counts."""
    none = Estimate(None, None, None, 0, len(row.runs))
    if not baselines:
        return replace(row, gain=none)
    distances = [sum(row.keys[key] != candidate.keys[key] for key in row.keys) for candidate in baselines]
    nearest = [candidate for candidate, distance in zip(baselines, distances, strict=True) if distance == min(distances)]
    if len(nearest) > 1:
        raise ValueError(f"--baseline {baseline}: {nearest[0].label} and {nearest[1].label} are both it; name more keys, or see --best-of")
    row_numbers, baseline_numbers = (compared_row.by_seed(metric, group.target) for compared_row in (row, nearest[0]))
    if alone := row_numbers.keys() ^ baseline_numbers.keys():
        remarks.append(f"gains are over the seeds that a row and {baseline} share: seed {', '.join(map(str, sorted(alone)))} is not")
    return replace(row, gain=paired_ratio(row_numbers, baseline_numbers) if metric.higher else paired_ratio(baseline_numbers, row_numbers))
