"""The catalogue as text: lists of GPUs and models, measurements of one, and a pair with its sources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hetsim.catalogue.tables import OWN, Catalogue, Gpu, MeasuredStep, Model
from hetsim.catalogue.times import SPREAD, Choice


def align_columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows of cells as lines, in columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()


def gpu_cells(catalogue: Catalogue, gpus: Sequence[Gpu]) -> list[list[str]]:
    """The heads, and a row for each GPU."""
    cells = [
        ["GPU", "also", "what it is", "chip", "memory", "inside a machine", "TFLOP/s fp32, tf32, 16 bit", "memory GB/s", "models measured"]
    ]
    for gpu in gpus:
        models = {row.model for row in catalogue.rows if row.gpu == gpu.name}
        inside = "" if gpu.inside is None else f"{gpu.inside / 1e9:g} GB/s, {gpu.link}"
        peaks = ", ".join("–" if peak is None else f"{peak / 1e12:g}" for peak in (gpu.fp32_flops, gpu.tf32_flops, gpu.half_flops))
        bandwidth = "" if gpu.bandwidth is None else f"{gpu.bandwidth / 1e9:g}"
        chip = gpu.chip if gpu.chip != gpu.name else ""
        described = [gpu.name, " ".join(gpu.aliases), gpu.title, chip, _gigabytes(gpu.memory_bytes)]
        cells.append([*described, inside, peaks, bandwidth, str(len(models))])
    return cells


def model_cells(catalogue: Catalogue, models: Sequence[Model]) -> list[list[str]]:
    """The heads, and a row for each model."""
    cells = [["model", "also", "what it is", "a sample is", "parameters", "size from", "GFLOP a sample", "FLOPs from", "GPUs measured"]]
    for model in models:
        gpus = {row.gpu for row in catalogue.rows if row.model == model.name}
        size = "" if model.parameters is None else f"{model.parameters / 1e6:.4g} M"
        flops = "" if model.flops is None else f"{model.flops / 1e9:.4g}"
        described = [model.name, " ".join(model.aliases), model.title, model.sample]
        cells.append([*described, size, model.parameters_from, flops, model.flops_from, str(len(gpus))])
    return cells


def measured_lines(catalogue: Catalogue, rows: Sequence[MeasuredStep]) -> Iterator[str]:
    """A line for each GPU and series: batch sizes, milliseconds, source and system."""
    groups: dict[tuple[str, ...], list[MeasuredStep]] = {}
    for row in rows:
        groups.setdefault((row.gpu, row.model, row.precision, row.source, row.system), []).append(row)
    cells = [["GPU", "model", "precision", "samples: ms", "source", "system"]]
    for key, steps in sorted(groups.items()):
        curve = ", ".join(f"{row.batch}: {1000 * row.seconds:.4g}" for row in sorted(steps, key=lambda row: row.batch))
        cells.append([*key[:3], curve + (" (single point)" if len(steps) == 1 else ""), *key[3:]])
    yield from align_columns(cells)
    yield ""
    yield from source_lines(catalogue, sorted({row.source for row in rows}))


def source_lines(catalogue: Catalogue, names: Sequence[str]) -> Iterator[str]:
    """A line for each source: title, address, version, date, licence, and its method of measuring."""
    for name in names:
        source = catalogue.sources[name]
        yield f"{name}: {source.title}; {source.url} at {source.commit}, {source.date}; licence: {source.licence}; {source.how}"


def pair_lines(choice: Choice, gpu: Gpu, model: Model, precision: str | None) -> Iterator[str]:
    """The times that a simulation uses for this pair, and their sources. Raises ValueError if there are neither times nor measurements."""
    rows = [row for row in choice.catalogue.rows if (row.gpu, row.model) == (gpu.name, model.name)]
    sources = []
    try:
        (times,) = choice.times([gpu.name], model.name, precision)
    except ValueError as error:
        if not rows:
            raise
        yield str(error)
    else:
        sources.append(times.series[0])
        yield str(times)
        yield "samples: ms  " + ", ".join(f"{batch}: {1000 * seconds:.4g}" for batch, seconds in times.table)
        bound = "unknown" if times.max_samples is None else f"{times.max_samples} samples, by the largest published batches and its memory"
        yield f"at most      {bound}"
        if times.series[0] != OWN:
            yield f"your program {SPREAD}"
    if gpu.url:
        yield f"{_gigabytes(gpu.memory_bytes)} of memory, {(gpu.inside or 0) / 1e9:g} GB/s by {gpu.link}: {gpu.source}, {gpu.url}"
    yield ""
    yield from measured_lines(choice.catalogue, rows) if rows else source_lines(choice.catalogue, sources)


def _gigabytes(size: float | None) -> str:
    return "" if size is None else f"{size / 1e9:g} GB"
