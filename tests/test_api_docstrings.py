"""Each argument of the public API, which docs/reference/python-api.md shows, is described in a docstring."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from itertools import pairwise
from pkgutil import resolve_name
from typing import Any

import pages

SHOWN = re.findall(
    r"^\.\. auto\w+:: ([\w.]+)(?:\n   :members:)?(?:\n   :exclude-members: (.*))?", pages.text("python-api.md"), flags=re.MULTILINE
)


def shown() -> Iterator[Callable[..., Any]]:
    """Each function, class and method."""
    for name, left_out in SHOWN:
        found = resolve_name(name if name.startswith("hetsim.") else f"hetsim.{name}")
        members = [one for one in vars(found).values() if getattr(one, "__module__", "") == name] if inspect.ismodule(found) else [found]
        for one in filter(callable, members):
            yield one
            if inspect.isclass(one):
                public = (member for key, member in vars(one).items() if not key.startswith("_") and key not in left_out.split(", "))
                yield from filter(inspect.isfunction, public)


def described(one: Callable[..., Any]) -> set[str]:
    """The names under `Args:`; of a class also those in its docstring, and its fields that have a docstring."""
    docs = [one.__doc__ or "", one.__init__.__doc__ or ""] if inspect.isclass(one) else [one.__doc__ or ""]
    names = {name for doc in docs for name in re.findall(r"^ +(\w+): ", doc.partition("Args:\n")[2].partition("\n\n")[0], re.MULTILINE)}
    if not inspect.isclass(one):
        return names
    (body,) = (node.body for node in ast.parse(textwrap.dedent(inspect.getsource(one))).body if isinstance(node, ast.ClassDef))
    fields = {
        field.target.id
        for field, after in pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
    }
    return names | fields | set(re.findall(r"`(\w+)(?:\(\))?`", docs[0]))


def test_every_argument_of_the_public_api_is_described() -> None:
    """By its name, and a function's docstring describes no other."""
    found = list(shown())
    wrong = {}
    for one in found:
        arguments = {name for name in inspect.signature(one).parameters if name != "self" and not name.startswith("_")}
        names = described(one)
        if not arguments <= names or (names != arguments and not inspect.isclass(one)):
            wrong[one.__qualname__] = arguments ^ names if not inspect.isclass(one) else arguments - names

    assert len(found) > 100
    assert not wrong
