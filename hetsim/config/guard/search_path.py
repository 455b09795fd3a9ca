"""Whether files other than hetsim's own can be part of a config."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hydra.core.config_loader import ConfigLoader

from hetsim.trust.shipped import configs

OWN = re.compile(r"structured://|pkg://(hydra\.conf|hydra_plugins)\b")
"""The sources of Hydra's and its plugins' own configs."""
SEARCH_PATH = re.compile(r"\s*[+~]*hydra\s*(\.searchpath\b|[=@{]|$)")
"""An argument that may add a folder of configs."""


def has_others(loader: ConfigLoader, overrides: Sequence[str]) -> bool:
    """Whether files other than hetsim's or Hydra's own can be composed."""
    return any(SEARCH_PATH.match(word) for word in overrides) or has_folder_of_others(loader)


def has_folder_of_others(loader: ConfigLoader) -> bool:
    """The same, from Hydra's initial search path alone."""
    return not all(is_own(element.path) for element in loader.get_search_path().get_path())


def is_own(source: str) -> bool:
    """Whether this source of configs is hetsim's, Hydra's or an installed plugin's."""
    return source.removeprefix("file://") == str(configs()) or OWN.match(source) is not None
