"""The tables of the catalogue: GPUs, models, sources and measured steps."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TypeVar

from hetsim.catalogue import names

COLUMNS = {
    "measured": ("gpu", "model", "precision", "batch", "seconds", "source", "system"),
    "models": ("name", "title", "aliases", "sample", "parameters", "parameters_from"),
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

    @cached_property
    def words(self) -> names.GpuWords:
        """The words by which it is known."""
        memory = f"{self.memory_bytes / 1e9:.0f}gb" if self.memory_bytes else ""
        return names.words_of((self.name, *self.aliases), f"{self.title} {self.link.partition(' ')[0]} {memory}")


@dataclass(frozen=True)
class Model:
    """A model. `parameters` is None if no source gives their number."""

    name: str
    title: str
    sample: str
    parameters: int | None = None
    parameters_from: str = ""
    aliases: tuple[str, ...] = ()
    """Names that other programs and people use, besides spellings of `name` with other separators."""


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
        """The GPU with this name, in any usual spelling (`hetsim.catalogue.names`). Raises ValueError if the catalogue does not have it."""
        return self.gpus[names.name_of_gpu(name, {gpu.name: gpu.words for gpu in self.gpus.values()})]

    def model(self, name: str) -> Model:
        """The model with this name, in any usual spelling. Raises ValueError if the catalogue does not have it."""
        return self.models[names.name_of_model(name, {model.name: model.aliases for model in self.models.values()})]


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
    models = [
        Model(**{**row, "aliases": tuple(row["aliases"].split()), "parameters": int(row["parameters"]) if row["parameters"] else None})  # type: ignore[arg-type]
        for row in _read("models")
    ]
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
