"""The keys of a config with plain values, and the keys that do not change a run's files or numbers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PlainKey:
    """A key with a plain value."""

    is_required: bool = False
    """Whether every config needs a value."""
    is_of_experiment: bool = True
    """Whether it is a field of `hetsim.runtime.experiment.Experiment`."""
    changes_numbers: bool = True
    """Whether it may change a run's numbers, rather than only which files it writes, or where its data and code are found."""
    may_change: bool = False
    """Whether another value may be typed to resume a run."""


PLAIN = {
    "method": PlainKey(is_required=True),
    "seed": PlainKey(is_required=True),
    "batch_size": PlainKey(is_required=True),
    "dtype": PlainKey(is_required=True),
    "trace": PlainKey(is_required=True, changes_numbers=False, may_change=True),
    "pictures": PlainKey(is_required=True, changes_numbers=False, may_change=True),
    "threads": PlainKey(is_required=True, may_change=True),
    "evaluate_every_epochs": PlainKey(),
    "evaluate_every_seconds": PlainKey(),
    "stop_when_diverged": PlainKey(),
    "device": PlainKey(may_change=True),
    "autocast": PlainKey(),
    "data": PlainKey(),
    "epochs": PlainKey(),
    "data_root": PlainKey(is_of_experiment=False, changes_numbers=False, may_change=True),
    "download": PlainKey(is_of_experiment=False, changes_numbers=False, may_change=True),
    "trust": PlainKey(is_of_experiment=False, changes_numbers=False, may_change=True),
    "save_weights": PlainKey(changes_numbers=False, may_change=True),
    "nonfinite": PlainKey(may_change=True),
    "logger": PlainKey(changes_numbers=False, may_change=True),
    "resume": PlainKey(is_of_experiment=False, changes_numbers=False),
    "learning_rate": PlainKey(is_of_experiment=False),
    "momentum": PlainKey(is_of_experiment=False),
    "local_learning_rate": PlainKey(is_of_experiment=False),
}
"""The keys with plain values."""

CHANGE_NO_FILE = ("objective", "download", "backend.processes")
"""Keys that change no file of a run, except for its copy of the config.

They are not part of its identity: a run with another value of them is the same run.
"""

CHANGE_NO_NUMBER = (*CHANGE_NO_FILE, "checkpoint", *(key for key, kind in PLAIN.items() if not kind.changes_numbers))
"""Keys that do not change a run's numbers. Some change which files it writes, or where its data and code are found."""

VARY_IN_A_ROW = (*CHANGE_NO_NUMBER, "seed")
"""Keys in which the runs of one row of `hetsim-table` may differ: a row is a mean over seeds."""

VARY_IN_A_COMPARISON = (*CHANGE_NO_NUMBER, "backend", "device", "evaluate_every_epochs", "evaluate_every_seconds")
"""Keys whose differences `hetsim-compare` does not report. It compares backends, and of the evaluations only the last."""

AS_TYPED = ("options", "model_options")
"""Keys of the user's own functions, for which 1 and 1.0 may differ."""


def is_one_of(key: str, keys: Collection[str]) -> bool:
    """Whether a dotted key is one of these keys, or inside one."""
    return key in keys or key.partition(".")[0] in keys


def without(config: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    """The config without these keys; a key may be dotted."""
    remaining = {key: value for key, value in config.items() if key not in keys}
    for top, _, key in (dotted.partition(".") for dotted in keys):
        if key and isinstance(part := remaining.get(top), Mapping):
            remaining[top] = {name: value for name, value in part.items() if name != key}
    return remaining
