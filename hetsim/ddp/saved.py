"""Convert the position of a run to plain numbers, texts and lists, which `torch.load(weights_only=True)` reads, and back."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from hetsim.ddp.exchange import Balance
from hetsim.ddp.schedule import Schedule
from hetsim.plain import Unreadable, from_plain, to_plain
from hetsim.policies.allocation.base import signature

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
        "allocation_state": _plain(balance.state),
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
        balance.state = _restored(balance.state, saved["allocation_state"])
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


def _plain(state: Any) -> Any:
    """An allocation's state as plain values. Raises ValueError for a state that `_restored` cannot read."""
    try:
        plain = to_plain(state)
        _restored(state, plain)
    except TypeError as error:
        raise ValueError(str(error)) from None
    return plain


def _restored(present: Any, plain: Any) -> Any:
    """The state, of the same type as the present one."""
    try:
        return from_plain(type(present), plain)
    except Unreadable as error:
        name = type(present).__name__
        raise ValueError(f"the allocation's saved state is not a {name} ({error}): give the Team the allocation that it had") from None
