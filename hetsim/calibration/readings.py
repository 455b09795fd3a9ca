"""The measurements of a calibration: readings of each rank, and facts about its process."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hetsim.calibration.accounts import PROGRAM

AT_OWN_PACE, IN_STEP = "exchange at own pace", "exchange in step"
"""Exchanges of the weights after a gradient: by messages to the server and back, at each worker's own pace, or all together."""
EXCHANGES = (AT_OWN_PACE, IN_STEP)
WHOLE, OVERLAPPED = "round", "overlapped round"
"""The CPU-seconds of whole rounds without local steps, all together: with an exchange after the gradient, or beside the next one."""
IN_TRAINING = (*EXCHANGES, "in training", "update in training", "agreement", PROGRAM)
"""The kinds of readings of a method's rounds, in the order in which they happen."""
IN_ROUND = ("in training", IN_STEP, "update in training", "agreement", PROGRAM)
"""The same of a method without a server, one of each in a round."""
KINDS = (
    "alone", "update", "all_reduce", "message", "message beside others", "cold", "in training", "update in training", "agreement",
    AT_OWN_PACE, IN_STEP, "push at once", "pull at once", "first", PROGRAM, "local update", "local step",
    "corrected update", "gather", WHOLE, OVERLAPPED,
)  # fmt: skip
"""The kinds of readings. "beside K" is a gradient of each of the first K workers at the same time."""


class Reading(NamedTuple):
    """One measurement: its kind, its size in samples or bytes, its seconds, and its CPU-seconds.

    The CPU-seconds of gradients and updates belong to the computing thread; all others to the process. For "cold", a gradient after a
    pause, the size is the pause in microseconds. For an exchange, it is the microseconds of the gradient before. "first" is the process's
    first gradient of this size, in training.
    """

    kind: str
    size: int
    seconds: float
    cpu_seconds: float
    machine_seconds: float = 0.0
    """The CPU-seconds of the machine, including the kernel's network work, without its background work; 0: unknown."""
    thread_seconds: float = 0.0
    """The computing thread's part of the CPU-seconds of a message, an exchange or an all-reduce."""
    interrupt_seconds: float = 0.0
    """The part of the machine's CPU-seconds in interrupts, which move packets."""

    def as_numbers(self) -> tuple[float, ...]:
        """The reading as numbers, which ranks send to each other."""
        kind = KINDS.index(self.kind) if self.kind in KINDS else len(KINDS) + int(self.kind.split()[1])
        return float(kind), float(self.size), *self[2:]

    @classmethod
    def of_numbers(cls, numbers: Sequence[float]) -> Reading:
        """The reading from its numbers."""
        kind = int(numbers[0])
        name = KINDS[kind] if kind < len(KINDS) else f"beside {kind - len(KINDS)}"
        return cls(name, int(numbers[1]), *numbers[2:])


class ProcessFacts(NamedTuple):
    """Facts about a rank's process: a number for its machine, its usable cores, and the quota of its cgroup."""

    machine: float
    cores: float
    cpu_quota: float
    """The quota as a share of one core; 0: none."""
    period_seconds: float
    tick_seconds: float = 0.0
    """The interval at which the system checks quotas; 0: unknown."""
    real_time: float = 1.0
    """Whether the system gives real-time priority to threads that move messages: 1 or 0."""


@dataclass(frozen=True)
class RankReadings:
    """Readings and facts of each rank, in rank order."""

    readings: list[list[Reading]]
    facts: list[list[float]]
    num_parameters: int = 1
    """The length of a gradient."""

    @property
    def processes(self) -> list[ProcessFacts]:
        """The facts about each process, by name."""
        return [ProcessFacts(*facts) for facts in self.facts]

    def of(self, rank: int, *kinds: str) -> list[Reading]:
        """A rank's readings of these kinds."""
        return [reading for reading in self.readings[rank] if reading.kind in kinds]

    def as_json(self) -> str:
        """The measurements as JSON."""
        return json.dumps({"readings": self.readings, "facts": self.facts, "num_parameters": self.num_parameters})

    @classmethod
    def of_json(cls, text: str) -> RankReadings:
        """Read the output of `as_json`."""
        document = json.loads(text)
        return cls([[Reading(*row) for row in rows] for rows in document["readings"]], document["facts"], document["num_parameters"])
