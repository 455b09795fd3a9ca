"""hetsim-launch at moments of bad luck: before the run begins, between two runs, with a status that says that all is well."""

from __future__ import annotations

import json
import signal
import time
from datetime import timedelta
from pathlib import Path
from threading import active_count
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch.distributed as dist
from faulty import check_samples, survived
from running import wait_for
from test_launched_losses import SECONDS, Hosts, hosts  # noqa: F401
from threads import Board

from hetsim.distributed.launch.failure_report import ENDED, Failure
from hetsim.distributed.launch.host_keeper import HostKeeper
from hetsim.distributed.launch.host_losses import CommandRank, StoreToKeeper, end_key, report_key
from hetsim.distributed.launch.participation import wait_for_all
from hetsim.distributed.launch.store import LOST, announce, run_store
from hetsim.distributed.launch.supervision import BEGIN_SECONDS, Supervision
from hetsim.distributed.membership.keeper import BEGAN, SurvivingRun, View, began_key, failed_key, view_key
from hetsim.errors import RunFailed
from hetsim.runtime.checkpointing import STOPPED, StopRequest


@pytest.mark.slow
@pytest.mark.long
def test_a_leader_that_leaves_with_status_0_has_not_ended_the_run(hosts: Any) -> None:  # noqa: F811
    """It is lost, and the next one leads."""
    started: Hosts = hosts("ssgd", (2, 1), "leave 0 6")

    run = started.survive()

    assert run.lost == [0]
    check_samples(run, started.described)


@pytest.mark.slow
@pytest.mark.long
def test_a_worker_that_leaves_with_status_0_is_lost(hosts: Any) -> None:  # noqa: F811
    """Nobody waits for it."""
    started: Hosts = hosts("ssgd", (2, 1), "leave 2 6")

    run = started.survive()

    assert run.lost == [2]
    check_samples(run, started.described)


@pytest.mark.slow
@pytest.mark.long
def test_the_first_launcher_goes_while_others_wait_for_the_beginning(hosts: Any) -> None:  # noqa: F811
    """One sentence of the other one."""
    started: Hosts = hosts("asgd", (1, 2), typed=("+workload.loading_seconds=60",))
    wait_for(lambda: len(list(started.folder.glob("computed-*"))) == 3 or started.calls[1].poll() is not None, SECONDS)
    time.sleep(1)

    started.calls[0].kill()
    statuses, told = started.end()

    assert statuses == [-signal.SIGKILL, 1]
    assert told[1].startswith("hetsim-launch: error: hetsim-launch --node-rank 0 at ")
    assert told[1].count("\n") == 1


class Kept:
    """A host keeper that looks when it is told to, on two hosts; its runs are announced by hand."""

    def __init__(self) -> None:
        self.store = dist.HashStore()  # type: ignore[attr-defined]
        self.store.set_timeout(timedelta(seconds=0.2))
        self.keeper = HostKeeper([1, 2], lambda: self.store)

    def announce(self, number: int) -> SurvivingRun:
        run = SurvivingRun(number=number, num_workers=3, num_ranks=3, leader=0, lost_after=3.0, saves=False)
        announce(self.store, run, leads=True)
        return run

    def begin(self, run: SurvivingRun) -> None:
        for rank in range(3):
            run_store(self.store, run.number).set(began_key(rank), "5.0")
        run_store(self.store, run.number).set(BEGAN, "5.0")

    def look(self) -> None:
        self.keeper._look(self.store)


def test_a_host_that_goes_while_the_next_run_is_announced_ends_that() -> None:
    """It was lost in the run before, as far as was known then; nobody waits for its ranks."""
    kept = Kept()
    kept.begin(kept.announce(0))
    kept.look()

    assert kept.keeper.lose_host(1, 4.0)
    kept.announce(1)
    kept.look()

    assert kept.store.check([LOST])
    assert kept.keeper.failures == [Failure(1, "nothing was heard of node rank 1 before the run: the run is lost")]


def test_a_run_that_has_failed_is_ended_for_all_before_the_next_one() -> None:
    """One rank says so; and so does the next run, where that was the leader."""
    kept = Kept()
    first = kept.announce(0)
    kept.begin(first)
    kept.look()

    run_store(kept.store, first.number).set(failed_key(2), "")
    kept.look()
    second = kept.announce(1)
    kept.begin(second)
    kept.look()
    kept.announce(2)
    kept.look()

    for run in (first, second):
        assert View.of_entries(json.loads(run_store(kept.store, run.number).get(view_key(1)))).members == {}
    assert not kept.store.check([end_key(0)])


def killed(kept: Kept) -> Supervision:
    """The launcher of node rank 1, whose only process was killed."""
    process = SimpleNamespace(poll=lambda: -signal.SIGKILL)
    each = CommandRank(rank=2, process=cast(Any, process), path=Path("nothing was written"))
    return Supervision(
        [each], StoreToKeeper(1, [2], lambda: kept.store, StopRequest()), start=lambda *_: pytest.fail("nothing is to be started")
    )


def test_a_process_that_ends_just_as_its_run_begins_is_lost_as_any_other() -> None:
    """The leader may tell of the beginning a little later."""
    kept = Kept()
    run = kept.announce(0)
    launcher = killed(kept)

    launcher.look(6.0)
    before = launcher.complete
    kept.begin(run)
    launcher.look(6.1)

    assert (before, launcher.complete, launcher.failures) == (False, True, [])
    number, what, rank, incarnation, at, why = json.loads(kept.store.get(report_key(1, 0)))
    assert (number, what, rank, incarnation, why) == (0, "lost", 2, 0, "ended by itself (exit status -9)")
    assert at == 6.0


def test_a_run_that_does_not_begin_fails_with_a_process() -> None:
    """After the time in which it would have been heard of."""
    kept = Kept()
    kept.announce(0)
    launcher = killed(kept)

    launcher.look(6.0)
    before = launcher.failures[:]
    launcher.look(6.0 + BEGIN_SECONDS)

    assert before == []
    ((order, error),) = launcher.failures
    assert (order, str(error)) == (1, "the process of rank 2 ended by itself (exit status -9): the run is lost")


def test_the_keeper_s_thread_ends_before_its_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own end would stop it in the store's code, which C++ answers by an abort."""
    before, store = active_count(), Board()
    monkeypatch.setattr(store, "check", lambda _: time.sleep(0.3))
    with HostKeeper([1, 1], lambda: store).keeping():
        time.sleep(0.1)

    assert active_count() == before


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("which", ["asgd", "ssgd"])
def test_a_launcher_that_comes_to_life_again_ends_its_processes(which: str, hosts: Any) -> None:  # noqa: F811
    """Its processes were never stopped; the run goes on without them."""
    started: Hosts = hosts(which, (2, 1) if which == "ssgd" else (1, 1, 1), epochs=300)
    applied = started.folder / "applied"
    wait_for(lambda: applied.exists() and applied.stat().st_size > 10_000, SECONDS)

    started.calls[1].send_signal(signal.SIGSTOP)
    time.sleep(4)
    started.calls[1].send_signal(signal.SIGCONT)
    statuses, told = started.end()

    assert statuses == [0, 1, 0][: len(statuses)], told
    assert told[1].startswith("hetsim-launch: error: node rank 0 had not heard of this host for "), told
    run = survived(json.loads(started.summary.read_text()), started.folder, 0.0)
    check_samples(run, started.described)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("saved", [True, False])
def test_the_call_that_has_lost_its_processes_may_be_asked_to_stop(saved: bool, hosts: Any) -> None:  # noqa: F811
    """A saved run stops everywhere; another one goes on without that call."""
    typed = ("checkpoint.every_updates=100",) if saved else ()
    started: Hosts = hosts("ssgd", (2, 1), "kill 2 6", epochs=4_000_000 if saved else 400, lost_after=3.0, typed=typed)
    applied = started.folder / "applied"
    wait_for(lambda: applied.exists() and applied.stat().st_size > 10_000, SECONDS)

    time.sleep(1)  # the loss is known

    started.calls[1].send_signal(signal.SIGTERM)
    statuses, told = started.end()

    assert statuses == ([STOPPED, STOPPED] if saved else [0, ENDED]), told


def test_who_waits_for_a_rank_that_fails_to_load_fails_with_it() -> None:
    """Its process goes on with the next run of a sweep, so that no launcher sees it end."""
    store = dist.HashStore()
    store.set(failed_key(1), "")

    with pytest.raises(RunFailed, match="the run has failed on another rank"):
        wait_for_all(store, 0, 3)
    assert store.check(["loaded/0"])
