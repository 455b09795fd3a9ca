"""Folders of configs: hetsim's own, and those of anybody else, whose files set plain values and choose from hetsim's groups.

Hydra reads a folder by a source. It imports and calls what its own part of a config says, and resolvers read environment variables. So a
file that is not hetsim's own says nothing to Hydra, and trusts no module.
"""

from __future__ import annotations

import re
import stat
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import OmegaConf
from omegaconf._utils import get_yaml_loader

from hetsim import checks

OTHERS = "command-line"
"""The provider of folders that are not hetsim's, in Hydra's words."""
NAME = re.compile(r"([\w-]+/)*\w[\w.+-]*")
"""A config by its path: the names of groups, and of a file."""
DEFAULT = re.compile(r"((optional|override) )*/?([\w-]+/)*\w[\w.+-]*(@[\w.]+)?")
"""A group or a config in a defaults list."""
CHOICE = re.compile(r"\w[\w.+/-]*|\$\{[\w/@]+\}")
"""The choice from a group in a defaults list, or a reference to the choice from another group."""
REFERENCE = re.compile(r"\$\{\.*\w+(\.\w+|\[\w+\])*\}")
"""A reference to another key."""
RESERVED = {"hydra", "trust"}
"""Keys that only the command line sets."""
TYPED_ALONE = "which only the command line may set: leave it out there, and type it yourself"
"""The end of the sentence about such a key."""
KEYWORD = re.compile(r"_(global|group|here|name)_")
"""A part of a package for which Hydra puts another text, also within a longer name."""
MAX_BYTES = 10**7
"""The maximum length of a file: enough for a cluster of 50,000 nodes that are described one by one."""
Names = list[str]

read_files: list[tuple[Path, int]] = []
"""The files that were read since this list was cleared, each with its time of change."""


class OwnFiles(FileConfigSource):
    """hetsim's own configs. libyaml reads them in a fraction of the time that OmegaConf takes."""

    def is_config(self, config_path: str) -> bool:
        """Whether this is a file of hetsim's, and no path out of its folder: nothing here is checked as it is read."""
        return NAME.fullmatch(config_path) is not None and super().is_config(config_path)

    def load_config(self, config_path: str) -> ConfigResult:
        """Read a config."""
        file = Path(self.path, self._normalize_file_name(config_path))
        text = text_of(file)
        entries = yaml.load(text, _fast_loader()) or {}
        return ConfigResult(self.provider, self.full_path(), OmegaConf.create(entries), self._get_header_dict(text))


class OthersFiles(FileConfigSource):
    """Anybody else's configs."""

    def load_config(self, config_path: str) -> ConfigResult:
        """Read a config. Raises ValueError if it says more than it may."""
        file = Path(self.path, self._normalize_file_name(config_path))
        text = text_of(file)
        entries = yaml_in(text, file) or {}
        header = self._get_header_dict(text)
        check_config(file, config_path, header["package"] or "", entries)
        return ConfigResult(self.provider, self.full_path(), OmegaConf.create(entries), header)

    def list(self, config_path: str, results_filter: ObjectType | None) -> Names:
        """The choices with plain names, because a choice becomes a word of a run."""
        return [name for name in super().list(config_path, results_filter) if NAME.fullmatch(name)]


def yaml_in(text: str, file: Path) -> Any:
    """The data in a file's text, as OmegaConf reads it. An error names the file."""
    try:
        return yaml.load(text, get_yaml_loader())
    except yaml.MarkedYAMLError as error:
        if error.problem_mark is not None:
            error.problem_mark.name = str(file)
        raise


def text_of(file: Path) -> str:
    """The text of a config. Raises ValueError for a file that is none, or too large."""
    status = file.stat()
    if not stat.S_ISREG(status.st_mode):  # a pipe or a terminal would be waited for
        raise ValueError(f"{file} is not a file that can be read: move it away")
    if status.st_size > MAX_BYTES:
        raise ValueError(f"{file} has {status.st_size} bytes, and a config at most {MAX_BYTES}: shorten it")
    read_files.append((file, status.st_mtime_ns))
    return file.read_text(encoding="utf-8")


@cache
def _fast_loader() -> type:
    """OmegaConf's rules for numbers and texts, with libyaml's parser if PyYAML has it."""
    loader = get_yaml_loader()
    fast = getattr(yaml, "CSafeLoader", None)
    return loader if fast is None else type("Loader", (fast,), {"yaml_implicit_resolvers": loader.yaml_implicit_resolvers})


def checked_source(source: ConfigSource) -> ConfigSource:
    """A source of the same configs: hetsim's own, or anybody else's, whose files are checked."""
    if source.scheme() != FileConfigSource.scheme():  # Hydra imports its plugins once more, so their classes differ
        return source
    kind = OthersFiles if source.provider == OTHERS else OwnFiles
    return kind(source.provider, f"file://{source.path}")


def check_config(file: Path, name: str, package: str, entries: Any) -> None:
    """Raise ValueError unless a config sets plain values of hetsim's keys.

    Args:
        file: the file, for the error.
        name: the config's name, by which Hydra found it.
        package: the key in its header under which its content is put; empty: that of its group.
        entries: its content.
    """
    if not NAME.fullmatch(name):
        raise ValueError(f"{checks.printable(str(file))} is not a plain name of a config: rename its file")
    if not isinstance(entries, dict):
        raise ValueError(f"{file} must be a mapping of keys, not {checks.shown(entries)}: write 'key: value' lines")
    for default in entries["defaults"] if isinstance(entries.get("defaults"), list) else ():
        _check_default(file, default)
    reserved = {key for key in RESERVED & entries.keys() if key != "trust" or entries[key]}  # a run's config.yaml trusts no module
    for key in reserved or _reserved(f"{name}/{package}"):
        raise ValueError(f"{file} sets {key}, {TYPED_ALONE}")
    check_plain({key: value for key, value in entries.items() if key != "defaults"}, file)


def _check_default(file: Path, default: Any) -> None:
    """Raise ValueError for an entry of a defaults list that leads out of the folders of configs, or to Hydra's own configs."""
    for group, choice in default.items() if isinstance(default, dict) else [(default, None)]:
        choices = [str(name) for name in (choice if isinstance(choice, list) else [choice]) if name is not None]
        text = " ".join([str(group), *choices])
        if not DEFAULT.fullmatch(str(group)) or not all(map(CHOICE.fullmatch, choices)) or ".." in text or _reserved(text):
            raise ValueError(f"{file} has {checks.shown(text)} in its defaults list, which is no choice of hetsim's: leave it out there")


def _reserved(text: str) -> set[str]:
    """The reserved keys among the names in a text, with each name that Hydra would take apart, as `_global_xhydra` and `hyd_group_`."""
    names = set(re.split(r"[^\w-]+", text))
    return RESERVED & names | {name for name in names if KEYWORD.search(name) and not KEYWORD.fullmatch(name)}


def check_plain(value: Any, file: object, key: str = "", remedy: str = "write the value out there, or type it") -> None:
    """Raise ValueError unless this is plain data, whose texts can be printed and have no references other than ${key}."""
    for name, part in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        check_plain(name, file, key, remedy)
        check_plain(part, file, f"{key}.{name}".lstrip("."), remedy)
    where = f"{file} has {{}} in {checks.printable(key) or 'a key'}"
    if not isinstance(value, dict | list | str | int | float | None):
        raise ValueError(f"{where.format(checks.shown(value))}: leave its YAML tag out")
    if isinstance(value, str) and not value.isprintable():
        raise ValueError(f"{where.format(checks.shown(value))}: leave out the letters that cannot be printed")
    if isinstance(value, str) and ("${" in REFERENCE.sub("", value) or any(_reserved(match[0]) for match in REFERENCE.finditer(value))):
        raise ValueError(f"{where.format('a reference')} that is no ${{key}}: {remedy}")
