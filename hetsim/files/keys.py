"""The keys of a config that do not change a run's files or numbers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

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
