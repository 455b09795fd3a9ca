"""What the source of a user's own module says of a name, read before any of the module's code runs.

A config may name any class of a trusted module, and any workload, so a config from a stranger could make hetsim import any file of a
trusted package. It is imported only if its source, as far as it can be read, defines a class of the kind that the config needs there, or
a function that is decorated as a workload.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, ClassVar

MAX_MODULES_READ = 50
"""Sources that are read to find where a name comes from."""


class Unsuitable(ValueError):
    """Why what a name stands for is not what is looked for, as the end of a sentence that has no remedy yet."""


def definition(module: str, name: str, kind: type, *, trust: Iterable[str]) -> tuple[str, str]:
    """The trusted module that defines the class `module.name`, and its name there, if it is, or may be, a subclass of `kind`.

    Unsuitable with the reason if not, ValueError with one sentence if a source cannot be read. A name that a trusted module imports is
    followed to where it is defined, so that a module which only uses a class need not run.
    """
    return _Classes(kind, tuple(trust)).definition(module, name)


def decorated(module: str, name: str, decorators: Sequence[str], mark: str, *, trust: Iterable[str]) -> tuple[str, str]:
    """The trusted module that defines the function `module.name`, and its name there, if one of these decorators stands above it.

    In a module that is imported already, the decorator has left its `mark` on the function. Otherwise as `definition`.
    """
    return _Functions(decorators, mark, tuple(trust)).definition(module, name)


class _Reader(ABC):
    """Follows a name through imports, from source to source."""

    what: ClassVar[str]
    """What is looked for, in words."""

    def __init__(self, reason: str, trust: tuple[str, ...]) -> None:
        self.reason = reason
        self.trust = trust
        self._seen: set[tuple[str, str]] = set()

    @abstractmethod
    def suits(self, found: object) -> bool:
        """Whether an object of a module that is imported is what is looked for."""

    @abstractmethod
    def refusal_of(self, part: ast.AST, tree: ast.Module, module: str, package: str) -> str | None:
        """Why what a statement of a module defines is not what is looked for; None if it is, or may be."""

    def definition(self, module: str, name: str) -> tuple[str, str]:
        """The module that defines it, within the trusted ones, and the name there."""
        if not any(f"{module}.".startswith(f"{root}.") for root in self.trust):
            raise Unsuitable(f"{name} is defined in {module}, which is not trusted")
        if module in sys.modules:
            found: Any = vars(sys.modules[module]).get(name)
            if not self.suits(found):
                raise Unsuitable(f"{module}.{name} {self.reason}")
            return (module, name) if found.__module__ == module else self.definition(found.__module__, found.__name__)
        if self._visited(module, name):
            raise Unsuitable(f"{module}.{name} {self.reason}")
        tree, package = _parsed(module)
        part = _bindings(tree).get(name)
        if part is None:
            for star in _stars(tree, package):
                with contextlib.suppress(ValueError):
                    return self.definition(star, name)
            raise Unsuitable(f"{module} defines no {self.what} {name!r}")
        if isinstance(part, ast.ImportFrom):
            return self.definition(_origin(part, package), _imported_as(part, name))
        if (reason := self.refusal_of(part, tree, module, package)) is not None:
            raise Unsuitable(f"{module}.{name} {reason}")
        return module, name

    def _visited(self, module: str, name: str) -> bool:
        """Whether this was looked at before, or too much was."""
        before = len(self._seen)
        self._seen.add((module, name))
        return len(self._seen) == before or before >= MAX_MODULES_READ


class _Functions(_Reader):
    """Looks for a function below a decorator."""

    what = "function"

    def __init__(self, decorators: Sequence[str], mark: str, trust: tuple[str, ...]) -> None:
        super().__init__(f"has no @{decorators[0]} above it", trust)
        self.decorators = decorators
        self.mark = mark

    def suits(self, found: object) -> bool:
        return isinstance(found, FunctionType) and hasattr(found, self.mark)

    def refusal_of(self, part: ast.AST, tree: ast.Module, module: str, package: str) -> str | None:
        if not isinstance(part, ast.FunctionDef) or part not in tree.body:
            return "is not defined by a def statement at the top of the module"
        bound = _bindings(tree)
        above = {_dotted(decorator, bound, module, package) for decorator in part.decorator_list}
        return None if above & {*self.decorators} else self.reason


class _Classes(_Reader):
    """Looks for a class through its base classes."""

    what = "class"

    def __init__(self, kind: type, trust: tuple[str, ...]) -> None:
        super().__init__(f"is no {kind.__name__}", trust)
        self.kind = kind

    def suits(self, found: object) -> bool:
        return isinstance(found, type) and issubclass(found, self.kind)

    def refusal_of(self, part: ast.AST, tree: ast.Module, module: str, package: str) -> str | None:
        if not isinstance(part, ast.ClassDef):
            return "is not defined by a class statement"
        return None if self._has_base(part, tree, module, package) else self.reason

    def _has_base(self, part: ast.ClassDef, tree: ast.Module, module: str, package: str) -> bool:
        bound = _bindings(tree)
        paths = (_dotted(base, bound, module, package) for base in part.bases)
        return any(self._may_be(path) for path in paths if path)

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
        if module in sys.modules:
            found = vars(sys.modules[module]).get(name)
            return isinstance(found, type) and issubclass(found, self.kind)
        if self._visited(module, name):
            return False
        try:
            tree, package = _parsed(module)
        except ValueError:  # a module that is not there, or has no source
            return False
        part = _bindings(tree).get(name)
        if part is None:
            return any(self._may_be(f"{star}.{name}") for star in _stars(tree, package))
        if isinstance(part, ast.ImportFrom):
            return self._may_be(f"{_origin(part, package)}.{_imported_as(part, name)}")
        return isinstance(part, ast.ClassDef) and self._has_base(part, tree, module, package)


def _parsed(module: str) -> tuple[ast.Module, str]:
    """The parsed source of a module that is not imported yet, and its package. ValueError with one sentence if it has none."""
    spec = find(module)
    source = getattr(spec.loader, "get_source", lambda _: None)(module)
    if source is None:
        raise ValueError(f"{module} has no Python source that can be read: name a class in a .py file")
    try:
        return ast.parse(
            source, f"{module.rpartition('.')[2]}.py"
        ), module if spec.submodule_search_locations is not None else module.rpartition(".")[0]
    except (SyntaxError, ValueError, RecursionError) as error:
        raise ValueError(f"{module} is no valid Python ({error}): correct it") from None


def find(module: str) -> Any:
    """Where Python would import this module from (a ModuleSpec), without importing its packages. ValueError if there is none."""
    where: Any = None
    name, spec = "", None
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        spec = _spec(name, where)
        if spec is None or (name != module and spec.submodule_search_locations is None):
            missing = "add its folder to PYTHONPATH, or install it" if "." not in name else "correct the name"
            if module.endswith(".py"):
                missing = "a module's name has no .py at its end"
            raise ValueError(f"Python finds no module {name!r}: {missing}")
        where = spec.submodule_search_locations
        for folder in where or ():
            if (file := Path(folder).with_suffix(".py")).is_file():
                raise ValueError(f"Python takes the folder {folder} for {name}, and {file} is there, too: rename one of them")
    return spec


def _spec(name: str, where: Any) -> Any:
    try:
        return next((spec for finder in sys.meta_path if (spec := finder.find_spec(name, where)) is not None), None)
    except KeyError:  # a folder without __init__.py, within a package that is not imported
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(folder) for path in where if (folder := Path(path, name.rpartition(".")[2])).is_dir()]
        return spec


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """The statements that run when a module is imported, in order; not those within functions and classes.

    A class that is defined under a condition may not be there once the module's code has run, so it does not count.
    """
    for part in ast.iter_child_nodes(tree):
        if not (isinstance(tree, ast.If | ast.Try | ast.With | ast.ExceptHandler) and isinstance(part, ast.ClassDef)):
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
        elif isinstance(part, ast.Delete):
            for target in part.targets:
                bound.pop(target.id if isinstance(target, ast.Name) else "", None)
    return bound


def _stars(tree: ast.Module, package: str) -> list[str]:
    """The modules from which a module imports everything."""
    return [_origin(part, package) for part in _statements(tree) if isinstance(part, ast.ImportFrom) and part.names[0].name == "*"]


def _imported_as(part: ast.ImportFrom, name: str) -> str:
    """The name, where it comes from, of what is imported under this name."""
    return next(alias.name for alias in part.names if (alias.asname or alias.name) == name)


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
        first = f"{_origin(part, package)}.{_imported_as(part, base.id)}"
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
