"""Train what is missing in results.csv: python train.py [--quick] [--data-root FOLDER] [--folder FOLDER]"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path

from common import Runs, arguments
from training import FOUND, Grid, Run

from hetsim.coordination.all_reduce import SynchronousAllReduce
from hetsim.policies.admission import Barrier
from hetsim.policies.allocation import Even, Static
from hetsim.policies.weighting import PerSample

HERE = Path(__file__).resolve().parent
METHODS = {
    "ssgd": lambda _: SynchronousAllReduce(admission=Barrier(), allocation=Even()),
    "static": lambda _: SynchronousAllReduce(admission=Barrier(), allocation=Static()),
    "hetgrad": lambda _: SynchronousAllReduce(admission=Barrier(), allocation=Static(), weighting=PerSample()),
}
GRID = Grid(METHODS, rates=(0.0125, 0.025, 0.05, 0.1, 0.2, 0.4), common=0.1, momentum=0.9)
CONVOLUTIONS = Grid(METHODS, rates=(0.0125, 0.025, 0.05, 0.1), common=0.05, momentum=0.9)
SPEEDS = ("1:2", "1:4", "1:8", "1:16", "straggler")


def regimes() -> list[Run]:
    """Eight nodes and every spread of speeds, with data of all and data of one's own; pools that are alike; 4 nodes."""
    worlds = [*product((8,), SPEEDS, ("shared", "by speed")), *product((8,), ("1:4", "1:16"), ("skewed",)), (8, "1:16", "iid")]
    worlds += product((4,), ("1:16",), ("shared", "by speed"))
    return [Run("mlp 10000", num, speeds, data, method="", epochs=4) for num, speeds, data in worlds]


def convolutions() -> list[Run]:
    """Where speeds differ most."""
    worlds = (("lenet 10000", "shared"), ("lenet 10000", "by speed"), ("cifar10 10000", "shared"))
    return [Run(workload, 8, "1:16", data, method="", epochs=6) for workload, data in worlds]


def main(given: Sequence[str] | None = None) -> None:
    asked = arguments(__doc__, HERE, given, runs=True, data=True)
    runs = Runs(asked.folder / "results.csv", [*asdict(regimes()[0])], FOUND)
    if asked.quick:
        small = [Run("digits", 8, "1:16", data, method="", epochs=4) for data in ("shared", "by speed")]
        replace(GRID, rates=(0.05, 0.1)).fill(runs, small, asked.data_root, seeds=range(2))
    else:
        GRID.fill(runs, regimes(), asked.data_root)
        CONVOLUTIONS.fill(runs, convolutions(), asked.data_root)


if __name__ == "__main__":
    main()
