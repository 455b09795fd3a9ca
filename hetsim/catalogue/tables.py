"""The tables of the catalogue: GPUs, models, sources and measured steps."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

from hetsim import checks

COLUMNS = {
    "measured": ("gpu", "model", "precision", "batch", "seconds", "source", "system"),
    "models": ("name", "title", "sample", "parameters", "parameters_from"),
    "gpus": ("name", "title", "aliases", "memory_gb", "inside_gb_per_second", "link", "source", "url"),
    "sources": ("name", "family", "title", "url", "commit", "date", "licence", "how"),
}
PRECISIONS = ("fp32", "amp", "fp16")
BYTES_PER_PARAMETER = 4
"""The bytes of a parameter in a gradient. PyTorch's DDP reduces float32 gradients of master weights in all three precisions."""


@dataclass(frozen=True)
class Gpu:
    """A GPU with its maker's figures; None if the catalogue has no source for them."""

    name: str
    title: str
    aliases: tuple[str, ...] = ()
    memory_bytes: float | None = None
    inside: float | None = None
    """The rate at which it sends to other GPUs in its machine, in bytes per second and one direction."""
    link: str = ""
    source: str = ""
    url: str = ""


@dataclass(frozen=True)
class Model:
    """A model. `parameters` is None if no source gives their number."""

    name: str
    title: str
    sample: str
    parameters: int | None = None
    parameters_from: str = ""


@dataclass(frozen=True)
class Source:
    """The source of figures."""

    name: str
    family: str
    """Sources of one family run the same programs."""
    title: str
    url: str
    commit: str
    date: str
    licence: str
    how: str


Named = TypeVar("Named", Gpu, Model, Source)


@dataclass(frozen=True)
class MeasuredStep:
    """A measured step of one GPU."""

    gpu: str
    model: str
    precision: str
    batch: int
    seconds: float
    source: str
    system: str

    @property
    def series(self) -> tuple[str, str, str]:
        """The step's series: source, model and precision. Steps of one series are from the same program."""
        return self.source, self.model, self.precision


@dataclass(frozen=True, eq=False)
class Catalogue:
    """All tables, each by name. Two catalogues are equal only if they are the same object, so results can be cached by catalogue."""

    gpus: Mapping[str, Gpu]
    models: Mapping[str, Model]
    sources: Mapping[str, Source]
    rows: tuple[MeasuredStep, ...]

    def gpu(self, name: str) -> Gpu:
        """The GPU with this name or alias, in letters of either case. Raises ValueError with the closest name if there is none."""
        names = {alias: gpu for gpu in self.gpus.values() for alias in (*gpu.aliases, gpu.name)}
        return _look_up("GPU", name, names)

    def model(self, name: str) -> Model:
        """The model with this name, in letters of either case. Raises ValueError with the closest name if there is none."""
        return _look_up("model", name, self.models)


def _look_up(kind: str, name: str, table: Mapping[str, Named]) -> Named:
    key = str(name).strip().lower().replace(" ", "-").replace("_", "-")
    if key not in table:
        raise ValueError(f"{checks.shown(name)} is no {kind} of the catalogue{checks.suggestion(key, table) or ': see hetsim-catalogue'}")
    return table[key]


@cache
def shipped_catalogue() -> Catalogue:
    """The catalogue that hetsim ships."""
    gpus = [
        Gpu(
            row["name"],
            row["title"],
            tuple(row["aliases"].split()),
            _number(row["memory_gb"], 1e9),
            _number(row["inside_gb_per_second"], 1e9),
            *(row[name] for name in COLUMNS["gpus"][5:]),
        )
        for row in _read("gpus")
    ]
    models = [Model(**{**row, "parameters": int(row["parameters"]) if row["parameters"] else None}) for row in _read("models")]  # type: ignore[arg-type]
    sources = [Source(**row) for row in _read("sources")]
    rows = [MeasuredStep(**{**row, "batch": int(row["batch"]), "seconds": float(row["seconds"])}) for row in _read("measured")]  # type: ignore[arg-type]
    return Catalogue(_entries_by_name(gpus), _entries_by_name(models), _entries_by_name(sources), tuple(rows))


def _entries_by_name(table: Iterable[Named]) -> dict[str, Named]:
    return {entry.name: entry for entry in table}


def _number(text: str, factor: float) -> float | None:
    return float(text) * factor if text else None


def _read(table: str) -> Iterator[dict[str, str]]:
    with Path(__file__).with_name(f"{table}.csv").open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)
