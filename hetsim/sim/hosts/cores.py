"""The cores of one host in virtual time: which work runs, at which speed, and its end.

Threads that move messages have priority, as in real runs. They run on any core, even if it computes while another is idle. The other
threads share the remaining cores evenly, at most one core each. Between two events all rates are constant, so times are exact.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import floor, inf
from typing import Any

from hetsim.cluster.hosts import Host
from hetsim.sim.clock import SUSPENDED, Callback, VirtualClock

Cold = Callable[[float], float]
KEPT_SECONDS = 1e-3
"""The part of a quota that Linux leaves with the core on which it was unused (since 5.4)."""


class CpuBudget:
    """The budget of a capped process: `share` of a core as CPU-seconds in each period, for all its threads.

    This is Linux's CFS bandwidth control. Periods begin at `phase` plus multiples of their length.

    With a `tick` of 0, the process stops exactly when its share is used up, and the unused part of a period is lost. With a tick, it
    stops at a multiple of the tick, or when it begins to work again. So it may overdraw its share at the expense of the next periods.
    Up to `KEPT_SECONDS` of the unused part stay available.
    """

    __slots__ = ("left", "period", "phase", "quota", "stopped", "tick", "turn")

    def __init__(self, share: float, period: float, phase: float = 0.0, *, tick: float = 0.0) -> None:
        self.quota = share * period
        self.period = period
        self.phase = phase
        self.tick = tick
        self.turn = -1
        """The number of the period to which `left` belongs."""
        self.left = self.quota
        self.stopped = False
        """Whether the process waits for the next period."""

    def catch_up(self, now: float) -> None:
        """Begin the periods that started while the process was idle."""
        turn = floor((now - self.phase) / self.period)
        while self.turn < turn:
            earlier = self.left
            self.next_period()
            if self.left == earlier:
                self.turn = turn

    @property
    def ends(self) -> float:
        """The end of the current period."""
        return self.phase + (self.turn + 1) * self.period

    def stops_at(self, now: float, use: float) -> float:
        """The time at which the process stops, if it uses `use` CPU-seconds per second."""
        moment = now + max(0.0, self.left) / use
        return (floor(moment / self.tick) + 1) * self.tick if self.tick else moment

    def stop(self) -> None:
        """The budget is used up, up to rounding if there is no tick."""
        self.stopped = True
        if not self.tick:
            self.left = 0.0

    def next_period(self) -> None:
        """Begin the next period."""
        kept = KEPT_SECONDS if self.tick else 0.0
        self.turn, self.left = self.turn + 1, self.quota + min(self.left, kept)
        self.stopped = self.left <= 0


class Work:
    """Work of one or several threads, and the seconds that remain at full speed."""

    __slots__ = ("answer", "budget", "callback", "cold", "left", "rate", "share", "stopped_at", "urgent", "width")

    def __init__(
        self,
        seconds: float,
        callback: Callback,
        answer: Any,
        budget: CpuBudget | None,
        *,
        urgent: bool,
        width: int,
        cold: Cold | None = None,
    ) -> None:
        self.left = seconds
        self.callback = callback
        self.answer = answer
        self.budget = budget
        self.urgent = urgent
        self.width = width
        self.cold = cold
        """The extra seconds after a pause in which the process was stopped."""
        self.stopped_at: float | None = None
        """The time at which the process was stopped; None if it is not."""
        self.share = 0.0
        """The share of a core that each of its threads has now."""
        self.rate = 0.0
        """Its progress: seconds of work per second."""

    def pause(self, now: float) -> None:
        """Note a pause of the process, or make the work longer after one, because other processes have filled the caches."""
        if self.cold is None or self.budget is None:
            return
        if self.budget.stopped:
            self.stopped_at = now if self.stopped_at is None else self.stopped_at
        elif self.stopped_at is not None:
            self.left += self.cold(now - self.stopped_at)
            self.stopped_at = None


class Places:
    """The threads on each core. A thread begins on the core with the fewest threads, and stays until an idle core takes it over.

    If a process has more threads than cores, they share cores. A thread whose quota is used up leaves its core, and begins again.
    """

    def __init__(self, host: Host) -> None:
        self._seconds = host.balance_seconds
        self._cores: list[list[Work]] = [[] for _ in range(host.cores)]
        self._idle_since = [0.0] * host.cores

    def put(self, running: list[Work], now: float) -> int:
        """Place the threads of the running work, and remove all others. Returns the number of busy cores."""
        for place, core in enumerate(self._cores):
            if core:
                self._idle_since[place] = now  # if at all: until now it was busy
            core[:] = [work for work in core if work in running]
        for work in running:
            for _ in range(work.width - sum(core.count(work) for core in self._cores)):
                min(self._cores, key=lambda core: (core.count(work), len(core))).append(work)
        return sum(map(bool, self._cores))

    def share(self, work: Work) -> float:
        """The share of a core that each of its threads gets. Its threads wait for each other."""
        return min(1 / len(core) for core in self._cores if work in core)

    @property
    def pulls_at(self) -> float:
        """The time at which an idle core takes over a thread; infinite if no thread shares a core, or no core is idle."""
        if max(map(len, self._cores)) < 2:
            return inf
        return min((since + self._seconds for core, since in zip(self._cores, self._idle_since, strict=True) if not core), default=inf)

    def pull(self) -> None:
        """Let the core with the longest idle time take over a thread of the fullest core."""
        idle = min((since, place) for place, since in enumerate(self._idle_since) if not self._cores[place])[1]
        self._cores[idle].append(max(self._cores, key=len).pop())


class Cores:
    """Runs work on one host."""

    def __init__(self, env: VirtualClock, host: Host) -> None:
        self.env = env
        self.host = host
        self._all: list[Work] = []
        self._since = 0.0
        self._version = 0
        self._places = Places(host) if host.balance_seconds else None

    def run(
        self,
        seconds: float,
        callback: Callback,
        answer: Any = None,
        *,
        budget: CpuBudget | None = None,
        urgent: bool = False,
        width: int = 1,
        cold: Cold | None = None,
    ) -> Any:
        """Call `callback(answer)` when this work (in seconds), by `width` simultaneous threads, is done."""
        if seconds <= 0:
            return self.env.after(0.0, callback, answer)
        self.begin(Work(seconds, callback, answer, budget, urgent=urgent, width=width, cold=cold))
        return SUSPENDED

    def begin(self, work: Work) -> None:
        """Begin work of more than zero seconds."""
        self._advance()
        budget = work.budget
        if budget is not None and not any(running.budget is budget for running in self._all):
            budget.catch_up(self.env.now)
            budget.stopped = budget.left <= 0
        self._all.append(work)
        self._plan()

    def give_up(self, work: Work) -> None:
        """End unfinished work, without calling anything."""
        self._advance()
        self._all.remove(work)
        self._plan()

    def _advance(self) -> None:
        """Subtract the work done since the rates were last set."""
        now = self.env.now
        passed, self._since = now - self._since, now
        if passed > 0:
            for work in self._all:
                work.left -= work.rate * passed
                if work.budget is not None:
                    work.budget.left -= work.share * work.width * passed

    def _plan(self) -> None:
        """Set all rates, and schedule their next change."""
        now = self.env.now
        budgets: dict[CpuBudget, float] = {}
        for work in self._all:
            work.pause(now)
            if work.budget is not None and work.budget not in budgets:
                budgets[work.budget] = 0.0
        running = [work for work in self._all if work.budget is None or not work.budget.stopped]
        urgent = sum(work.width for work in running if work.urgent)
        ordinary = sum(work.width for work in running) - urgent
        cores = self.host.cores
        urgent_share = min(1.0, cores / urgent) if urgent else 0.0
        remaining = max(0.0, 1.0 - urgent_share * urgent / cores)
        ordinary_share = min(1.0, cores / ordinary) * remaining if ordinary else 0.0
        busy = ordinary
        if self._places is not None:
            busy = self._places.put([work for work in running if not work.urgent], now)
        speed = self.host.speed(min(cores, urgent + busy)) if running else 0.0
        for work in self._all:
            work.share = work.rate = 0.0
        moment: float = inf
        change: Callable[[], Work | None] | None = None
        for work in running:
            work.share = urgent_share if work.urgent else ordinary_share if self._places is None else remaining * self._places.share(work)
            work.rate = work.share * speed
            if work.budget is not None:
                budgets[work.budget] += work.share * work.width
            if work.rate and now + max(0.0, work.left) / work.rate < moment:
                moment, change = now + max(0.0, work.left) / work.rate, partial(self._end, work)
        for budget, use in budgets.items():
            if use and (stops := budget.stops_at(now, use)) < moment:
                moment, change = stops, budget.stop
            if budget.ends <= moment:
                moment, change = budget.ends, budget.next_period
        if self._places is not None and (pulls := self._places.pulls_at) < moment:
            moment, change = pulls, self._places.pull
        self._version += 1
        if moment < inf:
            self.env.at(max(now, moment), self._change, (self._version, change))

    def _change(self, planned: tuple[int, Callable[[], Work | None]]) -> None:
        """Carry out the planned change, unless another event came before."""
        version, change = planned
        if version != self._version:
            return
        self._advance()
        ended = change()
        self._plan()
        if ended is not None:
            ended.callback(ended.answer)

    def _end(self, work: Work) -> Work:
        self._all.remove(work)
        return work
