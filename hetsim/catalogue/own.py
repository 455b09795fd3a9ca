"""The user's own measured rows, in a YAML file with the catalogue's columns."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from hetsim import checks
from hetsim.catalogue.tables import OWN, PRECISIONS, Catalogue, Gpu, MeasuredStep, Model, Named, Source, shipped_catalogue
from hetsim.cluster.quantities import SECONDS
from hetsim.files.reading import read_bytes

MAX_BYTES = 1_000_000
MOST = 1e6
"""The most GB of a memory, and GB/s inside a machine."""
EXAMPLE = "rows: [{gpu: rtx3090, model: my-net, precision: amp, batch: 32, seconds: 0.14, how: by hand}]"
CALIBRATED = "hetsim-calibrate, "
"""How rows begin to say that they were measured by a calibration."""
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
    """The parts of the file, from all its YAML documents. No code runs, and errors quote only keys of the file."""
    title = f"the catalogue's file {checks.printable(str(file))}"
    try:
        if not file.is_file() or file.stat().st_size > MAX_BYTES:
            raise ValueError(f"{title} is not a file of at most {MAX_BYTES} bytes")
        text = read_bytes(file, max_bytes=MAX_BYTES).decode("utf-8")
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text)):
            raise ValueError(f"{title} refers to a value by *, which could stand for more than fits into memory: write each value out")
        documents = [*yaml.safe_load_all(text)]
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError):
        raise ValueError(f"{title} cannot be read as YAML: write {EXAMPLE}") from None
    content: dict[str, Any] = {"gpus": {}, "models": {}, "rows": []}
    for document in [document for document in documents if document is not None] or [None]:
        part = checks.mapping(title, document, required=("rows",), optional=("gpus", "models"), example=EXAMPLE)
        rows = _list(part["rows"])
        again = set(map(_calibrated, rows)) - {None}
        content["rows"] = [row for row in content["rows"] if _calibrated(row) not in again] + rows
        for key in ("gpus", "models"):
            content[key].update(_mapping(key, part.get(key)))
    return content


def _calibrated(row: Any) -> tuple[str, ...] | None:
    """GPU, model and precision of a row from a calibration, which a later calibration replaces; None for other rows."""
    if isinstance(row, Mapping) and str(row.get("how", "")).startswith(CALIBRATED):
        return tuple(str(row.get(key)) for key in ("gpu", "model", "precision"))
    return None


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


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"rows must be a list, such as {EXAMPLE}")
    return value


def _parse_gpu(name: str, config: Any) -> Gpu:
    entry = checks.mapping(f"gpus.{name}", config or {}, optional=OF_GPU)
    sizes = {key: None if entry.get(key) is None else 1e9 * _number(f"gpus.{name}.{key}", entry[key]) for key in OF_GPU[1:]}
    return Gpu(name, str(entry.get("title", name)), memory_bytes=sizes["memory_gb"], inside=sizes["inside_gb_per_second"])


def _parse_model(name: str, config: Any) -> Model:
    entry = checks.mapping(f"models.{name}", config or {}, optional=OF_MODEL)
    size = None if entry.get("parameters") is None else checks.whole(f"models.{name}.parameters", entry["parameters"])
    return Model(name, str(entry.get("title", name)), str(entry.get("sample", "a sample")), size, "the user")


def _parse_row(key: str, config: Any) -> MeasuredStep:
    entry = checks.mapping(key, config, required=("gpu", "model", "precision", "batch", "seconds"), optional=("how",), example=EXAMPLE)
    precision = checks.choice(f"{key}.precision", entry["precision"], PRECISIONS)
    batch, seconds = checks.whole(f"{key}.batch", entry["batch"]), _seconds(f"{key}.seconds", entry["seconds"])
    return MeasuredStep(str(entry["gpu"]).lower(), str(entry["model"]).lower(), precision, batch, seconds, OWN, str(entry.get("how", "")))


def _seconds(key: str, value: Any) -> float:
    return checks.seconds(key, SECONDS.read(key, value) if isinstance(value, str) else value)


def _number(key: str, value: Any) -> float:
    """A number of at most `MOST`, also as YAML's own readers do not read it: 16e9."""
    with contextlib.suppress(ValueError):
        value = float(value) if isinstance(value, str) else value
    if checks.number(key, value) > MOST:
        raise ValueError(f"{key} must be at most {MOST:g}, not {checks.shown(value)}")
    return float(value)


def added_steps(file: Path, gpu: str, model: str, parameters: int, precision: str, steps: Mapping[int, float], how: str) -> bytes:
    """These steps as the end of the file: another YAML document, so that the user's own text stays as it is."""
    text = file.read_bytes() if file.exists() else b""
    known = catalogue_of(str(file)) if text else shipped_catalogue()
    added: dict[str, Any] = {}
    try:
        gpu = known.gpu(gpu).name
    except ValueError:
        added["gpus"] = {gpu: {"title": gpu}}
    try:
        model = known.model(model).name
    except ValueError:
        added["models"] = {model: {"parameters": parameters}}
    row = {"gpu": gpu, "model": model, "precision": precision}
    added["rows"] = [{**row, "batch": batch, "seconds": seconds, "how": f"{CALIBRATED}{how}"} for batch, seconds in steps.items()]
    separator = "" if not text else "---\n" if text.endswith(b"\n") else "\n---\n"
    return f"{separator}{yaml.safe_dump(added, default_flow_style=None, sort_keys=False, allow_unicode=True, width=10_000)}".encode()
