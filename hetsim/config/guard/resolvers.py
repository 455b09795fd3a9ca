"""Which resolvers a config calls: beside files from outside, those of hetsim's own files, and those that were typed.

`config/guard/references.py` refuses the text of a reference in a file. This is the second wall, where references are evaluated. However a
text comes into a config, OmegaConf calls only resolvers that read keys and environment variables.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig
from omegaconf.base import Container
from omegaconf.errors import UnsupportedInterpolationType

OWN = ("hetsim.folder", "hetsim.name", "hydra", "now", "oc.env", "oc.decode")
"""The resolvers of hetsim's and Hydra's own files, and those of files from outside."""
CALLED = re.compile(r"\$\{\s*([\w.]+)\s*:")
OF_OTHERS = "has_files_of_others"
"""The flag of a config that was composed from files from outside, too. A copy of a config has its flags."""

_composing: list[None] = []
_evaluate = Container._evaluate_custom_resolver


def restrict(config: DictConfig, typed: Sequence[str]) -> None:
    """From now on this config calls no resolvers but hetsim's own and those of these words."""
    config._set_flag([OF_OTHERS, *(f"calls {name}" for word in typed for name in CALLED.findall(word))], True)


def keep_restricted(config: DictConfig, like: DictConfig) -> None:
    """Restrict a config, to which part of another one was copied, as the other one is."""
    config._set_flag([name for name in _flags(like) if name.startswith((OF_OTHERS, "calls "))], True)


@contextlib.contextmanager
def keys_alone() -> Iterator[None]:
    """While this lasts, as Hydra composes files from outside, a reference to anything but keys and environment variables fails."""
    _composing.append(None)
    try:
        yield
    finally:
        _composing.pop()


def _flags(config: Container) -> Mapping[str, bool | None]:
    return config._metadata.flags or {}


def _checked(self: Container, key: Any, node: Any, inter_type: str, inter_args: Any, inter_args_str: Any) -> Any:
    flags = _flags(self._get_root())
    if inter_type not in OWN and (_composing or flags.get(OF_OTHERS)) and not flags.get(f"calls {inter_type}"):
        raise UnsupportedInterpolationType(f"a config beside files of others does not call {inter_type}: write the value out, or type it")
    return _evaluate(self, key, node, inter_type, inter_args, inter_args_str)


# On import, and for a config without the flag it is OmegaConf's own.
Container._evaluate_custom_resolver = _checked  # type: ignore[method-assign]
