"""The report of a calibration."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hetsim.calibration.cluster import Calibrated
from hetsim.calibration.picture import page as picture
from hetsim.files.reading import read_text
from hetsim.reports.page import Page, Sheet
from hetsim.results.writing.describe import signed
from hetsim.results.writing.figures import own_style

HEADS = ("node", "µs a sample", "ms a gradient", "error of the line, %", "error of the table, %", "used", "noise, %")


def page(file: Path, found: Calibrated, command: str) -> Page:
    """The report of a calibration in this file. `command` has measured it."""
    with own_style():
        drawn = picture(file.stem, found.steps)
    return Page(
        question=f"How long do gradients take on the machines of {file.stem}?",
        answer=" ".join(_answer(found)),
        figures=[("Each node: the time of a gradient by batch size, and the quantiles of the noise", drawn)],
        sheets=[Sheet("Nodes", HEADS, list(_nodes(found)))],
        remarks=[f"node {rank}: {steps.noise.told()}" for rank, steps in enumerate(found.steps)],
        command=command,
        texts=[(f"The cluster, {file.name}", read_text(file))],
    )


def _answer(found: Calibrated) -> Iterator[str]:
    if found.tried:
        yield f"Errors of predicted updates per second, against real runs: {signed(found.tried)}."
    yield f"Mean error of gradient times at held-out batch sizes: {100 * found.error_of_gradients:.1f} %."
    if found.doubts:
        yield f"Not trustworthy: {'; '.join(found.doubts)}. Calibrate again while no other program runs."


def _nodes(found: Calibrated) -> Iterator[list[str]]:
    for rank, steps in enumerate(found.steps):
        numbers = (1e6 * steps.line.slope, 1e3 * steps.line.constant, 100 * steps.error_of_line, 100 * steps.error_of_table)
        taken = "table" if steps.takes_table else "line"
        yield [str(rank), *(f"{number:.4g}" for number in numbers), taken, f"{100 * steps.noise.deviation:.1f}"]
