"""What a config file from outside may say to Hydra: what a sweep varies, with how many jobs, and nothing that runs code.

Hydra imports and calls what a config names as callback, launcher, sweeper or log handler, and sets environment variables for the
processes of a run. A user may type all of this on the command line. A file may be a stranger's.

So each file is checked as it is read. Besides, Hydra's part of a composed config must equal what hetsim's own files and the command line
make, except for the keys in `IN_FILES`. The same holds for `trust`.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from hydra._internal import defaults_list
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobRuntime
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf

from hetsim import checks
from hetsim.config.errors import USERS
from hetsim.config.guard.compositions import check_digest, of_own_files, quickly_composed
from hetsim.config.guard.folders import let_values_be_names
from hetsim.config.guard.plugins import check_plugins, leaves
from hetsim.config.guard.readable import check_readable
from hetsim.config.guard.references import check_choices, check_chosen, check_keys, check_length, check_references, check_words
from hetsim.config.guard.resolvers import own_alone, restrict
from hetsim.config.guard.search_path import SEARCH_PATH, has_folder_of_others, has_others, is_own
from hetsim.config.guard.yaml_size import check_size
from hetsim.config.schema import PLAIN
from hetsim.files.config_file import flattened
from hetsim.trust.shipped import configs

IN_FILES = re.compile(
    r"mode|sweeper\.(params(\..+)?|max_batch_size)"
    r"|launcher\.(n_jobs|timeout_min|cpus_per_task|gpus_per_node|tasks_per_node|mem_gb|nodes|array_parallelism|max_num_timeout)"
)
"""The keys of Hydra's part of a config that a file may set."""
SWEPT = re.compile(r"[+~]*(?!(hydra|trust|(workload\.)?download)\b)[A-Za-z_][\w./]*", re.IGNORECASE)
"""The keys that a file may vary in a sweep."""
GLOB = re.compile(r"glob\s*\(", re.IGNORECASE)
"""A pattern for file names."""
OF_THE_RUN = re.compile(r"(runtime|overrides)(\..+)?|searchpath|job\.(config_name|override_dirname|num|id)")
"""The keys that describe Hydra's composition."""
MODE = re.compile(r"\s*[+~]*hydra\s*(\.(mode|searchpath)\b|[=@{]|$)")
"""An argument that may set Hydra's mode, or add a folder of files that may."""
OUTSIDE = "{file} lies outside of the folders of configs: move it to one of them, without '.', '..' and links"
CHOICES = ("hydra/launcher",)
"""Hydra's groups of which a file may use an installed choice. Sweepers are excluded, because one may store pickles in a file."""


def install() -> None:
    """Let every config that Hydra composes in this process pass this module's checks before Hydra uses it."""
    if not _installed():
        for owner, name, method in _patches():
            setattr(owner, name, method)


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """The same within a context, because a program that uses hetsim may also use Hydra itself."""
    before = [] if _installed() else [(owner, name, getattr(owner, name)) for owner, name, _ in _patches()]
    install()
    try:
        yield
    finally:
        for owner, name, method in before:
            setattr(owner, name, method)


def _installed() -> bool:
    return getattr(ConfigLoaderImpl.load_configuration, "checked_by_hetsim", False)


def _patches() -> list[tuple[Any, str, Callable[..., Any]]]:
    """The methods and the function of Hydra that are replaced."""
    load, load_job = ConfigLoaderImpl.load_configuration, ConfigLoaderImpl.load_sweep_config
    read = ConfigRepository.load_config
    load_file, search = ConfigLoaderImpl._load_single_config, ConfigLoaderImpl._process_config_searchpath
    composed_mode = Hydra.get_mode
    choices_so_far = defaults_list._create_interpolation_map

    @cache
    def own(overrides: tuple[str, ...], run_mode: RunMode, job_name: str) -> dict[str, Any]:  # noqa: ARG001
        """The leaves of Hydra's part from hetsim's own files and these overrides, in a program that calls Hydra in this way."""
        loader = ConfigLoaderImpl(create_config_search_path(str(configs())))
        return leaves(load(loader, "config", [*overrides], run_mode, validate_sweep_overrides=False))

    def plain_configuration(loader: ConfigLoaderImpl, config_name: str | None, overrides: list[str], run_mode: RunMode) -> DictConfig:
        config = load(loader, config_name, overrides, run_mode)
        check_plugins(config)
        return restrict(config)

    def checked_configuration(
        loader: ConfigLoaderImpl, config_name: str | None, overrides: list[str], run_mode: RunMode, *more: Any, **options: Any
    ) -> DictConfig:
        others = config_name not in ("config", None) or has_others(loader, overrides)
        check_words(overrides)
        check_readable(overrides)
        try:
            if not others and run_mode is RunMode.RUN:
                known = of_own_files(loader, overrides, partial(plain_configuration, loader))
                if known is not None:
                    return known
            with own_alone():  # a merge resolves references
                config = load(loader, config_name, overrides, run_mode, *more, **options)
        except USERS:
            raise
        except Exception as error:  # Hydra and OmegaConf expect no list for a group's choice, no mapping for null, …
            raise ValueError(_cannot_be_composed(overrides, error)) from error
        if others:
            choices = OmegaConf.to_container(config.hydra.runtime.choices, resolve=False)
            assert isinstance(choices, dict)
            check_chosen(choices)
            check_typed(config, overrides)
            check_untyped(config)
            check_length(config)
            typed: Any = OmegaConf.to_container(config.hydra.overrides.hydra, resolve=False)
            words = [word for word in typed if not SEARCH_PATH.match(word)]  # the others' folders are no part of the reference
            chosen = [f"{group}={config.hydra.runtime.choices[group]}" for group in CHOICES if group in config.hydra.runtime.choices]
            try:
                check_leaves(leaves(config), own((*words, *chosen), run_mode, str(JobRuntime.instance().get("name"))))
            except HydraException as error:
                raise ValueError(
                    f"a choice of Hydra's own groups is not installed ({' '.join(str(error).split())[:200]}): leave it out"
                ) from None
            let_values_be_names(config)
        check_plugins(config)
        return restrict(config)

    def checked_job(loader: ConfigLoaderImpl, master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
        config = quickly_composed(loader, master_config, sweep_overrides)
        if config is None:
            config = load_job(loader, master_config, sweep_overrides)
        check_digest(loader, master_config, sweep_overrides, config)
        if trusted(config) != trusted(master_config):
            raise ValueError("trust cannot be varied in a sweep: type it once, as trust=[mypackage]")
        return config

    def checked_file(loader: ConfigLoaderImpl, default: Any, repo: Any) -> ConfigResult:
        if re.match(r"/?hydra(/|\Z)", str(default.config_path)) and not re.match(r"hydra(\.|\Z)", str(default.package)):
            raise ValueError(f"{default.package} is a config of Hydra's own, {default.config_path}, by a defaults list: leave it out there")
        found = load_file(loader, default, repo)
        check_file(found, default.config_path)
        return found

    def checked_search_path(loader: ConfigLoaderImpl, config_name: str | None, parsed_overrides: Any, repo: Any) -> None:
        primary = None if config_name is None else repo.load_config(config_path=config_name)
        if primary is not None:
            check_file(primary, str(config_name))  # Hydra imports the packages of its search path
        search(loader, config_name, parsed_overrides, repo)

    def checked_read(repository: ConfigRepository, config_path: str) -> ConfigResult | None:
        if re.search(r"[$\\{}]", config_path):  # Hydra keeps the name in the config, where it would be a reference
            raise ValueError(f"{checks.shown(config_path)} is not a plain name of a config: rename its file")
        if {"", ".", ".."} & set(
            config_path.removeprefix("/").split("/")
        ):  # perhaps out of the folder, or another way to a file of Hydra's
            raise ValueError(OUTSIDE.format(file=config_path))
        for source in repository.get_sources():
            if source.scheme() == "file" and not is_own(source.path):
                file = Path(source.path, source._normalize_file_name(config_path))
                if file.exists():
                    check_place(file, source.path)
                    check_size(file)
                    if "/" in config_path and (configs() / source._normalize_file_name(config_path)).exists():
                        raise ValueError(f"{file} has the name of a choice that ships with hetsim, which would be taken: rename the file")
        found = read(repository, config_path)
        if found is not None and not is_own(found.path):
            for default in found.defaults_list or ():  # Hydra resolves them next
                check_choices(default, ConfigSource._normalize_file_name(config_path))
        return found

    def mode(hydra: Hydra, config_name: str | None, overrides: list[str]) -> Any:
        """None if neither an argument nor a file can have set the mode. Hydra composes the config again only to find it."""
        typed = any(MODE.match(word) for word in overrides)
        if config_name == "config" and not typed and not has_folder_of_others(hydra.config_loader):
            return None
        return composed_mode(hydra, config_name, overrides)

    def choices_referred_to(overrides: Any, defaults: list[Any], self_added: bool) -> Any:
        """Hydra makes a config of all choices for each file, and reads it where a choice refers to another one."""
        return choices_so_far(overrides, defaults, self_added) if any(default.is_interpolation() for default in defaults) else None

    checked_configuration.checked_by_hetsim = True  # type: ignore[attr-defined]
    return [
        (ConfigLoaderImpl, "load_configuration", checked_configuration),
        (ConfigLoaderImpl, "load_sweep_config", checked_job),
        (ConfigRepository, "load_config", checked_read),
        (ConfigLoaderImpl, "_load_single_config", checked_file),
        (ConfigLoaderImpl, "_process_config_searchpath", checked_search_path),
        (Hydra, "get_mode", mode),
        (defaults_list, "_create_interpolation_map", choices_referred_to),
    ]


def _cannot_be_composed(overrides: list[str], error: Exception) -> str:
    for override in overrides:
        key, _, value = override.partition("=")
        if value.startswith("[") and (key.split("@")[0] in ("method", "experiment") or (configs() / key).is_dir()):
            return f"{key} must name one choice, not {value}: see 'hetsim --help'"
    reason = " ".join(str(error).split("\n")[0].split())
    return f"what was typed or read does not make a config{f' ({reason})' if reason else ''}: see 'hetsim --help' for its keys"


def check_file(found: ConfigResult, config: str) -> None:
    """ValueError with one sentence if a file that is not hetsim's or Hydra's own says more than it may.

    That is `trust`, keys of Hydra's, references, and files out of its folder. `config` is the name by which Hydra found the file.
    """
    name = ConfigSource._normalize_file_name(config)
    if ".." in name.split("/") or name.startswith("/"):
        raise ValueError(OUTSIDE.format(file=name))
    if is_own(found.path):  # an installer may have linked its files
        return
    folder = Path(found.path.removeprefix("file://"))
    file = folder / name
    if folder.is_dir():
        check_place(file, str(folder))
    if "." in (group := name.split("/")[0]).removesuffix(".yaml") or (group in PLAIN and not (configs() / group).is_dir()):
        raise ValueError(f"{file} would make {group}, which is a key, a group of choices: give its folder another name")
    if not isinstance(found.config, DictConfig):
        raise ValueError(f"{file} must be a mapping of keys, not a list: write 'key: value' lines")
    entries = OmegaConf.to_container(found.config, resolve=False)
    assert isinstance(entries, dict)
    if entries.get("trust"):
        raise ValueError(f"{file} sets trust, which only the command line may set: leave it out there, and type 'trust=[…]' yourself")
    for key, value in flattened(entries["hydra"]) if entries.get("hydra", {}) != {} else ():
        check_hydras_key(str(file), key, value)
    check_references("", entries, file)
    check_keys(entries, file)


def check_hydras_key(file: str, key: str, value: Any) -> None:
    """Raise ValueError if a file with this name may not set this key of Hydra, or not to this value."""
    if not IN_FILES.fullmatch(key):
        raise ValueError(f"{file} sets hydra.{key}, which only the command line may set: leave it out there, and type it yourself")
    varied = key.removeprefix("sweeper.params.")
    if varied != key and not SWEPT.fullmatch(varied):
        raise ValueError(f"{file} varies {varied} in a sweep, which only the command line may do: leave it out")
    if varied != key and not isinstance(value, str | int | float):
        raise ValueError(f"{file} must list the values of hydra.{key} in a text, as they are typed: '1,2,3'")
    if key.startswith("sweeper.params") and GLOB.search(str(value)):
        raise ValueError(f"{file} has {value} as hydra.{key}, which takes names of files: list the choices")


def check_place(file: Path, folder: str) -> None:
    """Raise ValueError for a file outside this folder of configs, or behind a link that leads out of it."""
    if Path(folder).resolve() not in file.resolve().parents:
        raise ValueError(OUTSIDE.format(file=os.path.relpath(file, folder)))


def trusted(config: DictConfig) -> list[Any]:
    """The values of `trust` in the config, with unresolved references."""
    node: Any = config._get_node("trust", validate_access=False)
    entry = OmegaConf.to_container(node, resolve=False) if OmegaConf.is_config(node) else [] if node is None else node._value()
    return entry if isinstance(entry, list) else [] if entry is None else [entry]


def check_typed(config: DictConfig, overrides: list[str]) -> None:
    """Raise ValueError if `trust`, or the overrides that Hydra regards as typed, were not typed."""
    parsed = OverridesParser.create().parse_overrides(overrides)
    typed: Any = next((override.value() for override in reversed(parsed) if override.key_or_group == "trust"), None)
    expected = [] if typed is None else typed if isinstance(typed, list) else [typed]
    if trusted(config) != expected or any("$" in str(module) for module in expected):
        raise ValueError("trust is set by a config file, but only the command line may set it: type it there, written out")
    for name, ours in (("hydra", True), ("task", False)):
        lines = [override.input_line for override in parsed if override.is_hydra_override() is ours]
        if OmegaConf.to_container(config.hydra.overrides[name], resolve=False) != lines:
            raise ValueError(f"hydra.overrides.{name} is set by a config file, but only the command line may set it: leave it out there")


def check_untyped(config: DictConfig) -> None:
    """Raise ValueError if a file has put a config of Hydra's own elsewhere, because its types turn references into keys."""

    def check(key: str, node: Any) -> None:
        if isinstance(node, DictConfig | ListConfig):
            entries, about = node._value(), node._metadata
            kinds = {about.ref_type, about.element_type, about.key_type if isinstance(node, DictConfig) else Any}
            if about.object_type not in (None, dict, list) or kinds != {Any}:
                raise ValueError(f"{key} has a type, by a config of Hydra's own in the defaults list of a file: leave it out there")
            if isinstance(entries, str):
                raise ValueError(f"{key} is a reference in place of a mapping: write the mapping out")
            for name, part in entries.items() if isinstance(entries, dict) else enumerate(entries) if isinstance(entries, list) else ():
                check(f"{key}.{name}", part)

    for name in config:
        if name != "hydra":
            check(str(name), config._get_node(name))


def check_leaves(found: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Raise ValueError for a key of Hydra with another value than its own files and the command line give it."""
    absent = object()
    for key in {**own, **found}:
        value = found.get(key, absent)
        if OF_THE_RUN.fullmatch(key) or (value == own.get(key, absent) and type(value) is type(own.get(key, absent))):
            continue
        if key in own and value is absent and any(name.startswith(f"{key}.") for name in found):
            continue  # an empty mapping, which is not empty any more
        check_hydras_key("a config file", key, value)
        if "$" in str(value):
            raise ValueError(f"hydra.{key} refers to another key in a config file: write the value out")
