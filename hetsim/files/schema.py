"""The types of the entries of summary.json. Every reader of a finished run relies on them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hetsim import checks
from hetsim.files.reading import MAX_NUMBER, REMEDY, is_number, is_text, shown


class Kind(NamedTuple):
    """The type of an entry, as words and as a check."""

    phrase: str
    holds: Callable[[Any], bool]


def _list_of(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping)


TEXT = Kind(
    f"a text of at most {checks.MAX_NAME} printable letters",
    lambda value: is_text(value) and value.isprintable() and len(value) <= checks.MAX_NAME,
)
TEXTS = Kind("a list of texts", _list_of(is_text))
DEVICES = Kind("a list of names of devices", _list_of(lambda value: is_text(value) and checks.DEVICE.fullmatch(value) is not None))
WHOLE = Kind("a whole number", _is_whole)
COUNT = Kind("a whole number above 0", lambda value: _is_whole(value) and value > 0)
NUMBER = Kind(f"a number of at most {MAX_NUMBER:g}", is_number)
NUMBER_OR_NULL = Kind(f"a number of at most {MAX_NUMBER:g}, or null", lambda value: value is None or is_number(value))
AMOUNT = Kind(f"a number from 0 to {MAX_NUMBER:g}", lambda value: is_number(value) and value >= 0)
AMOUNT_OR_NULL = Kind(f"a number from 0 to {MAX_NUMBER:g}, or null", lambda value: value is None or AMOUNT.holds(value))
NUMBERS = Kind("a list of numbers", _list_of(is_number))
FLAG = Kind("true or false", lambda value: isinstance(value, bool))
MAPPING = Kind("a mapping", _is_mapping)
MAPPING_OR_NULL = Kind("a mapping, or null", lambda value: value is None or _is_mapping(value))
MAPPINGS = Kind("a list of mappings", _list_of(_is_mapping))

NUMBERS_OR_NULL = Kind(
    "a list of numbers and nulls, or null", lambda value: value is None or _list_of(lambda part: part is None or is_number(part))(value)
)
MAPPINGS_OR_NULL = Kind("a list of mappings, or null", lambda value: value is None or MAPPINGS.holds(value))


def _are_quantiles(value: Any) -> bool:
    return _is_mapping(value) and {"min", "max"} <= value.keys() and all(map(NUMBER_OR_NULL.holds, value.values()))


def or_quantiles(kind: Kind) -> Kind:
    """This kind, or quantiles of numbers, which replace it in a run of very many workers."""
    return Kind(f"{kind.phrase}, or quantiles", lambda value: kind.holds(value) or _are_quantiles(value))


def or_quantiles_each(kind: Kind) -> Kind:
    """This kind, or a mapping from numbers' names to their quantiles."""
    return Kind(
        f"{kind.phrase}, or quantiles by name",
        lambda value: kind.holds(value) or (_is_mapping(value) and all(map(_are_quantiles, value.values()))),
    )


NAMES = ("method", "backend", "cluster", "workload")
IN_TABLES = (
    *("seconds", "samples_per_second", "updates_per_second", "staleness_mean", "staleness_p50", "staleness_p95", "staleness_max"),
    *("idle_share", "num_samples"),
)
"""The texts and numbers that tables need, besides the seed, the final metrics and divergence."""

SUMMARY = {
    **dict.fromkeys(NAMES, TEXT),
    "seed": WHOLE,
    "num_workers": COUNT,
    **dict.fromkeys(("num_updates", "num_samples", "num_samples_discarded", "num_nonfinite_gradients"), AMOUNT),
    "num_samples_in_flight": NUMBER,
    **dict.fromkeys(("seconds", "profile_seconds", "wall_seconds", "staleness_max"), AMOUNT_OR_NULL),
    **dict.fromkeys(("staleness_mean", "staleness_p50", "staleness_p95", "updates_per_second", "samples_per_second"), AMOUNT_OR_NULL),
    "idle_share": NUMBER_OR_NULL,  # of a real run it is measured by several clocks
    "batch_sizes": or_quantiles(NUMBERS),
    "final": MAPPING,
    **dict.fromkeys(("final.train_loss", "final.test_accuracy"), NUMBER_OR_NULL),
    "class_accuracy": NUMBERS_OR_NULL,
    "diverged": FLAG,
    "per_worker": or_quantiles_each(MAPPINGS),
    "weight_shares": or_quantiles(NUMBERS_OR_NULL),
    "pools": or_quantiles_each(MAPPINGS_OR_NULL),
    "devices": DEVICES,
    "emulation": MAPPING_OR_NULL,
    "calibrated": MAPPING,
    "calibrated.date": TEXT,
    "calibrated.composed": TEXTS,
    "calibrated.error": NUMBER,
    "calibrated.spread": NUMBER,
    "calibrated.tried": MAPPING,
    "warnings": TEXTS,
}
"""Kinds by dotted key, outer keys before inner keys. A Team's summary lacks some of them. Unknown keys are ignored."""

FINAL = ("train_loss", "test_accuracy")
"""The entries of `final` in every run, which may be null. All others are a workload's own metrics."""

MISSING = object()
_PATHS = [(key, key.split("."), kind.holds) for key, kind in SUMMARY.items()]


def entry(summary: Any, key: str) -> Any:
    """The value at this dotted key, or MISSING."""
    value = summary
    for name in key.split("."):
        value = value.get(name, MISSING) if isinstance(value, Mapping) else MISSING
    return value


def check_kinds(path: Path, summary: Any) -> None:
    """Raise ValueError if the summary is no mapping, or an entry has the wrong type."""
    if not _is_mapping(summary):
        raise ValueError(f"{path} must hold a mapping, not {shown(summary)}: {REMEDY}")
    for key, names, holds in _PATHS:
        entry_value = summary.get(key, MISSING) if len(names) == 1 else entry(summary, key)
        if entry_value is not MISSING and not holds(entry_value):
            raise ValueError(f"{path}: {key} must be {SUMMARY[key].phrase}, not {shown(entry_value)}: {REMEDY}")
    for name, value in summary.get("final", {}).items():
        if not is_metric(name):
            raise ValueError(f"{path}: final has the metric {shown(name)}, and must have names of letters, digits and _: {REMEDY}")
        if not NUMBER_OR_NULL.holds(value):
            raise ValueError(f"{path}: final.{name} must be {NUMBER_OR_NULL.phrase}, not {shown(value)}: {REMEDY}")


def is_metric(name: str) -> bool:
    """Whether a metric may have this name."""
    return name.isidentifier() and len(name) <= checks.MAX_NAME


def for_tables(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a checked summary that tables need; None for entries that a Team does not write."""
    return {
        **{name: summary.get(name) for name in (*NAMES, "seed", "diverged")},
        **{name: _as_float(summary.get(name)) for name in IN_TABLES},
        "final": {name: _as_float(value) for name, value in summary["final"].items()},
    }


def _as_float(value: float | None) -> float | None:
    return None if value is None else float(value)


def own_metrics(final: Mapping[str, Any]) -> list[str]:
    """The names of a workload's own metrics in the `final` part of a summary."""
    return [name for name in final if name not in FINAL]


def missing_keys(summary: Mapping[str, Any], keys: Collection[str]) -> list[str]:
    """The dotted keys of these that the summary lacks."""
    return [key for key in keys if entry(summary, key) is MISSING]
