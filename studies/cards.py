"""Whether the verdicts of 01, 03 and 06 hold where machines share their network cards: samples/s without and with them, timing only.

python studies/cards.py [--quick]      # about a CPU-minute
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace

import training

from hetsim.coordination.all_reduce import SynchronousAllReduce
from hetsim.coordination.base import Coordination
from hetsim.coordination.parameter_server import ParameterServer
from hetsim.policies.admission import Barrier, EveryGradient
from hetsim.policies.allocation import SpeedProportional, Static
from hetsim.policies.weighting import PerSample
from hetsim.runtime.budget import Budget
from hetsim.runtime.experiment import Experiment
from hetsim.sim import Simulation
from hetsim.workloads.phantom import PhantomWorkload
from hetsim.workloads.task import OptimizerRecipe, Recipe

NUM_PARAMETERS = {"mlp": 25_450, "cifar10": 136_886}
WORLDS = [
    *(("mlp", regime, 8) for regime in ("1:1", "1:4", "straggler", "half 1:20", "1:20")),
    ("mlp", "1:20", 32),
    *(("cifar10", regime, 8) for regime in ("half 1:20", "1:20")),
]
METHODS: Mapping[str, Coordination] = {
    "asgd": ParameterServer(admission=EveryGradient()),
    "dbs_sgd": ParameterServer(admission=EveryGradient(), allocation=SpeedProportional()),
    "hetgrad": SynchronousAllReduce(admission=Barrier(), allocation=Static(), weighting=PerSample()),
}
NUM_SAMPLES = 400 * training.BATCH


def samples_per_second(model: str, regime: str, num: int, method: str, sharing: str, num_samples: int) -> float:
    """Of a method on a study's cluster, whose network is shared in this way."""
    cluster = training.cluster(regime, num)
    run = Simulation(
        Experiment(
            method=method,
            coordination=METHODS[method],
            cluster=replace(cluster, network=replace(cluster.network, sharing=sharing)),
            workload=PhantomWorkload(num_parameters=NUM_PARAMETERS[model], num_samples=num_samples),
            optimizer=OptimizerRecipe(Recipe("torch.optim.SGD")),
            budget=Budget(epochs=1),
            batch_size=training.BATCH,
            evaluate_every_epochs=None,
            evaluate_every_seconds=1e9,
            trace="none",
            pictures=False,
        )
    ).run()
    return float(run["samples_per_second"])


def main() -> None:
    """The table as Markdown."""
    num_samples = NUM_SAMPLES // 20 if "--quick" in sys.argv else NUM_SAMPLES
    print("| model | speeds | nodes | network | " + " | ".join(METHODS) + " |")
    print("|---" * (4 + len(METHODS)) + "|")
    for world in WORLDS:
        for sharing in ("none", "max_min"):
            found = [samples_per_second(*world, method, sharing, num_samples) for method in METHODS]
            print(f"| {' | '.join(map(str, world))} | `{sharing}` | " + " | ".join(f"{each:,.0f}" for each in found) + " |", flush=True)


if __name__ == "__main__":
    main()
