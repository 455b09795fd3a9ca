"""The keys of a config that do not change a run's numbers, and the keys that configs of earlier versions lack."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from hetsim.trust.registry import current_name

CHANGE_NO_FILE = ("objective", "download", "backend.processes")
"""Keys that change no file of a run, except for its copy of the config.

They are not part of its identity: a run with another value of them is the same run.
"""

CHANGE_NO_NUMBER = (*CHANGE_NO_FILE, "trace", "pictures", "data_root", "trust", "checkpoint", "resume", "save_weights", "logger")
"""Keys that do not change a run's numbers. Some change which files it writes, or where its data and code are found."""

VARY_IN_A_ROW = (*CHANGE_NO_NUMBER, "seed")
"""Keys in which the runs of one row of `hetsim-table` may differ: a row is a mean over seeds."""

VARY_IN_A_COMPARISON = (*CHANGE_NO_NUMBER, "backend", "device", "evaluate_every_epochs", "evaluate_every_seconds")
"""Keys whose differences `hetsim-compare` does not report. It compares backends, and of the evaluations only the last."""


FRACTIONS = (
    *("activation", "bytes_per_second", "caution", "dead_band", "downlink_bytes_per_second", "exponent", "learning_rate"),
    *("local_learning_rate", "local_share", "lost_after_seconds", "lr", "momentum", "most", "scale", "smoothing", "strength"),
    "uplink_bytes_per_second",
)
"""Keys whose whole numbers shipped configs write with a decimal point, such as 1.0. All other keys count without it."""
AS_TYPED = ("options", "model_options")
"""Keys of the user's own functions, for which 1 and 1.0 may differ."""


def is_one_of(key: str, keys: Collection[str]) -> bool:
    """Whether a dotted key is one of these keys, or inside one."""
    return key in keys or key.partition(".")[0] in keys


def without(config: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    """The config without these keys; a key may be dotted."""
    found = {key: value for key, value in config.items() if key not in keys}
    for top, _, key in (each.partition(".") for each in keys):
        if key and isinstance(part := found.get(top), Mapping):
            found[top] = {name: value for name, value in part.items() if name != key}
    return found


TOP = ""
ADDED: dict[str, dict[str, Any]] = {
    TOP: {
        "evaluate_every_seconds": None,
        "stop_when_diverged": False,
        "device": "cpu",
        "autocast": None,
        "data": "shared",
        "epochs": "independent",
        "regional_optimizer": {},
        "checkpoint": {"every_seconds": None, "every_updates": None, "keep": 2},
        "resume": None,
        "nonfinite": "skip",
        "save_weights": None,
        "logger": None,
    },
    "hetsim.distributed.Processes": {"reduction": "ordered", "micro_batch": None, "heartbeat_seconds": 0.5, "lost_after_seconds": 10.0},
    "hetsim.policies.allocation.GradualShift": {"repetitions": 0},
    "hetsim.policies.allocation.OptPerf": {"repetitions": 0, "recheck_steps": 100, "dead_band": 0.05},
    "hetsim.policies.allocation.ProportionalController": {"repetitions": 0},
    "hetsim.policies.allocation.SpeedProportional": {"repetitions": 0},
    "hetsim.sim.Simulator": {"batched": False},
    "hetsim.workloads.own.Own": {"loader_workers": 0},
    "hetsim.workloads.phantom.PhantomWorkload": {"bytes_per_parameter": None},
}
"""Keys that configs of hetsim 0.1 lack, with the values that reproduce its behaviour: keys of the config, and keys of a class.

A run with such a value equals the old run, so the key is not part of the run's identity, and is added to a config that is read. OptPerf
has its present defaults here, because its old behaviour was a fault: an old run of over a hundred updates would differ.
"""


NETWORK = {"sharing": "none"}
"""The same for `cluster.network`. The present default differs; `hetsim.config.resolved` writes it into each config."""


def without_added(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config as hetsim 0.1 would have written it: without the added keys that have the values above."""
    return _changed(config, lambda part, added: {key: value for key, value in part.items() if key not in added or value != added[key]})


def with_added(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with all added keys. Missing keys get the values above."""
    return _changed(config, lambda part, added: {**added, **part})


def _changed(config: Mapping[str, Any], change: Callable[[Mapping[str, Any], dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    def of_class(part: Any) -> Any:
        target = part.get("_target_") if isinstance(part, Mapping) else None
        added = ADDED.get(current_name(target)) if isinstance(target, str) and target else None
        return part if added is None else change(part, added)

    found = {key: of_class(part) for key, part in change(config, ADDED[TOP]).items()}
    cluster = found.get("cluster")
    if isinstance(cluster, Mapping) and isinstance(network := cluster.get("network"), Mapping):
        found["cluster"] = {**cluster, "network": change(network, NETWORK)}
    return found
