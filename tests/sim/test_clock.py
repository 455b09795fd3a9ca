"""The simulator's clock is SimPy's environment: its events, processes and failures work as in SimPy."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from typing import Any

import pytest
import simpy

from hetsim.sim.clock import VirtualClock

RUN: dict[str, Callable[[VirtualClock], object]] = {"run": lambda env: env.run(), "run_all": lambda env: env.run_all()}
BOTH = pytest.mark.parametrize("how", RUN)


class Broken(Exception):
    """What a process raises."""


def breaking(env: VirtualClock, log: list[float]) -> Generator[simpy.Event, Any, None]:
    """Fails at 2 s."""
    yield env.timeout(2)
    log.append(env.now)
    raise Broken("at two")


@BOTH
def test_a_process_that_raises_ends_the_run_with_its_exception(how: str) -> None:
    """As in SimPy: nobody handles the failure, so it is raised at the one who runs the clock, and its cause is the original."""
    env, log = VirtualClock(), list[float]()
    env.process(breaking(env, log))

    with pytest.raises(Broken, match="at two") as raised:
        RUN[how](env)

    assert log == [2]
    assert isinstance(raised.value.__cause__, Broken)


@BOTH
def test_a_failure_that_another_process_handles_ends_nothing(how: str) -> None:
    """The waiting process gets the exception at its own line."""
    env, caught = VirtualClock(), list[str]()

    def waiting() -> Generator[simpy.Event, Any, None]:
        try:
            yield env.process(breaking(env, []))
        except Broken as error:
            caught.append(str(error))
        yield env.timeout(1)

    env.process(waiting())
    RUN[how](env)

    assert (caught, env.now) == (["at two"], 3)


@BOTH
def test_an_event_that_fails_with_nobody_waiting_is_raised(how: str) -> None:
    """Event.fail without a process; a defused one is silent."""
    env = VirtualClock()
    env.event().fail(Broken("alone"))

    with pytest.raises(Broken, match="alone"):
        RUN[how](env)
    env.event().fail(Broken("defused")).defused = True
    RUN[how](env)


def test_a_run_until_an_event_stops_there_and_can_go_on() -> None:
    """What else waits for that event is called when the run goes on."""
    env, log = VirtualClock(), list[tuple[str, float]]()
    stop = env.timeout(3, "stopped")

    def waiting() -> Generator[simpy.Event, Any, None]:
        yield stop
        log.append(("resumed", env.now))
        yield env.timeout(1)
        log.append(("ended", env.now))

    env.process(waiting())

    assert env.run(until=stop) == "stopped"
    env.run()

    assert log == [("resumed", 3), ("ended", 4)]


@BOTH
@pytest.mark.parametrize("seed", range(20))
def test_what_is_scheduled_far_ahead_comes_in_the_same_order(how: str, seed: int) -> None:
    """`far` is `at`, also among entries of the same moment: it only waits elsewhere."""

    def order(scheduled: str) -> list[tuple[float, int]]:
        env, chance, log = VirtualClock(), random.Random(seed), list[tuple[float, int]]()

        def due(number: int) -> None:
            log.append((env.now, number))
            for _ in range(chance.randrange(3) if len(log) < 300 else 0):
                schedule = getattr(env, scheduled) if chance.random() < 0.5 else env.at
                schedule(env.now + chance.randrange(4), due, len(log) * 10 + chance.randrange(10))

        for number in range(8):
            getattr(env, scheduled)(chance.randrange(4), due, number)
        RUN[how](env)
        return log

    assert order("far") == order("at")
