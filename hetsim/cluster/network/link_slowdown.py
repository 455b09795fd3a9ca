"""Links whose rates change over time: a recorded factor divides the rate of a link."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass

from hetsim.errors import RunFailed

MAX_CHANGES = 100_000
"""The maximum number of link changes during one transfer of a collective. More of them raise an error."""


@dataclass(frozen=True)
class LinkSlowdown:
    """Points (second, factor), the first at second 0: from this second on, the factor divides the rate. With a period, they repeat."""

    points: tuple[tuple[float, float], ...]
    period_seconds: float | None = None

    @property
    def least(self) -> float:
        """The smallest factor, at which the link is fastest."""
        return min(factor for _, factor in self.points)

    def at(self, second: float) -> tuple[float, float]:
        """The factor at a second of the run, and the second at which the factor changes next."""
        period = self.period_seconds
        begin = 0.0 if period is None else math.floor(max(second, 0.0) / period) * period
        place = max(bisect_right(self.points, second - begin, key=lambda point: point[0]) - 1, 0)
        while (until := self._end(place, begin)) <= second:  # rounding
            place, begin = (place + 1, begin) if place + 1 < len(self.points) else (0, until)
        return self.points[place][1], until

    def _end(self, place: int, begin: float) -> float:
        if place + 1 < len(self.points):
            return begin + self.points[place + 1][0]
        return math.inf if self.period_seconds is None else begin + self.period_seconds


Way = tuple[float, float, tuple[tuple[float, LinkSlowdown | None], ...]]
"""A message's latency, its maximum rate, and for each link on its way the message's share of the bandwidth and the link's slowdown."""


def way_seconds(way: Way, nbytes: float, begins: float) -> float:
    """The seconds of a message on this way, if it begins at second `begins` of the run."""
    latency, limit, links = way
    now = begins
    for _ in range(MAX_CHANGES):
        rate, until = limit, math.inf
        for share, slowdown in links:
            factor, end = (1.0, math.inf) if slowdown is None else slowdown.at(now)
            rate, until = min(rate, share / factor), min(until, end)
        if now + nbytes / rate <= until:
            return now - begins + nbytes / rate + latency
        nbytes -= rate * (until - now)
        now = until
    raise RunFailed(f"during one message of a collective its links change {MAX_CHANGES} times: make link_slowdown change less often")
