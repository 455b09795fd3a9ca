"""Check the code that Hydra would import and call: callbacks, plugins and log handlers must be installed ones."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from hydra.core.plugins import Plugins
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hetsim.files.config_file import flattened

HANDLERS = ("logging.StreamHandler", "logging.FileHandler", "logging.NullHandler", "colorlog.ColoredFormatter")
"""The classes that are allowed in a logging configuration."""
STREAMS = ("ext://sys.stdout", "ext://sys.stderr")
RECORD = "hetsim.sweeps.record.SweepRecord"
"""The callback in conf/config.yaml."""
CALLBACKS = (RECORD, "hydra.experimental.callbacks.LogJobReturnCallback", "hydra.experimental.callbacks.PickleJobInfoCallback")


CALLED = ("callbacks", "launcher", "sweeper", "job_logging", "hydra_logging")
"""The parts of Hydra's config with code that it imports and calls."""


def leaves(config: DictConfig) -> dict[str, Any]:
    """Every value in Hydra's part that is no mapping, by its dotted name, with unresolved references."""
    return dict(flattened(OmegaConf.to_container(config.hydra, resolve=False)))


def refer_to_others(config: DictConfig) -> bool:
    """Whether the values that `check_plugins` examines depend on other keys of the config."""
    settings = OmegaConf.to_container(config.hydra, resolve=False)
    assert isinstance(settings, dict)
    return "${" in str([settings.get(name) for name in CALLED])


def check_plugins(config: DictConfig) -> None:
    """Raise ValueError if Hydra's part of a config names a callback, plugin or log handler that is not installed as such."""
    settings = config.hydra
    for name in ("launcher", "sweeper", "job_logging", "hydra_logging"):
        if name not in settings:
            raise ValueError(f"hydra.{name} is missing: leave it as it is")
    for name, callback in _plain(settings, "callbacks").items():
        _check_callback(f"hydra.callbacks.{name}", callback)
    for name in ("launcher", "sweeper"):
        entry = _plain(settings, name)
        if entry.get("_target_") not in Plugins.instance().class_name_to_class:
            raise ValueError(
                f"hydra.{name}._target_={entry.get('_target_')} is not an installed plugin of Hydra's: choose one with hydra/{name}=…"
            )
        for key, part in entry.items():
            if key != "_target_":
                _refuse_objects(f"hydra.{name}.{key}", part)
                _refuse_lines(f"hydra.{name}.{key}", part)
    for name in ("job_logging", "hydra_logging"):
        node = settings.get(name)
        _check_logging(f"hydra.{name}", OmegaConf.to_container(node, resolve=False) if OmegaConf.is_config(node) else node)


def _plain(settings: DictConfig, name: str) -> dict[str, Any]:
    """A part of Hydra's config with resolved references; empty if it is null."""
    try:
        node = settings.get(name)
        entries = OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
    except OmegaConfBaseException as error:
        raise ValueError(f"hydra.{name} refers to something that is not there ({' '.join(str(error).split())}): correct it") from None
    if not isinstance(entries, dict | None):
        raise ValueError(f"hydra.{name} must be a mapping, not {entries!r}: leave it as it is")
    return {str(key): value for key, value in (entries or {}).items()}


def _check_callback(key: str, callback: Any) -> None:
    target = callback.get("_target_") if isinstance(callback, dict) else None
    module, _, name = str(target).rpartition(".")
    found = vars(sys.modules[module]).get(name) if module.startswith("hydra_plugins.") and module in sys.modules else None
    if target not in CALLBACKS and not (isinstance(found, type) and issubclass(found, Callback) and found.__module__ == module):
        raise ValueError(f"{key}._target_={target} is not an installed callback of Hydra's: leave hydra.callbacks as it is")
    for option, value in callback.items():
        if option != "_target_":
            _refuse_objects(f"{key}.{option}", value)


def _refuse_objects(key: str, entry: Any) -> None:
    for where, name, _ in _walk(key, entry):
        if name in ("_target_", "_args_", "_partial_", "_recursive_", "_convert_"):
            raise ValueError(f"{where}.{name} is not allowed: give plain values")


def _refuse_lines(key: str, entry: Any) -> None:
    """Refuse texts with several lines, because a scheduler's script would run the second line."""
    for where, name, value in _walk(key, [entry]):
        if isinstance(value, str) and any(ord(letter) < 32 for letter in value):
            raise ValueError(f"{key if where == key else where}.{name} has several lines: write it in one".replace(f"{key}.0", key))


def _check_logging(key: str, entry: Any) -> None:
    for where, name, value in _walk(key, entry):
        if name in ("class", "()", "factory", "queue", "listener") and value not in HANDLERS:
            raise ValueError(f"{where}.{name}={value} is not allowed: take {' or '.join(HANDLERS)}")
        if isinstance(value, str) and re.match(r"(ext|cfg)://", value) and value not in STREAMS:
            raise ValueError(f"{where}.{name}={value} is not allowed: take {' or '.join(STREAMS)}")


def _walk(key: str, entry: Any) -> Iterator[tuple[str, str, Any]]:
    """(the key above, name, value) of everything in mappings and lists at any depth."""
    pairs: Any = entry.items() if isinstance(entry, Mapping) else enumerate(entry) if isinstance(entry, list) else ()
    for name, value in pairs:
        yield key, str(name), value
        yield from _walk(f"{key}.{name}", value)
