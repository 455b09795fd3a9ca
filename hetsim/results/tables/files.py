"""A table of a sweep as Markdown, CSV, Parquet and a picture."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from hetsim.checks import printable
from hetsim.files.writing import write_text, written_whole
from hetsim.results.tables.estimates import Estimate
from hetsim.results.tables.labels import shortened
from hetsim.results.tables.picture import cell as number
from hetsim.results.tables.picture import picture
from hetsim.results.tables.rows import Row
from hetsim.results.tables.table import Table
from hetsim.results.writing.figures import save


class Cell(NamedTuple):
    """Text by hetsim, followed by text from a config, which may come from somebody else."""

    words: str = ""
    text: str = ""


class Sheet(NamedTuple):
    """A group as shown: its label, the heads of the columns, and the rows."""

    label: str
    heads: list[Cell]
    rows: list[list[Cell]]


def markdown(table: Table) -> str:
    """The table as Markdown: one table for each group, below the group's label."""
    parts = []
    for sheet in sheets(table):
        lines = [_line(sheet.heads, known=_is_name), "|" + "---|" * len(sheet.heads), *map(_line, sheet.rows)]
        parts.append("\n".join([f"**`{_plain(sheet.label)}`**", "", *lines] if sheet.label else lines) + "\n")
    return "\n".join(parts)


def html(table: Table) -> str:
    """The table and its remarks as HTML for a notebook. Text from a config is code, in which Jupyter renders no formulas."""
    parts = []
    for sheet in sheets(table):
        head, *rows = ["".join(f"<{tag}>{_in_html(cell)}</{tag}>" for cell in cells) for tag, cells in _tagged(sheet)]
        label = f"<p><b>{_in_html(Cell(text=sheet.label))}</b></p>" if sheet.label else ""
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        parts.append(f"{label}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
    return "\n".join([*parts, *(f"<p>{_in_html(Cell(text=remark))}</p>" for remark in table.remarks)])


def sheets(table: Table) -> list[Sheet]:
    """One sheet for each group."""
    values = {value for row in table.rows for value in row.keys.values()}
    count = Counter(map(shortened, values))  # values that would look the same are not shortened
    printed = [name for name in table.known if name == table.metric or table.metrics[name].printed]
    made = []
    for group in table.groups:
        gain = [] if table.baseline is None else [Cell("gain over ", table.baseline)]
        ranked, *others = [Cell(group.head(table.metrics[name])) for name in printed]
        coordination = [Cell("coordination")] if any(row.coordination for row in group.rows) else []
        heads = [*(Cell(text=key) for key in group.keys), *coordination, Cell("runs"), ranked, *gain, *others]
        rows = []
        for row in group.rows:
            texts = [row.keys[key] if count[shortened(row.keys[key])] > 1 else shortened(row.keys[key]) for key in group.keys]
            texts += [row.coordination] if coordination else []
            runs = f"{len(row.runs)} ({row.num_diverged} diverged)" if row.num_diverged else str(len(row.runs))
            ranked, *others = [Cell(number(name, row.numbers[name])) for name in printed]
            gains = [Cell(_gain(row))] if gain else []
            rows.append([*(Cell(text=text) for text in texts), Cell(runs), ranked, *gains, *others])
        made.append(Sheet(group.label, heads, rows))
    return made


def _gain(row: Row) -> str:
    """A gain as text. It has no interval for a single seed, or if it is equal for all seeds."""
    text, gain = str(row.gain), row.gain
    has_none = gain is not None and gain.mean is not None and "(" not in text and text != "1"
    return f"{text} (equal in all {gain.num_runs})" if gain and has_none and gain.num_runs > 1 else text


def _line(cells: Sequence[Cell], *, known: Callable[[str], bool] = lambda _: False) -> str:
    texts = (cell.words + (cell.text if known(cell.text) else f"`{_plain(cell.text)}`") if cell.text else cell.words for cell in cells)
    return "| " + " | ".join(texts) + " |"


def _is_name(key: str) -> bool:
    """Whether the text is only a key, and not, for example, a web address."""
    return re.fullmatch(r"(?!www\.)[\w.]+", key, re.IGNORECASE) is not None


def _plain(text: str) -> str:
    """Text from a config in backticks, for a Markdown cell. It contains no other markup."""
    return printable(text).replace("|", "¦").replace("`", "'").replace("<", "‹").replace(">", "›")


def _tagged(sheet: Sheet) -> Iterator[tuple[str, list[Cell]]]:
    yield "th", sheet.heads
    yield from (("td", row) for row in sheet.rows)


def _in_html(cell: Cell) -> str:
    return escape(cell.words) + (f"<code>{escape(printable(cell.text))}</code>" if cell.text else "")


def arrow(table: Table) -> Any:
    """The table as an Arrow table: keys, label, runs, and for each metric the mean, its 95 % interval and the number of runs with it.

    A key with the name of another column gets the prefix `config.`.
    """
    import pyarrow as pa

    rows = [(group, row) for group in table.groups for row in group.rows]
    numbers: dict[str, list[Any]] = {"runs": [len(row.runs) for _, row in rows], "diverged_runs": [row.num_diverged for _, row in rows]}
    for name in ("accuracy", "loss", "seconds"):
        numbers[f"target_{name}"] = [getattr(group.target, name) for group, _ in rows]
    if table.baseline is not None:
        numbers |= _columns("gain", [row.gain for _, row in rows])
    for metric in table.metrics:
        numbers |= _columns(metric, [row.numbers[metric] for _, row in rows])
    texts = {"label": [row.label for _, row in rows]}
    if any(row.coordination for _, row in rows):
        texts["coordination"] = [row.coordination for _, row in rows]
    names = dict.fromkeys(key for _, row in rows for key in row.keys)
    keys = {f"config.{key}" if key in numbers | texts else key: [row.keys.get(key) for _, row in rows] for key in names}
    columns = {name: pa.array(values, pa.string()) for name, values in (keys | texts).items()}
    kinds = {name: pa.int64() if name.endswith("runs") else pa.float64() for name in numbers}
    return pa.table(columns | {name: pa.array(values, kinds[name]) for name, values in numbers.items()})


def _columns(name: str, estimates: Sequence[Estimate | None]) -> dict[str, list[Any]]:
    parts = {"mean": "mean", "low": "low", "high": "high", "runs": "num_known"}
    return {f"{name}_{part}": [getattr(estimate, entry) if estimate else None for estimate in estimates] for part, entry in parts.items()}


def write(table: Table, folder: Path) -> None:
    """Write table.parquet, table.csv, table.md and table.png. Each file is written completely or not at all."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    folder.mkdir(parents=True, exist_ok=True)
    data = arrow(table)
    with written_whole(folder / "table.parquet") as file:
        parquet.write_table(data, file)
    with written_whole(folder / "table.csv") as file:
        csv.write_csv(pa.table({_no_formula(field.name): _no_formulas(data[field.name]) for field in data.schema}), file)
    write_text(folder / "table.md", markdown(table))
    with written_whole(folder / "table.png") as file:
        save(picture(table), file)


def _no_formulas(column: Any) -> Any:
    import pyarrow as pa

    texts = column.to_pylist() if pa.types.is_string(column.type) else None
    return column if texts is None else pa.array([text and _no_formula(text) for text in texts], pa.string())


def _no_formula(text: str) -> str:
    """Text that a spreadsheet does not evaluate: text that looks like a formula, and is no number, gets a leading quote.

    Some spreadsheets split cells at another character than the comma, and so find a cell within the text.
    """
    if re.fullmatch(r"[+-]?[\d.]+(e[+-]?\d+)?", text):
        return text
    return re.sub(r"""(^|[;|\t,"'])(\s*[=+@＝＋＠－-]|\t)""", r"\1'\2", text)
