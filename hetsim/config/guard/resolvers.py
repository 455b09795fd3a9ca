"""Restrict the resolvers that a config calls to hetsim's and Hydra's, for their own files and for typed folders.

`config/guard/references.py` refuses the text of a reference in a file and in what was typed. This is the second wall, where references are
evaluated: however a text comes into a config, OmegaConf's other resolvers, which read variables and evaluate texts, are not called.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig
from omegaconf.base import Container
from omegaconf.errors import UnsupportedInterpolationType

OWN = ("hetsim.folder", "hetsim.name", "hydra", "now")
RESTRICTED = "calls_own_resolvers"
"""The flag of a config that hetsim has composed. Copies of the config keep it."""

_composing: list[None] = []
_evaluate = Container._evaluate_custom_resolver


def restrict(config: DictConfig) -> DictConfig:
    """The same config, which from now on calls only these resolvers."""
    config._set_flag(RESTRICTED, True)
    return config


@contextlib.contextmanager
def own_alone() -> Iterator[None]:
    """Within this context, in which Hydra composes files, the same restriction holds for every config."""
    _composing.append(None)
    try:
        yield
    finally:
        _composing.pop()


def _checked(self: Container, key: Any, node: Any, inter_type: str, inter_args: Any, inter_args_str: Any) -> Any:
    if inter_type not in OWN and (_composing or (self._get_root()._metadata.flags or {}).get(RESTRICTED)):
        raise UnsupportedInterpolationType(f"a config does not call {inter_type}: write the value out")
    return _evaluate(self, key, node, inter_type, inter_args, inter_args_str)


# On import, and for a config without the flag it is OmegaConf's own.
Container._evaluate_custom_resolver = _checked  # type: ignore[method-assign]
