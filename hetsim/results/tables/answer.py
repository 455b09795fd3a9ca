"""The answer of a sweep's table: the best row of each group, the tables, and the picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial

from hetsim.answers.answer import Answer, Cell, Picture, Quoted, Sheet
from hetsim.results.tables.labels import short_text
from hetsim.results.tables.picture import cell, picture
from hetsim.results.tables.rows import RowGroup, TableRow
from hetsim.results.tables.table import Ranking

MAX_ANSWERS = 5
"""The maximum number of groups whose best row is in the answer."""


def answer(table: Ranking, command: str = "") -> Answer:
    """The answer with this table. `command` has asked for it."""
    num_omitted = len(table.groups) - MAX_ANSWERS
    more = [f"The tables have the best of {num_omitted} groups more."] if num_omitted > 0 else []
    heads = dict.fromkeys(group.head(table.metrics[table.metric]) for group in table.groups)
    return Answer(
        question=f"Which row is best by {' or '.join(heads)}? ({table.title})",
        answer=[*(_best(table, group) for group in table.groups[:MAX_ANSWERS]), *more],
        pictures=[Picture("table", "Mean and 95 % interval over the runs of each row", partial(picture, table))],
        sheets=list(_sheets(table)),
        remarks=table.remarks,
        command=command,
    )


def _best(table: Ranking, group: RowGroup) -> str:
    best = group.rows[0]
    number = best.numbers[table.metric]
    where = f"With {group.label}, " if group.label and len(table.groups) > 1 else ""
    if number.mean is None:
        return f"{where}no row has a number of all its runs."
    gain = "" if best.gain is None or best.gain.mean is None else f" That is {best.gain} times as good as {table.baseline}."
    head = group.head(table.metrics[table.metric])
    return f"{where}{group.name(best) or 'the only row'} ranks first of {len(group.rows)}: {cell(table.metric, number)} {head}.{gain}"


def _sheets(table: Ranking) -> Iterator[Sheet]:
    """One sheet for each group."""
    values = {value for row in table.rows for value in row.keys.values()}
    count = Counter(map(short_text, values))  # values that would look the same are not shortened
    printed = [name for name in table.known_metrics if name == table.metric or table.metrics[name].printed]
    for group in table.groups:
        gain = [] if table.baseline is None else [Quoted(table.baseline, "gain over ")]
        ranked, *others = [group.head(table.metrics[name]) for name in printed]
        coordination = ["coordination"] if any(row.coordination for row in group.rows) else []
        heads: list[Cell] = [*map(Quoted, group.keys), *coordination, "runs", ranked, *gain, *others]
        rows: list[list[Cell]] = []
        for row in group.rows:
            texts = [row.keys[key] if count[short_text(row.keys[key])] > 1 else short_text(row.keys[key]) for key in group.keys]
            texts += [row.coordination] if coordination else []
            runs = f"{len(row.runs)} ({row.num_diverged} diverged)" if row.num_diverged else str(len(row.runs))
            ranked, *others = [cell(name, row.numbers[name]) for name in printed]
            gains = [_gain(row)] if gain else []
            rows.append([*map(Quoted, texts), runs, ranked, *gains, *others])
        yield Sheet(Quoted(group.label), heads, rows)


def _gain(row: TableRow) -> str:
    """A gain as text. It has no interval for a single seed, or if it is equal for all seeds."""
    text, gain = str(row.gain), row.gain
    has_none = gain is not None and gain.mean is not None and "(" not in text and text != "1"
    return f"{text} (equal in all {gain.num_runs})" if gain and has_none and gain.num_runs > 1 else text
