"""The report of a sweep's table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hetsim.reports.page import Page, Sheet
from hetsim.results.tables.files import Cell, sheets
from hetsim.results.tables.picture import cell, picture
from hetsim.results.tables.rows import Group
from hetsim.results.tables.table import Table

MAX_ANSWERS = 5
"""The maximum number of groups whose best row is in the answer."""


def page(table: Table, command: str) -> Page:
    """The report of a table. `command` has printed the table."""
    left = len(table.groups) - MAX_ANSWERS
    more = [f"The tables have the best of {left} groups more."] if left > 0 else []
    heads = dict.fromkeys(group.head(table.metrics[table.metric]) for group in table.groups)
    return Page(
        question=f"Which row is best by {' or '.join(heads)}? ({table.title})",
        answer=" ".join([*(sentence for group in table.groups[:MAX_ANSWERS] for sentence in _answer(table, group)), *more]),
        figures=[("Mean and 95 % interval over the runs of each row", picture(table))],
        sheets=[Sheet(each.label, _words(each.heads), list(map(_words, each.rows))) for each in sheets(table)],
        remarks=table.remarks,
        command=command,
    )


def _answer(table: Table, group: Group) -> Iterator[str]:
    best = group.rows[0]
    found = best.numbers[table.metric]
    where = f"With {group.label}, " if group.label and len(table.groups) > 1 else ""
    if found.mean is None:
        yield f"{where}no row has a number of all its runs."
        return
    gain = "" if best.gain is None or best.gain.mean is None else f" That is {best.gain} times as good as {table.baseline}."
    head = group.head(table.metrics[table.metric])
    yield f"{where}{group.name(best) or 'the only row'} ranks first of {len(group.rows)}: {cell(table.metric, found)} {head}.{gain}"


def _words(cells: Sequence[Cell]) -> list[str]:
    return [cell.words + cell.text for cell in cells]
