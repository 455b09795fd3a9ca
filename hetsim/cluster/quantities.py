"""Quantities with units, such as `10 Gbit/s`, `200 ms` and `25.6 M`. The name of a key determines the kind of quantity.

`convert_to_si` converts them once, when a config is read. No other code handles units, and a run has one identity for all spellings. Plain
numbers are in SI units.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from hetsim import checks

TEXT = re.compile(r"([-+]?(?:[0-9]+(?:_[0-9]+)*\.?[0-9]*|\.[0-9]+)(?:e[-+]?[0-9]{1,2})?)\s*([a-zµμ][a-zµμ/]*)", re.IGNORECASE)
MAX_LETTERS = 50
CARDS = re.compile(r"([0-9]{1,9})\s*[x×*]\s*(.+)", re.IGNORECASE)
"""Several network cards of one rate, such as 8 x 400 Gbit/s."""
OF_CARDS = re.compile(r"cluster\.(?:machines\.\d+\.|nodes\.\d+\.|server\.)?network(?:\.bytes_per_second)?")
"""The keys of a machine's network cards, as far as they take several."""

TIMES = {
    **dict(zip(("s", "min", "h", "d"), map(Fraction, (1, 60, 3600, 86400)), strict=True)),
    **{f"{prefix}s": Fraction(1, 1000**power) for power, prefixes in enumerate(("m", "uµμ", "n"), start=1) for prefix in prefixes},
}
DECIMAL = {"": 1, **{prefix: 1000**power for power, prefix in enumerate("kMGTP", start=1)}}
BINARY = {f"{prefix}i": 1024**power for power, prefix in enumerate("KMGTP", start=1)}
SIZES = {
    f"{prefix}{unit}": factor * part
    for unit, part in (("B", Fraction(1)), ("bit", Fraction(1, 8)))
    for prefix, factor in {**DECIMAL, **BINARY}.items()
}
"""Units of bytes. A bare `b` is no unit, because it can mean bits or bytes."""
IN_BITS = re.compile(r"[kmgtp]?(i?bit(/s)?|(?-i:b)ps)", re.IGNORECASE)
"""Units of bits, in letters of either case."""
AMBIGUOUS = re.compile(r"([kmgtp]?)b(?:it|e)?(?:/s|ps)?", re.IGNORECASE)
"""Ambiguous units between bits and bytes, which are refused."""
THROUGHPUT = re.compile(r"([0-9.]+)\s*(?:[a-z]+\s*)?(?:/|\bper\b)\s*s(?:ec|econd)?", re.IGNORECASE)
"""Samples per second, such as 400 images/s."""


@dataclass(frozen=True, eq=False)
class QuantityKind:
    """A kind of quantity: its name in errors, and its units in SI units."""

    expected: str
    units: Mapping[str, Fraction]
    is_whole: bool = False

    def read(self, key: str, text: str) -> float | int:
        """The number in SI units. Raises ValueError for an invalid text."""
        match = TEXT.fullmatch(text.strip()) if len(text) <= MAX_LETTERS else None
        factor = None if match is None else self._factor(match[2])
        if match is None or factor is None:
            hint = "" if len(text) > MAX_LETTERS else _hint(key, self, text.strip(), match)
            raise ValueError(f"{key} must be {self.expected}, not {checks.shown(text)}{hint}")
        value = Fraction(match[1]) * factor
        if not self.is_whole:
            return float(value)
        if value.denominator > 1:
            raise ValueError(f"{key} must be a whole number, and {text} is {float(value):.12g}")
        return int(value)

    def _factor(self, unit: str) -> Fraction | None:
        if unit in self.units or not IN_BITS.fullmatch(unit):
            return self.units.get(unit)
        return next((factor for name, factor in self.units.items() if name.lower() == unit.lower()), None)


SECONDS = QuantityKind("seconds, such as 200 ms or 5 min", TIMES)
BYTES = QuantityKind("bytes, such as 25 MB or 64 GiB", SIZES, is_whole=True)
RATE = QuantityKind(
    "bytes per second, such as 1.25 GB/s or 10 Gbit/s",
    {
        **{f"{size}/s": factor for size, factor in SIZES.items()},
        **{f"{prefix}bps": Fraction(factor, 8) for prefix, factor in DECIMAL.items()},
    },
)
SECONDS_PER_BYTE = QuantityKind(
    "seconds per byte, such as 0.1 ns/B",
    {f"{time}/{size}": seconds / nbytes for time, seconds in TIMES.items() for size, nbytes in SIZES.items()},
)
COUNT = QuantityKind(
    "a number, such as 60000, 25.6 M or 7 B",
    {name: Fraction(1000**power) for power, names in enumerate(("kK", "M", "BG", "T"), start=1) for name in names},
    is_whole=True,
)

KINDS: dict[re.Pattern[str], QuantityKind] = {
    re.compile(rf"(?:.*[._])?(?:{names})"): kind
    for names, kind in (
        (
            r"bytes_per_second|machines\.\d+(?:\.gpus(?:\.\d+)?)?\.inside(?:\.pairs|\.across)?"
            r"|(?:machines\.\d+|nodes\.\d+|server)\.network(?:\.up|\.down)?|cluster\.network|network(?:\.bytes_per_second)?\.each",
            RATE,
        ),
        ("seconds_per_byte", SECONDS_PER_BYTE),
        (r"seconds|seconds_[a-z_]+|loading|faults\.checkpoint\.every|schedule\.\d+\.(?:join|crash|repair|leave|stop|continue)", SECONDS),
        ("bytes", BYTES),
        (r"num_[a-z_]+|batch_size|max_samples|micro_batch|updates|every_updates|count|cluster\.model\.parameters", COUNT),
    )
}
"""The kind of quantity of a key, by the end of its dotted name."""
COLUMNS = {"table": (COUNT, SECONDS), "all_reduce_table": (BYTES, SECONDS)}
"""The kinds of the two columns of measured tables."""
OPAQUE = (
    *("optimizer", "local_optimizer", "regional_optimizer", "learning_rate_schedule", "local_learning_rate_schedule"),
    *("options", "model_options"),
)
"""Keys with values for torch or the user's code, which hetsim does not convert."""


def _hint(key: str, kind: QuantityKind, text: str, match: re.Match[str] | None) -> str:
    """A correction for a refused text; an empty string if hetsim has none."""
    if key.endswith("seconds_per_sample") and (rate := THROUGHPUT.fullmatch(text)) and not (match and match[2] in RATE.units):
        return throughput_hint(rate[1])
    close = AMBIGUOUS.fullmatch(match[2]) if match and kind in (RATE, BYTES) else None
    if match is None or close is None:
        return ""
    prefix, per_second = close[1].upper().replace("K", "k"), "/s" if kind is RATE else ""
    in_bits, in_bytes = (f"{match[1]} {prefix}{unit}{per_second}" for unit in ("bit", "B"))
    if match[2].lower().endswith(("bit", "bit/s", "be")):
        return f": write {in_bits}"
    if match[2].removeprefix(close[1]).startswith("B"):
        return f": write {in_bytes}"
    return f": b may be bits or bytes, so write {in_bits} or {in_bytes}"


def throughput_hint(samples_per_second: Any) -> str:
    """': … samples/s are … ms' for a number or its text; an empty string for anything else."""
    try:
        number = float(samples_per_second)
        return f": {number:g} samples/s are {1000 / number:.6g} ms" if number > 0 else ""
    except (TypeError, ValueError):
        return ""


def convert_to_si(config: Any, key: str = "") -> Any:
    """A config with its quantities in SI units. Raises ValueError for a text that is no quantity of its key's kind."""
    if isinstance(config, Mapping):
        return {
            name: value if name in OPAQUE else _convert_entry(f"{key}.{name}" if key else str(name), name, value)
            for name, value in config.items()
        }
    if isinstance(config, list | tuple):
        return [convert_to_si(value, f"{key}.{place}") for place, value in enumerate(config)]
    return config


def convert_whole_floats(config: Any) -> Any:
    """A config in which whole numbers are ints: 2.0 and 1e3 become 2 and 1000. Values for torch or the user's classes are unchanged."""
    if isinstance(config, Mapping):
        if not str(config.get("_target_", "hetsim.")).startswith("hetsim."):
            return config
        return {name: value if name in OPAQUE else convert_whole_floats(value) for name, value in config.items()}
    if isinstance(config, list | tuple):
        return [convert_whole_floats(value) for value in config]
    return int(config) if isinstance(config, float) and config.is_integer() and abs(config) <= checks.MOST else config


@lru_cache(maxsize=10_000)
def kind_of(key: str) -> QuantityKind | None:
    """The kind of quantity of a dotted key; None if the key has no kind."""
    return next((kind for names, kind in KINDS.items() if names.fullmatch(key)), None)


def _convert_entry(key: str, name: Any, value: Any) -> Any:
    if isinstance(value, str) and OF_CARDS.fullmatch(key) and (cards := CARDS.fullmatch(value.strip())):
        return {"cards": int(cards[1]), "each": RATE.read(key, cards[2])}
    if isinstance(value, str):
        return _convert(kind_of(key), key, value)
    if isinstance(value, float) and value.is_integer() and kind_of(key) is COUNT:  # such as 1e4
        return int(value)
    if isinstance(value, Mapping) and "distribution" in value:
        kind = kind_of(key)
        return {part: _convert(kind if part in ("loc", "scale") else None, f"{key}.{part}", parameter) for part, parameter in value.items()}
    if name in COLUMNS and isinstance(value, list | tuple):
        return [_convert_row(f"{key}.{place}", row, COLUMNS[name]) for place, row in enumerate(value)]
    return convert_to_si(value, key)


def _convert_row(key: str, row: Any, kinds: tuple[QuantityKind, QuantityKind]) -> Any:
    if not isinstance(row, list | tuple) or len(row) != len(kinds):
        return row
    return [_convert(kind, f"{key}.{place}", value) for place, (kind, value) in enumerate(zip(kinds, row, strict=True))]


def _convert(kind: QuantityKind | None, key: str, value: Any) -> Any:
    """A text as a number, if the key has a kind of quantity. References to other keys and missing values are unchanged."""
    is_quantity = kind is not None and isinstance(value, str) and "${" not in value and value != "???"
    return kind.read(key, value) if kind is not None and is_quantity else value
