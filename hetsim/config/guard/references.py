"""What a value of a config may refer to: other keys, as `${key}`. Where runs go, which is typed, may refer to Hydra's and to the time, too.

OmegaConf's and Hydra's resolvers evaluate texts, climb out of the config and read environment variables, which a stranger would have
written out. What a variable holds is a plain value once the shell has expanded it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from omegaconf import AnyNode, DictConfig, ListConfig, Node

from hetsim import checks

ALLOWED = re.compile(r"\$\{\.*(?!hydra\b)\w+((\.|\[)(?!hydra\b)\w+\]?){0,30}\}")
FOLDERS = ("hydra.run.dir", "hydra.sweep.dir", "hydra.sweep.subdir")
"""Hydra's keys of output folders."""
IN_FOLDERS = re.compile(r"\$\{(now:[^${}]*|hetsim\.(name|folder):[\w.]*|hydra[:.][\w.]+)\}")
"""Further references that are allowed in a typed folder."""
VARIABLE = re.compile(r"\$\{oc\.env:\s*(\w+)")
KEY = re.compile(r"\$\{([\w.\[\]]+)\}")
NAME = re.compile(r"[A-Za-z0-9_][\w./+-]*", re.ASCII)
"""A plain name of a choice."""
PLAIN_KEY = re.compile(r"[\w.+~/@-]+")
"""A key of a mapping. A key of `sweeper.params` may have the prefix and suffix of a command-line key."""
CHOICE = re.compile(r"\$\{[\w/@]+\}")
"""A reference in a defaults list to the choice of another group."""
MAX_LETTERS = 10_000_000
"""The maximum length of all values of a config, with references written out."""
EMPTY = AnyNode(None)


def check_references(key: str, value: Any, file: object, remedy: str = "write the value out there, or type it") -> None:
    """Raise ValueError if a text of a file, at any depth, contains another reference."""
    for name, part in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        check_references(f"{key}.{name}".lstrip("."), part, file, remedy)
    if isinstance(value, str) and "${" in ALLOWED.sub("", value):
        raise ValueError(f"{file} has a reference in {key} that is no ${{key}}: {remedy}")


def check_words(words: Iterable[str]) -> None:
    """Raise ValueError if an argument of the command line contains another reference."""
    for word in words:
        text = word.replace("\\", "")  # Hydra reads an escaped brace as a brace
        if "${" not in text:
            continue
        key, _, value = text.lstrip("+~").partition("=")
        rest = ALLOWED.sub("", IN_FOLDERS.sub("", text) if key in FOLDERS else text)
        for_hydra = re.match(r"hydra\b", key) and key not in FOLDERS
        if (found := VARIABLE.search(rest)) and not for_hydra:
            told = f"{key} has {checks.printable(value)}: hetsim reads no environment variables"
            raise ValueError(f"{told}, so let the shell expand it, as in {key}=${found[1]}")
        if "${" in rest or for_hydra:
            told = f"{key} has {checks.printable(value)}: write the value out"
            raise ValueError(told if for_hydra else f"{told}, or refer to a key of the config as ${{key}}")


def check_keys(value: Any, file: object) -> None:
    """Raise ValueError if a key of a file, at any depth, is more than a name."""
    for name, part in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        if isinstance(name, str) and not PLAIN_KEY.fullmatch(name):
            raise ValueError(f"{file} has the key {checks.shown(name)}, which is not a plain name: leave it out")
        check_keys(part, file)


def check_choices(default: object, file: object) -> None:
    """Raise ValueError if an entry of a file's defaults list refers to anything but another group."""
    if re.search(r"[$\\]", CHOICE.sub("", " ".join(str(part) for part in vars(default).values()))):
        raise ValueError(f"{file} has a reference in its defaults list that is no ${{group}}: write the choice out")


def check_chosen(choices: Mapping[Any, Any]) -> None:
    """Raise ValueError if the name of a choice, which Hydra keeps in the config, has a further meaning there."""
    for group, name in choices.items():
        if name is not None and not NAME.fullmatch(str(name)):
            raise ValueError(f"{group}={checks.shown(str(name))} is not a plain name of a choice: rename its file")


def check_length(config: DictConfig) -> None:
    """Raise ValueError if a config is too large with its references written out, because a few lines may multiply at each step."""
    lengths: dict[int, int] = {}

    def length(node: Any) -> int:
        if id(node) not in lengths:
            lengths[id(node)] = 0  # a circle is an error of its own
            value = node._value()
            if isinstance(value, str):
                lengths[id(node)] = len(value) + sum(length(_target(node, found[1])) for found in KEY.finditer(value))
            elif isinstance(value, dict | list):
                lengths[id(node)] = 1 + sum(map(length, value.values() if isinstance(value, dict) else value))
        return lengths[id(node)]

    try:
        total = length(config)
    except RecursionError:
        raise ValueError("a key refers to another through hundreds of others: write its value out") from None
    if total > MAX_LETTERS:
        raise ValueError(f"with its references written out, the config would have {total} letters: shorten it")


def _target(node: Node, reference: str) -> Any:
    """The target of a reference from this node, as far as it can be followed without evaluating other references."""
    dots = len(reference) - len(reference.lstrip("."))
    at: Any = node._get_root() if not dots else node
    for _ in range(dots):
        at = at._get_parent() or at
    for part in filter(None, re.split(r"[.\[\]]+", reference)):
        if not isinstance(at, DictConfig | ListConfig) or not isinstance(at._value(), dict | list):
            return at
        at = at._get_node(int(part) if isinstance(at, ListConfig) and part.isdigit() else part, validate_access=False)
        if at is None:
            return EMPTY
    return at
