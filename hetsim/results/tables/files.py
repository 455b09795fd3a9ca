"""The files of a sweep's table: Markdown, CSV, Parquet and a picture."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hetsim.answers.text import markdown
from hetsim.files.outputs import check_outputs_in
from hetsim.files.writing import write_text, written_whole
from hetsim.results.tables.answer import answer
from hetsim.results.tables.estimates import Estimate
from hetsim.results.tables.picture import picture
from hetsim.results.tables.table import Ranking
from hetsim.results.writing.figures import save

FILES = ("table.parquet", "table.csv", "table.md", "table.png")
WRITER = "hetsim-table"


def arrow(table: Ranking) -> Any:
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
    fields = {"mean": "mean", "low": "low", "high": "high", "runs": "num_known"}
    return {f"{name}_{part}": [getattr(estimate, entry) if estimate else None for estimate in estimates] for part, entry in fields.items()}


def check_place(option: str, folder: Path) -> None:
    """Raise ValueError if the files of a table would replace other files in this folder."""
    check_outputs_in(option, folder, FILES, WRITER)


def write(table: Ranking, folder: Path) -> None:
    """Write table.parquet, table.csv, table.md and table.png. Each file is written completely or not at all."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    check_place("", folder)
    folder.mkdir(parents=True, exist_ok=True)
    data = arrow(table).replace_schema_metadata({"generator": WRITER})
    with written_whole(folder / "table.parquet") as file:
        parquet.write_table(data, file)
    with written_whole(folder / "table.csv") as file:
        csv.write_csv(pa.table({_no_formula(field.name): _no_formulas(data[field.name]) for field in data.schema}), file)
    write_text(folder / "table.md", markdown(answer(table)))
    with written_whole(folder / "table.png") as file:
        save(picture(table), file, WRITER)


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
