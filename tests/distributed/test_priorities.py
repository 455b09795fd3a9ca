"""Whoever moves messages has real-time priority while it does, where the system grants it, and what it had before afterwards."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TypeVar

import pytest
import torch

from hetsim.distributed.communication.gloo import GlooTransport
from hetsim.distributed.pacing import padding
from hetsim.distributed.pacing.padding import realtime_priority

T = TypeVar("T")
needs_priorities = pytest.mark.skipif(not hasattr(os, "sched_setscheduler"), reason="the system has no such priorities")


def in_a_thread(act: Callable[[], T]) -> T:
    """What it returns, in a thread of its own."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(act).result()


def policy() -> int:
    """This thread's."""
    return os.sched_getscheduler(0)


@pytest.fixture
def granted() -> None:
    """Skips where the system grants no real-time priority."""

    def asked() -> bool:
        with realtime_priority():
            return policy() == os.SCHED_RR

    if not in_a_thread(asked):
        pytest.skip("the system grants no real-time priority")


@needs_priorities
@pytest.mark.usefixtures("granted")
def test_a_process_may_keep_its_ordinary_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of runs with quotas do, until its next run."""
    monkeypatch.setattr(padding, "_may_be_urgent", True)

    def asked() -> int:
        with realtime_priority():
            return policy()

    for permitted, expected in ((False, os.SCHED_OTHER), (True, os.SCHED_RR)):
        padding.permit_realtime_priority(permitted=permitted)
        assert in_a_thread(asked) == expected


@needs_priorities
@pytest.mark.usefixtures("granted")
def test_it_lasts_as_long_as_the_context() -> None:
    """Also one within another, and after an error; a thread that had another real-time priority keeps it."""

    def nested() -> list[int]:
        seen = []
        with contextlib.suppress(ValueError), realtime_priority():
            with realtime_priority():
                seen.append(policy())
            seen.append(policy())
            raise ValueError
        seen.append(policy())
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        with realtime_priority():
            seen.append(policy())
        return [*seen, policy(), os.sched_getparam(0).sched_priority]

    assert in_a_thread(nested) == [os.SCHED_RR, os.SCHED_RR, os.SCHED_OTHER, os.SCHED_FIFO, os.SCHED_FIFO, 1]


@needs_priorities
def test_without_permission_it_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """And so it is where the system has no priorities at all."""

    def refused(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refused)
    with realtime_priority():
        assert policy() == os.SCHED_OTHER
    monkeypatch.delattr(os, "sched_getscheduler")
    with realtime_priority():
        pass


@needs_priorities
@pytest.mark.usefixtures("granted")
def test_a_message_is_sent_and_received_with_it() -> None:
    """By an ordinary thread, as gloo's threads would spin for what it has locked."""
    during: list[int] = []

    def noted(*_: object, **__: object) -> SimpleNamespace:
        during.append(policy())
        return SimpleNamespace(wait=lambda _: during.append(policy()))

    link = GlooTransport(SimpleNamespace(send=noted, recv=noted), 0, (0, 1))

    def exchange() -> int:
        link.send(torch.zeros(1), 1)
        link.receive(torch.zeros(1), 1)
        return policy()

    assert in_a_thread(exchange) == os.SCHED_OTHER
    assert len(during) >= 2
    assert set(during) == {os.SCHED_RR}
