"""An allocation's state as plain numbers and lists, which `torch.load(weights_only=True)` reads, and back."""

from __future__ import annotations

import dataclasses
from typing import Any


def plain(value: Any) -> Any:
    """Dataclasses as mappings and tuples as lists; ValueError with one sentence for what is neither these nor a number or text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        return [plain(part) for part in value]
    raise ValueError(
        f"the allocation's state holds {type(value).__name__}, which cannot be saved: keep numbers, texts, tuples and dataclasses in it"
    )


def restored(like: Any, saved: Any) -> Any:
    """What `plain` was called on, given a state of the same classes."""
    if dataclasses.is_dataclass(like) and not isinstance(like, type):
        names = [field.name for field in dataclasses.fields(like)]
        return dataclasses.replace(like, **{name: restored(getattr(like, name), saved[name]) for name in names})
    if isinstance(saved, list):
        parts = like if isinstance(like, tuple | list) and like else (None,)
        return tuple(restored(parts[min(place, len(parts) - 1)], part) for place, part in enumerate(saved))
    return saved
