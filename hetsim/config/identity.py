"""The config of a run as a file has it, its identity, and the name of its folder."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hetsim.config.devices import resolved
from hetsim.config.guard.environment import without_values
from hetsim.config.guard.resolvers import keep_restricted
from hetsim.results.reading.identity import folder_name, identity_of

Entries = tuple[dict[str, Any], dict[str, str]]
"""A resolved config, with references in the place of values from the environment, and the hashes of these values by key."""


def entries_of(config: DictConfig) -> Entries:
    """Those of a config, without Hydra's own part; unresolved if it cannot be resolved, as the run reports."""
    for run in _under_way:
        if config is run.whole or config is run.own:
            return run.entries
    return _entries(without_hydra(config))


def identity(entries: dict[str, Any], environment: dict[str, str]) -> str:
    """The identity of a run: its hash has in it the hashes of values from the environment, not the values."""
    entries = resolved(entries)
    return identity_of({**entries, "environment": environment} if environment else entries)


def name_of_folder(config: DictConfig) -> str:
    """The name of a run's folder. It shows no value of an environment variable, and depends on it."""
    if _named:
        raise ValueError("it refers to the name of the run's folder, which depends on all keys")
    _named.append(config)
    try:
        entries, environment = entries_of(config)
        return folder_name(entries, identity(entries, environment))
    finally:
        _named.clear()


def without_hydra(config: DictConfig) -> DictConfig:
    """The config without Hydra's own part."""
    if "hydra" not in config:
        return config
    own = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    keep_restricted(own, like=config)
    return own


@contextlib.contextmanager
def resolved_once(whole: DictConfig, own: DictConfig) -> Iterator[None]:
    """While this lasts, these two, which are the same config with and without Hydra's part and do not change, are resolved once."""
    _under_way.append(_Run(whole, own))
    try:
        yield
    finally:
        _under_way.pop()


@dataclass
class _Run:
    whole: DictConfig
    own: DictConfig

    @cached_property
    def entries(self) -> Entries:
        return _entries(self.own)


def _entries(own: DictConfig) -> Entries:
    try:
        return without_values(own, shown=())
    except OmegaConfBaseException:
        entries = OmegaConf.to_container(own)
        assert isinstance(entries, dict)
        return {str(key): value for key, value in entries.items()}, {}


_under_way: list[_Run] = []
_named: list[DictConfig] = []
"""The config whose folder is being named."""
