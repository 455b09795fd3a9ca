"""The cores and the budget of each rank's process."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hetsim.cluster.distributions import PERIODS
from hetsim.cluster.hosts import CommunicationWork, Host
from hetsim.cluster.model import Cluster, NodeSpec, Server
from hetsim.sim.clock import Callback, VirtualClock
from hetsim.sim.hosts.cores import Cores, CpuBudget, Work

OWN_HOST = Host(cores=2**31)
"""The host of a process without a described host. It has enough cores for all threads."""


class Processors:
    """The cores of each rank's host, and the rank's budget of CPU-seconds."""

    def __init__(self, env: VirtualClock, cluster: Cluster, *, seed: int, widths: Sequence[int]) -> None:
        shared = {name: Cores(env, host) for name, host in cluster.hosts.items()}
        ends: list[NodeSpec | Server] = [*cluster.nodes, cluster.server]
        self._cores = [Cores(env, OWN_HOST) if end.host is None else shared[end.host] for end in ends]
        ticks = [0.0 if end.host is None else cluster.hosts[end.host].tick_seconds for end in ends]
        self._budgets = [_budget(end, seed, rank, tick) for rank, (end, tick) in enumerate(zip(ends, ticks, strict=True))]
        self._of_messages = [budget if end.cpu_quota_covers_messages else None for end, budget in zip(ends, self._budgets, strict=True)]
        self._colds = [node.cold if node.cold_seconds and node.cpu_quota_covers_messages else None for node in cluster.nodes] + [None]
        self._cpu = cluster.network.cpu or CommunicationWork()
        self._env = env
        self._last_message = [-math.inf for _ in ends]
        """The time at which each rank last began to send or receive a message."""
        self._programs = [end.program_seconds for end in ends]
        self._widths = widths
        """The number of cores that each rank's program uses at once."""

    def compute(self, rank: int, seconds: float, callback: Callback, answer: Any = None) -> Any:
        """Do work of a rank's program, on all its threads."""
        return self._cores[rank].run(
            seconds, callback, answer, budget=self._budgets[rank], width=self._widths[rank], cold=self._colds[rank]
        )

    def begin(self, rank: int, seconds: float, callback: Callback, answer: Any) -> Work:
        """The same as `compute`, for more than zero seconds. The work can be given up."""
        work = Work(seconds, callback, answer, self._budgets[rank], urgent=False, width=self._widths[rank], cold=self._colds[rank])
        self._cores[rank].begin(work)
        return work

    def give_up(self, rank: int, work: Work) -> None:
        """End the work without a result."""
        self._cores[rank].give_up(work)

    def send(self, rank: int, nbytes: int, callback: Callback) -> None:
        """Do a rank's work of sending a message. `callback` is called twice, because the computing thread does a part of it."""
        self._message(rank, self._cpu.send(nbytes), callback)

    def receive(self, rank: int, nbytes: int, callback: Callback) -> None:
        """Do a rank's work of receiving a message. `callback` is called twice."""
        self._message(rank, self._cpu.receive(nbytes), callback)

    def collective(self, rank: int, nbytes: int, callback: Callback, *, gathers: bool) -> None:
        """Do a rank's work in an all-reduce, or in a gather. `callback` is called twice."""
        seconds, share = (self._cpu.gather if gathers else self._cpu.collective)(nbytes), self._cpu.collective_thread_share
        self._move(rank, seconds * (1 - share), callback)
        self._run_in_thread(rank, seconds * share, callback)

    def overlap(self, rank: int) -> None:
        """Do the additional work of a communication that runs beside the rank's program, which does not wait for it."""
        self._run_in_thread(rank, self._cpu.overlap_seconds, lambda _: None)

    def commit(self, rank: int, callback: Callback, going: bool, *, agrees: bool) -> Any:
        """Compute what a commit costs the rank's program, also the agreement on whether to continue. Calls `callback(going)`."""
        seconds = self._programs[rank] + (self._cpu.agreement_seconds if agrees else 0.0)
        return self._cores[rank].run(seconds, callback, going, budget=self._budgets[rank]) if seconds else going

    def process_message(self, rank: int, callback: Callback, message: Any) -> Any:
        """Compute what a message with a vector costs the rank's program. Calls `callback(message)`."""
        seconds = self._programs[rank]
        return self._cores[rank].run(seconds, callback, message, budget=self._budgets[rank]) if seconds else message

    def _message(self, rank: int, seconds: float, callback: Callback) -> None:
        now = self._env.now
        cold, self._last_message[rank] = self._cpu.cold(now - self._last_message[rank]), now
        self._move(rank, seconds + cold, callback)
        self._run_in_thread(rank, self._cpu.thread_seconds, callback)

    def _run_in_thread(self, rank: int, seconds: float, callback: Callback) -> None:
        """Do work of the computing thread."""
        if seconds:
            self._cores[rank].run(seconds, callback, budget=self._budgets[rank])
        else:
            callback(None)

    def _move(self, rank: int, seconds: float, callback: Callback) -> None:
        if seconds:
            self._cores[rank].run(seconds, callback, budget=self._of_messages[rank], urgent=True)
        else:
            callback(None)


def _budget(end: NodeSpec | Server, seed: int, stream: int, tick: float) -> CpuBudget | None:
    """The budget of a process with a quota by periods, which begin at a random time; None for other processes."""
    if end.cpu_quota is None or end.cpu_quota_period_seconds is None:
        return None
    phase = float(np.random.default_rng((seed, stream, PERIODS)).random()) * end.cpu_quota_period_seconds
    return CpuBudget(end.cpu_quota, end.cpu_quota_period_seconds, phase - end.cpu_quota_period_seconds, tick=tick)
