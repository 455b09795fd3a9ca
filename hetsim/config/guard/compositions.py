"""The configs of runs: Hydra composes each choice of groups once, and then what was typed for each run is applied.

A composition takes a hundred times as long as a change of values. What the words `key=value` do to a composed config, Hydra does in one
function at the end, in the order of the words. So a copy of the config without these words, to which that function applies all of
them, is what Hydra would have composed (`tests/test_compositions.py`). Words that choose from a group are part of the composition, and
so is `trust`. Hydra itself composes whatever is not so plain, and what cannot be composed: the errors are always Hydra's.

A sweep has the templates of its own runs. Of single runs, a program that runs many has those of hetsim's own files.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from hydra._internal.config_loader_impl import ConfigLoaderImpl, get_overrides_dirname
from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.core.utils import JobRuntime
from hydra.errors import ConfigCompositionException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hetsim.config.guard.plugins import check_plugins, leaves, refer_to_others
from hetsim.config.guard.references import check_length
from hetsim.config.guard.resolvers import own_alone, restrict
from hetsim.config.guard.search_path import has_others
from hetsim.trust.shipped import configs

ONLY_HYDRA = "a sweep with configs from files varies no hydra.… keys: type them once"
MAX_TEMPLATES = 2000
"""The maximum number of templates in memory, of 20 kB each."""
WHOLE = re.compile(r"([A-Za-z_][A-Za-z_0-9.]*)=(0|[1-9][0-9]{0,17})")
"""An argument that gives a key a whole number."""
CHANGED = "a config was changed, or made, after the sweep was checked: give the command again"
PLAIN = ("hydra.mode", "hydra.run.dir", "hydra.sweep.dir", "hydra.sweep.subdir")
"""Hydra's keys with plain values. Hydra adds the first by itself."""


class Words(NamedTuple):
    """The typed arguments of a run."""

    chosen: tuple[str, ...]
    """The arguments that take part in the composition: choices from groups, and `trust`."""
    values: tuple[Override, ...]
    """The overrides that are applied to the composed config, in this order."""
    typed: tuple[str, ...]
    """All arguments as typed, except those in the next field."""
    for_hydra: tuple[str, ...] = ()
    """The typed arguments for `PLAIN` keys. They are among the values, too."""


@dataclass(frozen=True)
class Template:
    """A config as Hydra composes it from the choices alone, pickled because this is the fastest copy."""

    whole: bytes
    own: bytes
    """The same config without Hydra's part."""
    others: bool
    """Whether files other than hetsim's or Hydra's own may be in it."""
    refers: bool
    """Whether code that Hydra would call refers to other keys."""

    @classmethod
    def of(cls, config: DictConfig, *, others: bool) -> Template:
        """The template of a composed config."""
        own = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
        OmegaConf.set_struct(own, True)  # as the config that Hydra hands to a run
        return cls(pickle.dumps(config), pickle.dumps(restrict(own)), others, refer_to_others(config))

    def config(self, words: Words) -> DictConfig:
        """The whole config of a run, checked as Hydra's compositions are."""
        if self.others and words.for_hydra:
            raise ValueError(ONLY_HYDRA)
        config: DictConfig = pickle.loads(self.whole)
        self._apply(words, config)
        if self.others and leaves(config) != self._leaves:  # through a reference that stands for Hydra's part, say
            raise ValueError("values of a config's keys change what Hydra does: leave them out")
        names = config.hydra.job.config.override_dirname
        config.hydra.overrides.task = list(words.typed)
        config.hydra.overrides.hydra.extend(words.for_hydra)
        config.hydra.runtime.cwd = os.getcwd()
        config.hydra.job.override_dirname = get_overrides_dirname(
            [parsed(word) for word in words.typed], kv_sep=names.kv_sep, item_sep=names.item_sep, exclude_keys=names.exclude_keys
        )
        if self.others:
            check_length(config)
        if self.refers:
            check_plugins(config)
        return config

    @cached_property
    def _leaves(self) -> dict[str, Any]:
        return leaves(pickle.loads(self.whole))

    def own_config(self, words: Words) -> DictConfig:
        """The config of a run without Hydra's part."""
        config: DictConfig = pickle.loads(self.own)
        self._apply(words, config)
        return config

    def _apply(self, words: Words, config: DictConfig) -> None:
        with own_alone():  # a merge resolves references
            ConfigLoaderImpl._apply_overrides_to_config([*words.values], config)


class Compositions:
    """The templates of a sweep's configs."""

    def __init__(
        self, loader: ConfigLoaderImpl, name: str | None, hydra_words: Sequence[str] = (), compose: Callable[..., DictConfig] | None = None
    ) -> None:
        self.loader, self.name, self.hydra_words = loader, name, list(hydra_words)
        self._compose = compose or loader.load_configuration
        self.templates: dict[tuple[str, ...], Template] = {}
        self.sealed = False
        """Whether no new templates are composed any more."""
        self.expected: dict[tuple[str, ...], str] | None = None
        """The digests of the only allowed configs, by the runs' typed arguments, if another process has checked them."""
        self._groups: dict[str, bool] = {}

    def words(self, typed: Sequence[str]) -> Words | None:
        """The typed arguments of a run by effect; None if only Hydra can handle them."""
        chosen: list[str] = []
        values: list[Override] = []
        for_hydra: list[str] = []
        for word in typed:
            override = parsed(word)
            key = override.key_or_group
            if key in PLAIN and override.type is OverrideType.CHANGE and override.package is None:
                for_hydra.append(word)
            first = re.match(r"\w*", key)
            if override.is_sweep_override() or first is None or (first[0] == "hydra" and word not in for_hydra):
                return None
            if first[0] == "trust" and (key != "trust" or override.type is not OverrideType.CHANGE):
                return None
            if key == "trust" or (self._is_group(key) and not isinstance(override.value(), dict)):  # as Hydra decides it
                chosen.append(word)
            else:
                values.append(override)
        return Words(tuple(chosen), tuple(values), tuple(word for word in typed if word not in for_hydra), tuple(for_hydra))

    def template(self, words: Words) -> Template:
        """The template of a run's choices. It is composed and checked at its first use."""
        found = self.templates.get(words.chosen)
        if found is None:
            if self.sealed:
                raise ValueError(CHANGED)
            all_words = [*self.hydra_words, *words.chosen]
            config = self._compose(self.name, all_words, RunMode.RUN)
            found = Template.of(config, others=self.name != "config" or has_others(self.loader, all_words))
            self._keep(words.chosen, found)
        return found

    @property
    def of_others(self) -> bool:
        """Whether files other than hetsim's or Hydra's own may be in the configs."""
        return self.name != "config" or has_others(self.loader, self.hydra_words)

    def known_template(self, typed: Sequence[str]) -> Template | None:
        """The template of a run's choices if it was composed; else None."""
        words = self.words(typed)
        return None if words is None else self.templates.get(words.chosen)

    def keep(self, typed: Sequence[str], template: Template) -> None:
        """Use this template for the choices of this run. Another process has composed it."""
        words = self.words(typed)
        if words is not None:
            self._keep(words.chosen, template)

    def _keep(self, chosen: tuple[str, ...], template: Template) -> None:
        if len(self.templates) >= MAX_TEMPLATES:
            if self.of_others:  # composed again, it might be another one
                raise ValueError(f"a sweep with configs from files has at most {MAX_TEMPLATES} different choices: make several sweeps")
            self.templates.pop(next(iter(self.templates)))
        self.templates[chosen] = template

    def _is_group(self, name: str) -> bool:
        if name not in self._groups:
            self._groups[name] = self._repository.group_exists(name)
        return self._groups[name]

    @cached_property
    def _repository(self) -> Any:
        if not self.of_others:  # no word and no file adds a folder
            return self.loader.repository
        return self.loader._parse_overrides_and_create_caching_repo(self.name, self.hydra_words)[1]


def compositions(loader: ConfigLoader, master: DictConfig) -> Compositions:
    """The templates of a sweep, from the loader and the config of the whole sweep."""
    assert isinstance(loader, ConfigLoaderImpl)
    hydra_words: Any = OmegaConf.to_container(master.hydra.overrides.hydra)
    key = (master.hydra.job.config_name, *hydra_words)
    of_loader = _known.setdefault(loader, {})
    if key not in of_loader:
        of_loader[key] = Compositions(loader, key[0], hydra_words)
    return of_loader[key]


_known: WeakKeyDictionary[ConfigLoaderImpl, dict[tuple[str | None, ...], Compositions]] = WeakKeyDictionary()


def quickly_composed(loader: ConfigLoader, master: DictConfig, typed: Sequence[str]) -> DictConfig | None:
    """The config of a sweep's run; None if Hydra must compose it from the beginning, perhaps to report an error."""
    known = compositions(loader, master)
    if known.sealed:
        return _of_template(known, master, typed)
    with contextlib.suppress(Exception):
        return _of_template(known, master, typed)
    return None


def digests(loader: ConfigLoader, master: DictConfig, runs: Sequence[Sequence[str]]) -> dict[tuple[str, ...], str] | None:
    """The digests for `check_digest`, if files that are not hetsim's own are in these runs."""
    if not compositions(loader, master).sealed:
        return None
    return {tuple(typed): _digest(loader.load_sweep_config(master, [*typed])) for typed in runs}


def check_digest(loader: ConfigLoader, master: DictConfig, typed: Sequence[str], config: DictConfig) -> None:
    """Raise ValueError if the config of a run differs from the one that the launching process has checked."""
    expected = compositions(loader, master).expected
    if expected is not None and expected.get(tuple(typed)) != _digest(config):
        raise ValueError(CHANGED)


def _digest(config: DictConfig) -> str:
    """A hash of everything that does not depend on the composing process."""
    entries = OmegaConf.to_container(config, resolve=False)
    assert isinstance(entries, dict)
    entries["hydra"]["runtime"] = entries["hydra"]["runtime"]["choices"]
    return hashlib.sha256(json.dumps(entries, default=str).encode()).hexdigest()


def _of_template(known: Compositions, master: DictConfig, typed: Sequence[str]) -> DictConfig | None:
    words = known.words(typed)
    if words is None:
        if known.sealed:
            raise ValueError(ONLY_HYDRA)
        return None
    try:
        config = known.template(words).config(words)
    except OmegaConfBaseException as error:
        raise ConfigCompositionException from error  # as Hydra's load_configuration does
    OmegaConf.copy_cache(from_config=master, to_config=config)
    return config


def own_config(loader: ConfigLoader, master: DictConfig, typed: Sequence[str], whole: DictConfig) -> DictConfig | None:
    """The same config without Hydra's part, copied from the checked whole config."""
    with contextlib.suppress(Exception):
        known = compositions(loader, master)
        words = known.words(typed)
        if words is not None:
            template = known.template(words)
            own = template.own_config(words)
            if not template.others or _unresolved(own) == _unresolved(whole):
                return own
    return None


def _unresolved(config: DictConfig) -> dict[str, Any]:
    entries = OmegaConf.to_container(config, resolve=False)
    assert isinstance(entries, dict)
    return {str(key): value for key, value in entries.items() if key != "hydra"}


def of_own_files(loader: ConfigLoaderImpl, typed: Sequence[str], compose: Callable[..., DictConfig]) -> DictConfig | None:
    """The config of a single run from hetsim's own files; None if Hydra must compose it. It raises the same errors as Hydra.

    `compose` is Hydra's `load_configuration`.
    """
    sources = tuple((element.provider, element.path) for element in loader.get_search_path().get_path())
    key = str(JobRuntime.instance().get("name")), sources, _state()
    if key not in _own:
        _own.clear()
        _own[key] = Compositions(loader, "config", compose=compose)
    known = _own[key]
    words: Words | None = None
    template: Template | None = None
    with contextlib.suppress(Exception):  # what cannot be read, chosen or kept is Hydra's to say
        words = known.words(typed)
        template = None if words is None else known.template(words)
    if words is None or template is None:
        return None
    try:
        return template.config(words)
    except OmegaConfBaseException as error:
        raise ConfigCompositionException from error  # as Hydra's load_configuration does


_own: dict[tuple[Any, ...], Compositions] = {}


def _state() -> tuple[int, ...]:
    """The state of hetsim's own files, because a config that was edited must be read again."""
    return tuple(
        path.stat().st_mtime_ns
        for folder, _, names in os.walk(configs())
        for path in (Path(folder), *(Path(folder, name) for name in names))
    )


@lru_cache(maxsize=10_000)
def parsed(word: str) -> Override:
    """An argument as Hydra reads it. Whole numbers for one key are parsed once, so only one of a sweep's thousand seeds is."""
    if (found := WHOLE.fullmatch(word)) and found[2] != "0":
        return replace(parsed(f"{found[1]}=0"), _value=int(found[2]), input_line=word)
    return OverridesParser.create().parse_overrides([word])[0]
