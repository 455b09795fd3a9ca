"""The user's own measured rows, in a YAML file with the catalogue's columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from hetsim import checks
from hetsim.catalogue.tables import OWN, PRECISIONS, Catalogue, Gpu, MeasuredStep, Model, Named, Source, shipped_catalogue

MAX_BYTES = 1_000_000
EXAMPLE = "rows: [{gpu: rtx3090, model: my-net, precision: amp, batch: 32, seconds: 0.14, how: by hand}]"
OF_GPU, OF_MODEL = ("title", "memory_gb", "inside_gb_per_second"), ("title", "sample", "parameters")


def catalogue_of(file: Any) -> Catalogue:
    """The shipped catalogue, with the rows of this file if one is given. Raises ValueError if the file is invalid."""
    if file is None:
        return shipped_catalogue()
    if not isinstance(file, str):
        raise ValueError(f"the catalogue's file must be the name of a .yaml file, not {checks.shown(file)}")
    gpus, models, rows = _parse_tables(read_file(Path(file)))
    base = shipped_catalogue()
    source = Source(OWN, OWN, "", f"your own rows in {Path(file).name}", "", "", "", "yours", "as each row says")
    return Catalogue(
        {**base.gpus, **{gpu.name: gpu for gpu in gpus}},
        {**base.models, **{model.name: model for model in models}},
        {**base.sources, source.name: source},
        (*base.rows, *rows),
    )


def read_file(file: Path) -> dict[str, Any]:
    """The parts of the file. No code runs, and errors quote only keys of the file."""
    title = f"the catalogue's file {checks.printable(str(file))}"
    try:
        if not file.is_file() or file.stat().st_size > MAX_BYTES:
            raise ValueError(f"{title} is not a file of at most {MAX_BYTES} bytes")
        text = file.read_text(encoding="utf-8")
        if "&" in text or "*" in text:
            raise ValueError(f"{title} contains & or *, which could stand for more than fits into memory: write each value out")
        content = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError):
        raise ValueError(f"{title} cannot be read as YAML: write {EXAMPLE}") from None
    return checks.mapping(title, content, required=("rows",), optional=("gpus", "models"), example=EXAMPLE)


def _parse_tables(content: Mapping[str, Any]) -> tuple[list[Gpu], list[Model], list[MeasuredStep]]:
    gpus = [_parse_gpu(str(name).lower(), entry) for name, entry in _mapping("gpus", content.get("gpus"))]
    models = [_parse_model(str(name).lower(), entry) for name, entry in _mapping("models", content.get("models"))]
    rows = [_parse_row(f"rows[{place}]", entry) for place, entry in enumerate(_list(content["rows"]))]
    shipped = shipped_catalogue()
    gpus_by_name, models_by_name = {gpu.name: gpu for gpu in gpus}, {model.name: model for model in models}
    known = replace(shipped, gpus={**shipped.gpus, **gpus_by_name}, models={**shipped.models, **models_by_name})
    for place, row in enumerate(rows):
        gpu, model = _named(f"rows[{place}].gpu", known.gpu, row.gpu), _named(f"rows[{place}].model", known.model, row.model)
        rows[place] = replace(row, gpu=gpu.name, model=model.name)
    return gpus, models, rows


def _named(key: str, look_up: Callable[[str], Named], name: str) -> Named:
    try:
        return look_up(name)
    except ValueError:
        raise ValueError(f"{key} {checks.shown(name)} is neither shipped nor below {key.rpartition('.')[2]}s") from None


def _mapping(key: str, value: Any) -> list[tuple[Any, Any]]:
    return [*checks.mapping(key, value or {}, optional=None).items()]


def _list(value: Any) -> Sequence[Any]:
    if not isinstance(value, list):
        raise ValueError(f"rows must be a list, such as {EXAMPLE}")
    return value


def _parse_gpu(name: str, config: Any) -> Gpu:
    entry = checks.mapping(f"gpus.{name}", config or {}, optional=OF_GPU)
    sizes = {key: None if entry.get(key) is None else 1e9 * checks.number(f"gpus.{name}.{key}", entry[key]) for key in OF_GPU[1:]}
    return Gpu(name, str(entry.get("title", name)), memory_bytes=sizes["memory_gb"], inside=sizes["inside_gb_per_second"])


def _parse_model(name: str, config: Any) -> Model:
    entry = checks.mapping(f"models.{name}", config or {}, optional=OF_MODEL)
    size = None if entry.get("parameters") is None else checks.whole(f"models.{name}.parameters", entry["parameters"])
    return Model(name, str(entry.get("title", name)), str(entry.get("sample", "a sample")), size, "the user")


def _parse_row(key: str, config: Any) -> MeasuredStep:
    entry = checks.mapping(key, config, required=("gpu", "model", "precision", "batch", "seconds"), optional=("how",), example=EXAMPLE)
    precision = checks.choice(f"{key}.precision", entry["precision"], PRECISIONS)
    batch, seconds = checks.whole(f"{key}.batch", entry["batch"]), checks.seconds(f"{key}.seconds", entry["seconds"])
    return MeasuredStep(str(entry["gpu"]).lower(), str(entry["model"]).lower(), precision, batch, seconds, OWN, str(entry.get("how", "")))


def add_steps(file: Path, gpu: str, model: str, parameters: int, precision: str, steps: Mapping[int, float], how: str) -> dict[str, Any]:
    """The parts of the file, or of a new one, with these steps. They replace its steps of the GPU, model and precision."""
    content: dict[str, Any] = read_file(file) if file.exists() else {"rows": []}
    gpus, models = dict(_mapping("gpus", content.get("gpus"))), dict(_mapping("models", content.get("models")))
    if gpu not in shipped_catalogue().gpus:
        gpus.setdefault(gpu, {"title": gpu})
    if model not in shipped_catalogue().models:
        models[model] = {"parameters": parameters}
    pair = {"gpu": gpu, "model": model, "precision": precision}
    kept = [row for row in _list(content["rows"]) if not isinstance(row, Mapping) or {**row, **pair} != row]
    added = [{**pair, "batch": batch, "seconds": seconds, "how": how} for batch, seconds in steps.items()]
    updated = {"gpus": gpus, "models": models, "rows": [*kept, *added]}
    _parse_tables(updated)
    return {key: value for key, value in updated.items() if value}
