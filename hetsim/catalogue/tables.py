"""The tables of the catalogue: GPUs, models, sources and measured steps."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TypeVar

from hetsim.catalogue import names

COLUMNS = {
    "measured": ("gpu", "model", "precision", "batch", "seconds", "source", "system"),
    "models": ("name", "title", "aliases", "sample", "parameters", "parameters_from", "flops", "flops_from"),
    "gpus": (
        *("name", "title", "aliases", "chip", "memory_gb", "inside_gb_per_second", "link"),
        *("fp32_tflops", "tf32_tflops", "half_tflops", "bandwidth_gb_per_second", "source", "url"),
    ),
    "sources": ("name", "family", "traits", "title", "url", "commit", "date", "licence", "how"),
}
PRECISIONS = ("fp32", "amp", "fp16")
BYTES_PER_PARAMETER = 4
"""The bytes of a parameter in a gradient. PyTorch's DDP reduces float32 gradients of master weights in all three precisions."""
FITS, SHARDED, PURE_HALF, SUPERSEDED = "fits", "sharded", "pure-half", "superseded"
"""Traits of sources: batches up to the largest that fit; states sharded (FSDP); no float32 copy of the weights; a newer one exists."""
OWN = "own"
"""The source of the user's own rows."""


@dataclass(frozen=True)
class Gpu:
    """A GPU with its maker's figures; None if the catalogue has no source for them."""

    name: str
    title: str
    aliases: tuple[str, ...] = ()
    chip: str = ""
    """GPUs of one chip differ only in memory, clock and power. Empty for a chip of its own."""
    memory_bytes: float | None = None
    inside: float | None = None
    """The rate at which it sends to other GPUs in its machine, in bytes per second and one direction."""
    link: str = ""
    fp32_flops: float | None = None
    tf32_flops: float | None = None
    half_flops: float | None = None
    """The peaks in FLOP/s: of float32, of TF32 and of dense 16-bit products that are added in float32."""
    bandwidth: float | None = None
    """Bytes per second from and to its memory."""
    source: str = ""
    url: str = ""
    part_of: str = ""
    """The GPU of which it is a MIG slice; empty for a whole GPU."""
    sevenths: int = 7
    """The sevenths of the GPU's multiprocessors that it has."""

    @cached_property
    def words(self) -> names.GpuWords:
        """The words by which it is known."""
        memory = f"{self.memory_bytes / 1e9:.0f}gb" if self.memory_bytes else ""
        return names.words_of((self.name, *self.aliases), f"{self.title} {self.link.partition(' ')[0]} {memory}")

    @property
    def die(self) -> str:
        """The name of its chip."""
        return self.chip or self.name

    def peak(self, precision: str) -> float | None:
        """The FLOP/s that no program of this precision exceeds. Programs in fp32 may use TF32."""
        return self.half_flops if precision != "fp32" else max(filter(None, (self.fp32_flops, self.tf32_flops)), default=None)


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
    flops: float | None = None
    """The FLOPs of a training step for one sample, forward and backward; None if unknown."""
    flops_from: str = ""

    @property
    def tokens(self) -> int | None:
        """The tokens of a sample; None if a sample is none of tokens."""
        words = re.search(r"(\d+) tokens", self.sample)
        return None if words is None else int(words[1])


@dataclass(frozen=True)
class Source:
    """The source of figures."""

    name: str
    family: str
    """Sources of one family run the same programs."""
    traits: str
    title: str
    url: str
    commit: str
    date: str
    licence: str
    how: str


EIGHTHS = {1: (1, 2), 2: (2,), 3: (4,), 4: (4,), 7: (8,)}
"""The eighths of the memory that a MIG slice of so many sevenths may have.

Source: https://docs.nvidia.com/datacenter/tesla/mig-user-guide/supported-mig-profiles.html.
"""
WITH_SLICES = ("a100", "h100")
"""The beginnings of the names of GPUs with these profiles."""


def _slice(gpu: Gpu, sevenths: int, gigabytes: int) -> Gpu:
    """A MIG slice of this GPU. Its slices send to each other by the host's memory, at an unknown rate."""
    whole = (gpu.memory_bytes or 0.0) / 1e9
    profiles = {(part, round(whole * share / 8)) for part, shares in EIGHTHS.items() for share in shares}
    if not gpu.name.startswith(WITH_SLICES):
        raise ValueError(f"{gpu.name} has no MIG slices: name the whole GPU")
    if (sevenths, gigabytes) not in profiles:
        listed = ", ".join(f"{part}g.{size}gb" for part, size in sorted(profiles))
        raise ValueError(f"{gpu.name} has no MIG slice {sevenths}g.{gigabytes}gb: take one of {listed}")
    profile = f"{sevenths}g.{gigabytes}gb"
    flops = [None if peak is None else peak * sevenths / 7 for peak in (gpu.fp32_flops, gpu.tf32_flops, gpu.half_flops)]
    return Gpu(
        name=f"{gpu.name}-mig-{profile}",
        title=f"{gpu.title} MIG {profile}",
        chip=gpu.die,
        memory_bytes=1e9 * gigabytes,
        fp32_flops=flops[0],
        tf32_flops=flops[1],
        half_flops=flops[2],
        source=gpu.source,
        url=gpu.url,
        part_of=gpu.name,
        sevenths=sevenths,
    )


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
        whole, profile = names.split_profile(name)
        gpu = self.gpus[names.name_of_gpu(whole, {gpu.name: gpu.words for gpu in self.gpus.values()})]
        return gpu if profile is None else _slice(gpu, *profile)

    def peak_share(self, row: MeasuredStep) -> float:
        """The FLOP/s of a step, divided by those of its GPU's data sheet; 0 if one of them is unknown."""
        flops, peak = self.models[row.model].flops, self.gpus[row.gpu].peak(row.precision)
        return row.batch * flops / row.seconds / peak if flops and peak else 0.0

    def cards(self, name: str) -> list[str]:
        """The GPUs that this name fits, such as all with an A100."""
        return names.fitting_gpus(name, {gpu.name: gpu.words for gpu in self.gpus.values()})

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
            row["chip"],
            _number(row["memory_gb"], 1e9),
            _number(row["inside_gb_per_second"], 1e9),
            row["link"],
            _number(row["fp32_tflops"], 1e12),
            _number(row["tf32_tflops"], 1e12),
            _number(row["half_tflops"], 1e12),
            _number(row["bandwidth_gb_per_second"], 1e9),
            row["source"],
            row["url"],
        )
        for row in _read("gpus")
    ]
    models = [
        Model(
            row["name"],
            row["title"],
            row["sample"],
            int(row["parameters"]) if row["parameters"] else None,
            row["parameters_from"],
            tuple(row["aliases"].split()),
            _number(row["flops"], 1),
            row["flops_from"],
        )
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
