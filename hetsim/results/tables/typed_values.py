"""Values as typed: whether two texts mean the same value, such as 1e-3 and 0.001, 10 Gbit/s and 1.25e9, or [0,1] and [0, 1]."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from hetsim.cluster.quantities import kind_of
from hetsim.files.identity import unescaped

PART = re.compile(r"([\[\]{}(),:])")
"""The characters that divide lists and mappings."""
BETWEEN = re.compile(r",\s*(?=[+~]*[A-Za-z_][\w./@]*=)|\s+(?=[+~]*[A-Za-z_][\w./@]*=)")
"""The separator between two key=value pairs: a comma, or the spaces of a command line."""


def pairs(words: str) -> dict[str, str] | None:
    """The values in `key=value,key=value` by key, without the command line's + and ~; None if a part is no pair."""
    triples = [part.strip().strip("'\"").partition("=") for part in BETWEEN.split(words.strip())]
    if not all(key and equals for key, equals, _ in triples):
        return None
    return {key.lstrip("+~"): value.strip() for key, _, value in triples}


def same(key: str, one: str, other: str) -> bool:
    """Whether two texts mean the same value of a key."""
    return value(key, one) == value(key, other)


def value(key: str, text: str) -> object:
    """The value of a text for a key: a number in the key's unit, a text, or a list of the parts of a list or mapping."""
    text = unescaped(text.strip()).strip("'\"").strip()
    if text[:1] in ("[", "{") and text[1:]:
        return _nested(key, [part.strip() for part in PART.split(text) if part.strip()])
    if (named := {"none": "null", "null": "null", "true": "true", "false": "false"}.get(text.lower())) is not None:
        return named
    with contextlib.suppress(ValueError):
        return float(text)
    if (kind := kind_of(key)) is not None:
        with contextlib.suppress(ValueError):
            return float(kind.read(key, text))
    path = PurePosixPath(text)
    return path.stem if path.suffix == ".yaml" and path.parent.name == key else text


def _nested(key: str, tokens: Sequence[str]) -> list[object]:
    """The parts of a list or a mapping, each as a value of its own key."""
    path, values = [key], list[object]()
    for part, following in zip(tokens, [*tokens[1:], ""], strict=True):
        if part in ("[", "{"):
            path.append("0")
        elif part in ("]", "}"):
            path[1:] = path[1:-1]
        elif following == ":":
            path[-1] = part
        values.append(part if PART.fullmatch(part) or following == ":" else value(".".join(path), part))
    return values
