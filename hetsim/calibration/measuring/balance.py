"""Find out how soon an idle core takes over a thread from a shared core, from the times of gradients that begin together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from statistics import fmean
from typing import NamedTuple

from hetsim.calibration.readings import IN_ROUND, RankReadings
from hetsim.cluster.hosts import Host
from hetsim.sim.clock import VirtualClock
from hetsim.sim.hosts.cores import Cores

MOST_ROUNDS = 200
STEPS = 10
"""The number of steps of the bisection, which begins between zero and the longest gradient."""


class StepCosts(NamedTuple):
    """A step of one rank in training: seconds of its parts, and CPU-seconds of its gradient."""

    gradient: float
    exchange: float
    update: float
    agreement: float
    work: float

    @property
    def seconds(self) -> float:
        """The seconds from the rank's gradient to its next one."""
        return self.gradient + self.exchange + self.update + self.agreement


def fit_balance(measured: RankReadings, ranks: Sequence[int], host: Host) -> tuple[float, float]:
    """The `balance_seconds` of a host, and how long simulated gradients of these ranks then take together; zeros without rounds.

    With this `balance_seconds`, they take as long as the measured ones, if the longest gradient suffices for it. It is 0 if there are no
    more ranks than cores, because no core is then shared. A thread may wait for a core in its gradient or before it. So the measured time
    is a whole step's, without an exchange and an agreement in which no rank waits.
    """
    rounds = list(islice(zip(*(_rounds(measured, rank) for rank in ranks), strict=False), MOST_ROUNDS))
    works: list[list[float]] = [[rank.work for rank in step] for step in rounds]

    def simulated(balance: float) -> float:
        balanced = Host(cores=host.cores, busy_speeds=host.busy_speeds, balance_seconds=balance)
        return fmean(end_of_works(balanced, step) for step in works)

    if not rounds:
        return 0.0, 0.0
    if len(ranks) <= host.cores:
        return 0.0, simulated(0.0)
    together = fmean(
        fmean(rank.seconds - rank.update for rank in step) - min(rank.exchange for rank in step) - min(rank.agreement for rank in step)
        for step in rounds
    )
    least, most = 0.0, max(max(step) for step in works)
    for _ in range(STEPS):
        middle = (least + most) / 2
        if simulated(middle) < together:
            least = middle
        else:
            most = middle
    return most, simulated(most)


def end_of_works(host: Host, works: Sequence[float]) -> float:
    """The time at which the last of these works is done, in seconds, if all begin at zero on an idle host."""
    clock = VirtualClock()
    cores = Cores(clock, host)
    moments: list[float] = [0.0]
    for seconds in works:
        cores.run(seconds, lambda _: moments.append(clock.now))
    clock.run_all()
    return moments[-1]


def _rounds(measured: RankReadings, rank: int) -> Iterator[StepCosts]:
    readings = measured.of(rank, *IN_ROUND)
    for place in range(len(readings) - len(IN_ROUND) + 1):
        step = readings[place : place + len(IN_ROUND)]
        if tuple(reading.kind for reading in step) == IN_ROUND:
            gradient, exchange, update, agreement, program = (reading.seconds for reading in step)
            yield StepCosts(gradient, exchange, update, agreement + program, step[0].cpu_seconds)
