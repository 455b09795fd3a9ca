"""Convert values to JSON and tensors, and back. Nothing is pickled, and the reader's table contains the only possible classes.

A text, a whole number, true, false, null and a finite number stand for themselves, and a JSON list is a tuple. Every other value is a
mapping with one key for its type: {"tensor": name}, {"dict": [[key, value], …]}, {"object": [class, {field: value}]}, …
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

from hetsim.checkpoints.kinds import field_names, name_of
from hetsim.coordination.bookkeeping.pools import Cursors
from hetsim.coordination.plan import Split
from hetsim.vector import Phantom

MOST = 2**63
"""The bound of whole numbers."""


class Unreadable(Exception):
    """The reason why a part of a checkpoint is invalid."""


class Writer:
    """Collects the tensors of the values that it converts to JSON. A tensor that occurs several times is stored once."""

    def __init__(self) -> None:
        self.tensors: dict[str, Any] = {}
        self._names: dict[int, str] = {}

    def json_of(self, value: Any) -> Any:
        """The value as JSON data. Raises TypeError for a class that no checkpoint may contain."""
        if value is None or isinstance(value, str | bool):
            return value
        if isinstance(value, Cursors):
            return {"cursors": list(value.of)}
        if isinstance(value, int):
            return int(value)
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else {"float": repr(float(value))}
        if isinstance(value, Phantom):
            return {"phantom": [value.nbytes, value.itemsize]}
        if isinstance(value, Split | range):  # the ranges of a global batch, as what is outstanding
            return [self.json_of(batch) for batch in value]
        if isinstance(value, Mapping):
            return {"dict": [[self.json_of(key), self.json_of(part)] for key, part in value.items()]}
        if (names := field_names(type(value))) is not None:
            return {"object": [name_of(type(value)), {name: self.json_of(getattr(value, name)) for name in names}]}
        if isinstance(value, tuple):
            return [self.json_of(part) for part in value]
        for name, kind in (("list", list), ("frozenset", frozenset), ("set", set)):
            if isinstance(value, kind):
                return {name: [self.json_of(part) for part in (value if kind is list else sorted(value))]}
        if "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor):
            return {"tensor": self._named(value)}
        if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # a number of NumPy's
            return self.json_of(value.item())
        raise TypeError(
            f"a checkpoint cannot hold a {name_of(type(value))}: keep numbers, texts, vectors, tuples, mappings and dataclasses in states"
        )

    def _named(self, tensor: Any) -> str:
        name = self._names.get(id(tensor))
        if name is None:
            name = self._names[id(tensor)] = f"t{len(self._names)}"
            self.tensors[name] = tensor  # kept, so that no other object has its id
        return name


class Reader:
    """Converts JSON and tensors to values. Objects have only these classes, by name. Raises Unreadable."""

    def __init__(self, tensors: Mapping[str, Any], kinds: Mapping[str, type], check: Callable[[Any], None]) -> None:
        self.tensors = tensors
        self.kinds = kinds
        self.check = check
        """Called with each new object. It may raise Unreadable."""

    def value_of(self, entry: Any) -> Any:
        """The inverse of `json_of`."""
        if isinstance(entry, list):
            return tuple(map(self.value_of, entry))
        if isinstance(entry, int) and not isinstance(entry, bool) and abs(entry) >= MOST:
            raise Unreadable("it has a whole number of more than 63 bits")
        if not isinstance(entry, dict):
            return entry
        if len(entry) != 1:
            raise Unreadable("it has a mapping that says not what it is")
        ((kind, content),) = entry.items()
        try:
            return self._made(kind, content)
        except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
            raise Unreadable(f"its {kind!r} cannot be read ({error})"[:200]) from None

    def _made(self, kind: str, content: Any) -> Any:
        if kind == "object":
            return self._object(*content)
        if kind == "tensor":
            return self.tensors[content]
        if kind == "float":
            if content not in ("nan", "inf", "-inf"):
                raise Unreadable("it has a number that is none")
            return float(content)
        parts = [self.value_of(part) for part in content]
        if kind == "dict":
            return dict(parts)
        if kind in ("list", "set", "frozenset"):
            return {"list": list, "set": set, "frozenset": frozenset}[kind](parts)
        if not all(type(part) is int for part in parts):
            raise Unreadable(f"its {kind!r} has what is not a whole number")
        if kind == "cursors" and all(part >= 0 for part in parts):
            return Cursors(parts)
        if kind == "phantom" and len(parts) == 2 and all(part >= 0 for part in parts):
            return Phantom(*parts)
        raise Unreadable("it has a value of a kind that hetsim does not know")

    def _object(self, name: str, content: Mapping[str, Any]) -> Any:
        made_of = self.kinds.get(name)
        if made_of is None:
            raise Unreadable(f"it has an object of the class {name!r}, which is none of those that this run keeps"[:200])
        names = field_names(made_of)
        if set(names or ()) != set(content):
            raise Unreadable(f"its {made_of.__qualname__} has other fields than this version of hetsim's")
        found = made_of(**{field: self.value_of(part) for field, part in content.items()})
        self.check(found)
        return found
