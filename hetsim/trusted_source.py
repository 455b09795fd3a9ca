"""What the source of a user's own module says of a name, read before any of the module's code runs.

A config may name any class of a trusted module, so a config from a stranger could make hetsim import any file of a trusted package.
It is imported only if its source, as far as it can be read, defines a class of the kind that the config needs there.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

MAX_MODULES_READ = 50
"""Sources that are read to find where a class comes from."""


def refusal(module: str, name: str, kind: type) -> str | None:
    """Why `module.name` cannot be a subclass of `kind`; None if it is one, or may be one."""
    return _Reader(kind).refusal(module, name)


class _Reader:
    """Follows a name through imports and base classes, from source to source."""

    def __init__(self, kind: type) -> None:
        self.kind = kind
        self._seen: set[tuple[str, str]] = set()

    def refusal(self, module: str, name: str) -> str | None:
        wrong = f"{module}.{name} is no {self.kind.__name__}"
        if (module, name) in self._seen or len(self._seen) > MAX_MODULES_READ:
            return wrong
        self._seen.add((module, name))
        if module in sys.modules:
            found = vars(sys.modules[module]).get(name)
            return None if isinstance(found, type) and issubclass(found, self.kind) else wrong
        tree, package = _parsed(module)
        bound = _bindings(tree)
        if name not in bound:
            stars = [_origin(part, package) for part in _statements(tree) if isinstance(part, ast.ImportFrom) and part.names[0].name == "*"]
            return None if any(self._may_be(f"{star}.{name}") for star in stars) else f"{module} defines no class {name!r}"
        part = bound[name]
        if isinstance(part, ast.ImportFrom):
            imported = next(alias.name for alias in part.names if (alias.asname or alias.name) == name)
            return None if self._may_be(f"{_origin(part, package)}.{imported}") else wrong
        if not isinstance(part, ast.ClassDef):
            return f"{module}.{name} is not defined by a class statement"
        paths = (_dotted(base, bound, module, package) for base in part.bases)
        return None if any(self._may_be(path) for path in paths if path) else wrong

    def _may_be(self, path: str) -> bool:
        """Whether the class of this dotted name may be a subclass of the kind. Code of hetsim and torch.optim may run for it."""
        module, _, name = path.rpartition(".")
        top = module.split(".")[0]
        if not module or top in sys.stdlib_module_names:
            return False
        if top == "hetsim":
            importlib.import_module(module)
        elif top == "torch" and module not in sys.modules:
            return False
        try:
            return self.refusal(module, name) is None
        except ValueError:  # a module that is not there, or has no source
            return False


def _parsed(module: str) -> tuple[ast.Module, str]:
    """The parsed source of a module that is not imported yet, and its package. ValueError with one sentence if it has none."""
    spec = find(module)
    source = getattr(spec.loader, "get_source", lambda _: None)(module)
    if source is None:
        raise ValueError(f"{module} has no Python source that can be read: name a class in a .py file")
    try:
        return ast.parse(source), module if spec.submodule_search_locations is not None else module.rpartition(".")[0]
    except (SyntaxError, ValueError, RecursionError) as error:
        raise ValueError(f"{module} is no valid Python ({error}): correct it") from None


def find(module: str) -> Any:
    """Where Python would import this module from (a ModuleSpec), without importing its packages. ValueError if there is none."""
    where: Any = None
    name, spec = "", None
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        for finder in sys.meta_path:
            spec = finder.find_spec(name, where)
            if spec is not None:
                break
        if spec is None or (name != module and spec.submodule_search_locations is None):
            missing = "add its folder to PYTHONPATH, or install it" if "." not in name else "correct the name"
            raise ValueError(f"Python finds no module {name!r}: {missing}")
        where = spec.submodule_search_locations
    return spec


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """The statements that run when a module is imported, in order; not those within functions and classes."""
    for part in ast.iter_child_nodes(tree):
        yield part
        if isinstance(part, ast.If | ast.Try | ast.With | ast.ExceptHandler):
            yield from _statements(part)


def _bindings(tree: ast.Module) -> dict[str, ast.AST]:
    """The statement that binds each name last."""
    bound: dict[str, ast.AST] = {}
    for part in _statements(tree):
        if isinstance(part, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            bound[part.name] = part
        elif isinstance(part, ast.Import | ast.ImportFrom):
            for alias in part.names:
                bound[alias.asname or (alias.name if isinstance(part, ast.ImportFrom) else alias.name.split(".")[0])] = part
        elif isinstance(part, ast.Assign | ast.AnnAssign):
            targets = part.targets if isinstance(part, ast.Assign) else [part.target]
            bound |= {target.id: part for target in targets if isinstance(target, ast.Name)}
    return bound


def _origin(part: ast.ImportFrom, package: str) -> str:
    """The module that a `from … import` imports from."""
    if not part.level:
        return part.module or ""
    above = package.split(".")[: len(package.split(".")) - part.level + 1]
    return ".".join([*above, *filter(None, [part.module])])


def _dotted(base: ast.expr, bound: dict[str, ast.AST], module: str, package: str) -> str | None:
    """The dotted name of a base class, seen from outside its module; None if it is another expression or a builtin."""
    if isinstance(base, ast.Subscript):  # Generic[…]
        base = base.value
    attributes: list[str] = []
    while isinstance(base, ast.Attribute):
        attributes.insert(0, base.attr)
        base = base.value
    if not isinstance(base, ast.Name) or base.id not in bound:
        return None
    part = bound[base.id]
    if isinstance(part, ast.Import):
        alias = next(alias for alias in part.names if (alias.asname or alias.name.split(".")[0]) == base.id)
        first = alias.name if alias.asname else base.id
    elif isinstance(part, ast.ImportFrom):
        name = next(alias.name for alias in part.names if (alias.asname or alias.name) == base.id)
        first = f"{_origin(part, package)}.{name}"
    else:
        first = f"{module}.{base.id}"
    return ".".join([first, *attributes])


def imported(module: str) -> ModuleType:
    """The module, imported: its code runs. ValueError with one sentence if that fails."""
    try:
        return importlib.import_module(module)
    except (Exception, SystemExit) as error:
        line = error.__traceback__
        while line is not None and line.tb_next is not None:
            line = line.tb_next
        where = f", line {line.tb_lineno}" if line is not None and line.tb_frame.f_globals.get("__name__") == module else ""
        raise ValueError(f"{module} cannot be imported ({type(error).__name__}: {error}{where}): correct it") from error
