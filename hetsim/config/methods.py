"""The published methods, each as a set of policies, as the files of conf/method describe them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from hetsim.trust.shipped import configs

FAMILIES = ("synchronous", "asynchronous, on a server", "a step of delay", "local steps", "several servers")
RATES = ("learning_rate", "momentum", "local_learning_rate")


@dataclass(frozen=True)
class Method:
    """A file of conf/method: name, a one-line description, source, choices of groups, and keys."""

    name: str
    about: str
    paper: str
    choices: dict[str, str] = field(hash=False)
    keys: dict[str, Any] = field(hash=False)

    @property
    def family(self) -> str:
        """The kind of its program: one of FAMILIES."""
        coordination = self.choices["coordination"]
        if coordination == "hierarchical":
            return "several servers"
        if coordination.endswith("_steps"):
            return "local steps"
        if "delay" in coordination or "accumulating" in coordination:
            return "a step of delay"
        waits = coordination in ("all_reduce", "overlapped_all_reduce") or self.choices["admission"] in ("barrier", "backup")
        return "synchronous" if waits else "asynchronous, on a server"

    @property
    def composes(self) -> str:
        """The choices and keys as a user would type them."""
        keys = {f"{group}.{key}": value for group, entry in self.keys.items() if isinstance(entry, dict) for key, value in entry.items()}
        return " ".join(f"{name}={value}" for name, value in {**self.choices, **keys}.items())

    @property
    def rates(self) -> str:
        """The learning rates and momentum in the file, which suit small workloads."""
        return " ".join(f"{name}={self.keys[name]:g}" for name in RATES if name in self.keys)


def read(path: Path) -> Method:
    """The method in a config file. Raises ValueError if its second line is not '# about | source'."""
    text = path.read_text(encoding="utf-8")
    _, head, *_ = text.splitlines()
    about, bar, paper = head.removeprefix("# ").rpartition(" | ")
    if not head.startswith("# ") or not bar:
        raise ValueError(f"{path}: the second line must be '# what it is | where it was published', not {head!r}")
    entries = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    choices = {key.removeprefix("override /"): value for default in entries.pop("defaults", []) for key, value in default.items()}
    return Method(str(entries.pop("method")), about, paper, choices, entries)


def shipped() -> list[Method]:
    """All methods of conf/method, sorted by name."""
    return [read(path) for path in sorted((configs() / "method").glob("*.yaml"))]
