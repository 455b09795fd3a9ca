"""A table of a sweep as Markdown, CSV, Parquet and a picture."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hetsim.results.figures import COMPUTE, INK, WAIT, own_style, save
from hetsim.results.labels import shortened
from hetsim.results.table import METRICS, Estimate, Row, head, known
from hetsim.runtime.files import write_text, written_whole

MAX_ROWS = 60
"""The rows of a picture."""


def markdown(found: Sequence[Row], *, accuracy: float) -> str:
    """The table as Markdown."""
    shown = known(found)
    heads = [*map(_head, found[0].keys), "runs", *(head(metric, accuracy) for metric in shown)]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    values = {value for row in found for value in row.keys.values()}
    count = Counter(map(shortened, values))  # values that would look the same are not shortened
    for row in found:
        texts = [value if count[shortened(value)] > 1 else shortened(value) for value in row.keys.values()]
        cells = [f"`{_plain(text)}`" if text else "" for text in texts]
        cells += [str(row.num_runs), *(_cell(metric, row.numbers[metric]) for metric in shown)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _head(key: str) -> str:
    return key if re.fullmatch(r"[\w.]+", key) else f"`{_plain(key)}`"


def _plain(text: str) -> str:
    """A text of a config in a cell, as Markdown that is nothing but this text."""
    return text.replace("|", "\\|").replace("`", "'").replace("<", "‹").replace(">", "›")


def _cell(metric: str, estimate: Estimate) -> str:
    if metric == "seconds_to_accuracy" and estimate.num_known < estimate.num_runs:
        return f"reached by {estimate.num_known} of {estimate.num_runs}" if estimate.num_known else "never reached"
    return str(estimate)


def columns(found: Sequence[Row], *, accuracy: float) -> dict[str, list[Any]]:
    """The table as columns: keys, label, runs, and for each metric the mean, half its 95 % interval and how many runs have it.

    A key that is called as one of the other columns is has `config.` in front.
    """
    table: dict[str, list[Any]] = {"label": [row.label for row in found], "runs": [row.num_runs for row in found]}
    table["accuracy"] = [accuracy for _ in found]
    for metric in METRICS:
        estimates = [row.numbers[metric] for row in found]
        table[f"{metric}_mean"] = [estimate.mean for estimate in estimates]
        table[f"{metric}_interval"] = [estimate.interval for estimate in estimates]
        table[f"{metric}_runs"] = [estimate.num_known for estimate in estimates]
    keys = {f"config.{key}" if key in table else key: [row.keys[key] for row in found] for key in found[0].keys}
    return keys | table


def write(found: Sequence[Row], folder: Path, *, metric: str, accuracy: float, title: str) -> None:
    """Write table.parquet, table.csv, table.md and table.png, each whole or not at all."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    folder.mkdir(parents=True, exist_ok=True)
    data = columns(found, accuracy=accuracy)
    strings = {*list(data)[: len(found[0].keys)], "label"}
    kinds = {name: pa.string() if name in strings else pa.int64() if name.endswith("runs") else pa.float64() for name in data}
    table = pa.table({name: pa.array(values, kinds[name]) for name, values in data.items()})
    with written_whole(folder / "table.parquet") as file:
        parquet.write_table(table, file)
    with written_whole(folder / "table.csv") as file:
        texts = {name: pa.array([_no_formula(value) for value in data[name]], pa.string()) for name in strings}
        csv.write_csv(pa.table({_no_formula(name): texts.get(name, table[name]) for name in data}), file)
    write_text(folder / "table.md", markdown(found, accuracy=accuracy))
    with own_style(), written_whole(folder / "table.png") as file:
        save(picture(found, metric=metric, accuracy=accuracy, title=title), file)


def _no_formula(text: str) -> str:
    """A text that a spreadsheet does not calculate: with a quote in front, if it looks like a formula and is no number."""
    return f"'{text}" if re.match(r"[=+@\t-]", text) and not re.fullmatch(r"[+-]?[\d.]+(e[+-]?\d+)?", text) else text


def picture(found: Sequence[Row], *, metric: str, accuracy: float, title: str) -> Any:
    """A figure: a point and an interval for each row, the best at the top; words where there is no number."""
    from matplotlib.figure import Figure

    drawn = list(found[:MAX_ROWS])
    figure = Figure(figsize=(9, 1.1 + 0.27 * len(drawn)), layout="constrained")
    axes = figure.subplots()
    for place, row in enumerate(drawn):
        estimate = row.numbers[metric]
        if estimate.mean is None:
            axes.text(0.01, place, _cell(metric, estimate), transform=axes.get_yaxis_transform(), va="center", fontsize=8, color="#888888")
        else:
            axes.errorbar(estimate.mean, place, xerr=estimate.interval, fmt="o", color=COMPUTE, ms=5, elinewidth=1.6, capsize=3)
    means = [row.numbers[metric].mean for row in drawn]
    positive = [mean for mean in means if mean is not None and mean > 0]
    if positive and len(positive) == sum(mean is not None for mean in means) and max(positive) > 30 * min(positive):
        axes.set_xscale("log")
    axes.set_yticks(range(len(drawn)), [row.label for row in drawn], parse_math=False)
    axes.set_ylim(len(drawn) - 0.4, -0.6)
    axes.margins(x=0.06)
    more = f"; {len(found) - len(drawn)} more rows are in table.csv" if len(found) > len(drawn) else ""
    axes.set_xlabel(f"{head(metric, accuracy)}: mean and 95 % interval over the runs{more}", fontsize=9, color=INK)
    figure.suptitle(title, fontsize=10, color=INK, x=0.01, ha="left", parse_math=False)
    axes.grid(color=WAIT)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=9, labelcolor=INK)
    axes.spines[:].set_visible(False)
    return figure
