"""A table of a sweep as Markdown, CSV, Parquet and a picture."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hetsim.checks import printable
from hetsim.results.figures import own_style, save
from hetsim.results.tables.estimates import Estimate
from hetsim.results.tables.labels import shortened
from hetsim.results.tables.picture import cell, picture
from hetsim.results.tables.rows import Row
from hetsim.results.tables.table import Table
from hetsim.runtime.files import write_text, written_whole


def markdown(table: Table) -> str:
    """The table as Markdown: one for each group, below what tells the group from the others."""
    values = {value for row in table.rows for value in row.keys.values()}
    count = Counter(map(shortened, values))  # values that would look the same are not shortened
    printed = [name for name in table.known if name == table.metric or table.metrics[name].printed]
    parts = []
    for group in table.groups:
        gain = [] if table.baseline is None else [f"gain over {_head(table.baseline)}"]
        ranked, *others = [group.head(table.metrics[name]) for name in printed]
        coordination = ["coordination"] if any(row.coordination for row in group.rows) else []
        heads = [*map(_head, group.keys), *coordination, "runs", ranked, *gain, *others]
        lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
        for row in group.rows:
            texts = [row.keys[key] if count[shortened(row.keys[key])] > 1 else shortened(row.keys[key]) for key in group.keys]
            runs = f"{len(row.runs)} ({row.num_diverged} diverged)" if row.num_diverged else str(len(row.runs))
            texts += [row.coordination] if coordination else []
            ranked, *others = [cell(name, row.numbers[name]) for name in printed]
            gains = [] if table.baseline is None else [_gain(row)]
            cells = [*(f"`{_plain(text)}`" if text else "" for text in texts), runs, ranked, *gains, *others]
            lines.append("| " + " | ".join(cells) + " |")
        parts.append("\n".join([f"**`{_plain(group.label)}`**", "", *lines] if group.label else lines) + "\n")
    return "\n".join(parts)


def _gain(row: Row) -> str:
    """A gain without an interval is that of one seed, or the same in all."""
    text, gain = str(row.gain), row.gain
    has_none = gain is not None and gain.mean is not None and "(" not in text and text != "1"
    return f"{text} (equal in all {gain.num_runs})" if gain and has_none and gain.num_runs > 1 else text


def _head(key: str) -> str:
    return key if re.fullmatch(r"[\w.]+", key) else f"`{_plain(key)}`"


def _plain(text: str) -> str:
    """A text of a config between backticks in a cell, as Markdown that is nothing but this text."""
    return printable(text).replace("|", "\\|").replace("`", "'").replace("<", "‹").replace(">", "›")


def escaped(text: str) -> str:
    """A sentence, which may quote a stranger, as Markdown that is no more: a notebook would run HTML, and fetch pictures."""
    marked = re.sub(r"([!#%&'()*+,./:;=?@\[\\\]^_`{|}~-])", r"\\\1", printable(text).replace("$", "＄"))
    return marked.replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def arrow(table: Table) -> Any:
    """The table as an Arrow table: keys, label, runs, and for each metric the mean, its 95 % interval and how many runs have it.

    A key that is called as one of the other columns is has `config.` in front.
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
    """Write table.parquet, table.csv, table.md and table.png, each whole or not at all."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    folder.mkdir(parents=True, exist_ok=True)
    data = arrow(table)
    with written_whole(folder / "table.parquet") as file:
        parquet.write_table(data, file)
    with written_whole(folder / "table.csv") as file:
        csv.write_csv(pa.table({_no_formula(field.name): _no_formulas(data[field.name]) for field in data.schema}), file)
    write_text(folder / "table.md", markdown(table))
    with own_style(), written_whole(folder / "table.png") as file:
        save(picture(table), file)


def _no_formulas(column: Any) -> Any:
    import pyarrow as pa

    texts = column.to_pylist() if pa.types.is_string(column.type) else None
    return column if texts is None else pa.array([text and _no_formula(text) for text in texts], pa.string())


def _no_formula(text: str) -> str:
    """A text that a spreadsheet does not calculate: with a quote in front, if it looks like a formula and is no number."""
    return f"'{text}" if re.match(r"[=+@\t-]", text) and not re.fullmatch(r"[+-]?[\d.]+(e[+-]?\d+)?", text) else text
