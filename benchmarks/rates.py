"""The grid behind the learning rates in conf/method: on digits, each method at each rate, medians of three seeds:
seconds to 90 % test accuracy, and accuracy after 30 epochs.

python benchmarks/rates.py [METHOD …]
"""

from __future__ import annotations

import itertools
import statistics
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from hetsim.config.build import build_experiment
from hetsim.config.compose import entries_of
from hetsim.sim.world import EventWorld
from hetsim.trust.shipped import configs

RATES = (0.02, 0.05, 0.1, 0.2, 0.4)
SEEDS = (0, 1, 2)
Keys = tuple[tuple[str, float], ...]


def grid(method: str) -> Iterator[Keys]:
    """The combinations to try: global learning rate and momentum, and the local learning rate in methods with local steps."""
    if method in ("diloco", "muloco", "sparse_loco", "streaming_diloco", "decoupled_diloco"):
        yield from ((("local_learning_rate", rate),) for rate in (3e-4, 1e-3, 3e-3, 1e-2, 3e-2))
    elif method in ("local_sgd", "fedbuff", "fedasync", "async_local_sgd", "mla", "heloco", "halos"):
        yield from ((("local_learning_rate", rate),) for rate in RATES)
    elif method == "ringmaster_lmo" or method == "cgad":
        yield from ((("learning_rate", rate),) for rate in (1e-3, 3e-3, 1e-2, 3e-2, 1e-1))
    elif method == "dana":
        yield from ((("learning_rate", rate),) for rate in (0.002, 0.005, *RATES))
    elif method in ("od_sgd", "ssd_sgd", "cd_sgd"):
        rates, momentum = ((0.1, 0.2, 0.4), 0.0) if method == "cd_sgd" else ((0.05, 0.1, 0.2), 0.9)
        for rate, local in itertools.product(rates, RATES):
            yield (("learning_rate", rate), ("momentum", momentum), ("local_learning_rate", local))
    else:
        yield from ((("learning_rate", rate), ("momentum", momentum)) for momentum in (0.0, 0.9) for rate in RATES)


def trained(method: str, keys: Keys, seed: int) -> tuple[float, float]:
    """Seconds of the run's own clock to 90 % test accuracy, and accuracy after 30 epochs on mixed4."""
    with initialize_config_dir(version_base="1.3", config_dir=str(configs())):
        config = compose("config", overrides=[f"method={method}", "trace=none", "pictures=false"])
    changes = {**dict(keys), "seed": seed, "evaluate_every_epochs": 0.2, "budget": {"epochs": 30}}
    made, _ = build_experiment(entries_of(OmegaConf.merge(config, changes)))
    simulation = EventWorld(made, *made.load())
    simulation.run()
    curve = [(point.seconds, point.evaluation.test_accuracy or 0.0) for point in simulation.curve.points]
    return next((seconds for seconds, accuracy in curve if accuracy >= 0.9), float("inf")), curve[-1][1]


def main() -> None:
    """Print a line for each cell."""
    methods = sys.argv[1:] or sorted(path.stem for path in (configs() / "method").glob("*.yaml"))
    cells = [(method, keys) for method in methods for keys in grid(method)]
    with ProcessPoolExecutor(2) as pool:
        asked = [(method, keys, [pool.submit(trained, method, keys, seed) for seed in SEEDS]) for method, keys in cells]
        for method, keys, futures in asked:
            results = [future.result() for future in futures]
            named = " ".join(f"{name}={value:g}" for name, value in keys)
            seconds, accuracies = (sorted(numbers) for numbers in zip(*results, strict=True))
            print(
                f"{method:18}{named:62}{statistics.median(seconds):8.3f} s ({seconds[0]:.3f} … {seconds[-1]:.3f})"
                f"   {statistics.median(accuracies):.4f} ({accuracies[0]:.4f} … {accuracies[-1]:.4f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
