"""The resources that processes on one machine share: its cores, and the speeds of cores while several are busy.

Seconds of work are seconds of the processor (CPU-seconds) on a core while the machine's other cores are idle.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

DEFAULT_PERIOD_SECONDS = 5e-3
"""In a shorter period a capped process loses more to other programs, because the unused part of a period's budget is lost. In a longer
period, more of a step runs before its first pause (docs/internals/performance.md)."""
MIN_BUDGET_SECONDS = 1e-3
"""The smallest budget of a period that Linux accepts."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """A machine whose threads share its `cores` evenly. While k cores are busy, the speed of each is `busy_speeds[k − 1]`.

    Cores that share caches, memory or a physical core (hyper-threads) have speeds below 1.
    """

    cores: int
    busy_speeds: tuple[float, ...] = ()
    """The speeds for 1, 2 … busy cores, relative to the first, which is 1. Empty: all are 1."""
    tick_seconds: float = 0.0
    """The interval at which the system checks quotas; 0 checks continuously."""

    balance_seconds: float = 0.0
    """How long a core stays idle before it takes over a thread of another core; 0: all threads share all cores evenly."""

    def speed(self, busy: int) -> float:
        """The speed of each core while `busy` cores are busy, relative to its speed while no other core is busy."""
        return self.busy_speeds[busy - 1] if self.busy_speeds else 1.0


@dataclass(frozen=True, kw_only=True)
class CommunicationWork:
    """The CPU-seconds of moving n bytes: a constant plus n times a rate, at each end of a message and on each rank of a collective."""

    send_seconds: float = 0.0
    send_seconds_per_byte: float = 0.0
    receive_seconds: float = 0.0
    receive_seconds_per_byte: float = 0.0
    thread_seconds: float = 0.0
    """The additional cost of each message for the computing thread, at both ends."""
    collective_seconds: float = 0.0
    collective_seconds_per_byte: float = 0.0
    collective_thread_share: float = 0.0
    """The part of a collective's work that the computing thread does, from 0 to 1. Threads that move messages do the rest."""
    agreement_seconds: float = 0.0
    """The cost of a commit without a server, on each rank: all ranks agree whether to continue."""
    gather_seconds: float = 0.0
    """The cost of a gather of numbers, such as timings, on each rank; 0: that of an agreement, or of a collective."""
    overlap_seconds: float = 0.0
    """The additional cost of a communication that runs beside the rank's program, on the cores that the program uses."""
    cold_seconds: float = 0.0
    """The maximum extra time of an end of a message after a pause, because caches are cold."""
    cooling_seconds: float = math.inf
    """The time constant: the extra time after a pause of p seconds is cold_seconds · (1 − exp(−p / cooling_seconds))."""

    def send(self, nbytes: float) -> float:
        """The CPU-seconds of the sender of a message."""
        return self.send_seconds + nbytes * self.send_seconds_per_byte

    def receive(self, nbytes: float) -> float:
        """The CPU-seconds of the receiver of a message."""
        return self.receive_seconds + nbytes * self.receive_seconds_per_byte

    def collective(self, nbytes: float) -> float:
        """The CPU-seconds of each rank of an all-reduce."""
        return self.collective_seconds + nbytes * self.collective_seconds_per_byte

    def gather(self, nbytes: float) -> float:
        """The CPU-seconds of each rank of a gather."""
        constant = self.gather_seconds or self.agreement_seconds or self.collective_seconds
        return constant + nbytes * self.collective_seconds_per_byte

    def cold(self, pause: float) -> float:
        """The extra seconds of an end of a message, if its previous message began `pause` seconds earlier."""
        return cold_after(pause, self.cold_seconds, self.cooling_seconds)


def cold_after(pause: float, most: float, cooling: float) -> float:
    """The extra seconds of work after a pause: at most `most`, with the time constant `cooling`."""
    return most * -math.expm1(-pause / cooling) if most else 0.0


def default_period(share: float) -> float:
    """The default length of the quota period of a process with this share of a core, in seconds. Real runs use it."""
    return max(DEFAULT_PERIOD_SECONDS, MIN_BUDGET_SECONDS / share)
