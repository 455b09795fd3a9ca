"""The launcher's view of a worker that ends just as the run begins: the keeper, another process, may tell of the beginning later."""

from __future__ import annotations

import threading
import time
from multiprocessing import Pipe
from types import SimpleNamespace
from typing import Any

import pytest
from test_losses import small

from hetsim.distributed.launch import supervision
from hetsim.distributed.launch.local import ForkedRank, PipeToKeeper, outcome
from hetsim.distributed.launch.supervision import Supervision
from hetsim.distributed.membership.faults import FaultSchedule, surviving_run
from hetsim.distributed.membership.keeper import BEGAN
from hetsim.errors import RunFailed

SOON = time.monotonic() + 1e6
"""When a run begins whose loss is heard of before."""


def supervised(*, told_after: float | None, ended_first: bool = False) -> tuple[dict[str, object], list[Any]]:
    """What comes of a run whose worker 1 ends at once, and what the keeper is told; it tells of the beginning after so many seconds.

    None: before anything is heard, at a moment that is not past yet. With `ended_first` the others have ended well before it is lost.
    """
    ends = {rank: Pipe() for rank in range(4)}
    process = SimpleNamespace(pid=2**31 - 1, exitcode=-9, join=lambda _: None)
    ranks = [ForkedRank(rank=rank, process=process, pipe=ours) for rank, (ours, _) in ends.items()]
    ours, keepers = Pipe()
    its = small("server")
    schedule = FaultSchedule(its)
    keeper = PipeToKeeper(ours, surviving_run(its, schedule, survives=True, lost_after=30.0), schedule)
    followed = Supervision(ranks, keeper, start=lambda *_: pytest.fail("nothing is to be started"))
    heard: list[Any] = []
    ended = threading.Event()

    def keep() -> None:
        if told_after is not None:
            time.sleep(told_after)
            keepers.send((BEGAN, 5.0))
        until = time.monotonic() + (1.0 if ended_first else 60.0)
        while not (hears := keepers.poll(0.02)) and not ended.is_set() and time.monotonic() < until:
            pass
        heard.append(keepers.recv() if hears else None)
        for rank in (3,) if ended_first else (0, 2, 3):
            ends[rank][1].send((0, {"num_updates": 1} if rank == its.leader else None))
        if not ended.wait(3.0):
            keepers.close()  # it waits for what it has heard already

    if told_after is None:
        keepers.send((BEGAN, SOON))
    for rank in (0, 2) if ended_first else ():
        ends[rank][1].send((0, None))
    thread = threading.Thread(target=keep)
    threading.Timer(0.3 if ended_first else 0.0, ends[1][1].close).start()
    thread.start()
    try:
        return outcome(followed, keeper), heard
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize("told_after", [None, 0.2])
def test_the_run_goes_on_without_a_worker_that_ends_before_the_beginning_is_heard_of(told_after: float | None) -> None:
    """It is lost as any other, and not before the beginning."""
    begun = time.monotonic()
    summary, ((what, rank, incarnation, at, _),) = supervised(told_after=told_after)

    assert summary == {"num_updates": 1}
    assert (what, rank, incarnation) == ("lost", 1, 0)
    assert at == SOON if told_after is None else begun <= at < SOON
    assert time.monotonic() - begun < 60


def test_a_worker_that_is_lost_when_all_others_have_ended_ends_no_run() -> None:
    """The server has let them go, and finishes as soon as it knows of the loss."""
    summary, _ = supervised(told_after=None, ended_first=True)

    assert summary == {"num_updates": 1}


def test_a_run_that_does_not_begin_is_lost_with_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one sentence, soon."""
    monkeypatch.setattr(supervision, "BEGIN_SECONDS", 0.05)

    with pytest.raises(RunFailed, match="the process of rank 1 ended by itself"):
        supervised(told_after=0.5)
