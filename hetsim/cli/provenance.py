"""What a config file from outside may say to Hydra: where runs go and how a sweep varies them, and nothing that runs code.

Hydra imports and calls what a config names as callback, launcher, sweeper or log handler, and sets environment variables for the
processes of a run. A user may type all of this on the command line. A file may be a stranger's, so each is checked as it is read.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.plugins import Plugins
from hydra.experimental.callback import Callback
from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hetsim.cli.errors import USERS
from hetsim.cli.methods import configs

IN_FILES = re.compile(
    r"mode|verbose|run\.dir|sweep\.(dir|subdir)|sweeper\.(params\.[^@=]+|n_trials|n_jobs|max_batch_size|direction|study_name|sampler\.seed)"
    r"|launcher\.(n_jobs|timeout_min|cpus_per_task|gpus_per_node|tasks_per_node|mem_gb|nodes|array_parallelism|max_num_timeout)"
)
"""The keys of Hydra's part of a config that a file may set."""
SWEPT = re.compile(r"(?!\+*~*(hydra|trust)\b)[+~]*[A-Za-z_][\w./]*")
"""The keys that a file may vary in a sweep."""
HANDLERS = ("logging.StreamHandler", "logging.FileHandler", "logging.NullHandler", "colorlog.ColoredFormatter")
"""The classes that a logging configuration may name."""
STREAMS = ("ext://sys.stdout", "ext://sys.stderr")
RECORD = "hetsim.cli.launcher.SweepRecord"
"""The callback that conf/config.yaml names."""
CALLBACKS = (RECORD, "hydra.experimental.callbacks.LogJobReturnCallback", "hydra.experimental.callbacks.PickleJobInfoCallback")


def install() -> None:
    """Let every config that Hydra composes in this process pass the checks of this module, before Hydra acts on it."""
    if getattr(ConfigLoaderImpl.load_configuration, "checked_by_hetsim", False):
        return
    load, load_file = ConfigLoaderImpl.load_configuration, ConfigLoaderImpl._load_single_config
    search = ConfigLoaderImpl._process_config_searchpath

    def checked_configuration(
        loader: ConfigLoaderImpl, config_name: str | None, overrides: list[str], *more: Any, **options: Any
    ) -> DictConfig:
        try:
            config = load(loader, config_name, overrides, *more, **options)
        except USERS:
            raise
        except Exception as error:  # Hydra and OmegaConf expect no list for a group's choice, no mapping for null, …
            raise ValueError(_cannot_be_composed(overrides, error)) from error
        check_composed(config)
        return config

    def checked_file(loader: ConfigLoaderImpl, default: Any, repo: Any) -> ConfigResult:
        found = load_file(loader, default, repo)
        check_file(found, f"{default.config_path}.yaml")
        return found

    def checked_search_path(loader: ConfigLoaderImpl, config_name: str | None, parsed_overrides: Any, repo: Any) -> None:
        primary = None if config_name is None else repo.load_config(config_path=config_name)
        if primary is not None:
            check_file(primary, f"{config_name}.yaml")  # Hydra imports the packages of its search path
        search(loader, config_name, parsed_overrides, repo)

    checked_configuration.checked_by_hetsim = True  # type: ignore[attr-defined]
    ConfigLoaderImpl.load_configuration = checked_configuration  # type: ignore[method-assign, assignment]
    ConfigLoaderImpl._load_single_config = checked_file  # type: ignore[method-assign, assignment]
    ConfigLoaderImpl._process_config_searchpath = checked_search_path  # type: ignore[method-assign, assignment]


def _cannot_be_composed(overrides: list[str], error: Exception) -> str:
    for override in overrides:
        key, _, value = override.partition("=")
        if value.startswith("[") and (key.split("@")[0] in ("method", "experiment") or (configs() / key).is_dir()):
            return f"{key} must name one choice, not {value}: see 'hetsim --help'"
    reason = " ".join(str(error).split("\n")[0].split())
    return f"what was typed or read does not make a config ({type(error).__name__}: {reason}): see 'hetsim --help' for its keys"


def check_file(found: ConfigResult, name: str) -> None:
    """ValueError with one sentence if a file that is not hetsim's or Hydra's own sets `trust`, or a key of Hydra's that it may not set."""
    if found.path.split("://")[-1] == str(configs()) or re.match(r"structured://|pkg://(hydra\.conf|hydra_plugins)\b", found.path):
        return
    file = f"{found.path.removeprefix('file://')}/{name}"
    if not isinstance(found.config, DictConfig):
        raise ValueError(f"{file} must be a mapping of keys, not a list: write 'key: value' lines")
    entries = OmegaConf.to_container(found.config, resolve=False)
    assert isinstance(entries, dict)
    if entries.get("trust"):
        raise ValueError(
            f"{file} sets trust, which is taken from the command line alone: leave it out there, and type 'trust=[…]' yourself"
        )
    for key in _keys(entries["hydra"]) if "hydra" in entries else ():
        if not IN_FILES.fullmatch(key):
            raise ValueError(
                f"{file} sets hydra.{key}, which is taken from the command line alone: leave it out there, and type it yourself"
            )
        if key.startswith("sweeper.params.") and not SWEPT.fullmatch(key.removeprefix("sweeper.params.")):
            raise ValueError(
                f"{file} varies {key.removeprefix('sweeper.params.')} in a sweep, which only the command line may do: leave it out"
            )


def _keys(entry: Any, above: str = "") -> Iterator[str]:
    """The dotted names of everything that is no mapping in a mapping."""
    if isinstance(entry, Mapping) and above != "sweeper.params":
        for name, value in entry.items():
            yield from _keys(value, f"{above}.{name}" if above else str(name))
    elif isinstance(entry, Mapping):
        yield from (f"{above}.{name}" for name in entry)
    elif above != "sweeper.params" or entry is not None:
        yield above


def check_composed(config: DictConfig) -> None:
    """ValueError with one sentence if Hydra's part of a config names a callback, plugin or log handler that is not installed as such."""
    settings = config.hydra
    for name, callback in _plain(settings, "callbacks").items():
        _check_callback(f"hydra.callbacks.{name}", callback)
    for name in ("launcher", "sweeper"):
        entry = _plain(settings, name)
        if entry.get("_target_") not in Plugins.instance().class_name_to_class:
            raise ValueError(
                f"hydra.{name}._target_={entry.get('_target_')} is no installed plugin of Hydra's: choose one with hydra/{name}=…"
            )
        for key, part in entry.items():
            if key == "sampler" and isinstance(part, dict):
                _check_sampler(part)
            elif key != "_target_":
                _refuse_objects(f"hydra.{name}.{key}", part)
    for name in ("job_logging", "hydra_logging"):
        node = settings.get(name)
        _check_logging(f"hydra.{name}", OmegaConf.to_container(node, resolve=False) if OmegaConf.is_config(node) else node)


def _plain(settings: DictConfig, name: str) -> dict[str, Any]:
    """A part of Hydra's config with its references resolved, as Hydra sees it; empty if it is null."""
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
        raise ValueError(f"{key}._target_={target} is no installed callback of Hydra's: leave hydra.callbacks as it is")
    for option, value in callback.items():
        if option != "_target_":
            _refuse_objects(f"{key}.{option}", value)


def _check_sampler(sampler: dict[Any, Any]) -> None:
    """One of Optuna's samplers by its name; Hydra's config of a grid is a `_partial_`."""
    target = sampler.get("_target_")
    if not re.fullmatch(r"optuna\.samplers\.[A-Z][A-Za-z]*Sampler", str(target)):
        raise ValueError(f"hydra.sweeper.sampler._target_={target} is no sampler of Optuna's: choose one with hydra/sweeper/sampler=…")
    for option, value in sampler.items():
        if option not in ("_target_", "_partial_"):
            _refuse_objects(f"hydra.sweeper.sampler.{option}", value)


def _refuse_objects(key: str, entry: Any) -> None:
    for where, name, _ in _walk(key, entry):
        if name in ("_target_", "_args_", "_partial_", "_recursive_", "_convert_"):
            raise ValueError(f"{where}.{name} is not allowed: give plain values")


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
