"""Pools of processes: what a process answers, asks, refuses and fails at, and what becomes of it when one ends."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hetsim.errors import RunFailed
from hetsim.pool.engines import opened_pool
from hetsim.pool.pool import NodeLost, Pool, PoolEnded
from hetsim.pool.process import STOPS, Answer, Process, Reply

HERE = "test_pool:answering"

pytestmark = pytest.mark.slow


def answering(first: Any) -> Answer:
    """In a process: answers by the question's kind. What it prints is no answer."""

    def answer(question: dict[str, Any], ask: Reply) -> Any:
        print("printed")
        match question["kind"]:
            case "first":
                return first
            case "sum":
                return sum(ask(number) for number in question["numbers"])
            case "refuse":
                raise ValueError("this is refused")
            case "fail":
                raise KeyError("a key")
            case "killed":
                os.kill(os.getpid(), signal.SIGKILL)
        return os.getpid()

    return answer


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)]))
    with opened_pool("local", HERE, 2, of="the tests", first={"a": [1, None]}) as pool:
        yield pool


def test_a_question_has_one_answer(pool: Pool) -> None:
    """Plain values go both ways. A refusal is a ValueError, any other error a RunFailed with its class."""
    assert pool.ask({"kind": "first"}) == {"a": [1, None]}
    assert pool.ask({"kind": "sum", "numbers": [1, 2, 3]}, lambda: lambda number: 10 * number) == 60
    with pytest.raises(ValueError, match=r"^this is refused$"):
        pool.ask({"kind": "refuse"})
    with pytest.raises(RunFailed, match=r"^KeyError: 'a key'$"):
        pool.ask({"kind": "fail"})
    with pytest.raises(RunFailed, match=r"^a process of the tests was killed, perhaps for lack of memory$"):
        pool.ask({"kind": "killed"})
    assert pool.ask({"kind": "first"}) == {"a": [1, None]}  # in a new process


def test_a_map_draws_an_item_when_a_process_is_idle(pool: Pool) -> None:
    """Results come as they are ready, each with its item's number, and by both processes."""
    drawn: list[int] = []

    def items() -> Iterator[int]:
        for number in range(8):
            drawn.append(number)
            yield number

    results: dict[int, int] = {}
    for number, process in pool.map(lambda _: pool.ask({"kind": "id"}), items()):
        results[number] = process
        assert len(drawn) <= len(results) + pool.size
    assert sorted(results) == list(range(8))
    assert len(set(results.values())) <= 2


@pytest.mark.parametrize("number", STOPS)
def test_a_signal_to_a_process_is_left_to_its_user(pool: Pool, number: int) -> None:
    """A batch system that ends a job signals all its processes. The user's sentence says so, and not that a process was killed."""
    pids = [pool.ask({"kind": "pid"}) for _ in range(2)]
    for pid in pids:
        os.kill(pid, number)

    assert [pool.ask({"kind": "pid"}) for _ in range(2)] == pids
    pool.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_starting_process_is_not_ended_by_a_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no handlers yet."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)]))
    process = Process(HERE, of="the tests", first=1)
    os.kill(process._process.pid, signal.SIGTERM)

    assert process.ask({"kind": "first"}) == 1
    process.close()


def test_an_error_in_a_map_ends_the_pool(pool: Pool) -> None:
    """So no thread waits for an answer, and no further item is drawn."""
    with pytest.raises(ValueError, match="refused"):
        list(pool.map(lambda kind: pool.ask({"kind": kind}), iter(["first", "refuse", "first"])))
    with pytest.raises(PoolEnded):
        pool.ask({"kind": "first"})


def test_a_lost_node_is_asked_again_elsewhere(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most five times. What the process asks is answered from the beginning by each new process."""
    tries: list[list[int]] = []

    def lost(_: object, replying: Any) -> Any:
        reply = replying()
        reply(len(tries))
        raise NodeLost("lost")

    def replying() -> Reply:
        tries.append([])
        return tries[-1].append

    monkeypatch.setattr(pool, "_ask", lost)
    with pytest.raises(NodeLost):
        pool.ask({"kind": "first"}, replying)
    assert tries == [[1], [2], [3], [4], [5]]
