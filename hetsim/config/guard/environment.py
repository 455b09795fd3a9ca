"""Environment variables in a config: files get the reference `${oc.env:NAME}`, never the value."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from omegaconf.resolvers import oc

from hetsim.config.guard.resolvers import keys_alone

SHOWN = ("method", "seed", "cluster.name", "cluster.calibrated", "workload.name")
"""Keys whose values name folders, tables and pictures."""
SHORT = 4
"""Values of fewer letters are not looked for in the text of an error: they would be found everywhere."""
PART = 12
"""A part of a value of so many letters, or of half of it, is not shown in the text of an error."""
LONGEST = 20_000
"""Letters of a text that are looked through, and shown; a value that is cut off there is looked for too."""
COMPONENT = 8
"""What stands between two signs of a value and has so many letters, or a digit, is looked for by itself."""

# OmegaConf warns of an empty element in a list that it decodes, and quotes the list, which may be the value of a variable.
warnings.filterwarnings("ignore", message="In the sequence ", module="omegaconf")

_ABSENT = object()
_resolvers: list[Callable[..., Any]] = [oc.env]
"""What `oc.env` is, and below it what it was before."""


def without_values(config: DictConfig, *, shown: Sequence[str] = SHOWN) -> tuple[dict[str, Any], dict[str, str]]:
    """The resolved config with a reference where a value depends on the environment; and a hash of each such value, by its key.

    A value depends on the environment if it is another one as soon as each variable has another value. It is written as it stands
    in the config, so that the written config can be read again. ValueError if a key of `shown` depends on it.
    """
    with recording_variables() as read:
        real: Any = OmegaConf.to_container(config, resolve=True)
    if not read:
        return {str(key): value for key, value in real.items()}, {}
    again = config.copy()
    OmegaConf.clear_cache(again)  # of `now`, whose text may hold a variable
    other: Any = _ABSENT
    with contextlib.suppress(OmegaConfBaseException), _resolver(lambda name, *_: f"another value of {name}"):
        other = OmegaConf.to_container(again, resolve=True)
    hashes: dict[str, str] = {}
    written = _written(config, real, other, "", hashes)
    check_shown(hashes, shown)
    return {str(key): value for key, value in written.items()}, hashes


def check_shown(hashes: Mapping[str, str], shown: Sequence[str] = SHOWN) -> None:
    """ValueError with one sentence if one of these keys depends on the environment, by the hashes of what does."""
    for key in shown:
        below = (f"{key}.", f"{key}[")
        if any(f"{key}.".startswith(f"{changed}.") or changed.startswith(below) for changed in hashes):
            raise ValueError(f"{key} must not come from an environment variable, as folders and files show it: write it out")


def hidden(text: str, config: DictConfig) -> str:
    """A text with references in the place of the values of the environment variables that the config reads."""
    with recording_variables() as values:
        for key in config:
            with contextlib.suppress(OmegaConfBaseException):
                part = config[key]
                if OmegaConf.is_config(part):
                    OmegaConf.to_container(part, resolve=True)
    text = f"{text[:LONGEST]} …" if len(text) > LONGEST else text
    parts = [(name, part) for name, value in values.items() for part in {value, " ".join(value.split()), *_words(value), repr(value)[1:-1]}]
    for name, part in sorted(parts, key=lambda item: -len(item[1])):
        text = _masked(text, part, f"${{oc.env:{name}}}") if len(part) >= SHORT else text
    for name, value in values.items():
        for part in sorted(_components(value), key=len, reverse=True):
            text = text.replace(part, f"${{oc.env:{name}}}")
    return text


def _words(value: str) -> list[str]:
    """The words of a value that is a list or a sentence: a config may take it apart."""
    return re.findall(r"[\w.+/=-]+", value) if re.search(r"[\s\"'\[\]{},]", value) else []


def _components(value: str) -> list[str]:
    """What stands between the signs of a value, as a password in a URL does, but for short words."""
    parts = {*re.split(r"[\s:/@;,&?=]+", value), *re.findall(r"\w+", value)}
    return [part for part in parts if len(part) >= COMPONENT or (len(part) >= SHORT and any(map(str.isdigit, part)))]


def _masked(text: str, value: str, reference: str) -> str:
    """The text with a reference in the place of the value, and of every long enough part of it: a sentence may cut or quote it."""
    for cut in [found.start() for found in re.finditer(" …", text)][::-1]:
        begun = next((size for size in range(min(len(value), cut), 0, -1) if text[:cut].endswith(value[:size])), 0)
        text = text[: cut - begun] + reference * (begun > 0) + text[cut:]
    length = max(SHORT, min(PART, len(value) // 2))
    masked, at = list[str](), 0
    while at < len(text):
        end = at + length
        if text[at:end] not in value or end > len(text):
            masked.append(text[at])
            at += 1
            continue
        while end < len(text) and text[at : end + 1] in value:
            end += 1
        masked.append(reference)
        at = end
    return "".join(masked)


@contextlib.contextmanager
def without_variables() -> Iterator[None]:
    """While this lasts, a config that needs the value of an environment variable, or what another resolver says, fails."""

    def refuse(name: str, *_: Any) -> Any:
        raise ValueError(f"the environment variable {name} cannot say what a config is made of")

    with _resolver(refuse), keys_alone():
        yield


@contextlib.contextmanager
def recording_variables() -> Iterator[dict[str, str]]:
    """While this lasts, the values of the environment variables that a config reads, by their names; "" for one that is not set."""
    values: dict[str, str] = {}
    outer = _resolvers[-1]

    def record(name: str, *default: Any) -> Any:
        values[name] = os.environ.get(name, "")
        return outer(name, *default)

    with _resolver(record):
        yield values


def _written(node: Any, real: Any, other: Any, key: str, hashes: dict[str, str]) -> Any:
    """What is written of a node: its resolved value, or the reference that it is, if another environment gives another value."""
    if real == other and type(real) is type(other):
        return real
    if node._is_interpolation():
        hashes[key] = hashlib.scrypt(repr(real).encode(), salt=key.encode(), n=2**14, r=8, p=1, dklen=6).hex()  # slow to try out
        return node._value()
    if isinstance(node, DictConfig):
        there = other if isinstance(other, dict) else {}
        return {
            name: _written(node._get_node(name), real[name], there.get(name, _ABSENT), f"{key}.{name}".lstrip("."), hashes) for name in real
        }
    if isinstance(node, ListConfig):
        others = other if isinstance(other, list) else []
        others = [*others, *[_ABSENT] * len(real)]
        return [_written(node._get_node(i), value, others[i], f"{key}[{i}]", hashes) for i, value in enumerate(real)]
    return real


@contextlib.contextmanager
def _resolver(resolver: Callable[..., Any]) -> Iterator[None]:
    """While this lasts, `oc.env` is another function; it may be within another `with`, as names of folders are resolved at any time."""
    _resolvers.append(resolver)
    OmegaConf.register_new_resolver("oc.env", resolver, replace=True)
    try:
        yield
    finally:
        _resolvers.pop()
        OmegaConf.register_new_resolver("oc.env", _resolvers[-1], replace=True)
