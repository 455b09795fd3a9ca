"""Environment variables in a config: files get the reference `${oc.env:NAME}`, never the value."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from omegaconf.resolvers import oc

SHOWN = ("method", "seed", "cluster.name", "workload.name")
"""Keys whose values name folders, tables and pictures."""
SHORT = 4
"""Values of fewer letters are not looked for in the text of an error: they would be found everywhere."""

_ABSENT = object()


def without_values(config: DictConfig, *, shown: Sequence[str] = SHOWN) -> tuple[dict[str, Any], dict[str, str]]:
    """The resolved config with a reference where a value depends on the environment; and a hash of each such value, by its key.

    A value depends on the environment if it is another one as soon as each variable has another value. It is written as it stands
    in the config, so that the written config can be read again. ValueError if a key of `shown` depends on it.
    """
    real = OmegaConf.to_container(config, resolve=True)
    again = config.copy()
    OmegaConf.clear_cache(again)  # of `now`, whose text may hold a variable
    other: Any = _ABSENT
    with contextlib.suppress(OmegaConfBaseException), _resolver(lambda name, *_: f"another value of {name}"):
        other = OmegaConf.to_container(again, resolve=True)
    hashes: dict[str, str] = {}
    written = _written(config, real, other, "", hashes)
    for key in shown:
        if key in hashes:
            raise ValueError(f"{key} must not come from an environment variable, as folders and files show it: write it out")
    return {str(key): value for key, value in written.items()}, hashes


def hidden(text: str, config: DictConfig) -> str:
    """A text with references in the place of the values of the environment variables that the config reads."""
    values: dict[str, str] = {}

    def record(name: str, default: Any = _ABSENT) -> Any:
        values[name] = os.environ.get(name, "")
        return oc.env(name) if default is _ABSENT else oc.env(name, default)

    with _resolver(record):
        for key in config:
            with contextlib.suppress(OmegaConfBaseException):
                part = config[key]
                if OmegaConf.is_config(part):
                    OmegaConf.to_container(part, resolve=True)
    for name, value in sorted(values.items(), key=lambda item: -len(item[1])):
        text = text.replace(value, f"${{oc.env:{name}}}") if len(value) >= SHORT else text
    return text


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
    """While this lasts, `oc.env` is another function."""
    OmegaConf.register_new_resolver("oc.env", resolver, replace=True)
    try:
        yield
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)
