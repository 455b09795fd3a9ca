"""What the journal of a search may hold: it may be a stranger's, and what it says of a trial becomes words that run it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hetsim.results.reading.run_files import is_number
from hetsim.sweeps.space import Space

LEFT_BY_OPTUNA = "tpe:relative_params:"
"""With what the notes begin that its sampler keeps in a trial."""


def check_trials(study: Any, space: Space, journal: Path) -> None:
    """ValueError with one sentence for a trial that a search of this space does not leave.

    Optuna takes a trial that waits before it asks its sampler, with whatever keys it has; a search leaves none that waits.
    """
    for one in study.get_trials(deepcopy=False):
        done = one.state.name == "COMPLETE"
        values = one.values if isinstance(one.values, list | tuple) else []
        whole = one.state.name in ("COMPLETE", "PRUNED")
        if (
            one.state.name == "WAITING"
            or any(one.distributions.get(key) != space.searched.get(key) for key in {*one.params, *one.distributions})
            or (whole and len(one.params) != len(space.searched))
            or not all(_is_of(space.searched, key, value) for key, value in one.params.items())
            or (done and len(values) != 1)
            or not all(key.startswith(LEFT_BY_OPTUNA) and isinstance(value, str) for key, value in one.system_attrs.items())
            or not all(map(is_number, (*values, *one.intermediate_values.values())))
        ):
            raise ValueError(f"{journal} has trial {one.number}, which is none of this search: give another --folder")


def _is_of(searched: Mapping[str, Any], key: str, value: Any) -> bool:
    """Whether a value is one that the distribution of this key can have."""
    choices = getattr(searched[key], "choices", None)
    if choices is not None:
        return isinstance(value, str) and value in choices
    return is_number(value) and searched[key].low <= value <= searched[key].high
