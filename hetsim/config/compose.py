"""From words to the resolved config of a run. It is resolved once, and handed on to all that start, name, resume and describe the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hetsim.config.compositions import Compositions, Entries, parsed, resolved_once, without_hydra, written_out
from hetsim.config.errors import USERS, sentence
from hetsim.config.resolved import resolved
from hetsim.config.resumed import resumed
from hetsim.config.typed import words_and_choices
from hetsim.config.yaml_text import as_yaml
from hetsim.errors import RunFailed
from hetsim.files.identity import config_header, folder_name, identity_of, legal


@dataclass(frozen=True)
class Composed:
    """A run's config: what was typed, and what it stands for."""

    words: tuple[str, ...]
    """The typed words of the config itself, without those for Hydra."""
    entries: Entries
    """The config in SI units, without references."""
    identity: str
    """The identity of the run."""
    folder: Path
    """The folder of the run's files."""

    @cached_property
    def text(self) -> str:
        """The text of the run's config.yaml."""
        return config_header(self.identity, self.words) + as_yaml(self.entries)


def composed(
    words: Sequence[str], *, config_dir: str | Path | None = None, folder: str | Path | None = None, sweep: str | Path | None = None
) -> Composed:
    """The config of a run. Raises ValueError with one sentence if the words make none.

    Args:
        words: the words, also those for Hydra.
        config_dir: a folder of further choices, as the command's --config-dir.
        folder: the folder of the run; by default that of `hydra.run.dir`.
        sweep: for a run of several: the folder that contains theirs.
    """
    try:
        words, choices = words_and_choices(words, config_dir)
        if sweep is not None:
            return run_of_sweep(choices, words, Path(sweep))
        return run_of(choices, words, Path(written_out(choices.config(words), "hydra.run.dir") if folder is None else folder))
    except RunFailed:
        raise
    except USERS as error:
        raise ValueError(sentence(error)) from None


def entries_as_typed(words: Sequence[str], config_dir: str | Path | None = None) -> Entries:
    """The entries of a run with quantities and names of GPUs as they were typed. Raises ValueError as `composed` does."""
    try:
        words, choices = words_and_choices(words, config_dir)
        return choices.entries(words)
    except USERS as error:
        raise ValueError(sentence(error)) from None


def run_of(choices: Compositions, words: Sequence[str], folder: Path) -> Composed:
    """The config of a single run in this folder, or of the run that it resumes."""
    entries = _entries(choices, words)
    typed = _own(words)
    entries = resumed(entries, typed, folder)
    return Composed(typed, entries, identity_of(entries), folder)


def run_of_sweep(choices: Compositions, words: Sequence[str], sweep: Path, name: str | None = None) -> Composed:
    """The config of a run in this folder of the sweep, by default in one whose name says what the run is."""
    entries = _entries(choices, words)
    if entries.get("resume") is not None:
        raise ValueError("resume continues a single run: leave -m out")
    identity = identity_of(entries)
    return Composed(_own(words), entries, identity, sweep / (name or folder_name(entries, identity)))


def _entries(choices: Compositions, words: Sequence[str]) -> Entries:
    entries = resolved(choices.entries(words))
    check_trust(entries, words)
    return entries


def _own(words: Sequence[str]) -> tuple[str, ...]:
    """The words that are not for Hydra."""
    return tuple(word for word in words if not parsed(word).is_hydra_override())


def check_trust(entries: Mapping[str, Any], words: Sequence[str]) -> None:
    """Raise ValueError if the config trusts other modules than those that were typed."""
    typed: Any = next((parsed(word).value() for word in reversed(words) if parsed(word).key_or_group == "trust"), None)
    if (entries.get("trust") or []) != (typed or []):
        raise ValueError("trust is set by a config file, but only the command line may set it: type it there")


def entries_of(config: DictConfig) -> Entries:
    """The entries of a config that Hydra has composed. Raises ValueError if a value is missing, or a reference has no target."""
    try:
        return resolved(resolved_once(without_hydra(config)))
    except OmegaConfBaseException as error:
        raise ValueError(sentence(error)) from None


def _name_of_folder(config: DictConfig) -> str:
    entries = entries_of(config)
    return folder_name(entries, identity_of(entries))


def _name(key: str, config: DictConfig) -> str:
    """A key's value as a legal part of a file name, of at most 100 letters."""
    return legal(OmegaConf.select(config, key, throw_on_missing=True), max_letters=100)


# On import, as the names of folders in conf/config.yaml refer to them.
OmegaConf.register_new_resolver("hetsim.folder", lambda *, _root_: _name_of_folder(_root_), replace=True)
OmegaConf.register_new_resolver("hetsim.name", lambda key, *, _root_: _name(key, _root_), replace=True)
