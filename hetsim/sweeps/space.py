"""The space of a search, read from arguments in Hydra's grammar: intervals, ranges and lists of values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, IntervalSweep, Override, RangeSweep
from hydra.errors import HydraException

from hetsim.config.typed import check_readable
from hetsim.results.tables.typed_values import value

DIGITS = 4
"""The significant digits of a number from an interval."""


@dataclass(frozen=True)
class Space:
    """The arguments of every run, the distribution of each searched key, and the seeds of every trial."""

    fixed: tuple[str, ...]
    searched: Mapping[str, Any]
    seeds: tuple[str, ...]

    def words(self, values: Mapping[str, Any], seed: str) -> tuple[str, ...]:
        """The arguments of a trial's run with these values and this seed."""
        return (*self.fixed, *chosen_words(values), f"seed={seed}")


def chosen_words(values: Mapping[str, Any]) -> tuple[str, ...]:
    """A trial's values as a user would type them."""
    return tuple(f"{key}={value:.{DIGITS}g}" if isinstance(value, float) else f"{key}={value}" for key, value in values.items())


def parsed(words: Sequence[str]) -> Space:
    """The space of these arguments. Raises ValueError if they give no values to search."""
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


def same_words(first: Any, second: Sequence[str]) -> bool:
    """Whether these are arguments with the same meaning, in any order and notation."""
    return isinstance(first, list) and all(isinstance(word, str) for word in first) and meant(first) == meant(second)


def other_words(words: Sequence[str], than: Sequence[str]) -> list[str]:
    """The arguments without an equivalent in `than`."""
    meanings = {pair for word in than for pair in meant([word])}
    return [word for word in words if not meanings.issuperset(meant([word]))]


def meant(words: Sequence[str]) -> list[tuple[str, str]]:
    """The keys of these arguments, in order, and their values in any notation. Arguments that Hydra cannot read stand for themselves."""
    try:
        overrides = OverridesParser.create().parse_overrides(list(words))
    except HydraException:
        return [("", word) for word in words]
    return sorted(map(_key_and_value, overrides, words), key=itemgetter(0))  # of one key the last counts


def _key_and_value(override: Override, word: str) -> tuple[str, str]:
    key = override.get_key_element()
    return key, repr(override.value() if override.is_sweep_override() else value(key.lstrip("+~"), word.partition("=")[2]))


def _distribution(override: Override, word: str) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    value: Any = override.value()
    try:
        if isinstance(value, IntervalSweep):
            is_integer = {type(value.start), type(value.end)} == {int}
            return (IntDistribution if is_integer else FloatDistribution)(value.start, value.end, log="log" in value.tags)  # type: ignore[arg-type]
        if isinstance(value, RangeSweep) and (numbers := _whole_numbers(value)):
            return IntDistribution(min(numbers), max(numbers), step=abs(numbers.step))
        if not isinstance(value, Glob):
            return CategoricalDistribution(tuple(dict.fromkeys(override.sweep_string_iterator())))
    except ValueError as error:
        raise ValueError(f"{word} spans nothing that can be searched ({error}): correct its bounds") from None
    raise ValueError(f"{word}: a search takes interval(…), range(…) or a list of values")


def _whole_numbers(value: Any) -> range | None:
    """The range of whole numbers; None for other ranges."""
    numbers = value.range()
    return numbers if isinstance(numbers, range) else None
