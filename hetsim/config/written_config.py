"""The config of a run as in a file, its identity, and the name of its folder."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hetsim.config.guard.resolvers import restrict
from hetsim.files.identity import folder_name, identity_of

Entries = dict[str, Any]
"""A resolved config."""


def entries_of(config: DictConfig) -> Entries:
    """The entries of a config without Hydra's part. They are unresolved if they cannot be resolved, which the run reports."""
    for run in _under_way:
        if config is run.whole or config is run.own:
            return run.entries
    return _entries(without_hydra(config))


def identity(entries: Entries) -> str:
    """The identity of a run."""
    from hetsim.config.resolved import resolved

    return identity_of(resolved(entries))


def name_of_folder(config: DictConfig) -> str:
    """The name of a run's folder."""
    if _named:
        raise ValueError("it refers to the name of the run's folder, which depends on all keys")
    _named.append(config)
    try:
        entries = entries_of(config)
        return folder_name(entries, identity(entries))
    finally:
        _named.clear()


def without_hydra(config: DictConfig) -> DictConfig:
    """The config without Hydra's own part."""
    if "hydra" not in config:
        return config
    return restrict(OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"]))


@contextlib.contextmanager
def resolved_once(whole: DictConfig, own: DictConfig) -> Iterator[None]:
    """Within this context, these two configs are resolved once. They are the same, with and without Hydra's part, and do not change."""
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
        entries = OmegaConf.to_container(own, resolve=True)
    except OmegaConfBaseException:
        entries = OmegaConf.to_container(own)
    assert isinstance(entries, dict)
    return {str(key): value for key, value in entries.items()}


_under_way: list[_Run] = []
_named: list[DictConfig] = []
"""The config whose folder is being named."""
