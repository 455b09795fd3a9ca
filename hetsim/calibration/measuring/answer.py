"""The output of `hetsim-calibrate`: the cluster, files of measured noise and a page of pictures next to it, and the answer."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from hetsim import checks
from hetsim.answers.answer import Answer, Picture, Sheet
from hetsim.calibration.cluster import Calibrated, ends_of
from hetsim.calibration.fit import four_digits
from hetsim.calibration.picture import page
from hetsim.config.cluster_files import WRITER
from hetsim.config.yaml_text import as_yaml
from hetsim.files.outputs import check_outputs_in
from hetsim.files.reading import read_text
from hetsim.files.writing import write_text, written_whole
from hetsim.results.writing.describe import signed
from hetsim.results.writing.figures import own_style, save
from hetsim.runtime.experiment import Experiment

HEADS = ("node", "µs a sample", "ms a gradient", "error of the line, %", "error of the table, %", "used", "noise, %")


def prefix(file: Path) -> str:
    """The beginning of the names of noise files."""
    return str(file.with_suffix(""))


def check_places(file: Path, num_workers: int) -> None:
    """Raise ValueError if a file next to the cluster would replace another one."""
    names = [f"{file.stem}.png", *(f"{file.stem}-{end}.csv" for end in ends_of(num_workers))]
    check_outputs_in("", file.parent, names, WRITER)


def write_all(file: Path, experiment: Experiment, result: Calibrated, num_parameters: int) -> None:
    """Write the cluster last, after the files that it names."""
    for name, noise in result.laws.items():
        write_text(Path(name), noise.as_csv())
    with written_whole(file.with_suffix(".png")) as picture:
        save(_picture(file, result), picture, WRITER)
    described = {"name": file.stem, "calibrated": validity(experiment, result, num_parameters), **result.config}
    write_text(file, remarks(experiment, result) + as_yaml(described))


def validity(experiment: Experiment, result: Calibrated, num_parameters: int) -> dict[str, Any]:
    """The validity of the cluster, as both backends read it."""
    import torch

    return {
        "date": datetime.date.today().isoformat(),
        "machine": platform.machine(),
        "workload": experiment.workload.name,
        "num_parameters": num_parameters,
        "samples": [min(steps.sizes[0] for steps in result.steps), max(steps.sizes[1] for steps in result.steps)],
        "dtype": experiment.dtype,
        "torch": str(torch.__version__),
        "threads": experiment.threads,
        "device": experiment.device,
        "error": four_digits(result.error),
        **({"tried": {method: four_digits(error) for method, error in result.tried.items()}} if result.tried else {}),
        **({"doubts": list(result.doubts)} if result.doubts else {}),
    }


def remarks(experiment: Experiment, result: Calibrated) -> str:
    """Comments for readers of the file: time and place of the measurement, the workload, and the error."""
    smallest, largest = min(steps.sizes[0] for steps in result.steps), max(steps.sizes[1] for steps in result.steps)
    import torch

    lines = [
        f"Measured by hetsim-calibrate on {datetime.date.today().isoformat()}, with PyTorch {torch.__version__} on {platform.machine()}.",
        f"Valid for workload {experiment.workload.name}, dtype {experiment.dtype}, {smallest} to {largest} samples a gradient, "
        f"threads={experiment.threads}, device={experiment.device}.",
        *([f"Errors of predicted updates per second, against real runs: {signed(result.tried)}."] if result.tried else []),
        f"Mean error of gradient times at held-out batch sizes: {100 * result.error_of_gradients:.1f} %, by node "
        + ", ".join(f"{100 * steps.error:.1f} %" for steps in result.steps)
        + ".",
        "Times are CPU-seconds, on a core of a machine whose other cores are idle.",
        *([result.priority_warning] if result.priority_warning else []),
        *([f"Not trustworthy: {'; '.join(result.doubts)}."] if result.doubts else []),
    ]
    return "".join(f"# {checks.one_line(line)}\n" for line in lines)


def answer(file: Path, result: Calibrated, command: str = "") -> Answer:
    """The answer with the calibration in this file. `command` has measured it."""
    return Answer(
        question=f"How long do gradients take on the machines of {file.stem}?",
        answer=list(_sentences(result)),
        pictures=[
            Picture(
                "calibration",
                "Each node: the time of a gradient by batch size, and the quantiles of the noise",
                partial(_picture, file, result),
            )
        ],
        sheets=[Sheet("Nodes", HEADS, list(_nodes(result)))],
        remarks=[
            *_remarks(result),
            f"{os.path.relpath(file)}: the cluster; {os.path.relpath(file.with_suffix('.png'))}: the fitted times, and the noise",
        ],
        command=command,
        texts=[(f"The cluster, {file.name}", read_text(file))],
    )


def _sentences(result: Calibrated) -> Iterator[str]:
    if result.tried:
        yield f"Errors of predicted updates per second, against real runs: {signed(result.tried)}."
    yield f"Mean error of gradient times at held-out batch sizes: {100 * result.error_of_gradients:.1f} %."
    if result.doubts:
        yield f"Not trustworthy: {'; '.join(result.doubts)}. Calibrate again while no other program runs."


def _picture(file: Path, result: Calibrated) -> Any:
    with own_style():
        return page(file.stem, result.steps)


def _nodes(result: Calibrated) -> Iterator[list[str]]:
    for rank, steps in enumerate(result.steps):
        numbers = (1e6 * steps.line.slope, 1e3 * steps.line.constant, 100 * steps.error_of_line, 100 * steps.error_of_table)
        used = "table" if steps.takes_table else "line"
        yield [str(rank), *(f"{number:.4g}" for number in numbers), used, f"{100 * steps.noise.deviation:.1f}"]


def _remarks(result: Calibrated) -> Iterator[str]:
    """The noise of nodes and server, and the costs of hosts and messages."""
    for rank, steps in enumerate(result.steps):
        yield f"node {rank}: {steps.noise.describe()}"
    if result.service is not None:
        yield f"server: {1e3 * result.config['server']['seconds_per_update']:.4g} ms an update; {result.service.describe()}"
    for name, host in result.config["hosts"].items():
        yield f"{name}: {host['cores']} cores, speeds while busy {host.get('busy_speeds', 'not measured')}"
    network = result.config["network"]
    yield f"messages: {1e6 * network['latency_seconds']:.4g} µs + {1e9 / network['bytes_per_second']:.4g} ns a byte"
    if "sharing_noise" in network:
        yield f"messages share links unequally: the logarithms of their weights deviate by {network['sharing_noise']['s']:.2g}"
    if result.priority_warning:
        yield result.priority_warning
