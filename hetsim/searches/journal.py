"""Check the journal of a search. It may come from somebody else, and its trials become arguments of runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hetsim.files.reading import is_number
from hetsim.sweeps.space import Space

LEFT_BY_OPTUNA = "tpe:relative_params:"
"""The prefix of notes that Optuna's sampler keeps in a trial."""


def check_trials(study: Any, space: Space, journal: Path) -> None:
    """Raise ValueError for a trial that a search of this space does not write.

    Before Optuna asks its sampler, it takes a waiting trial, with any keys. A search writes no waiting trials.
    """
    for one in study.get_trials(deepcopy=False):
        is_complete = one.state.name == "COMPLETE"
        values = one.values if isinstance(one.values, list | tuple) else []
        is_read = one.state.name in ("COMPLETE", "PRUNED")
        if (
            one.state.name == "WAITING"
            or any(one.distributions.get(key) != space.searched.get(key) for key in {*one.params, *one.distributions})
            or (is_read and len(one.params) != len(space.searched))
            or not all(_is_of(space.searched, key, value) for key, value in one.params.items())
            or (is_complete and len(values) != 1)
            or not all(key.startswith(LEFT_BY_OPTUNA) and isinstance(value, str) for key, value in one.system_attrs.items())
            or not all(map(is_number, (*values, *one.intermediate_values.values())))
        ):
            raise ValueError(f"{journal} has trial {one.number}, which is none of this search: give another --folder")


def _is_of(searched: Mapping[str, Any], key: str, value: Any) -> bool:
    """Whether the distribution of this key contains this value."""
    choices = getattr(searched[key], "choices", None)
    if choices is not None:
        return isinstance(value, str) and value in choices
    return is_number(value) and searched[key].low <= value <= searched[key].high
