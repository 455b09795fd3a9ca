"""No module of hetsim imports itself through others, not even in a function or under TYPE_CHECKING."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import hetsim

PACKAGE = Path(hetsim.__file__).parent
TEXTS = {path.relative_to(PACKAGE.parent).as_posix(): path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}


def module(file: str) -> str:
    """The dotted name of a file; a package is its `__init__.py`."""
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def targets(file: str, text: str) -> Iterator[str]:
    """What a file imports: `from a import b` gives a.b, which may be a module or a name in a."""
    package = file.split("/")[:-1]
    for part in ast.walk(ast.parse(text)):
        if isinstance(part, ast.Import):
            yield from (alias.name for alias in part.names)
        elif isinstance(part, ast.ImportFrom):
            above = package[: len(package) - part.level + 1] if part.level else []
            yield from (".".join(filter(None, (*above, part.module, alias.name))) for alias in part.names)


def graph(texts: Mapping[str, str]) -> dict[str, set[str]]:
    """Which modules each module names in its import statements, wherever they stand.

    That Python runs a package's `__init__` before a module in it is no edge: an `__init__` may hand on names of its modules.
    """
    known = {module(file) for file in texts}
    edges: dict[str, set[str]] = {}
    for file, text in texts.items():
        named = {target if target in known else target.rpartition(".")[0] for target in targets(file, text)}
        edges[module(file)] = named & known - {module(file)}
    return edges


def circle(edges: Mapping[str, set[str]]) -> list[str]:
    """The modules of a circle in which each is imported by the next; empty if there is none."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


def test_no_module_imports_itself_through_others() -> None:
    """Also where an import stands in a function or under TYPE_CHECKING."""
    assert circle(graph(TEXTS)) == []


@pytest.mark.parametrize(
    "text",
    [
        "import p.b",
        "from p import b",
        "from p.b import f",
        "from . import b",
        "from .b import f as g",
        "def f():\n    from p import b",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.b import B",
        "import numpy, p.b as other",
    ],
)
def test_a_circle_is_found_wherever_the_import_stands(text: str) -> None:
    """At the top, in a function, under TYPE_CHECKING; by a module or by a name in one; absolute or relative."""
    texts = {"p/__init__.py": "", "p/a.py": text, "p/b.py": "import p.c", "p/c.py": "def f():\n    from p.a import x"}

    assert set(circle(graph(texts))) == {"p.a", "p.b", "p.c"}


def test_a_package_that_hands_names_on_is_no_circle() -> None:
    """Unless a module in it takes one of them from the package."""
    texts = {"p/__init__.py": "from p.a import A", "p/a.py": "from p.b import B", "p/b.py": "import numpy"}

    assert circle(graph(texts)) == []
    assert set(circle(graph(texts | {"p/b.py": "from p import A"}))) == {"p", "p.a", "p.b"}
