"""What a search varies, read from words in Hydra's grammar: intervals, ranges and lists of values."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, IntervalSweep, Override, RangeSweep
from hydra.errors import HydraException

from hetsim.config.guard.readable import check_readable

DIGITS = 4
"""The significant digits of a number from an interval."""


@dataclass(frozen=True)
class Space:
    """The words that every run has, the distribution of each key that is searched, and the seeds that every trial runs."""

    fixed: tuple[str, ...]
    searched: Mapping[str, Any]
    seeds: tuple[str, ...]

    def words(self, values: Mapping[str, Any], seed: str) -> tuple[str, ...]:
        """The words of the run of a trial with these values and this seed."""
        return (*self.fixed, *chosen_words(values), f"seed={seed}")


def chosen_words(values: Mapping[str, Any]) -> tuple[str, ...]:
    """A trial's values as one would type them."""
    return tuple(f"{key}={value:.{DIGITS}g}" if isinstance(value, float) else f"{key}={value}" for key, value in values.items())


def parsed(words: Sequence[str]) -> Space:
    """The space that words span; ValueError with one sentence if they span none."""
    fixed: list[str] = []
    searched: dict[str, Any] = {}
    seeds: tuple[str, ...] = ("0",)
    check_readable(words)
    for word, override in zip(words, OverridesParser.create().parse_overrides(list(words)), strict=True):
        key = override.get_key_element()
        if key == "seed":
            seeds = tuple(override.sweep_string_iterator()) if override.is_discrete_sweep() else (word.partition("=")[2],)
        elif override.is_sweep_override():
            searched[key] = _distribution(override, word)
        else:
            fixed.append(word)
    if not searched:
        raise ValueError("there is nothing to search: give a key an interval, such as 'learning_rate=tag(log,interval(0.01,1))', or a list")
    return Space(tuple(fixed), searched, seeds)


def same_words(one: Any, other: Sequence[str]) -> bool:
    """Whether these are words, and mean the same: in any order, with numbers written in any way."""
    if not isinstance(one, list) or not all(isinstance(word, str) for word in one):
        return False
    with contextlib.suppress(HydraException):
        return _meant(one) == _meant(other)
    return False


def other_words(words: Sequence[str], than: Sequence[str]) -> list[str]:
    """The words that mean nothing that the others mean."""

    def meant(word: str) -> tuple[str, str]:
        with contextlib.suppress(HydraException):
            return _meant([word])[0]
        return word, ""

    known = set(map(meant, than))
    return [word for word in words if meant(word) not in known]


def _meant(words: Sequence[str]) -> Sequence[tuple[str, str]]:
    found = []
    for override in OverridesParser.create().parse_overrides(list(words)):
        value = override.value()
        number = isinstance(value, int | float) and not isinstance(value, bool)
        found.append((override.get_key_element(), repr(float(value) if number else value)))  # type: ignore[arg-type]
    return sorted(found)


def _distribution(override: Override, word: str) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    value: Any = override.value()
    try:
        if isinstance(value, IntervalSweep):
            whole = {type(value.start), type(value.end)} == {int}
            return (IntDistribution if whole else FloatDistribution)(value.start, value.end, log="log" in value.tags)  # type: ignore[arg-type]
        if isinstance(value, RangeSweep) and (numbers := _whole_numbers(value)):
            return IntDistribution(min(numbers), max(numbers), step=abs(numbers.step))
        if not isinstance(value, Glob):
            return CategoricalDistribution(tuple(dict.fromkeys(override.sweep_string_iterator())))
    except ValueError as error:
        raise ValueError(f"{word} spans nothing that can be searched ({error}): correct its bounds") from None
    raise ValueError(f"{word}: a search takes interval(…), range(…) or a list of values")


def _whole_numbers(value: Any) -> range | None:
    """Those of a range; None if it is one of other numbers."""
    numbers = value.range()
    return numbers if isinstance(numbers, range) else None
