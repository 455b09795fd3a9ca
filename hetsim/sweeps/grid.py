"""A grid of values for each method of a sweep, for example its own learning rates.

    hetsim -m method=ssgd,asgd '+grid={ssgd: {learning_rate: [0.1, 0.2]}, asgd: {learning_rate: [0.01, 0.02], momentum: [0, 0.9]}}'

or `+grid=rates`, with the same mapping in a file `grid/rates.yaml` of one's own folder of configs. Each run gets the same overrides
as if they were typed, so its folder is the same as without a grid.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.types import ChoiceSweep, Override, RangeSweep
from omegaconf import DictConfig, OmegaConf

from hetsim import checks
from hetsim.config.compositions import parsed
from hetsim.config.typed import as_typed, check_readable
from hetsim.files.config_file import flattened

SWEPT = re.compile(r"[+~]*(?!(hydra|trust|(workload\.)?download)\b)[A-Za-z_][\w./]*", re.IGNORECASE)
"""The keys that a grid may vary, because it may be somebody else's file."""
MAX_RUNS = 1_000_000
"""The maximum number of runs of a sweep."""
EXAMPLE = "as in '+grid={ssgd: {learning_rate: [0.1, 0.2]}}'"


class Grid:
    """For each method, the overrides of each of its keys."""

    def __init__(self, config: DictConfig, loader: ConfigLoader) -> None:
        """Raise ValueError if the config's `grid` is invalid."""
        entries = OmegaConf.to_container(config, resolve=False)
        assert isinstance(entries, dict)
        grid = entries.get("grid")
        if not isinstance(grid, Mapping | None):
            raise ValueError(f"grid must map each method to its keys, not {checks.shown(grid)}: write it {EXAMPLE}")
        self.default = str(config.hydra.runtime.choices.get("method"))
        self.words: dict[str, dict[str, list[str]]] = {}
        methods = loader.get_group_options("method")
        for method, keys in (grid or {}).items():
            if method not in methods:
                raise ValueError(f"grid.{method} names no method: take some of {', '.join(methods)}{checks.suggestion(method, methods)}")
            if not isinstance(keys, Mapping):
                raise ValueError(f"grid.{method} must map keys to lists of values, not {checks.shown(keys)}: write it {EXAMPLE}")
            self.words[method] = {key: _words(f"grid.{method}.{key}", key, value) for key, value in flattened(keys)} if keys else {}

    def runs(self, typed: Sequence[str]) -> Iterator[list[str]]:
        """The overrides of each run for these typed overrides. The grid gives values for keys that were not typed."""
        words_by_key = self._of(typed)
        for added in itertools.product(*words_by_key.values()):
            yield [*typed, *added]

    def num_runs(self, typed: Sequence[str]) -> int:
        """The number of runs."""
        number = 1
        for words in self._of(typed).values():
            number *= len(words)
        return number

    def _of(self, typed: Sequence[str]) -> Mapping[str, list[str]]:
        keys = {parsed(word).key_or_group: parsed(word) for word in typed}
        method = str(keys["method"].value()) if "method" in keys else self.default
        return {key: words for key, words in self.words.get(method, {}).items() if key.lstrip("+~") not in keys}


def is_of_grid(override: Override) -> bool:
    """Whether an override defines the grid. Raises ValueError for several grids."""
    if not re.match(r"grid(\.|$)", override.key_or_group):
        return False
    if override.is_sweep_override():
        raise ValueError(f"{override.input_line} lists several grids: name one, or give the values of a key as a list in brackets")
    return True


def _words(where: str, key: str, value: Any) -> list[str]:
    if not SWEPT.fullmatch(key) or re.match(r"[+~]*(method|grid)\b", key):
        raise ValueError(f"{where} cannot be varied in a grid: type it, or leave it out")
    if isinstance(value, list):
        words = [f"{key}={as_typed(part)}" for part in value]
    elif isinstance(value, str):
        words = _sweep(where, f"{key}={value}")
    else:
        words = [f"{key}={as_typed(value)}"]
    if not words:
        raise ValueError(f"{where} has no values: list some, {EXAMPLE}")
    if any("$" in word for word in words):  # what a file refers to is checked as it is read, when braces may still be escaped
        raise ValueError(f"{where} refers to another key in a grid: write the value out, or type {key.lstrip('+~')} beside the grid")
    return words


def _sweep(where: str, word: str) -> list[str]:
    """The values of a text in Hydra's grammar, such as "0.1,0.2" or "range(0,3)"."""
    check_readable([word])
    override = parsed(word)
    if not override.is_sweep_override():
        return [word]
    if not override.is_discrete_sweep() or (override.value_type is not None and override.value_type.name == "GLOB_CHOICE_SWEEP"):
        raise ValueError(f"{where} must be a list of values, {EXAMPLE}, not {override.get_value_string()}")
    check_number(num_values(override))
    return [f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()]


def num_values(override: Override) -> int:
    """The number of values in an argument, without listing them. Raises ValueError for an endless range."""
    value = override.value()
    if isinstance(value, RangeSweep):
        if not value.step:
            raise ValueError(f"{override.input_line} has a step of 0: give it another")
        assert value.start is not None
        assert value.stop is not None
        return max(0, math.ceil((value.stop - value.start) / value.step))
    return len(value.list) if isinstance(value, ChoiceSweep) else 1


def check_number(runs: int) -> None:
    """Raise ValueError for a number of runs that is too large to list."""
    if runs > MAX_RUNS:
        raise ValueError(f"the sweep would have {runs} runs: at most {MAX_RUNS} can be listed")
