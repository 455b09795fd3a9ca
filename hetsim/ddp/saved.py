"""Convert the position of a run to plain numbers, texts and lists, which `torch.load(weights_only=True)` reads, and back."""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from hetsim.ddp.exchange import Balance
from hetsim.ddp.rules import signature
from hetsim.ddp.schedule import Schedule

ORDER = ("num_samples", "seed", "shuffle")
"""The values that determine the order of the samples."""
CONDITIONS = ("batch_size", "accumulate", "ranks", "max_samples", "allocation")
"""The conditions under which a split was decided."""


def save(schedule: Schedule, number: int, balance: Balance, bounds: Sequence[int] | None) -> dict[str, Any]:
    """The data that `resume` needs to continue with the step of this number. `bounds` are the ranks' `max_samples`."""
    return {
        **schedule.state(number),
        **{name: getattr(schedule.data, name) for name in ORDER},
        **_conditions(schedule, balance, bounds),
        "allocation_state": plain(balance.state),
    }


def resume(schedule: Schedule, balance: Balance, bounds: Sequence[int] | None, saved: Mapping[str, Any]) -> None:
    """Continue where `save` was called. Raises ValueError if the samples or their order differ.

    The split continues if the batch size, ranks, bounds and allocation are the same. Otherwise, the allocation starts anew.
    """
    for name in ORDER:
        present = getattr(schedule.data, name)
        if saved[name] != present:
            raise ValueError(
                f"{name} is {present}, but was {saved[name]} where the state was saved, and positions would be lost or repeated: "
                "give the Team and the loader what they had"
            )
    shares, pending = balance.shares, list[tuple[int, tuple[int, ...]]]()
    if all(saved[name] == value for name, value in _conditions(schedule, balance, bounds).items()):
        balance.state = restored(balance.state, saved["allocation_state"])
        shares, pending = tuple(saved["shares"]), [(first, tuple(later)) for first, later in saved["pending"]]
    schedule.resume(saved["epoch"], saved["position"], shares, pending)


def check_saved(saved: Any) -> None:
    """Raise ValueError for data that `save` does not return."""
    names = ("epoch", "position", "shares", "pending", *ORDER, *CONDITIONS, "allocation_state")
    missing = [name for name in names if not isinstance(saved, Mapping) or name not in saved]
    if missing:
        raise ValueError(f"this is not what state_dict of a Team returns, as it has no {missing[0]}: give load_state_dict that")


def digest(saved: Mapping[str, Any] | None) -> int:
    """A number that is equal for equal states on every rank; 0 without a state."""
    return 0 if saved is None else zlib.crc32(json.dumps(dict(saved), sort_keys=True, default=repr).encode())


def _conditions(schedule: Schedule, balance: Balance, bounds: Sequence[int] | None) -> dict[str, Any]:
    data, most = schedule.data, None if bounds is None else list(bounds)
    allocation = signature(balance.allocation) + ("" if balance.grain.is_single else f" of {balance.grain}")
    values = (data.batch_size, data.accumulate, schedule.num_ranks, most, allocation)
    return dict(zip(CONDITIONS, values, strict=True))


def plain(value: Any) -> Any:
    """Dataclasses as mappings and tuples as lists. Raises ValueError for other types than these, numbers and texts."""
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
    """The inverse of `plain`, given a state with the same classes."""
    if dataclasses.is_dataclass(like) and not isinstance(like, type):
        names = [field.name for field in dataclasses.fields(like)]
        return dataclasses.replace(like, **{name: restored(getattr(like, name), saved[name]) for name in names})
    if isinstance(saved, list):
        parts = like if isinstance(like, tuple | list) and like else (None,)
        return tuple(restored(parts[min(place, len(parts) - 1)], part) for place, part in enumerate(saved))
    return saved
