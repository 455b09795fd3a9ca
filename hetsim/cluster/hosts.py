"""What processes on one machine share: its cores, and how fast they are while several of them are busy.

Seconds of work are seconds of the processor (CPU-seconds) on a core while the machine's other cores are idle.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

DEFAULT_PERIOD_SECONDS = 5e-3
"""In a shorter period a capped process loses more to other programs, because the unused part of a period's budget is lost. In a longer
one more of a step runs before its first pause (docs/internals/performance.md)."""
MIN_BUDGET_SECONDS = 1e-3
"""The least that Linux grants in a period."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """A machine whose `cores` the threads on it share evenly. With k of them busy each is `busy_speeds[k − 1]` times as fast as one alone.

    Cores that share caches, memory or a physical core (hyper-threads) have speeds below 1.
    """

    cores: int
    busy_speeds: tuple[float, ...] = ()
    """One for each core, the first 1; empty: all are 1."""
    tick_seconds: float = 0.0
    """How often its system looks whether a process has used up its quota; 0: at any moment."""

    balance_seconds: float = 0.0
    """How long a core stays idle before it takes over a thread from a core that several share; 0: all threads share all cores evenly."""

    def speed(self, busy: int) -> float:
        """The speed of each busy core while `busy` cores are busy, relative to one that is busy alone."""
        return self.busy_speeds[busy - 1] if self.busy_speeds else 1.0


@dataclass(frozen=True, kw_only=True)
class CommunicationWork:
    """CPU-seconds that moving n bytes takes: a constant plus n times a rate, at each end of a message and on each rank of a collective."""

    send_seconds: float = 0.0
    send_seconds_per_byte: float = 0.0
    receive_seconds: float = 0.0
    receive_seconds_per_byte: float = 0.0
    thread_seconds: float = 0.0
    """Beside these, of the thread that computes, for each message that it sends or receives."""
    collective_seconds: float = 0.0
    collective_seconds_per_byte: float = 0.0
    collective_thread_share: float = 0.0
    """The part of a collective's work that the thread does which computes, from 0 to 1; the rest is that of threads that move messages."""
    agreement_seconds: float = 0.0
    """On each rank of a method without a server, at each commit, where all ranks ask whether the run continues."""
    cold_seconds: float = 0.0
    """What an end of a message takes longer, at most, where it has moved none just before: caches are cold then."""
    cooling_seconds: float = math.inf
    """How long that takes: after a pause of p seconds it is cold_seconds · (1 − exp(−p / cooling_seconds))."""

    def send(self, nbytes: float) -> float:
        """At the sender of a message."""
        return self.send_seconds + nbytes * self.send_seconds_per_byte

    def receive(self, nbytes: float) -> float:
        """At its receiver."""
        return self.receive_seconds + nbytes * self.receive_seconds_per_byte

    def collective(self, nbytes: float) -> float:
        """On each rank of an all-reduce or a gather."""
        return self.collective_seconds + nbytes * self.collective_seconds_per_byte

    def cold(self, pause: float) -> float:
        """What an end of a message takes longer whose last one began so many seconds before."""
        return cold_after(pause, self.cold_seconds, self.cooling_seconds)


def cold_after(pause: float, most: float, cooling: float) -> float:
    """What work takes longer after a pause, in seconds, of at most `most` more; `cooling` is how soon caches are cold."""
    return most * -math.expm1(-pause / cooling) if most else 0.0


def default_period(share: float) -> float:
    """The seconds of a period in which a capped process gets its share of a core, if none is described: what real runs have."""
    return max(DEFAULT_PERIOD_SECONDS, MIN_BUDGET_SECONDS / share)
