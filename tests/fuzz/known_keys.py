"""What a config may hold, read from the schema itself: conf/, the signatures of the classes that it names, the parser of clusters."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any
from unittest import mock

import pages
import yaml
from omegaconf import OmegaConf

from hetsim import checks
from hetsim.cluster.parse.cluster import parse_cluster
from hetsim.cluster.parse.values import LINKS
from hetsim.trust.shipped import configs

__all__ = ["LINKS", "configs"]

CLUSTER_PAGE = pages.page("cluster.md")


@cache
def groups() -> dict[str, tuple[str, ...]]:
    """Each group of conf/ with its choices."""
    folders = sorted(path for path in configs().iterdir() if path.is_dir())
    return {folder.name: tuple(sorted(path.stem for path in folder.glob("*.yaml"))) for folder in folders}


@cache
def written(group: str, choice: str) -> dict[str, Any]:
    """The file of a choice, as it stands; of no group: conf/config.yaml itself."""
    loaded = OmegaConf.to_container(OmegaConf.load(configs() / group / f"{choice}.yaml"))
    assert isinstance(loaded, dict)
    return {str(key): value for key, value in loaded.items()}


@cache
def leaves() -> dict[str, tuple[Any, ...]]:
    """Every key that a shipped config gives a value, at any depth, with these values; those of Hydra are not among them."""
    found: dict[str, list[Any]] = {}
    files = [("", written("", "config")), *((group, written(group, choice)) for group, choices in groups().items() for choice in choices)]
    for group, file in files:
        package = "" if group in ("method", "experiment") else group
        for key, value in _walk(file, package):
            if key.split(".")[0] not in ("defaults", "hydra"):
                found.setdefault(key, []).append(value)
    return {key: tuple(values) for key, values in found.items()}


def _walk(entry: Any, key: str) -> Iterator[tuple[str, Any]]:
    if isinstance(entry, Mapping) and entry:
        for name, value in entry.items():
            yield from _walk(value, f"{key}.{name}" if key else str(name))
    elif key:
        yield key, entry


def fitting(choices: Mapping[str, str]) -> list[str]:
    """The leaves that a config with these choices of groups has, as far as the files of the choices tell."""
    inside = {group for group in groups() if group not in ("method", "experiment")}
    having = {key for group in inside & set(choices) for key in _leaves_of(group, choices[group])}
    return [key for key in leaves() if key.split(".")[0] not in inside or key in having]


def having(group: str, key: str) -> list[str]:
    """The choices of a group whose files have a key."""
    return [choice for choice in groups().get(group, ()) if key in _leaves_of(group, choice)]


@cache
def _leaves_of(group: str, choice: str) -> tuple[str, ...]:
    return tuple(key for key, _ in _walk(written(group, choice), group))


@cache
def targets() -> dict[tuple[str, str], str]:
    """The class that each choice of each group names, by group and choice."""
    named = {(group, choice): written(group, choice).get("_target_") for group, choices in groups().items() for choice in choices}
    return {place: target for place, target in named.items() if target is not None}


@cache
def fields(target: str) -> dict[str, str]:
    """What a class is built from: the names of its arguments, each with its annotation."""
    module, _, name = target.rpartition(".")
    parameters = inspect.signature(getattr(importlib.import_module(module), name)).parameters.values()
    named = [parameter for parameter in parameters if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)]
    return {parameter.name: "" if parameter.annotation is parameter.empty else str(parameter.annotation) for parameter in named}


@cache
def subclasses(module: str, base: str) -> tuple[str, ...]:
    """The dotted names of a module's public classes of one kind, such as torch's optimizers."""
    loaded = importlib.import_module(module)
    kind = getattr(loaded, base)
    found = [name for name, value in vars(loaded).items() if isinstance(value, type) and issubclass(value, kind) and name[0] != "_"]
    return tuple(f"{module}.{name}" for name in sorted(found))


@cache
def described(key: str) -> tuple[str, ...]:
    """The words of the remarks beside a key in conf/, among which are the words that it may have."""
    pattern = re.compile(rf"^\s*{re.escape(key)}:\s*([^#\n]*)#(.*)$", flags=re.MULTILINE)
    remarks = [found[1] + " " + found[2] for path in sorted(configs().rglob("*.yaml")) for found in pattern.finditer(path.read_text())]
    return tuple(dict.fromkeys(re.findall(r"[a-z_]\w+", " ".join(remarks))))


@cache
def whole_cluster() -> dict[str, Any]:
    """The example in docs/reference/cluster.md that has every part of a cluster."""
    blocks = re.findall(r"```yaml\n(name:.*?)```", CLUSTER_PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    loaded = OmegaConf.to_container(OmegaConf.create(yaml.safe_dump(yaml.safe_load(blocks[0]))))
    assert isinstance(loaded, dict)
    return {str(key): value for key, value in loaded.items()}


@cache
def cluster_keys() -> dict[str, tuple[str, ...]]:
    """What the parser knows at each place of a cluster: `nodes`, `network`, `network.racks`, `faults.schedule` …; '' is the top."""
    known: dict[str, dict[str, None]] = {}
    mapping = checks.mapping

    def recorded(key: str, value: Any, *, required: Any = (), optional: Any = (), **more: Any) -> dict[str, Any]:
        place = re.sub(r"\.\d+", "", key).removeprefix("cluster").removeprefix(".")
        place = "network.racks" if place.startswith("network.racks.") else place
        if not isinstance(value, Mapping) or "distribution" not in value:
            known.setdefault(place, {}).update(dict.fromkeys((*required, *(optional or ()))))
        return mapping(key, value, required=required, optional=optional, **more)

    with mock.patch.object(checks, "mapping", recorded):
        parse_cluster(whole_cluster())
    return {place: tuple(names) for place, names in known.items()}
