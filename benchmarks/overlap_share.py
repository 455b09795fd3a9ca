"""How well published steps of several GPUs in one box follow from one GPU's: python benchmarks/overlap_share.py FOLDER

FOLDER has Lambda's and Sia's files. A step of m GPUs is simulated from the step of one, with DDP's buckets. All-reduces have half of the
data sheet's bandwidth. A GPU's link takes a share of its compute while it carries a reduction (`overlap_share`). Each row has the median
errors of one kind of GPU for several shares. For each GPU, the share is chosen that has the least error on the other GPUs.
"""

from __future__ import annotations

import csv
import gzip
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from catalogue import SIA_GPUS, SIA_MODELS

from hetsim.catalogue.tables import shipped_catalogue
from hetsim.cluster.network.collectives import Collectives
from hetsim.cluster.parse.cluster import parse_cluster
from hetsim.cluster.parse.machines import PCIE_BYTES_PER_SECOND
from hetsim.runtime.buckets import FIRST_BYTES, even_pieces, make_buckets, reduction_intervals

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
BUCKET = 25 * 2**20
LAMBDA_MODELS = {"resnet50": "resnet50", "ssd": "ssd300"}
"""The models whose programs reduce during the backward pass."""


class Measured(NamedTuple):
    """Seconds of a step with one GPU and with several."""

    gpu: str
    model: str
    num_gpus: int
    alone: float
    together: float


def read_lambda(folder: Path) -> Iterator[Measured]:
    """One and two GPUs. SSD's newer results multiply by the number of GPUs twice."""
    steps = {(row.system, row.model, row.precision): row for row in shipped_catalogue().rows if row.source.startswith("lambda")}
    rates = {}
    with (folder / "lambda_one_and_two_gpus.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            system = re.sub(r"(^|_)\d+x", r"\1", row["system"])
            rates[system, row["model"], row["precision"], int(row["gpus"])] = float(row["throughput"])
    for (system, model, precision, gpus), rate in rates.items():
        two = rates.get((system, model, precision, 2))
        if gpus == 1 and two is not None and model in LAMBDA_MODELS:
            names = (system, f"1x{system}", f"LambdaCloud_{system}")
            keys = [(name, LAMBDA_MODELS[model], precision.lower()) for name in names]
            if step := next((steps[key] for key in keys if key in steps), None):
                times = 2 if model == "ssd" and system.endswith("_v1") else 1
                yield Measured(step.gpu, LAMBDA_MODELS[model], 2, step.batch / rate, 2 * step.batch * times / two)


def read_sia(folder: Path) -> Iterator[Measured]:
    """Placements on one node."""
    steps: dict[tuple[str, str, str], dict[int, float]] = defaultdict(dict)
    for name in ("sia_step_times.csv.gz", "sia_step_times_a100_rtx6000.csv.gz"):
        with gzip.open(folder / name, "rt", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if len(row["placement"]) == 1 and row["app"] in SIA_MODELS and row["app"] != "ncf":
                    steps[row["gpu"], row["app"], row["local_bsz"]][int(row["placement"])] = float(row["step_time"])
    for (gpu, app, _), seconds in steps.items():
        for num_gpus, together in seconds.items():
            if num_gpus > 1 and 1 in seconds:
                yield Measured(SIA_GPUS[gpu], SIA_MODELS[app][0], num_gpus, seconds[1], together)


@cache
def box(num_gpus: int, rate: float, share: float) -> Collectives:
    """One box with this rate inside."""
    machine = {"gpus": {"count": num_gpus, "seconds_per_sample": 1}, "inside": rate, "network": 1e9, "overlap_share": share}
    return Collectives(parse_cluster({"name": "box", "machines": [machine]}))


def simulated_step(measured: Measured, parameters: int, rate: float, share: float) -> float:
    """The step of several GPUs, from that of one."""
    collectives, limits = box(measured.num_gpus, rate, share), (FIRST_BYTES // 4, BUCKET // 4)
    buckets = make_buckets(parameters, even_pieces(parameters, *limits), *limits)
    sizes = [4 * (bucket.stop - bucket.start) for bucket in buckets]
    durations = [partial(lambda size, _: collectives.all_reduce_seconds(size), size) for size in sizes]
    last_ready = partial(collectives.gradients_end, sizes[:-1], np.full(measured.num_gpus, measured.alone))
    return reduction_intervals([bucket.ready * measured.alone for bucket in buckets], durations, last_ready)[-1][1]


def main() -> None:
    """Print a table of GPUs, and a row for each kind of link."""
    folder, catalogue = Path(sys.argv[1]), shipped_catalogue()
    rows = [*read_lambda(folder), *read_sia(folder)]
    errors: dict[str, dict[str, list[list[float]]]] = {"PCIe": {}, "NVLink": {}}
    print(f"{'GPU':16} {'inside':>9} {'steps':>6} {'slower':>7} {'median error by share':>22} {SHARES}")
    for gpu in sorted({row.gpu for row in rows}):
        its_rows, rate = [row for row in rows if row.gpu == gpu], catalogue.gpus[gpu].inside
        if rate is None:
            continue
        kind = "PCIe" if rate < PCIE_BYTES_PER_SECOND else "NVLink"
        said = [[simulated_step(row, catalogue.models[row.model].parameters or 0, rate, share) for share in SHARES] for row in its_rows]
        found = [[100 * abs(step / row.together - 1) for step in steps] for steps, row in zip(said, its_rows, strict=True)]
        errors[kind][gpu] = found
        slower = 100 * statistics.median(row.together / row.alone - 1 for row in its_rows)
        medians = percentages(map(statistics.median, zip(*found, strict=True)))
        print(f"{gpu:16} {rate / 1e9:4g} GB/s {len(its_rows):6} {slower:6.1f}% {'':22} {medians}")
    for kind, of_gpus in errors.items():
        left_out, chosen = [], set()
        for gpu, found in of_gpus.items():
            of_others = [[*map(statistics.median, zip(*others, strict=True))] for name, others in of_gpus.items() if name != gpu]
            place = min(range(len(SHARES)), key=lambda place: statistics.fmean(medians[place] for medians in of_others))
            chosen.add(SHARES[place])
            left_out += [row[place] for row in found]
        everything = [row for found in of_gpus.values() for row in found]
        print(f"{kind:41} {'':22} {percentages(map(statistics.median, zip(*everything, strict=True)))}")
        print(f"{kind}, each GPU by the share of the others {sorted(chosen)}: {statistics.median(left_out):.2f} %")


def percentages(numbers: Iterable[float]) -> str:
    """The numbers, in columns."""
    return " ".join(f"{number:5.2f}%" for number in numbers)


if __name__ == "__main__":
    main()
