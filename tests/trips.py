"""How far a reader of hetsim must walk: `make trips` prints the table, and `tests/test_architecture.py` holds its figures as bounds."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
TRIPS = {
    "hetsim-compare, in results/": (("hetsim.cli.compare",), ("hetsim.results",)),
    "a lost rank, in distributed/": (
        ("hetsim.distributed.launch.supervision", "hetsim.distributed.rank.surviving", "hetsim.distributed.rank.regrouping"),
        ("hetsim.distributed",),
    ),
    "a Team, in loop/": (("hetsim.loop.team",), ("hetsim.loop",)),
    "a run's config, in config/, sweeps/ and trust/": (("hetsim.sweeps.job",), ("hetsim.config", "hetsim.sweeps", "hetsim.trust")),
    "hetsim.run, in api/, config/, sweeps/ and trust/": (
        ("hetsim.api.calls",),
        ("hetsim.api", "hetsim.config", "hetsim.sweeps", "hetsim.trust"),
    ),
}
"""For each question: the modules where a reader begins, and the rooms in which the imported modules count."""
SMALL = 60
INTERFACES = ("hetsim.runtime.backend",)
"""Small modules that say what others must implement."""
ROWS = {"an output format of all that happens": "recorder", "a device": "device", "an effect": "effect"}
"""The rows of CONTRIBUTING.md whose files count, by the beginning of their first cell."""


@cache
def modules() -> Mapping[str, str]:
    """The text of each module of hetsim, by its name."""
    paths = sorted((ROOT / "hetsim").rglob("*.py"))
    names = (".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in paths)
    return {name: path.read_text(encoding="utf-8") for name, path in zip(names, paths, strict=True)}


@cache
def imports_of(module: str) -> frozenset[str]:
    """The modules of hetsim that a module imports, at its top or in a function."""
    imported = set()
    for part in ast.walk(ast.parse(modules()[module])):
        if isinstance(part, ast.Import):
            imported |= {alias.name for alias in part.names}
        elif isinstance(part, ast.ImportFrom) and part.module:
            names = {f"{part.module}.{alias.name}" for alias in part.names}
            imported |= {name if name in modules() else part.module for name in names}
    return frozenset(imported & modules().keys())


def importers() -> Mapping[str, set[str]]:
    """The modules that import each module."""
    by_module: dict[str, set[str]] = defaultdict(set)
    for module in modules():
        for imported in imports_of(module):
            by_module[imported].add(module)
    return by_module


def closure(roots: Iterable[str], rooms: tuple[str, ...]) -> set[str]:
    """The modules in these rooms that the roots import, directly or by others in these rooms, with more than a docstring."""
    reached: set[str] = set()
    waiting = list(roots)
    while waiting:
        module = waiting.pop()
        if module in reached:
            continue
        reached.add(module)
        waiting += [name for name in imports_of(module) if name.startswith(rooms)]
    return {module for module in reached if module.startswith(rooms) and num_lines(module) > 1}


def num_lines(module: str) -> int:
    """The number of a module's lines."""
    return modules()[module].count("\n")


def small_modules() -> list[str]:
    """The modules of fewer than 60 lines that only one module imports, so that a reader of that module opens a file for little."""
    return [
        module
        for module, readers in sorted(importers().items())
        if len(readers) == 1 and num_lines(module) < SMALL and module not in INTERFACES and not is_package(module)
    ]


def is_package(module: str) -> bool:
    """Whether the module is the `__init__.py` of a folder."""
    return any(name.startswith(f"{module}.") for name in modules())


def files_by_folder() -> Mapping[str, int]:
    """The number of files in each folder."""
    counts: dict[str, int] = defaultdict(int)
    for module in modules():
        counts[module if is_package(module) else module.rpartition(".")[0]] += 1
    return counts


def num_import_lines() -> int:
    """The number of lines of all import statements at the top of a module."""
    return sum(
        part.end_lineno - part.lineno + 1
        for text in modules().values()
        for part in ast.parse(text).body
        if isinstance(part, ast.Import | ast.ImportFrom) and part.end_lineno is not None
    )


def replaced_functions() -> list[str]:
    """Every place where hetsim assigns to an attribute of another library's module or class."""
    places = []
    for module, text in modules().items():
        nodes = [*ast.walk(ast.parse(text))]
        foreign: set[str] = set()
        for part in nodes:
            if isinstance(part, ast.Import):
                foreign |= {(alias.asname or alias.name).split(".")[0] for alias in part.names if not alias.name.startswith("hetsim")}
            elif isinstance(part, ast.ImportFrom) and not (part.module or "").startswith(("hetsim", "__future__")):
                foreign |= {alias.asname or alias.name for alias in part.names}
        for part in nodes:
            targets = part.targets if isinstance(part, ast.Assign) else ()
            if isinstance(part, ast.Call) and getattr(part.func, "id", getattr(part.func, "attr", "")) in ("setattr", "__setattr__"):
                targets = part.args[:1]
            for target in targets:
                owner = target.value if isinstance(target, ast.Attribute) else target if isinstance(part, ast.Call) else None
                if owner is not None and ast.unparse(owner).split(".")[0] in foreign:
                    places.append(f"{module}: {ast.unparse(part)[:80]}")
    return places


def files_to_touch() -> Mapping[str, int]:
    """The number of files that CONTRIBUTING.md asks for, by kind of change."""
    counts = {}
    for line in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        for beginning, kind in ROWS.items():
            if len(cells) > 3 and cells[1].startswith(beginning) and kind not in counts:
                counts[kind] = len(set(re.findall(r"`([\w/*]+\.(?:py|yaml|md|csv))`", cells[2])))
    return counts


@cache
def figures() -> dict[str, float]:
    """Every figure by its name."""
    lines = sum(map(num_lines, modules()))
    return {
        **{f"files: {name}": len(closure(*trip)) for name, trip in TRIPS.items()},
        **{f"files to touch for a new {kind}": count for kind, count in files_to_touch().items()},
        "functions of other libraries that hetsim replaces": len(replaced_functions()),
        f"modules of fewer than {SMALL} lines with one reader": len(small_modules()),
        "files of hetsim": len(modules()),
        "% of lines that import": round(100 * num_import_lines() / lines, 1),
        "lines of hetsim": lines,
    }


if __name__ == "__main__":
    for name, figure in figures().items():
        print(f"{figure:8g}  {name}")
    for place in replaced_functions():
        print(f"          replaces {place}")
    for module in small_modules():
        print(f"          is small: {module} ({num_lines(module)})")
    for folder, number in files_by_folder().items():
        if number > 15:
            print(f"          {number} files: {folder}")
