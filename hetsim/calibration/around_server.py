"""Measurements with a server: messages to it and back, from one worker and from all workers, and its optimizer steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from hetsim.calibration.program import (
    MIN_AT_ONCE,
    MIN_ROUNDS,
    NUM_READINGS,
    PARTS_OF_MODEL,
    ChangingSplit,
    Measurement,
    group_sizes,
    idle_phase,
    known_sizes,
)
from hetsim.calibration.readings import AT_OWN_PACE, IN_STEP, Reading
from hetsim.calibration.sharing import PULL, PUSH
from hetsim.coordination.delayed_server import DelayedParameterServer
from hetsim.coordination.parameter_server import ParameterServer
from hetsim.coordination.plan import Plan
from hetsim.coordination.state import State
from hetsim.effects import Node, Program, Receive, Send
from hetsim.policies.admission import Barrier, EveryGradient
from hetsim.vector import Vector


@dataclass(frozen=True, kw_only=True)
class AroundServer(Measurement):
    """Measurements with a server: messages to it and back, from one worker and from all workers, and its optimizer steps."""

    needs_server: ClassVar[bool] = True

    def phases(self, node: Node, plan: Plan, state: State, readings: list[Reading]) -> Iterator[Program[None]]:
        weights = state.weights
        if self.computes:
            yield from self.gradients(node, plan, weights, readings, group_sizes(node.num_workers))
        yield self.updates(node, weights, readings)
        for kind, admission in ((AT_OWN_PACE, EveryGradient()), (IN_STEP, Barrier())):
            yield self.run_in_training(node, plan, state, ParameterServer(admission=admission), kind, readings, self.over(node.num_workers))
        if self.computes:
            changing = ParameterServer(admission=Barrier(), allocation=ChangingSplit())
            sizes = known_sizes(plan, node.rank) if node.rank != node.server else set()
            yield self.run_changing_split(node, plan, state, changing, sizes, readings, self.over(node.num_workers))
        delayed = DelayedParameterServer(admission=Barrier(), warm_up=0)
        yield self.run_overlapped(node, plan, state, delayed, readings, self.over(node.num_workers))
        yield self.rest()
        for part in PARTS_OF_MODEL:
            payload = weights[: max(1, len(weights) // part)]
            for asking in (*((rank,) for rank in range(node.num_workers)), tuple(range(node.num_workers))):
                kind = "message" if len(asking) == 1 else "message beside others"
                if node.rank == node.server:
                    yield self.echoes(len(asking), payload, readings, kind)
                else:
                    yield self.round_trips(node, payload, readings, kind) if node.rank in asking else idle_phase()
        if self.at_once:
            if node.rank == node.server:
                yield self.time_at_once(weights, readings)
            else:
                yield self.begin_at_once(node, weights) if node.rank in self.at_once else idle_phase()

    def over(self, num_workers: int) -> Callable[[], bool]:
        """Whether a phase that begins at the first call is over, after this one of the calls."""
        calls: list[float] = []

        def is_over() -> bool:
            calls.append(time.perf_counter())
            return len(calls) > MIN_ROUNDS * num_workers and calls[-1] - calls[0] >= self.seconds

        return is_over

    def begin_at_once(self, node: Node, payload: Vector) -> Program[None]:
        """Send a message whenever the server asks for it, and receive one back."""
        while (yield from Receive(node.server)).more:
            yield from Send(node.server, payload)
            yield from Receive(node.server)
            yield from Send(node.server)

    def time_at_once(self, payload: Vector, readings: list[Reading]) -> Program[None]:
        """The server's part of `begin_at_once`. It measures all messages, there and back. The readings have the rank as size."""
        rounds, began = 0, time.perf_counter()
        while rounds < MIN_AT_ONCE or time.perf_counter() - began < self.seconds:
            for kind in (PUSH, PULL):
                start = time.perf_counter()
                for rank in self.at_once:
                    if kind == PUSH:
                        yield from Send(rank, more=True)
                    else:
                        yield from Send(rank, payload)
                for _ in self.at_once:
                    message = yield from Receive()
                    readings.append(Reading(kind, message.source, time.perf_counter() - start, 0.0))
            rounds += 1
        for rank in self.at_once:
            yield from Send(rank, more=False)

    def round_trips(self, node: Node, payload: Vector, readings: list[Reading], kind: str) -> Program[None]:
        """Messages to the server and back, one by one, in several readings. Half the round trip counts as one message."""
        seconds = self.seconds / len(PARTS_OF_MODEL) / node.num_workers / NUM_READINGS
        for _ in range(NUM_READINGS):
            count, start = 0, self.now()
            while count < 5 or time.perf_counter() - start.wall < seconds:
                yield from Send(node.server, payload)
                yield from Receive(node.server)
                count += 1
            readings.append(self.mean_reading(kind, payload.nbytes, self.now().since(start), 2 * count))
        yield from Send(node.server)

    def echoes(self, num_asking: int, payload: Vector, readings: list[Reading], kind: str) -> Program[None]:
        """Send each message back to its sender, until all `num_asking` senders have ended."""
        count, start = 0, self.now()
        while num_asking:
            message = yield from Receive()
            if message.payload is None:
                num_asking -= 1
            else:
                yield from Send(message.source, message.payload)
                count += 1
        took = self.now().since(start)
        readings.append(self.mean_reading(kind, payload.nbytes, took, 2 * count))
