"""The pages under docs/, each by the name of its file alone, and the programs there."""

import importlib.util
from pathlib import Path
from types import ModuleType

DOCS = Path(__file__).parents[1] / "docs"


def page(name: str) -> Path:
    """The page of this name, in whichever part of the documentation it is."""
    (path,) = DOCS.rglob(name)
    return path


def text(name: str) -> str:
    """Its text."""
    return page(name).read_text(encoding="utf-8")


def loaded(path: Path) -> ModuleType:
    """A file as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
