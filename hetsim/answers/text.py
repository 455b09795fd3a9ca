"""An answer as text for a terminal, as Markdown, and as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence

from hetsim.answers.answer import Answer, Cell, Sheet
from hetsim.checks import printable


def terminal(answer: Answer, *, remarks: bool = True) -> str:
    """The answer for a terminal: the sentences, the tables, and the remarks."""
    tables = (_printed_lines(sheet) for sheet in answer.sheets if sheet.max_printed != 0)
    blocks = [map(printable, answer.answer), *tables, map(printable, answer.remarks if remarks else ())]
    return "\n\n".join(filter(None, ("\n".join(lines) for lines in blocks)))


def _printed_lines(sheet: Sheet) -> Iterator[str]:
    if sheet.above:
        yield from map(printable, [*sheet.above, ""])
    rows = [[printable(str(cell)) for cell in row] for row in (sheet.heads, *sheet.rows[: sheet.max_printed])]
    least = [*sheet.widths, *[0] * len(sheet.heads)]
    widths = [max(width, *(len(cell) + 2 for cell in column)) for width, column in zip(least, zip(*rows, strict=True), strict=False)]
    align = str.rjust if sheet.widths else str.ljust
    for first, *others in rows:
        yield (first.ljust(widths[0]) + "".join(map(align, others, widths[1:]))).rstrip()
    if (more := len(sheet.rows) + 1 - len(rows)) > 0:
        yield f"and {more} more rows"
    yield from map(printable, sheet.below)


def markdown(answer: Answer) -> str:
    """The tables as Markdown, each below its title. Text from a config is code, so that it contains no other markup."""
    tables = []
    for sheet in answer.sheets:
        lines = [_line(sheet.heads, is_plain=_is_name), "|" + "---|" * len(sheet.heads), *map(_line, sheet.rows)]
        tables.append("\n".join([f"**{_marked_cell(sheet.title)}**", "", *lines] if str(sheet.title) else lines) + "\n")
    return "\n".join(tables)


def _line(cells: Sequence[Cell], *, is_plain: Callable[[str], bool] = lambda _: False) -> str:
    return "| " + " | ".join(_marked_cell(cell, is_plain=is_plain) for cell in cells) + " |"


def _marked_cell(cell: Cell, *, is_plain: Callable[[str], bool] = lambda _: False) -> str:
    if isinstance(cell, str) or not cell.text or is_plain(cell.text):
        return str(cell)
    text = printable(cell.text).replace("|", "¦").replace("`", "'").replace("<", "‹").replace(">", "›")
    return f"{cell.words}`{text}`"


def _is_name(text: str) -> bool:
    """Whether the text is only a key, and not, for example, a web address."""
    return re.fullmatch(r"(?!www\.)[\w.]+", text, re.IGNORECASE) is not None


def as_json(answer: Answer, writer: str = "") -> str:
    """The results as JSON. In a file, the first entry is the command that writes it."""
    return json.dumps({**({"generator": writer} if writer else {}), **answer.data}, indent=2, allow_nan=False)
