"""Typed cluster files: one for comparison with a calibration, and several for a composition."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hetsim import checks
from hetsim.calibration import composition
from hetsim.catalogue import own
from hetsim.cluster.model import Cluster
from hetsim.cluster.parse.cluster import parse_cluster
from hetsim.config.errors import sentence
from hetsim.config.sources import text_of, yaml_in
from hetsim.config.yaml_text import as_yaml
from hetsim.files.config_file import UNREADABLE
from hetsim.files.outputs import check_output
from hetsim.files.reading import check_is_no_link
from hetsim.files.writing import write_text, written_whole

MAX_COPIES = 10_000
WRITER = "hetsim-calibrate"


def check_file(file: Path, *, reads: Iterable[Path] = ()) -> None:
    """Raise ValueError if no cluster can be written to this path, or if it would replace another file or one of those that are read."""
    if file.suffix != ".yaml" or not file.parent.is_dir():
        raise ValueError(f"{file} must be called NAME.yaml, in an existing folder: the cluster is written to it")
    checks.name("FILE", file.stem)
    check_output("", file, "yaml", WRITER, reads=reads)


def compose(file: Path, texts: Sequence[str], words: Sequence[str]) -> None:
    """Write a cluster of separately calibrated machines."""
    if words:
        raise ValueError(f"{words[0]} would do nothing, as --compose measures nothing: leave it out")
    check_file(file, reads=[part_file(text)[0] for text in texts])
    parts = [part_of(text) for text in texts]
    if len({part.name for part in parts}) < len(parts):
        raise ValueError(f"--compose names a file twice, or two of one name: give PART.yaml:2 for two copies, in {' '.join(texts)}")
    config = composition.compose_cluster(file.stem, parts)
    cluster = parse_cluster(config)
    write_text(file, "".join(f"# {checks.one_line(line)}\n" for line in composition.remarks(parts)) + as_yaml(config))
    print(
        f"{os.path.relpath(file)}: {cluster.num_workers} nodes, composed of {', '.join(config['calibrated']['composed'])}, never measured"
    )


def as_rows(file: Path, gpu_and_rank: str, rows_file: Path, words: Sequence[str]) -> None:
    """Append the measured steps of a calibrated cluster's node to the user's own catalogue. `gpu_and_rank` is GPU or GPU:RANK."""
    if words:
        raise ValueError(f"{words[0]} would do nothing, as --rows measures nothing: leave it out")
    if rows_file.suffix != ".yaml" or not rows_file.absolute().parent.is_dir():
        raise ValueError(f"--rows {rows_file} must be called NAME.yaml, in an existing folder: rows are appended to it")
    check_is_no_link(rows_file)
    cluster = written_cluster("FILE", file)
    if cluster.calibrated is None:
        raise ValueError(f"{file} was not calibrated, so nothing in it was measured: run hetsim-calibrate {file} first")
    gpu, colon, rank = gpu_and_rank.partition(":")
    if colon and not rank.isdecimal():
        raise ValueError(f"--gpu {gpu_and_rank} must be NAME or NAME:RANK, such as my-card:1")
    place = checks.whole("the rank of --gpu", int(rank or 0), least=0, most=cluster.num_workers - 1)
    node, calibrated = cluster.nodes[place], cluster.calibrated
    line = {size: node.overhead_seconds + size * node.seconds_per_sample for size in calibrated.samples}
    steps = dict(node.table) or line
    software = f"PyTorch {calibrated.torch}, {calibrated.threads} threads on {calibrated.device}"
    how = f"{calibrated.date}, {calibrated.machine}, {software}"
    model, precision = calibrated.workload.replace("_", "-"), "fp32" if calibrated.dtype in ("float32", "float64") else "amp"
    added = own.added_steps(rows_file, gpu, model, calibrated.num_parameters, precision, steps, how)
    text = rows_file.read_bytes() if rows_file.exists() else b""
    with written_whole(rows_file) as written:
        written.write(text + added)
    print(f"{os.path.relpath(rows_file)}: {len(steps)} rows of {gpu} with {model}; see hetsim-catalogue --file {rows_file} {gpu} {model}")


def part_file(text: str) -> tuple[Path, str]:
    """The file and the number of copies of PART.yaml or PART.yaml:COPIES."""
    path, colon, copies = text.rpartition(":")
    return (Path(path), copies) if colon and copies.isdecimal() else (Path(text), "1")


def part_of(text: str) -> composition.Part:
    """PART.yaml, or PART.yaml:COPIES."""
    path, copies = part_file(text)
    if not 1 <= int(copies[:9]) <= MAX_COPIES:
        raise ValueError(f"--compose {text} must have 1 to {MAX_COPIES} copies")
    return composition.Part(path.stem, config_of("--compose", path), int(copies))


def written_cluster(option: str, file: Path) -> Cluster:
    """The cluster in a file. Raises ValueError with a sentence that begins with `option` if it is invalid."""
    return parse_cluster(config_of(option, file))


def config_of(option: str, file: Path) -> dict[str, Any]:
    """The config of a cluster, which has been checked. Raises ValueError with a sentence that begins with `option` if it is invalid."""
    with named(f"{option} {file}"):
        try:
            config = yaml_in(text_of(file), file)
            parse_cluster(config)
            assert isinstance(config, dict)
            return {str(key): value for key, value in config.items()}
        except (*UNREADABLE, OSError) as error:
            raise ValueError(error.strerror if isinstance(error, OSError) else sentence(error)) from None


@contextlib.contextmanager
def named(beginning: str) -> Iterator[None]:
    """Within this context, errors begin with `beginning`."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{beginning}: {error}") from None
