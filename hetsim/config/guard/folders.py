"""Output folders. Untrusted config values can only set the file name.

A typed `hydra.run.dir=runs/${method}` shows the value of `method`, which a config file may have set to `x/../../elsewhere`. So a value
has a place in a folder's name only as a legal part of a file name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, flag_override

from hetsim import checks
from hetsim.config.guard.references import FOLDERS
from hetsim.files.config_file import flattened
from hetsim.files.identity import legal

REFERENCE = re.compile(r"\$\{([^${}]*)\}")
PLAIN = re.compile(r"now:.*|hetsim\.(folder|name):.*|hydra[:.](runtime\.(cwd|output_dir)|run\.dir|sweep\.dir)")
"""References on which no config file from outside has an influence."""
PLAIN_PATH = r"[\w.+@:/-]*"
"""A path that needs no quotes in scripts or Slurm's lists."""
KEY = re.compile(r"(hydra:)?([\w.\[\]]+)")


def check_folder(key: str, folder: str | Path) -> None:
    """Raise ValueError if a folder's name contains more than a name: a reference to Hydra, or a line of a scheduler's script."""
    if re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", str(folder)):
        raise ValueError(f"{key} is {checks.printable(str(folder))}, whose name has control characters: work in a folder of another name")
    if "${" in str(folder):
        raise ValueError(f"{key} is {folder}, in which Hydra would take ${{…}} for a reference: work in a folder of another name")


def check_script_folder(folder: Path) -> None:
    """Raise ValueError if a scheduler's script, with its own rules for quotes, cannot contain this folder's name."""
    if odd := re.search(r"[^\w .,+@:=/-]", str(folder)):
        raise ValueError(f"{checks.printable(str(folder))} has {odd[0]!r} in its name, which a job's script may take for more: rename it")


def check_script(config: DictConfig) -> None:
    """Raise ValueError if a launcher's settings, which become lines of a script, may contain a folder's name."""
    odd = [str(path) for path in (Path.cwd(), Path(config.hydra.sweep.dir).absolute()) if not re.fullmatch(PLAIN_PATH, str(path))]
    for key, value in flattened(OmegaConf.to_container(config.hydra.launcher, resolve=False)):
        for name in odd:
            if any(name in text for text in _texts(value)):
                raise ValueError(
                    f"hydra.launcher.{key} has {name}, which a job's script may take for more: work in a folder of a plain name"
                )


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from (text for each in (*value, *value.values()) for text in _texts(each))
    elif isinstance(value, list):
        yield from (text for each in value for text in _texts(each))


def check_no_links(folder: Path) -> None:
    """Raise ValueError if Hydra would write its own files or a log through a link or a pipe in this folder."""
    for path in (folder, *checks.entries_below(folder)):
        if path.is_symlink() or (path.exists() and not (path.is_file() or path.is_dir())):
            raise ValueError(f"{path} is a link or a pipe, and would be written through: remove it")


def let_values_be_names(config: DictConfig) -> None:
    """Replace `${key}` by `${hetsim.name:key}` in the folders of a config that was read from other files, too."""
    for folder in FOLDERS:
        template = _unresolved(config, folder)
        if isinstance(template, str) and "${" in template:
            with flag_override(config, ["readonly", "struct"], False):
                OmegaConf.update(config, folder, REFERENCE.sub(_as_name, template))


def _unresolved(config: DictConfig, key: str) -> Any:
    node: Any = config
    for part in key.split("."):
        node = node._get_node(part)
    return node._value()


def _as_name(reference: re.Match[str]) -> str:
    if PLAIN.fullmatch(reference[1]):
        return reference[0]
    key = KEY.fullmatch(reference[1])
    assert key is not None, reference[0]  # by `check_words`
    return f"${{hetsim.name:{'hydra.' if key[1] else ''}{key[2]}}}"


def name(key: str, *, config: DictConfig) -> str:
    """A key's value as a legal part of a file name, of at most 100 letters."""
    return legal(OmegaConf.select(config, key, throw_on_missing=True), max_letters=100)


# On import, as the names of folders refer to it.
OmegaConf.register_new_resolver("hetsim.name", lambda key, *, _root_: name(key, config=_root_), replace=True)
