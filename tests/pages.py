"""The pages under docs/, each by the name of its file alone."""

from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def page(name: str) -> Path:
    """The page of this name, in whichever part of the documentation it is."""
    (path,) = DOCS.rglob(name)
    return path


def text(name: str) -> str:
    """Its text."""
    return page(name).read_text(encoding="utf-8")
