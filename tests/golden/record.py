"""What every method does today, as hashes: `record.py FILE` writes them, `record.py FILE --compare` says what has changed.

Of each method on three clusters, one of them with noise and faults, by both drivers of the simulator: the trace row by row, the
summary without the wall clock, and the last weights. Those of phantoms hang on no machine and stand in `phantom.json`, which
`test_golden.py` holds; those of training hang on the kernels of torch, so they are compared before and after a change:

    python tests/golden/record.py /tmp/before.json --training
    python tests/golden/record.py /tmp/before.json --training --compare
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from pyarrow import parquet

try:
    from hetsim.config.build import build_experiment as built
    from hetsim.config.compose import entries_of
    from hetsim.runtime.experiment import Experiment
    from hetsim.sim.lockstep.stretch import Stretch
    from hetsim.sim.lockstep.world import LockstepWorld
    from hetsim.trust.shipped import configs
except ImportError:  # before the layout of 0.2
    from hetsim.experiment import Experiment
    from hetsim.run import configs
    from hetsim.run import experiment as built

    from hetsim.sim.lockstep import Lockstep as LockstepWorld

PHANTOMS = Path(__file__).parent / "phantom.json"
METHODS = sorted(path.stem for path in (configs() / "method").glob("*.yaml"))
NOISE = {"distribution": "gamma", "a": 20, "scale": 0.05}
FAULTY: dict[str, Any] = {
    "name": "faulty",
    "nodes": [
        {"count": 2, "seconds_per_sample": 8e-4, "overhead_seconds": 2e-3, "seconds_per_update": 1e-3, "noise": NOISE},
        {"count": 1, "seconds_per_sample": 4e-4, "overhead_seconds": 0, "seconds_per_update": 2e-3},
        {"count": 1, "table": [[16, 0.01], [64, 0.02], [128, 0.05]], "seconds_per_update": 1e-3, "noise": NOISE},
    ],
    "network": {
        "latency_seconds": 1e-3,
        "bytes_per_second": 125e6,
        "jitter_seconds": {"distribution": "expon", "scale": 2e-4},
        "uplink_bytes_per_second": 1e8,
        "downlink_bytes_per_second": 1e8,
    },
    "server": {"seconds_per_update": 1e-3, "noise": NOISE, "uplink_bytes_per_second": 2e8, "downlink_bytes_per_second": 2e8},
    "faults": {
        "detection_seconds": 0.05,
        "regroup_seconds": 0.02,
        "schedule": [{"nodes": [3], "crash": 0.3, "repair": 0.6}, {"nodes": [1], "join": 0.2}, {"nodes": [0], "crash": 0.9}],
    },
}
CLUSTERS: dict[str, Any] = {"mixed4": None, "two_racks": None, "faulty": FAULTY}
PHANTOM = ("workload=phantom", "workload.num_parameters=100000", "workload.num_samples=1500", "budget.epochs=6")
DIGITS = ("workload=digits", "budget.epochs=2")
LATER = ("staleness_p50", "staleness_p95", "diverged", "devices", "class_accuracy", "weight_shares", "pools", "num_nonfinite_gradients")
"""Entries of summary.json that came after the recording: `tests/runtime` has their laws."""
NOT_FELT = "has no server, so it does not feel"
"""Of a warning that came after it."""
WARM = {"od_sgd", "pipe_sgd", "ssd_sgd", "cd_sgd", "abs_sgd"}


@cache
def composed(*typed: str) -> Any:
    """What Hydra makes of these choices; it takes longer than most of the runs."""
    with initialize_config_dir(version_base="1.3", config_dir=str(configs())):
        return compose("config", overrides=[*typed])


@cache
def build_experiment(method: str, cluster: str, workload: tuple[str, ...]) -> tuple[Any, Any]:
    """What hetsim builds from a method on a cluster; both drivers play the same one."""
    typed = [f"method={method}", *workload, "pictures=false", "seed=3", "cluster=mixed4"]
    typed += ["coordination.warm_up=4"] if method in WARM else []
    config = composed(*typed).copy()
    described = CLUSTERS[cluster] or OmegaConf.to_container(composed(f"cluster={cluster}", "++cluster.network.sharing=none").cluster)
    OmegaConf.set_struct(config, False)
    OmegaConf.update(config, "cluster", yaml.safe_load(yaml.safe_dump(described)), merge=False)
    return built(entries_of(config))


@contextmanager
def seen_weights() -> Iterator[list[Any]]:
    """The weights that are evaluated: the last are those of the last version."""
    weights: list[Any] = []
    load = Experiment.load

    def loading(self: Any, *arguments: Any, **options: Any) -> Any:
        loaded = load(self, *arguments, **options)
        task = loaded[0]
        evaluate = task.evaluate

        def evaluating(at: Any) -> Any:
            weights.append(at)
            return evaluate(at)

        task.evaluate = evaluating
        return loaded

    Experiment.load = loading  # type: ignore[method-assign]
    try:
        yield weights
    finally:
        Experiment.load = load  # type: ignore[method-assign]


def digest(*parts: bytes) -> str:
    """Sixteen hexadecimal digits."""
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def hashes(method: str, cluster: str, workload: tuple[str, ...]) -> dict[str, str]:
    """Of the run's trace, summary and last weights."""
    made, backend = build_experiment(method, cluster, workload)
    with tempfile.TemporaryDirectory() as folder, seen_weights() as weights:
        summary = backend.run(made, Path(folder), "")
        table = parquet.read_table(Path(folder) / "trace.parquet")
    summary = {key: value for key, value in summary.items() if key not in ("wall_seconds", *LATER)}
    summary["cluster"] = summary["cluster"].partition(" with ")[0]  # as first recorded, without what was changed in it
    summary["warnings"] = [sentence for sentence in summary["warnings"] if NOT_FELT not in sentence]
    kinds = table.column("kind").combine_chunks().dictionary_encode()
    columns = [json.dumps(kinds.dictionary.to_pylist()).encode(), kinds.indices.to_numpy(zero_copy_only=False).tobytes()]
    for name in ("start", "end", "rank", "version", "samples", "staleness", "nbytes"):
        column = table.column(name).to_numpy()
        columns.append(np.ascontiguousarray(column.astype(np.int32) if name == "samples" else column).tobytes())  # as first recorded
    last = weights[-1]
    numbers = last.numpy().tobytes() if hasattr(last, "numpy") else repr(last.nbytes).encode()
    return {
        "trace": digest(*columns),
        "summary": digest(json.dumps(summary, sort_keys=True).encode()),
        "weights": digest(numbers),
        "updates": str(summary["num_updates"]),
    }


@contextmanager
def event_by_event() -> Iterator[None]:
    """Whatever suits lockstep is played event by event, too."""
    suits, members = vars(LockstepWorld)["suits"], vars(Stretch)["suits_members"]
    LockstepWorld.suits = Stretch.suits_members = staticmethod(lambda *_: False)  # type: ignore[method-assign]
    try:
        yield
    finally:
        LockstepWorld.suits, Stretch.suits_members = suits, members  # type: ignore[method-assign]


def recorded(*, training: bool, methods: Sequence[str] = METHODS) -> dict[str, dict[str, str]]:
    """Of every method, on every cluster, by both drivers."""
    found = {}
    for method in methods:
        for cluster in CLUSTERS:
            if training:
                found[f"digits {method} {cluster}"] = hashes(method, cluster, DIGITS)
                continue
            made, _ = build_experiment(method, cluster, PHANTOM)
            if LockstepWorld.suits(made, made.load()[0]):
                found[f"phantom {method} {cluster} lockstep"] = hashes(method, cluster, PHANTOM)
            with event_by_event():
                found[f"phantom {method} {cluster} event by event"] = hashes(method, cluster, PHANTOM)
    return found


def main() -> None:
    """The command of the docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, default=PHANTOMS)
    parser.add_argument("--training", action="store_true", help="of digits, not of phantoms")
    parser.add_argument("--compare", action="store_true", help="with what the file holds, instead of writing it")
    parser.add_argument("--methods", nargs="*", default=METHODS)
    given = parser.parse_args()
    found = recorded(training=given.training, methods=given.methods)
    if not given.compare:
        given.file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(f"{len(found)} runs in {given.file}")
        return
    before = json.loads(given.file.read_text(encoding="utf-8"))
    changed = [key for key in found if found[key] != before.get(key)]
    for key in changed:
        print(f"changed: {key}: {', '.join(part for part in found[key] if found[key][part] != before.get(key, {}).get(part))}")
    print(f"{len(found) - len(changed)} of {len(found)} runs are the same")
    sys.exit(bool(changed))


if __name__ == "__main__":
    main()
