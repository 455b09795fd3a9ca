"""The resolved configs of runs that differ in a few plain values, as dictionaries. OmegaConf makes no config for each.

A finished run is found by its identity, which is a hash of its resolved config. If two runs have the same choices and typed keys, their
configs differ only in these keys, and in keys with references. The rest is resolved once.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

from hydra.core.override_parser.types import Override, OverrideType
from omegaconf import DictConfig, ListConfig, OmegaConf, ValueNode
from omegaconf.errors import OmegaConfBaseException

from hetsim.config.guard.compositions import Template, Words

Path = tuple[Any, ...]
REFERENCE = re.compile(r"\$\{\w[\w.]*\}")
"""A reference to a key by its full name."""


class Varied:
    """The resolved config of the first of these runs. Other runs' values are put into it."""

    def __init__(self, template: Template, words: Words) -> None:
        self.config = template.own_config(words)
        self.entries: dict[str, Any] = _resolved(self.config)
        self.usable = _are_apart([override.key_or_group for override in words.values])
        self.typed = words.values
        self.references = dict(_references(self.config, ()))
        simple = all("${" not in REFERENCE.sub("", text) for text in self.references.values())
        self.names = {name for text in self.references.values() for name in re.findall(r"\w+", text)} if simple else None
        """The names in all references; None if a reference does not name its target."""

    def of(self, words: Words) -> dict[str, Any] | None:
        """The resolved config of a run with the same choices and typed keys; None if it cannot be derived.

        It is valid until the next call.
        """
        changed = [(old, new) for old, new in zip(self.typed, words.values, strict=True) if old.input_line != new.input_line]
        if not self.usable or not all(map(self._is_plain, (override for pair in changed for override in pair))):
            return None
        self.typed = words.values
        try:
            for _, override in changed:
                OmegaConf.update(self.config, override.key_or_group, override.value())
                self._resolve(tuple(override.key_or_group.split(".")))
            if self.names is None or any(self.names & {*override.key_or_group.split(".")} for _, override in changed):
                for path in self.references:
                    self._resolve(path)
        except (OmegaConfBaseException, LookupError, TypeError):
            self.usable = False
            return None
        return self.entries

    def _is_plain(self, override: Override) -> bool:
        """Whether this is a value without a reference, for a key whose value has none."""
        value = override.value()
        if override.type is not OverrideType.CHANGE or override.package is not None or not isinstance(value, str | int | float | None):
            return False
        node: Any = self.config
        for part in override.key_or_group.split("."):
            node = node._get_node(part) if isinstance(node, DictConfig) and not node._is_none() and not node._is_interpolation() else None
        return isinstance(node, ValueNode) and not (isinstance(value, str) and ("${" in value or value == "???"))

    def _resolve(self, path: Path) -> None:
        entries: Any = self.entries
        config: Any = self.config
        for part in path[:-1]:
            entries, config = entries[part], config._get_node(part)
        value = config[path[-1]]
        entries[path[-1]] = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def _resolved(config: DictConfig) -> dict[str, Any]:
    entries = OmegaConf.to_container(config, resolve=True)
    assert isinstance(entries, dict)
    return {str(key): value for key, value in entries.items()}


def _are_apart(keys: Sequence[str]) -> bool:
    """Whether no key equals or contains another, so that the order of values does not matter."""
    parts = sorted(key.split(".") for key in keys)
    return all(following[: len(key)] != key for key, following in itertools.pairwise(parts))


def _references(config: Any, path: Path) -> Iterator[tuple[Path, str]]:
    """The position and text of each reference in a config."""
    if config._is_interpolation():
        yield path, str(config._value())
    elif isinstance(config, DictConfig | ListConfig) and not config._is_none() and not config._is_missing():
        keys: Any = config if isinstance(config, DictConfig) else range(len(config))
        for key in keys:
            yield from _references(config._get_node(key), (*path, key))
