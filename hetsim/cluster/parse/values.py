"""Single values of a cluster description."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hetsim import checks
from hetsim.cluster.distributions import Distribution, parse_distribution
from hetsim.cluster.quantities import throughput_hint

LINKS = ("uplink_bytes_per_second", "downlink_bytes_per_second")
POSITIVE = ("seconds_per_sample", *LINKS)
"""Numbers that must be above zero."""
THROUGHPUT = re.compile(r"throughput|(?!bytes)[a-z]+_per_(?:s|sec|second)", re.IGNORECASE)
"""Names that other tools use for a node's samples per second."""
MIN_BYTES_PER_SECOND = 1e-3
"""The smallest rate of a link. On a slower link, a message would take longer than any described time."""
MAX_BYTES_PER_SECOND = 1e300
"""The largest rate of a link. The sum over all links of the largest cluster is finite."""
MAX_CARDS = 1000
"""The most network cards of a machine."""


class Card(NamedTuple):
    """The bandwidth of a network card in each direction, in bytes per second, or of equal cards together."""

    up: float
    down: float
    num_cards: int = 1

    @classmethod
    def even(cls, rate: float, num_cards: int = 1) -> Card:
        """Cards that send and receive at the same rate each."""
        return cls(num_cards * rate, num_cards * rate, num_cards)

    @property
    def links(self) -> dict[str, float]:
        """The bandwidths as keys of a node or a rack."""
        return dict(zip(LINKS, (self.up, self.down), strict=True))


def sequence(key: str, value: Any, of: str) -> Sequence[Any]:
    """The value, which must be a list. `of` names its items in the error."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ValueError(f"{key} must be a list of {of}, not {value!r}")
    return value


def number(key: str, entry: Mapping[str, Any], name: str, default: float | None = 0.0) -> Any:
    """The number of this name. It must be above zero where zero makes no sense. The default replaces a missing value or null."""
    value = entry.get(name)
    if value is None:
        return default
    return rate(f"{key}.{name}", value) if name in LINKS else checks.seconds(f"{key}.{name}", value, zero=name not in POSITIVE)


def refuse_throughput(key: str, entry: Mapping[str, Any]) -> None:
    """Raise ValueError for a row with samples per second. The error contains the time of a sample."""
    for name, value in entry.items():
        if THROUGHPUT.fullmatch(str(name)):
            converted = throughput_hint(value) or ": 400 samples/s are 2.5 ms"
            raise ValueError(f"{key}.{name} is unknown: write seconds_per_sample{converted}")


def rate(key: str, value: Any) -> float:
    """A rate in bytes per second."""
    if isinstance(value, Mapping) and "cards" in value:
        raise ValueError(f"{key} has several cards, which only machines have: give the rate of one")
    if not MIN_BYTES_PER_SECOND <= checks.number(key, value) <= MAX_BYTES_PER_SECOND:
        raise ValueError(f"{key} must be {MIN_BYTES_PER_SECOND:g} to {MAX_BYTES_PER_SECOND:g} bytes per second, not {value!r}")
    return float(value)


def card(key: str, value: Any) -> Card:
    """A network card from one rate, or from `up` and `down`; several from `cards` and the rate of `each`."""
    if value is None:
        raise ValueError(f"{key} is missing: give the rate of its network card, such as 1 Gbit/s")
    if not isinstance(value, Mapping):
        return Card.even(rate(key, value))
    if "cards" in value:
        entry = checks.mapping(key, value, required=("cards", "each"))
        return Card.even(rate(f"{key}.each", entry["each"]), checks.whole(f"{key}.cards", entry["cards"], most=MAX_CARDS))
    entry = checks.mapping(key, value, required=("up", "down"))
    return Card(rate(f"{key}.up", entry["up"]), rate(f"{key}.down", entry["down"]))


def expand_network(key: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """A node or a server with its `network`, if it has one, replaced by its two links."""
    network, others = entry.get("network"), {name: value for name, value in entry.items() if name != "network"}
    if network is None:
        return others
    if link := next((name for name in LINKS if entry.get(name) is not None), None):
        raise ValueError(f"{key} has a network and {link}, which replaces it: leave one of them out")
    if isinstance(network, Mapping) and "cards" in network:
        rate(f"{key}.network", network)
    return {**others, **card(f"{key}.network", network).links}


def flag(key: str, entry: Mapping[str, Any], name: str) -> bool:
    """Whether this flag is true. A missing value or null counts as false."""
    return False if entry.get(name) is None else checks.flag(f"{key}.{name}", entry[name])


def distribution(key: str, entry: Mapping[str, Any], name: str) -> Distribution | None:
    """The distribution of this name; None if the entry has none."""
    return None if entry.get(name) is None else parse_distribution(f"{key}.{name}", entry[name])


MAX_SIZE = 64 * checks.MOST
"""The maximum size of a measured point: the bytes of the largest model, at 64 bytes for each parameter."""


def table(key: str, value: Any, *, of: str) -> tuple[tuple[int, float], ...]:
    """A table of measured (size, seconds), rising in size."""
    points: list[tuple[int, float]] = []
    for place, point in enumerate(sequence(key, value, f"[{of}, seconds] that were measured")):
        if not isinstance(point, Sequence) or isinstance(point, str) or len(point) != 2:
            raise ValueError(f"{key}.{place} must be [{of}, seconds], not {point!r}")
        size, seconds = checks.whole(f"{key}.{place}.0", point[0], most=MAX_SIZE), checks.seconds(f"{key}.{place}.1", point[1])
        if points and size <= points[-1][0]:
            raise ValueError(f"{key} must rise in {of}, but {size} comes after {points[-1][0]}: sort it, each size once")
        points.append((size, seconds))
    if not points:
        raise ValueError(f"{key} is empty: give at least one [{of}, seconds]")
    if len(points) > 1 and points[-1][1] < points[-2][1]:
        raise ValueError(f"{key} must not fall between its last two points, because that line continues beyond them: measure a larger one")
    return tuple(points)
