"""State as plain values, and back. Nothing is pickled: a file can only name classes that its reader expects.

A text, a whole number, true, false, null and a finite number stand for themselves, and a JSON list is a tuple. Every other value is a
mapping with one key for its type: {"tensor": name}, {"dict": [[key, value], …]}, {"object": [class, {field: value}]}, …
"""

from __future__ import annotations

import math
import sys
import types
from collections.abc import Callable, Collection, Iterable, Mapping, MutableSequence, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from hetsim.vector import Phantom

MAX_WHOLE = 2**63
"""The bound of whole numbers."""
COLLECTIONS: dict[str, Callable[[Iterable[Any]], Any]] = {"list": list, "set": set, "frozenset": frozenset}

Tensors = dict[int, tuple[str, Any]]
"""Tensors with their names, by identity."""


class Unreadable(Exception):
    """The reason why a plain value does not stand for a value of the expected type."""


class UnknownClass(Unreadable):
    """The same for an object of a class that its reader does not expect."""


class VectorType:
    """Stands for a vector in a field's type: a tensor, a phantom or None."""


def to_plain(value: Any, tensors: Tensors | None = None) -> Any:
    """The value as JSON data.

    Args:
        value: numbers, texts, tuples, mappings, sets, lists, dataclasses and named tuples, and what they contain.
        tensors: collects tensors; a tensor that occurs several times is stored once. None: the value must not contain any.

    Raises:
        TypeError: the value contains an object of another class.
    """
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, Sequence) and not isinstance(value, tuple | bytes | MutableSequence):  # such as the ranges of a global batch
        value = tuple(value)
    if (names := field_names(type(value))) is not None:
        return {"object": [name_of(type(value)), {name: to_plain(getattr(value, name), tensors) for name in names}]}
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": repr(float(value))}
    if isinstance(value, tuple):
        return [to_plain(part, tensors) for part in value]
    if isinstance(value, Mapping):
        return {"dict": [[to_plain(key, tensors), to_plain(part, tensors)] for key, part in value.items()]}
    if isinstance(value, list):
        return {"list": [to_plain(part, tensors) for part in value]}
    if isinstance(value, set | frozenset):
        return {"set" if isinstance(value, set) else "frozenset": [to_plain(part, tensors) for part in sorted(value)]}
    if tensors is not None and "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor):
        return {"tensor": tensors.setdefault(id(value), (f"t{len(tensors)}", value))[0]}
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # a number of NumPy's
        return to_plain(value.item(), tensors)
    vectors = "" if tensors is None else "vectors, "
    raise TypeError(
        f"a saved state cannot hold a {name_of(type(value))}: keep numbers, texts, {vectors}tuples, mappings and dataclasses in it"
    )


def from_plain(
    kind: Any,
    entry: Any,
    *,
    tensors: Mapping[str, Any] | None = None,
    classes: Mapping[str, type] | None = None,
    check: Callable[[Any], None] = lambda _: None,
) -> Any:
    """The inverse of `to_plain`: a value of this type.

    Args:
        kind: the type, as in an annotation.
        entry: the JSON data.
        tensors: the tensors by name.
        classes: the classes that objects may have, by name; None: those that the type's annotations name.
        check: called with each new object, such as `check_fields`. It may raise Unreadable.

    Raises:
        Unreadable: the data is not such a value.
    """
    allowed = reachable(kind) if classes is None else classes
    value = _PlainReader(tensors or {}, allowed, check).value_of(entry)
    if not fits(value, kind):
        raise Unreadable("it is of another kind")
    return value


class _PlainReader:
    def __init__(self, tensors: Mapping[str, Any], classes: Mapping[str, type], check: Callable[[Any], None]) -> None:
        self.tensors = tensors
        self.classes = classes
        self.check = check

    def value_of(self, entry: Any) -> Any:
        if isinstance(entry, list):
            return tuple(map(self.value_of, entry))
        if isinstance(entry, int) and not isinstance(entry, bool) and abs(entry) >= MAX_WHOLE:
            raise Unreadable("it has a whole number of more than 63 bits")
        if not isinstance(entry, dict):
            return entry
        if len(entry) != 1:
            raise Unreadable("it has a mapping that says not what it is")
        ((kind, content),) = entry.items()
        try:
            return self._of_kind(kind, content)
        except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
            raise Unreadable(f"its {kind!r} cannot be read ({error})"[:200]) from None

    def _of_kind(self, kind: str, content: Any) -> Any:
        if kind == "object":
            return self._object(*content)
        if kind == "tensor":
            return self.tensors[content]
        if kind == "float":
            if content not in ("nan", "inf", "-inf"):
                raise Unreadable("it has a number that is none")
            return float(content)
        values = [self.value_of(part) for part in content]
        if kind == "dict":
            return dict(values)
        if kind in COLLECTIONS:
            return COLLECTIONS[kind](values)
        raise Unreadable("it has a value of a kind that hetsim does not know")

    def _object(self, name: str, content: Mapping[str, Any]) -> Any:
        kind = self.classes.get(name)
        if kind is None:
            raise UnknownClass(f"it has an object of the class {name!r}, which is none of those that this run keeps"[:200])
        if set(field_names(kind) or ()) != set(content):
            raise Unreadable(f"its {kind.__qualname__} has other fields than this version of hetsim's")
        value = kind(**{field: self.value_of(part) for field, part in content.items()})
        self.check(value)
        return value


def name_of(kind: type) -> str:
    """The name of a class in plain values."""
    return f"{kind.__module__}.{kind.__qualname__}"


def field_names(kind: type) -> Sequence[str] | None:
    """The names of the values that make an object of a dataclass or a named tuple; None for other classes."""
    if is_dataclass(kind):
        return [field.name for field in fields(kind) if field.init]
    return getattr(kind, "_fields", None)


@cache
def hints(kind: Any) -> dict[str, Any]:
    """The types of a class's fields; empty if they contain names that cannot be resolved."""
    try:
        return get_type_hints(kind, localns={"Vector": VectorType})
    except (NameError, TypeError, AttributeError):
        return {}


def reachable(*kinds: Any) -> dict[str, type]:
    """The dataclasses and named tuples that these types consist of, by name."""
    classes: dict[str, type] = {}

    def visit(kind: Any) -> None:
        for inner in get_args(kind):
            visit(inner)
        if kind is VectorType:
            visit(Phantom)
        elif isinstance(kind, type) and field_names(kind) is not None and name_of(kind) not in classes:
            classes[name_of(kind)] = kind
            for hint in hints(kind).values():
                visit(hint)

    for kind in kinds:
        visit(kind)
    return classes


def fits(value: Any, hint: Any, is_vector: Callable[[Any], bool] = lambda _: True) -> bool:
    """Whether a value is of this type. `is_vector` recognises vectors."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any or hint is object:
        return True
    if hint is VectorType:
        return value is None or is_vector(value)
    if hint is None or hint is type(None):
        return value is None
    if origin in (Union, types.UnionType):
        return any(fits(value, part, is_vector) for part in inner)
    if hint in (int, float, str, bool):
        return isinstance(value, int | float if hint is float else hint) and (hint is bool or not isinstance(value, bool))
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        if len(inner) == 2 and inner[1] is Ellipsis:
            return _all_fit(value, inner[0], is_vector)
        return len(value) == len(inner) and all(fits(part, kind, is_vector) for part, kind in zip(value, inner, strict=True))
    kind = hint if origin is None else origin
    if not isinstance(kind, type):
        return True
    if issubclass(kind, Mapping):
        if not isinstance(value, Mapping):
            return False
        return not inner or (_all_fit(value, inner[0], is_vector) and _all_fit(value.values(), inner[1], is_vector))
    if kind in (Sequence, Collection, Iterable):
        return isinstance(value, tuple | list | range | frozenset) and (not inner or _all_fit(value, inner[0], is_vector))
    return isinstance(value, kind) and (not inner or not isinstance(value, Collection) or _all_fit(value, inner[0], is_vector))


def _all_fit(values: Iterable[Any], hint: Any, is_vector: Callable[[Any], bool]) -> bool:
    return hint is Any or all(fits(value, hint, is_vector) for value in values)
