"""What a calibration has measured: readings of each rank, and what its process runs on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

AT_OWN_PACE, IN_STEP = "exchange at own pace", "exchange in step"
"""Of the weights after a gradient: by messages to the server and back, each as soon as it can, or all together as at an all-reduce."""
KINDS = (
    "alone", "update", "all_reduce", "message", "message beside others", "cold", "in training", "update in training", "agreement",
    AT_OWN_PACE, IN_STEP, "push at once", "pull at once", "first",
)  # fmt: skip
"""What is read; beside these, "beside K": a gradient of each of the first K workers at the same time."""


class Reading(NamedTuple):
    """One measurement: its kind, its size in samples or bytes, its seconds, and its CPU-seconds.

    Those of a gradient and an update are of the thread that computes, those of messages, exchanges, all-reduces and agreements of the whole
    process. "cold" is a gradient after a pause, whose microseconds are in place of the samples; before an exchange it is a gradient.
    "first" is the process's first gradient of so many samples.
    """

    kind: str
    size: int
    seconds: float
    cpu_seconds: float
    machine_seconds: float = 0.0
    """CPU-seconds of the whole machine, its kernel's work for the network included, less what it does anyway; 0: not known."""
    thread_seconds: float = 0.0
    """Those of a message, an exchange or an all-reduce that are of the thread that computes."""
    interrupt_seconds: float = 0.0
    """Of the machine's, those in interrupts, in which packets are moved."""

    def as_numbers(self) -> tuple[float, ...]:
        """As ranks send it to each other."""
        kind = KINDS.index(self.kind) if self.kind in KINDS else len(KINDS) + int(self.kind.split()[1])
        return float(kind), float(self.size), *self[2:]

    @classmethod
    def of_numbers(cls, numbers: Sequence[float]) -> Reading:
        """The reading that these numbers were made of."""
        kind = int(numbers[0])
        name = KINDS[kind] if kind < len(KINDS) else f"beside {kind - len(KINDS)}"
        return cls(name, int(numbers[1]), *numbers[2:])


class Process(NamedTuple):
    """What a rank's process runs on: a number for its machine, the cores that it may use, and the quota of its own cgroup, if any."""

    machine: float
    cores: float
    cpu_quota: float
    """A share of one core; 0: none."""
    period_seconds: float
    tick_seconds: float = 0.0
    """How often the system looks whether a quota is used up; 0: not known."""
    real_time: float = 1.0
    """Whether the system gives real-time priority to threads that move messages: 1 or 0."""


@dataclass(frozen=True)
class Measured:
    """Readings and facts of each rank, in rank order."""

    readings: list[list[Reading]]
    facts: list[list[float]]
    num_parameters: int = 1
    """How many numbers a gradient has."""

    @property
    def processes(self) -> list[Process]:
        """The facts, by name."""
        return [Process(*facts) for facts in self.facts]

    def of(self, rank: int, *kinds: str) -> list[Reading]:
        """A rank's readings of these kinds."""
        return [reading for reading in self.readings[rank] if reading.kind in kinds]

    def as_json(self) -> str:
        """As a file has it."""
        return json.dumps({"readings": self.readings, "facts": self.facts, "num_parameters": self.num_parameters})

    @classmethod
    def of_json(cls, text: str) -> Measured:
        """What `as_json` has written."""
        document = json.loads(text)
        return cls([[Reading(*row) for row in rows] for rows in document["readings"]], document["facts"], document["num_parameters"])
