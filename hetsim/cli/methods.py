"""The published methods, each as a set of policies: the command `hetsim-methods`."""

from __future__ import annotations

import argparse
import json
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from hetsim.shipped import configs

WIDTH = 110
"""Letters in a line of the table."""
FAMILIES = ("synchronous", "asynchronous, on a server", "a step of delay", "local steps", "several servers")
RATES = ("learning_rate", "momentum", "local_learning_rate")


@dataclass(frozen=True)
class Method:
    """A file of conf/method: name, one line of description, source, the choices of groups that it makes, the keys that it sets."""

    name: str
    about: str
    paper: str
    choices: dict[str, str] = field(hash=False)
    keys: dict[str, Any] = field(hash=False)

    @property
    def family(self) -> str:
        """What its program is like, one of FAMILIES."""
        coordination = self.choices["coordination"]
        if coordination == "hierarchical":
            return "several servers"
        if coordination.endswith("_steps"):
            return "local steps"
        if "delay" in coordination:
            return "a step of delay"
        waits = coordination == "all_reduce" or self.choices["admission"] in ("barrier", "backup")
        return "synchronous" if waits else "asynchronous, on a server"

    @property
    def composes(self) -> str:
        """The choices and keys as one would type them."""
        keys = {f"{group}.{key}": value for group, entry in self.keys.items() if isinstance(entry, dict) for key, value in entry.items()}
        return " ".join(f"{name}={value}" for name, value in {**self.choices, **keys}.items())

    @property
    def rates(self) -> str:
        """The learning rates and momentum of the file, which suit small workloads."""
        return " ".join(f"{name}={self.keys[name]:g}" for name in RATES if name in self.keys)


def read(path: Path) -> Method:
    """The method that a config file describes; ValueError if its second line is not '# about | source'."""
    text = path.read_text(encoding="utf-8")
    _, head, *_ = text.splitlines()
    about, bar, paper = head.removeprefix("# ").rpartition(" | ")
    if not head.startswith("# ") or not bar:
        raise ValueError(f"{path}: the second line must be '# what it is | where it was published', not {head!r}")
    entries = yaml.safe_load(text)
    choices = {key.removeprefix("override /"): value for default in entries.pop("defaults", []) for key, value in default.items()}
    return Method(str(entries.pop("method")), about, paper, choices, entries)


def shipped() -> list[Method]:
    """All methods of conf/method, sorted by name."""
    return [read(path) for path in sorted((configs() / "method").glob("*.yaml"))]


def table(methods: list[Method]) -> str:
    """Name and description, source and composition of each method, as text, by family."""
    indent = " " * (2 + max(len(method.name) for method in methods))
    lines: list[str] = []
    for method in sorted(methods, key=lambda method: FAMILIES.index(method.family)):
        if (head := f"# {method.family}") not in lines:
            lines += ["", head] if lines else [head]
        about = textwrap.wrap(method.about, WIDTH - len(indent))
        lines.append(f"{method.name:{len(indent)}}{about[0]}")
        composes = textwrap.wrap(f"{method.composes} {method.rates}", WIDTH - len(indent))
        lines += [indent + line for line in (*about[1:], method.paper, *composes)]
    return "\n".join(lines)


def main() -> None:
    """Print the methods as text or JSON."""
    parser = argparse.ArgumentParser(
        prog="hetsim-methods", description="The methods that hetsim ships: what each is, where it was published, what it is made of."
    )
    parser.add_argument("names", nargs="*", metavar="METHOD", help="only these")
    parser.add_argument("--json", action="store_true", help="as JSON, for scripts")
    arguments = parser.parse_args()
    methods = shipped()
    known = {method.name: method for method in methods}
    for name in arguments.names:
        if name not in known:
            parser.error(f"{name} is no method: take {', '.join(known)}")
    chosen = [known[name] for name in arguments.names] or methods
    if arguments.json:
        print(
            json.dumps(
                [{**vars(method), "family": method.family, "composes": method.composes} for method in chosen], indent=2, ensure_ascii=False
            )
        )
    else:
        print(table(chosen))


if __name__ == "__main__":
    main()
