"""Flows in virtual time, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hetsim.sim.clock import Clock
from hetsim.sim.network.flows import Flows
from hetsim.sim.network.links import Flow, Route


class World:
    """A clock, its flows, and when each of them ended, by name, in the order of the ends."""

    def __init__(self) -> None:
        self.env = Clock()
        self.flows = Flows(self.env)
        self.under_way: dict[Any, Flow] = {}
        self.ended: dict[Any, float] = {}

    def at(self, seconds: float, action: Callable[..., Any], *arguments: Any) -> None:
        """Do something at this moment, in the order of asking."""
        self.env.timeout(seconds).callbacks.append(lambda _: action(*arguments))

    def start(self, name: Any, route: Route, nbytes: float) -> None:
        self.under_way[name] = self.flows.start(route, nbytes, self.end, name)

    def end(self, name: Any) -> None:
        self.ended[name] = self.env.now

    def cancel(self, name: Any) -> None:
        self.flows.cancel(self.under_way[name])

    def rates(self) -> dict[Any, float]:
        return {flow.answer: rate for flow, rate in self.flows.rates().items()}

    def run(self) -> list[tuple[Any, float]]:
        self.env.play()
        return list(self.ended.items())
