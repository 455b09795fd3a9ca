"""Write tables.md from results.csv: the cross-validated errors of each rule.

python evaluate.py [--folder FOLDER]
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from common import Row, arguments, rows, table, where, write_tables

HERE = Path(__file__).parent
NAMES = {"aws": "T4", "azure": "V100", "rtx": "RTX 2080 Ti"}
APPS = {
    "imagenet": "ResNet-50",
    "cifar10": "ResNet-18",
    "bert": "BERT",
    "yolov3": "YOLOv3",
    "deepspeech2": "DeepSpeech2",
    "ncf": "NeuMF",
}
ERRORS = ("median", "p95", "mean", "worst")
HEAD = ("median", "95th", "mean", "worst")


def percent(value: str) -> str:
    """One digit after the point."""
    return f"{100 * float(value):.1f} %"


def shown(row: Row) -> list[str]:
    """The points and the errors of a row."""
    return [row["points"], *(percent(row[name]) for name in ERRORS)]


def of_sia(found: Sequence[Row]) -> list[str]:
    """All, by kind of placement and GPU, and each application."""
    body = []
    groups = {"all": "all", "one or two nodes": "one or two nodes", "more nodes": "three or four nodes", **NAMES}
    for group, name in groups.items():
        for rule in ("hetsim", "Pollux"):
            body += [[name, rule, *shown(row)] for row in where(found, rule=rule, group=group)]
    series = [
        [
            APPS[app],
            *("–" if not (row := where(found, rule="hetsim", group=f"{app} {gpu}")) else percent(row[0]["median"]) for gpu in NAMES),
        ]
        for app in APPS
    ]
    if not body:
        return []
    return [table(["placements", "rule", "points", *HEAD], body), table(["median error", *NAMES.values()], series)]


def others(found: Sequence[Row], data: str, name: str) -> list[str]:
    """Each group of one data set."""
    body = [[row["group"], *shown(row)] for row in where(found, data=data)]
    return [table([name, "points", *HEAD], body)] if body else []


def main(given: Sequence[str] | None = None) -> None:
    """Write tables.md."""
    folder = arguments(__doc__, HERE, given).folder
    found = rows(folder / "results.csv")
    tables = of_sia(where(found, data="sia"))
    for data, name in (("lambda", "Lambda: gain of a second GPU"), ("gavel", "Gavel: rate of two GPUs"), ("diloco", "round")):
        tables += others(found, data, name)
    write_tables(folder, tables)


if __name__ == "__main__":
    main()
