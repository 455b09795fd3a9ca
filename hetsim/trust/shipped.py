"""The shipped configs, and the shipped name of a part of a resolved config."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml


def configs() -> Path:
    """The folder of hetsim's own configs: inside the installed package, or at the top of a checkout."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


def choice(group: str, entry: Mapping[str, Any]) -> str:
    """The choice of a group that this part of a resolved config corresponds to, as a user would type it.

    A cluster or a workload has a name. Otherwise, it is the choice with this class, and among several the one with the most equal values. A
    user's own class is named in snake case.
    """
    name, target = entry.get("name"), entry.get("_target_")
    if isinstance(name, str) or not isinstance(target, str):
        return str(name or "")
    same = {
        choice: sum(entry.get(key) == value for key, value in keys.items())
        for choice, keys in choices(group).items()
        if keys.get("_target_") == target
    }
    in_snake_case = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", target.rpartition(".")[2]).lower()
    return max(same, key=lambda choice: same[choice], default=in_snake_case)


def choices_with(group: str, key: str) -> str:
    """'take GROUP=A or B, which has …' with the choices of a group whose configs have this key; an empty string if there are none."""
    *others, last = [choice for choice, keys in choices(group).items() if key in keys] or [""]
    return f"take {group}={', '.join(others)}{' or ' if others else ''}{last}, which has {key}" if last else ""


def is_group(name: str) -> bool:
    """Whether hetsim ships choices of this group."""
    return re.fullmatch(r"\w+", name) is not None and (configs() / name).is_dir()


def names(group: str) -> list[str]:
    """The names of a group's shipped choices."""
    return sorted(path.stem for path in (configs() / group).glob("*.yaml"))


@cache
def targets(group: str) -> tuple[str, ...]:
    """hetsim's classes that the shipped choices of a group name."""
    classes = {str(keys.get("_target_")) for keys in choices(group).values()}
    return tuple(sorted(name for name in classes if name.startswith("hetsim.")))


@cache
def choices(group: str) -> dict[str, dict[str, Any]]:
    """The shipped choices of a group, each with its keys; empty for an unknown group."""
    if not is_group(group):
        return {}
    loader, files = getattr(yaml, "CSafeLoader", yaml.SafeLoader), sorted((configs() / group).glob("*.yaml"))
    loaded = {path.stem: yaml.load(path.read_text(encoding="utf-8"), loader) for path in files}
    return {choice: keys for choice, keys in loaded.items() if isinstance(keys, dict)}
