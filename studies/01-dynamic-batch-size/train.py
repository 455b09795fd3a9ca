"""Train what is missing in results.csv: python train.py [--quick] [--data-root FOLDER] [--folder FOLDER]"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path

from common import Runs, arguments
from training import FOUND, Grid, Run

from hetsim.coordination.parameter_server import ParameterServer
from hetsim.policies.admission import EveryGradient, SoftSync
from hetsim.policies.allocation import SpeedProportional
from hetsim.policies.weighting import PerSample

HERE = Path(__file__).resolve().parent
METHODS = {
    "asgd": lambda _: ParameterServer(admission=EveryGradient()),
    "softsync": lambda num: ParameterServer(admission=SoftSync(n=num // 4)),
    "dbs_sgd": lambda _: ParameterServer(admission=EveryGradient(), allocation=SpeedProportional()),
    "dbs_sgd weighted": lambda _: ParameterServer(admission=EveryGradient(), allocation=SpeedProportional(), weighting=PerSample()),
}
GRID = Grid(METHODS, rates=(0.00625, 0.0125, 0.025, 0.05, 0.1, 0.2), common=0.025, momentum=0.0)
PAPERS = {name: METHODS[name] for name in ("asgd", "softsync", "dbs_sgd")}
CONVOLUTIONS = replace(GRID, methods=PAPERS)


def regimes() -> list[Run]:
    """Eight nodes and every spread of speeds, with data of all and of one's own; 16 and 32 nodes; two of them for three times as long."""
    worlds = [(8, speeds, data) for speeds, data in product(("1:20", "1:4", "straggler"), ("shared", "by speed", "skewed"))]
    worlds += [(8, "1:1", "shared"), (8, "1:20", "iid")]
    worlds += [*product((32, 16), ("1:20",), ("shared", "by speed")), *product((8,), ("half 1:20",), ("shared", "by speed"))]
    longer = [Run("mlp 10000", 8, speeds, "by speed", method="", epochs=6) for speeds in ("1:20", "half 1:20")]
    return [*(Run("mlp 10000", num, speeds, data, method="", epochs=2) for num, speeds, data in worlds), *longer]


def convolutions() -> list[Run]:
    """Where DBS-SGD loses most and where it gains most."""
    worlds = (("1:20", "shared"), ("half 1:20", "by speed"))
    models = (("lenet 10000", 4), ("cifar10 10000", 6))
    return [Run(workload, 8, speeds, data, method="", epochs=epochs) for (workload, epochs), (speeds, data) in product(models, worlds)]


def main(given: Sequence[str] | None = None) -> None:
    asked = arguments(__doc__, HERE, given, runs=True, data=True)
    runs = Runs(asked.folder / "results.csv", [*asdict(regimes()[0])], FOUND)
    if asked.quick:
        small = [Run("digits", 8, "1:4", data, method="", epochs=2) for data in ("shared", "by speed")]
        replace(GRID, rates=(0.025, 0.1)).fill(runs, small, asked.data_root, seeds=range(2))
    else:
        GRID.fill(runs, regimes(), asked.data_root)
        CONVOLUTIONS.fill(runs, convolutions(), asked.data_root)


if __name__ == "__main__":
    main()
