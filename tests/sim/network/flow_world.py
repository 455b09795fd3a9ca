"""Flows in virtual time, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simpy.events import NORMAL, Event

from hetsim.sim.clock import Callback, VirtualClock
from hetsim.sim.network.flows import Flows
from hetsim.sim.network.links import Flow, Route


class CountingClock(VirtualClock):
    """A clock that says how many calls it has yet to make."""

    __slots__ = ("num_waiting",)

    def __init__(self) -> None:
        super().__init__()
        self.num_waiting = 0

    def after(self, seconds: float, callback: Callback, answer: Any = None) -> Any:
        self.num_waiting += 1
        return super().after(seconds, callback, answer)

    def at(self, moment: float, callback: Callback, answer: Any = None, priority: int = NORMAL) -> Any:
        self.num_waiting += 1
        return super().at(moment, callback, answer, priority)

    def schedule(self, event: Event, priority: Any = NORMAL, delay: float = 0) -> None:
        self.num_waiting += 1
        super().schedule(event, priority, delay)

    def pop_if_next(self, callback: Callback) -> Any:
        answer = super().pop_if_next(callback)
        self.num_waiting -= answer is not None
        return answer

    def step(self) -> None:
        self.num_waiting -= 1
        super().step()

    def run_all(self) -> None:
        while self.num_waiting:
            self.step()


class World:
    """A clock, its flows, and when each of them ended, by name, in the order of the ends."""

    def __init__(self) -> None:
        self.env = CountingClock()
        self.flows = Flows(self.env)
        self.under_way: dict[Any, Flow] = {}
        self.ended: dict[Any, float] = {}

    def at(self, seconds: float, action: Callable[..., Any], *arguments: Any) -> None:
        """Do something at this moment, in the order of asking."""
        self.env.timeout(seconds).callbacks.append(lambda _: action(*arguments))

    def start(self, name: Any, route: Route, nbytes: float, weight: float = 1.0) -> None:
        self.under_way[name] = self.flows.start(route, nbytes, self.end, name, weight)

    def end(self, name: Any) -> None:
        self.ended[name] = self.env.now

    def cancel(self, name: Any) -> None:
        self.flows.cancel(self.under_way[name])

    def rates(self) -> dict[Any, float]:
        return {flow.answer: rate for flow, rate in self.flows.rates().items()}

    def run(self) -> list[tuple[Any, float]]:
        self.env.run_all()
        return list(self.ended.items())
