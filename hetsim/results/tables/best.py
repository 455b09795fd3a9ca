"""For `--best-of`: among rows that differ only in some keys, such as the learning rate, keep the row with the best number."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

from hetsim import checks
from hetsim.results.tables.metrics import Metric, Target
from hetsim.results.tables.rows import TableRow, scale


def select_best(rows: Sequence[TableRow], keys: Sequence[str], metric: Metric, target: Target, remarks: list[str]) -> list[TableRow]:
    """The best row of each config without these keys. If the best value is the smallest or largest tried, a remark says so."""
    row_keys, keys = list(rows[0].keys), _names(keys)
    for key in keys:
        if key not in row_keys:
            raise ValueError(f"--best-of {key}: the runs do not differ in it; take {', '.join(row_keys)}{checks.suggestion(key, row_keys)}")
    merged: dict[tuple[tuple[str, str], ...], list[TableRow]] = {}
    for row in rows:
        merged.setdefault(tuple((key, value) for key, value in row.keys.items() if key not in keys), []).append(row)
    worth = partial(_worth, metric=metric, target=target, on=scale(metric, rows, target))
    if _all_alike(merged.values(), worth):
        raise ValueError(
            f"--best-of {','.join(keys)}: {metric.head.split(' {')[0]} is the same whatever it is, so none is the best: rank by a number "
            "that depends on it, such as --metric final_loss, or --target-loss L"
        )
    selected = []
    for same in merged.values():
        best = min(same, key=worth)
        selected.append(best)
        remarks += [sentence for key in keys if (sentence := _end_remark(best, same, key))]
    return selected


def check_selects(groups: Sequence[Sequence[TableRow]], keys: Sequence[str]) -> None:
    """Raise ValueError for a key, such as one of the cluster, in which the rows of each group are equal."""
    for key in _names(keys):
        values = [{row.keys.get(key) for row in rows} for rows in groups]
        if len(set.union(*values)) > 1 and all(len(key_values) == 1 for key_values in values):
            raise ValueError(f"--best-of {key}: each of its values has a table of its own, so none is the best: leave it out")


def _names(keys: Sequence[str]) -> list[str]:
    return [key.lstrip("+~").partition("=")[0] for key in keys]


def _all_alike(merged: Collection[Sequence[TableRow]], worth: Callable[[TableRow], tuple[float, ...]]) -> bool:
    """Whether no row is better than the rows from which it differs only in the keys."""
    several = [same for same in merged if len(same) > 1]
    return bool(several) and all(len(set(map(worth, same))) == 1 for same in several)


def _worth(row: TableRow, *, metric: Metric, target: Target, on: str) -> tuple[float, ...]:
    """A sort key, lowest first: few diverged runs, then many runs with a number, then the best mean."""
    number = row.estimate(metric, target, scale=on)
    return row.num_diverged, -number.num_known / number.num_runs, (-1 if metric.higher else 1) * (number.mean or 0.0)


def _end_remark(best: TableRow, same: Sequence[TableRow], key: str) -> str | None:
    """A remark if the best value is the smallest or the largest tried, because a better value may lie beyond."""
    try:
        values = sorted({float(row.keys[key]) for row in same})
        value = float(best.keys[key])
    except ValueError:
        return None
    if len(values) < 3 or value not in (values[0], values[-1]) or value == 0:
        return None
    end = "smallest" if value == values[0] else "largest"
    return f"{best.label}: the best {key} is the {end} of the {len(values)} tried, so a better one may lie beyond"
