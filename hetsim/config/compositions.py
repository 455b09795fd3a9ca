"""The configs of runs: Hydra composes each choice of groups once, and then the values that were typed for each run are put in.

A composition takes a hundred times as long as a change of values. What the words `key=value` do to a composed config, Hydra does in one
function at the end, in the order of the words. So a copy of the config without these words, to which that function applies all of them,
is what Hydra would have composed (`tests/test_compositions.py`). Of runs that differ in a few plain values, OmegaConf resolves the first.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from hydra._internal.config_loader_impl import ConfigLoaderImpl, get_overrides_dirname
from hydra._internal.config_repository import IConfigRepository
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.default_element import ResultDefault
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.core.utils import setup_globals
from hydra.errors import ConfigCompositionException
from hydra.plugins.config_source import ConfigResult
from hydra.types import RunMode
from hydra.version import VersionBase, setbase
from omegaconf import DictConfig, ListConfig, OmegaConf, ValueNode
from omegaconf.errors import OmegaConfBaseException

from hetsim.config.errors import USERS
from hetsim.config.schema import RATES
from hetsim.config.sources import OTHERS, TYPED_ALONE, checked_source, read_files
from hetsim.trust.shipped import configs

MAX_TEMPLATES = 500
"""The maximum number of stored compositions, of 20 kB each."""
MAX_FAMILIES = 50
"""The maximum number of families of runs for each of them."""
WHOLE = re.compile(r"([A-Za-z_][A-Za-z_0-9.]*)=(0|[1-9][0-9]{0,17})")
"""A word that gives a key a whole number."""
FOLDERS = ("hydra.run.dir", "hydra.sweep.dir", "hydra.sweep.subdir")
"""Hydra's keys of folders, which differ between runs of one composition."""
REFERENCE = re.compile(r"\$\{\w[\w.]*\}")
"""A reference to a key by its full name."""

Entries = dict[str, Any]
"""A config whose references are resolved."""
KeyPath = tuple[Any, ...]


class Words(NamedTuple):
    """The words of a run by effect."""

    chosen: tuple[str, ...]
    """Those that take part in the composition: choices from groups, and settings of Hydra's."""
    values: tuple[Override, ...]
    """Those whose values are put into the composed config, in this order."""
    task: list[str]
    """All that are not for Hydra."""
    hydra: list[str]
    """All that are for Hydra."""


@dataclass
class Template:
    """A config as Hydra composes it from the choices alone, pickled because this is the fastest copy."""

    pickled: bytes
    files: tuple[tuple[Path, int], ...]
    families: dict[tuple[str, ...], Family] = field(default_factory=dict)

    @property
    def is_valid(self) -> bool:
        """Whether its files have not changed."""
        try:
            return all(path.stat().st_mtime_ns == changed for path, changed in self.files)
        except OSError:
            return False


class _Loader(ConfigLoaderImpl):
    """Hydra's loader, which puts nobody else's file into Hydra's part, whichever package its header, a defaults list or a word gives it."""

    def _load_single_config(self, default: ResultDefault, repo: IConfigRepository) -> ConfigResult:
        result = super()._load_single_config(default, repo)
        scheme, _, folder = result.path.partition("://")
        if (result.provider, scheme) == (OTHERS, "file") and "hydra" in result.config:
            raise ValueError(f"{folder}/{default.config_path}.yaml sets hydra, {TYPED_ALONE}")
        return result


class Compositions:
    """The configs of runs, from hetsim's own files and those of further folders.

    Args:
        folders: other people's folders of configs, and packages as pkg://….
        name: the primary config.
    """

    def __init__(self, folders: tuple[str, ...] = (), name: str = "config") -> None:
        setup_globals()
        search_path = create_config_search_path(str(configs()))
        for folder in folders:
            path = folder if "://" in folder else f"file://{folder}"
            search_path.prepend(OTHERS, path, SearchPathQuery(provider="schema"))
        self.loader = _Loader(search_path)
        self.loader.repository.sources = [*map(checked_source, self.loader.repository.sources)]
        self.folders, self.name = folders, name
        self._folders = [Path(folder) for folder in folders if "://" not in folder]
        self._groups = [configs(), *self._folders] if len(self._folders) == len(folders) else None
        self._templates: dict[tuple[str, ...], Template] = {}

    def config(self, words: Sequence[str]) -> DictConfig:
        """The whole config of a run, with Hydra's part and unresolved references. Raises ValueError if the words make none."""
        split = self._split(words)
        if split is None:
            return self.by_hydra(words, RunMode.RUN)
        return self._filled(self._template(split), split)

    def entries(self, words: Sequence[str]) -> Entries:
        """The resolved config of a run without Hydra's part. Do not change it: other runs share parts of it."""
        split = self._split(words)
        if split is None:
            config = without_hydra(self.by_hydra(words, RunMode.RUN))
            check_rates(config, words)
            return resolved_once(config)
        template = self._template(split)
        values = tuple(override for override in split.values if override.key_or_group not in FOLDERS)
        keys = tuple(override.get_key_element() for override in values)
        family = template.families.get(keys)
        entries = None if family is None else family.of(values)
        if entries is None:
            config = without_hydra(self._filled(template, split))
            check_rates(config, split.task)
            family = Family(config, values)
            entries = family.entries
            _keep(template.families, keys, family, MAX_FAMILIES)
        return entries

    def kind_of(self, words: Sequence[str]) -> tuple[Any, ...]:
        """What runs that differ only in values have in common: their choices and keys."""
        split = self._split(words)
        return tuple(words) if split is None else (split.chosen, tuple(override.get_key_element() for override in split.values))

    def by_hydra(self, words: Sequence[str], mode: RunMode) -> DictConfig:
        """The config that Hydra composes from all words."""
        try:
            with hydra_version():
                config = self.loader.load_configuration(self.name, [*words], mode)
            self._check_names(config.hydra.runtime.choices)
            return config
        except USERS:
            raise
        except Exception as error:  # Hydra and OmegaConf expect no list for a group's choice, no mapping for null, …
            raise ValueError(_no_config(words, error)) from error

    def _check_names(self, choices: Mapping[str, str | None]) -> None:
        """Raise ValueError if a further folder has a choice with the name of one that ships with hetsim, which Hydra has taken."""
        for group, choice in choices.items():
            shipped = configs() / group.split("@")[0] / f"{choice}.yaml"
            for folder in self._folders if shipped.exists() else ():
                file = Path(folder, group.split("@")[0], f"{choice}.yaml")
                if file.exists() and not file.samefile(shipped):
                    raise ValueError(f"{file} has the name of a choice that ships with hetsim, which would be taken: rename the file")

    def _split(self, words: Sequence[str]) -> Words | None:
        """The words by effect; None if only Hydra can tell it."""
        if self._groups is None:
            return None
        split = Words((), (), [], [])
        chosen: list[str] = []
        values: list[Override] = []
        for word in words:
            override = parsed(word)
            key = override.key_or_group
            if override.is_sweep_override() or not re.match(r"\w", key):
                return None
            of_hydra = override.is_hydra_override()
            (split.hydra if of_hydra else split.task).append(word)
            if key in FOLDERS and override.type is OverrideType.CHANGE:
                values.append(override)
            elif re.match(r"hydra\b", key) or self._is_choice(override):
                chosen.append(word)
            else:
                values.append(override)
        if len({parsed(word).key_or_group for word in chosen}) == len(chosen):
            chosen.sort()  # the order of choices from different groups does not matter
        return split._replace(chosen=tuple(chosen), values=tuple(values))

    def _is_choice(self, override: Override) -> bool:
        assert self._groups is not None
        return not isinstance(override.value(), dict) and any(Path(folder, override.key_or_group).is_dir() for folder in self._groups)

    def _template(self, split: Words) -> Template:
        """The composition of these choices."""
        template = self._templates.get(split.chosen)
        if template is None or not template.is_valid:
            read_files.clear()
            config = self.by_hydra(split.chosen, RunMode.RUN)
            template = Template(pickle.dumps(config), tuple(read_files))
            _keep(self._templates, split.chosen, template, MAX_TEMPLATES)
        return template

    def _filled(self, template: Template, split: Words) -> DictConfig:
        config: DictConfig = pickle.loads(template.pickled)
        try:
            ConfigLoaderImpl._apply_overrides_to_config([*split.values], config)
        except OmegaConfBaseException as error:
            raise ConfigCompositionException from error  # as Hydra's load_configuration does
        except USERS:
            raise
        except Exception as error:
            raise ValueError(_no_config((*split.hydra, *split.task), error)) from error
        names = config.hydra.job.config.override_dirname
        config.hydra.overrides.task, config.hydra.overrides.hydra = split.task, split.hydra
        config.hydra.runtime.cwd = os.getcwd()
        config.hydra.job.override_dirname = get_overrides_dirname(
            [parsed(word) for word in split.task], kv_sep=names.kv_sep, item_sep=names.item_sep, exclude_keys=names.exclude_keys
        )
        return config


@contextlib.contextmanager
def hydra_version() -> Iterator[None]:
    """Within this context, Hydra behaves as in version 1.3. A script's own use of Hydra may choose another one."""
    base = VersionBase.instance()
    version = base.getbase()
    setbase("1.3")
    try:
        yield
    finally:
        base.version_base = version


@lru_cache(maxsize=4)
def compositions(folders: tuple[str, ...] = (), name: str = "config") -> Compositions:
    """The configs of these folders. They are kept, because a program may run many."""
    return Compositions(folders, name)


def _keep(cache: dict[Any, Any], key: Any, value: Any, most: int) -> None:
    if len(cache) >= most and key not in cache:
        cache.pop(next(iter(cache)))
    cache[key] = value


def _no_config(words: Sequence[str], error: Exception) -> str:
    for word in words:
        key, _, value = word.partition("=")
        if value.startswith("[") and (key.split("@")[0] in ("method", "experiment") or (configs() / key).is_dir()):
            return f"{key} must name one choice, not {value}: see 'hetsim --help'"
    reason = " ".join(str(error).split("\n")[0].split())
    return f"what was typed or read does not make a config{f' ({reason})' if reason else ''}: see 'hetsim --help' for its keys"


@lru_cache(maxsize=10_000)
def parsed(word: str) -> Override:
    """A word as Hydra reads it. Whole numbers for one key are parsed once, so only one of a sweep's thousand seeds is."""
    if (match := WHOLE.fullmatch(word)) and match[2] != "0":
        return replace(parsed(f"{match[1]}=0"), _value=int(match[2]), input_line=word)
    return OverridesParser.create().parse_override(word)


def without_hydra(config: DictConfig) -> DictConfig:
    """The config without Hydra's own part."""
    return OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])


def written_out(config: DictConfig, key: str) -> str:
    """The value of a key of Hydra's part with its references resolved, which may be to Hydra's part itself.

    Raises ValueError if a value from somebody else's file leads out of a typed folder.
    """
    hydra = HydraConfig.instance()
    settings, hydra.cfg = hydra.cfg, config  # type: ignore[assignment]
    try:
        text = str(OmegaConf.select(config, key, throw_on_missing=True))
    finally:
        hydra.cfg = settings
    if key in FOLDERS and any(source.provider == OTHERS for source in config.hydra.runtime.config_sources):
        _, group, name = key.split(".")
        typed = str(config.hydra[group]._get_node(name)._value())
        is_absolute = text.startswith("/") and not typed.startswith(("/", "${hydra"))
        if is_absolute or (".." in Path(text).parts and ".." not in Path(typed).parts):
            raise ValueError(f"{key} has {typed}, and a config file makes it {text}: leave the reference out of the folder's name")
    return text


def resolved_once(config: DictConfig) -> Entries:
    """The values of a config, with its references resolved. A missing value is the text ???, which the run reports."""
    entries = OmegaConf.to_container(config, resolve=True)
    assert isinstance(entries, dict)
    return {str(key): value for key, value in entries.items()}


def check_rates(config: DictConfig, words: Sequence[str]) -> None:
    """Raise ValueError for a typed rate that no optimizer of this config reads. Other values without an effect give a warning.

    Of a resumed run, the rates are those of its checkpoint.
    """
    typed = {word.partition("=")[0] for word in words}
    if "resume" in typed and "resume=auto" not in words:
        return
    saved = config.get("checkpoint") or {}
    if "checkpoint.keep" in typed and not (saved.get("every_seconds") or saved.get("every_updates")):
        warnings.warn("checkpoint.keep does nothing without checkpoint.every_updates or checkpoint.every_seconds: add one", stacklevel=2)
    for rate, group in RATES.items():
        entry = config.get(group)
        if rate in typed and not entry:
            warnings.warn(f"{rate} does nothing, because this run has no {group}", stacklevel=2)
        if rate in typed and entry and f"${{{rate}}}" not in OmegaConf.to_yaml(entry):
            raise ValueError(f"{rate} would do nothing, because this {group} does not read it: set {group}'s own keys, such as {group}.lr")


class Family:
    """Runs with the same choices and typed keys. Their configs differ only in these keys, and in keys with references."""

    def __init__(self, config: DictConfig, values: tuple[Override, ...]) -> None:
        self.config = config
        self.entries = resolved_once(config)
        self.values = values
        self.usable = _are_apart([override.key_or_group for override in values])
        self.references = dict(_references(config, ()))
        simple = all("${" not in REFERENCE.sub("", text) for text in self.references.values())
        self.names = {name for text in self.references.values() for name in re.findall(r"\w+", text)} if simple else None
        """The names in all references; None if a reference does not name its target."""

    def of(self, values: tuple[Override, ...]) -> Entries | None:
        """The resolved config of a run with these values; None if it cannot be derived from that of the last one."""
        pairs = [pair for pair in zip(self.values, values, strict=True) if pair[0].input_line != pair[1].input_line]
        if not self.usable or not all(self._is_plain(override) for pair in pairs for override in pair):
            return None
        changed = [new for _, new in pairs]
        self.values = values
        try:
            for override in changed:
                OmegaConf.update(self.config, override.key_or_group, override.value())
                self._resolve(tuple(override.key_or_group.split(".")))
            if self.names is None or any(self.names & {*override.key_or_group.split(".")} for override in changed):
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

    def _resolve(self, path: KeyPath) -> None:
        """Put the value at this place into the entries. Those of other runs stay as they are."""
        config: Any = self.config
        for part in path[:-1]:
            config = config._get_node(part)
        value = config[path[-1]]
        self.entries = _with(self.entries, path, OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value)


def _with(entries: Any, path: KeyPath, value: Any) -> Any:
    """A copy with this value at this place. It shares all that is beside the path."""
    first, *rest = path
    copy = entries.copy()
    copy[first] = _with(entries[first], tuple(rest), value) if rest else value
    return copy


def _are_apart(keys: Sequence[str]) -> bool:
    """Whether no key equals or contains another, so that the order of values does not matter."""
    paths = sorted(key.split(".") for key in keys)
    return all(following[: len(key)] != key for key, following in itertools.pairwise(paths))


def _references(config: Any, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    """The position and text of each reference in a config."""
    if config._is_interpolation():
        yield path, str(config._value())
    elif isinstance(config, DictConfig | ListConfig) and not config._is_none() and not config._is_missing():
        keys: Any = config if isinstance(config, DictConfig) else range(len(config))
        for key in keys:
            yield from _references(config._get_node(key), (*path, key))
