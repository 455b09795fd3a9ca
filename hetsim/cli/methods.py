"""The command `hetsim-methods`."""

from __future__ import annotations

import json
import textwrap

from hetsim.cli.command import Parser, command
from hetsim.config.methods import FAMILIES, Method, shipped
from hetsim.runtime.output import outlive_readers

WIDTH = 110
"""The width of the table in letters."""


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
    outlive_readers("hetsim-methods")
    parser = Parser(
        prog="hetsim-methods", description="List the methods that hetsim ships, with a description, the paper and the policies of each."
    )
    parser.add_argument("names", nargs="*", metavar="METHOD", help="show only these methods")
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")
    arguments = parser.parse_args()
    with command(parser.prog):
        methods = shipped()
        by_name = {method.name: method for method in methods}
        for name in arguments.names:
            if name not in by_name:
                parser.error(f"{name} is not a method: take {', '.join(by_name)}")
        chosen = [by_name[name] for name in arguments.names] or methods
        entries = [{**vars(method), "family": method.family, "composes": method.composes} for method in chosen]
        print(json.dumps(entries, indent=2, ensure_ascii=False) if arguments.json else table(chosen), flush=True)


if __name__ == "__main__":
    main()
