"""Read the arguments of a class from its source, because importing torch would take seconds."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

MAX_HOPS = 5
"""The maximum number of modules that re-export a class, and of base classes with its constructor."""


@lru_cache(maxsize=100)
def written_arguments(path: str) -> Sequence[str] | None:
    """The names of the arguments of a class with this dotted name; None if its source does not show them."""
    module, node = _found(path, MAX_HOPS)
    for _ in range(MAX_HOPS):
        if not isinstance(node, ast.ClassDef) or node.decorator_list:
            return None
        for part in node.body:
            if isinstance(part, ast.FunctionDef) and part.name == "__init__":
                arguments = part.args
                named = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
                return None if arguments.kwarg is not None else named[1:]
        bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
        if len(bases) != 1 or len(node.bases) != 1:
            return None
        module, node = _found(f"{module}.{bases[0]}", MAX_HOPS)
    return None


def is_missing(path: str) -> bool:
    """Whether the module's source exists and does not define this name."""
    module, node = _found(path, MAX_HOPS)
    return node is None and _source(module) is not None


def _found(path: str, hops: int) -> tuple[str, ast.ClassDef | ast.FunctionDef | None]:
    """The module whose source contains this class or function, and the definition."""
    module, _, name = path.rpartition(".")
    source = _source(module) if hops else None
    for node in () if source is None else _tree(source).body:
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                if name == (alias.asname or alias.name):
                    return _found(f"{node.module}.{alias.name}", hops - 1)
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return module, node
    return module, None


def _source(module: str) -> Path | None:
    """The file of a module, found by the folders of its top package, which is not imported."""
    top, *names = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None:
        return None
    place = Path(spec.origin)
    if names:
        below = place.parent.joinpath(*names)
        place = below / "__init__.py" if below.is_dir() else below.with_suffix(".py")
    return place if place.suffix == ".py" and place.is_file() else None


@lru_cache(maxsize=10)
def _tree(source: Path) -> ast.Module:
    try:
        return ast.parse(source.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return ast.Module(body=[], type_ignores=[])
