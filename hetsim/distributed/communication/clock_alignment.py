"""The clocks of several hosts, aligned by round trips to the leader at the start and at the end of a run.

A host's monotonic clock has an arbitrary origin and its own rate. A rank reads its clock, asks the leader for the leader's clock, and
reads its own again when the answer arrives. This gives the difference of the two clocks to half of the round trip. The shortest of
several round trips counts, as in NTP.

The readings at the start and at the end define a straight line, which converts the times of a run to the leader's clock. Ranks of one host
share a clock, and therefore a reading. If all ranks share one clock, nothing is measured.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from hetsim.distributed.communication.transport import Transport
from hetsim.distributed.pacing.padding import realtime_priority

ROUND_TRIPS = 32
"""The number of round trips in a reading. The shortest one counts."""
START_DELAY_SECONDS = 0.02
"""The seconds from the agreement on the start to the start, so that all ranks know it in time."""

Clock = Callable[[], float]


class ClockReading(NamedTuple):
    """A comparison of a clock with the leader's, in seconds."""

    at: float
    """The time by this clock."""
    offset: float
    """The leader's clock minus this one."""
    error: float
    """The maximum error of the offset: half of the round trip."""


class ClockLine(NamedTuple):
    """Converts a time of a rank's run to the leader's clock: `shift + rate * seconds`."""

    rate: float = 1.0
    shift: float = 0.0


def clock_id() -> float:
    """A whole number that identifies this process's clock. It is equal for all processes of a host since its boot."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        name = f"{boot} {os.stat('/proc/self/ns/time').st_ino}"  # containers may shift the clock
    except OSError:
        name = platform.node()
    return float(int.from_bytes(hashlib.sha256(name.encode()).digest()[:6]))


class Clocks:
    """The clocks of all ranks of a run, by rank. `ids` are equal for ranks with the same clock."""

    def __init__(self, ids: Sequence[float], *, leader: int) -> None:
        self._keepers = [ids.index(identity) for identity in ids]
        """For each rank, the lowest rank with the same clock, which reads the clock."""
        self._leader = leader
        none = [ClockReading(0.0, 0.0, 0.0)] * len(ids)
        self.start, self.end = none, none
        self._began = 0.0
        self.seconds_before = 0.0
        """The run's clock at the beginning of the run. It is above 0 if the run continues from a checkpoint."""

    @classmethod
    def shared(cls, num_ranks: int, *, leader: int) -> Clocks:
        """The clocks of ranks on one host."""
        return cls([0.0] * num_ranks, leader=leader)

    @classmethod
    def gather(cls, transport: Transport, own_id: float, *, leader: int) -> Clocks:
        """The clocks of ranks that may be on several hosts. `own_id` is this rank's `clock_id()`."""
        return cls([identity for (identity,) in transport.control.gather_numbers(own_id)], leader=leader)

    @property
    def several(self) -> bool:
        """Whether there are several clocks."""
        return len(set(self._keepers)) > 1

    def begin(self, transport: Transport, clock: Clock) -> float:
        """Read the clocks, and agree on the start. Returns the start by this rank's clock. It is the same moment on all hosts."""
        if self.several:
            self.start = self.end = self._read(transport, clock)
        transport.control.barrier()
        self._began = transport.control.broadcast(clock() + START_DELAY_SECONDS, self._leader)
        return self._began - self.start[transport.rank].offset

    def finish_with(self, transport: Transport, clock: Clock, rank: int) -> None:
        """Read the clock of `rank` again after the end of all programs, on that rank and on the leader. Others may be lost by then."""
        if self._keepers[rank] == self._keepers[self._leader]:
            return
        reading = torch.empty(3, dtype=torch.float64)
        if transport.rank == rank:
            reading = torch.tensor(compare_with_leader(transport, clock, self._leader), dtype=torch.float64)
            transport.send(reading, self._leader)
        else:
            answer(transport, clock, rank)
            transport.receive(reading, rank)
        self.end = [*self.end[:rank], ClockReading(*reading.tolist()), *self.end[rank + 1 :]]

    def change_leader(self, leader: int) -> None:
        """Record that another rank leads since the start, so that its clock is the reference."""
        if leader != self._leader:
            _, offset, error = self.start[leader]
            self._leader, self._began = leader, self._began - offset
            self.start = self.end = [ClockReading(reading.at, reading.offset - offset, reading.error + error) for reading in self.start]

    def _read(self, transport: Transport, clock: Clock) -> list[ClockReading]:
        """Read each rank's clock. One rank of each clock measures, one after another."""
        control, leader, rank = transport.control, self._leader, transport.rank
        own_reading = ClockReading(clock(), 0.0, 0.0)
        for keeper in sorted(set(self._keepers) - {self._keepers[leader]}):
            if rank == leader:
                answer(control, clock, keeper)
            elif rank == keeper:
                own_reading = compare_with_leader(control, clock, leader)
        readings = [ClockReading(*numbers) for numbers in control.gather_numbers(*own_reading)]
        return [readings[keeper] for keeper in self._keepers]

    def line(self, rank: int) -> ClockLine:
        """The conversion of this rank's seconds since the start to the leader's."""
        first, last = self.start[rank], self.end[rank]
        if last.at == first.at:
            return ClockLine()
        drift = (last.offset - first.offset) / (last.at - first.at)
        return ClockLine(1 + drift, drift * (self._began - self.seconds_before - first.offset - first.at))

    def change(self, rank: int) -> Callable[[Any], Any]:
        """A function that converts batches of rows from `rank`. It changes nothing if all ranks share a clock."""
        return partial(self.align, rank=rank) if self.several else lambda batch: batch

    def align(self, rows: Any, rank: int) -> Any:
        """An Arrow batch of `rank`'s trace, on the leader's clock. A message's start is by its sender's clock."""
        import pyarrow as pa
        from pyarrow import compute

        rates, shifts = (np.array(column) for column in zip(*map(self.line, range(len(self._keepers))), strict=True))
        sent = compute.equal(rows.column("kind"), "message").to_numpy(zero_copy_only=False)
        clocks = np.where(sent, rows.column("rank").to_numpy(), rank)
        end = shifts[rank] + rates[rank] * rows.column("end").to_numpy()
        start = np.minimum(shifts[clocks] + rates[clocks] * rows.column("start").to_numpy(), end)
        return pa.RecordBatch.from_arrays([pa.array(start), pa.array(end), *rows.columns[2:]], schema=rows.schema)

    def as_numbers(self) -> dict[str, float]:
        """For the summary: the maximum error of another host's times, in seconds, and the largest drift."""
        readings = (*self.start, *self.end)
        return {
            "num_clocks": len(set(self._keepers)),
            "error_seconds": max(reading.error for reading in readings),
            "drift": max(abs(self.line(rank).rate - 1) for rank in range(len(self._keepers))),
        }


def compare_with_leader(transport: Transport, clock: Clock, leader: int) -> ClockReading:
    """Compare this rank's clock with the leader's, while the leader calls `answer`."""
    leaders_time, readings = torch.zeros(1, dtype=torch.float64), []
    with realtime_priority():
        for _ in range(ROUND_TRIPS):
            sent_at = clock()
            transport.send(leaders_time, leader)
            transport.receive(leaders_time, leader)
            received_at = clock()
            middle = (sent_at + received_at) / 2
            readings.append(ClockReading(middle, leaders_time.item() - middle, (received_at - sent_at) / 2))
    return min(readings, key=lambda reading: reading.error)


def answer(transport: Transport, clock: Clock, rank: int) -> None:
    """On the leader: read the clock whenever `rank` asks for it."""
    question = torch.empty(1, dtype=torch.float64)
    with realtime_priority():
        for _ in range(ROUND_TRIPS):
            transport.receive(question, rank)
            transport.send(torch.tensor([clock()], dtype=torch.float64), rank)
