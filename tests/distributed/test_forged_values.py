"""Whoever reaches a run's store can write to it: what stands there is checked, and nobody ends a run well whose work is not done."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist
from running import wait_for
from test_hosts import Counting, call
from threads import Board

from hetsim.distributed.launch.call import MAX_PROCESSES, agree
from hetsim.distributed.launch.host_exchange import Hosts
from hetsim.distributed.launch.host_keeper import HostKeeper
from hetsim.distributed.launch.host_losses import StoreToKeeper, end_key, gone_key, report_key
from hetsim.distributed.launch.store import ANNOUNCED, LOST, announce, announced_run, leaders_time, run_store
from hetsim.distributed.membership.keeper import BEGAN, OVER, VOID, Keeper, SurvivingRun, View, began_key, go_key, read_entry, view_key
from hetsim.distributed.membership.keeper_client import SAVED, KeeperClient
from hetsim.distributed.rank.regrouping import RegroupingMembership
from hetsim.distributed.rank.standstill import StandstillWatch
from hetsim.distributed.rank.surviving import ServedMembership
from hetsim.errors import RunFailed, RunOver
from hetsim.runtime.checkpointing import StopRequest

RUN = SurvivingRun(num_workers=2, num_ranks=3, leader=2, lost_after=10.0, joins=((1, 5.0),), faults=((1.0, 0, "kill", 2.0),))


def heard_by_keeper(store: Any) -> object:
    """What the first launcher's thread makes of the store; it is asked with a run that is announced."""
    keeper = HostKeeper([3], lambda: store)
    store.set(ANNOUNCED, json.dumps(asdict(RUN)))
    keeper._run, keeper._keeper = announced_run(store), Keeper(store, lambda _: None, RUN)
    return keeper._look(store)


def heard_of_hosts(store: Any) -> object:
    """What a launcher takes the end of another one for."""
    host = Hosts(store, call())
    host._exchange(1)
    if host.failure is not None:
        raise RunFailed(host.failure.sentence)
    return host.outcomes[1]


KEYS: dict[str, tuple[str, Callable[[Any], object]]] = {
    # what is read: its key, and what reads it
    "another launcher's call": ("node/1", lambda store: agree(store, call())),
    "another launcher's end": ("ended/1", heard_of_hosts),
    "the run": (ANNOUNCED, announced_run),
    "a rank that was lost": (LOST, lambda store: announce(store, None, leads=False)),
    "the beginning": (BEGAN, lambda store: leaders_time(store, [], 0.0)),
    "the beginning, to the keeper": (BEGAN, lambda store: Keeper(store, lambda _: None, RUN).look(0.0)),
    "the beginning on a host": (began_key(0), lambda store: leaders_time(store, [0], 0.0)),
    "a report of a launcher": (report_key(0, 0), heard_by_keeper),
    "processes to end": (end_key(0), lambda store: [*StoreToKeeper(0, [0], lambda: store, StopRequest()).reports()]),
    "a launcher that is gone": (gone_key(0), lambda store: [*StoreToKeeper(0, [0], lambda: store, StopRequest()).reports()]),
    "the newest checkpoint": (SAVED, lambda store: KeeperClient.newest_saved(SimpleNamespace(_store=store))),
    "what a rank waits for": ("waiting/0", lambda store: StandstillWatch(store, 0, lambda: [0], lambda: None, None, leads=bool)._read()),
    "a view": (view_key(1), lambda store: read_entry(store, view_key(1), View.of_entries)),
}
MALFORMED = ("nonsense", "{}", '"text"', "[[1]]", "[1]", "[null, null]", "NaN", "true", "1" * 5000, "[" * 100_000, "\x1b[2J")


@pytest.mark.parametrize("value", MALFORMED, ids=range(len(MALFORMED)))
@pytest.mark.parametrize(("key", "read"), KEYS.values(), ids=KEYS)
def test_a_malformed_value_is_one_sentence(key: str, read: Callable[[Any], object], value: str) -> None:
    store = Counting()
    store.set(BEGAN, "1.0")
    store.set(key, value)

    with pytest.raises(RunFailed, match="which hetsim does not write") as failed:
        read(store)

    assert str(failed.value).isprintable()
    assert len(str(failed.value)) < 500


OTHERS: dict[str, Any] = {
    "processes": [10**9, MAX_PROCESSES + 1, 0, -1, 1.5, True, None, "2"],
    "nodes": [True, "2", None],
    "words": [5, [1], None],
    "versions": [[], {"hetsim": 1}, None],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in OTHERS.items() for value in values])
def test_another_call_is_checked_before_it_is_waited_for(name: str, value: Any) -> None:
    store = Counting()
    store.set("node/1", json.dumps({**call(node=1).shared_values(), name: value}))

    with pytest.raises(RunFailed, match="which hetsim does not write"):
        agree(store, call())


ENTRIES: dict[str, list[Any]] = {
    "number": [-1, 1.5, "0"],
    "num_workers": [0, 4, None],
    "num_ranks": [10**9, 1],
    "leader": [-1, 3, "0"],
    "succession": [1, None],
    "lost_after": [0, -1, float("inf"), "10"],
    "saves": ["yes"],
    "joins": [[[1]], [["1", 5.0]], [[1, "5"]], 7],
    "faults": [[[1.0, 0]], [[1.0, 0, 9]], [["1", 0, "kill"]], None],
    "more": [1],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in ENTRIES.items() for value in values])
def test_each_entry_of_an_announced_run_is_checked(name: str, value: Any) -> None:
    store = Board()
    store.set(ANNOUNCED, json.dumps(asdict(RUN)))
    assert announced_run(store) == SurvivingRun(**{**asdict(RUN), "joins": [(1, 5.0)], "faults": [(1.0, 0, "kill", 2.0)]})

    store.set(ANNOUNCED, json.dumps({**asdict(RUN), name: value}))
    with pytest.raises(RunFailed, match="which hetsim does not write"):
        announced_run(store)


def test_a_launchers_threads_report_what_they_cannot_read() -> None:
    """They print no traceback, and the run fails."""
    store = Board()
    store.set(ANNOUNCED, "nonsense")

    keeper = HostKeeper([1], lambda: store)
    with keeper.keeping():
        wait_for(lambda: keeper.failures)

    assert "which hetsim does not write" in keeper.failures[0].sentence


def test_a_leader_whose_program_goes_on_believes_nobody_that_the_run_is_over() -> None:
    def over(*_: object, **__: object) -> None:
        raise RunOver

    client = SimpleNamespace(view=SimpleNamespace(over=True))
    membership: Any = SimpleNamespace(client=client, _first_state=lambda _: None, _program=lambda *_: None)
    leader: Any = SimpleNamespace(record=SimpleNamespace(leads=True))
    world: Any = SimpleNamespace(run=over)

    with pytest.raises(RunFailed, match="another process said that the run is over"):
        RegroupingMembership.run(membership, leader, world)
    leader.record.leads = False
    RegroupingMembership.run(membership, leader, world)


@pytest.mark.parametrize(("leads", "has_told", "over"), [*product([True, False], repeat=3)])
def test_a_server_whose_program_goes_on_believes_nobody_that_the_run_is_over(leads: bool, has_told: bool, over: bool) -> None:
    """Others would wait for each other, as the keeper of a run that is over watches nobody."""
    failed: list[Exception] = []
    follow = SimpleNamespace(follow=lambda *_: None, served=[0])
    membership: Any = SimpleNamespace(client=SimpleNamespace(has_told_over=has_told), _connections=follow)
    server: Any = SimpleNamespace(record=SimpleNamespace(leads=leads))
    world: Any = SimpleNamespace(mailbox=SimpleNamespace(fail=failed.append), transport=None)

    ServedMembership._change(membership, View(1, {0: 0}, over=over), server, world)

    assert list(map(str, failed)) == ["another process said that the run is over before it was: the run is lost"] * (
        leads and over and not has_told
    )


def answers(port: int) -> bool:
    """Whether a process listens there."""
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0


WORDS = ("backend=dist", "workload=quadratic", "budget.epochs=1000000", "pictures=false", "trace=none", "cluster=uniform4")


def launched(folder: Path, *words: str, when: str, forged: dict[str, str]) -> tuple[int, str]:
    """The status of a run by hetsim-launch, and what it says, if another program sets these keys once the run's store has that one."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "hetsim.cli.launch",
        "--processes",
        str(4 + ("method=asgd" in words)),
        "--master",
        f"127.0.0.1:{port}",
        "--",
        *WORDS,
        *words,
    ]
    launcher = subprocess.Popen([*command, "hydra.run.dir=run"], cwd=folder, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        wait_for(lambda: launcher.poll() is not None or answers(port))
        store = run_store(dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(minutes=1)), 0)
        wait_for(lambda: not when or store.check([when]))
        for key, value in forged.items():
            store.set(key, value)
        _, told = launcher.communicate(timeout=120)
    finally:
        if launcher.poll() is None:
            os.killpg(launcher.pid, signal.SIGKILL)
    return launcher.returncode, told


REGROUPS = ("method=ssgd", "budget.updates=300", "+cluster.faults={schedule: [{nodes: [1], crash: 0.05, repair: 0.1}]}")
NOT_READ: dict[str, tuple[str, dict[str, str]]] = {
    # when a key of a run's store is set, and what to
    "unknown": ("", {"nonsense": "\x1b[2J"}),
    "loaded": ("", {"loaded": "-100", "loaded/0": "x", "all loaded": "x"}),
    "here": ("", {f"here/{number}": "-100" for number in range(9)}),
    "all are here": (BEGAN, {go_key(number): "go" for number in range(9)}),
    "void": (BEGAN, {go_key(number): VOID for number in range(9)}),
    "no word": (BEGAN, {go_key(number): "nonsense" for number in range(9)}),
}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(("when", "forged"), NOT_READ.values(), ids=NOT_READ)
def test_no_key_that_is_not_read_as_a_value_makes_a_run_wait_for_ever(when: str, forged: dict[str, str], tmp_path: Path) -> None:
    """It ends with its work done, or with a sentence: what a rank waits for, it waits for with a bound."""
    status, told = launched(tmp_path, *REGROUPS, when=when, forged=forged)

    assert (status == 0) == (tmp_path / "run" / "summary.json").exists(), told
    assert "Traceback" not in told
    assert status == 0 or told.count("hetsim-launch: error: ") == 1


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("key", [OVER, view_key(1)])
@pytest.mark.parametrize("method", ["ssgd", "local_sgd", "asgd"])
def test_a_forged_end_of_a_run_is_no_success(method: str, key: str, tmp_path: Path) -> None:
    """Nor does it leave a summary, whichever method, and nobody waits for the work to be done."""
    status, told = launched(tmp_path, f"method={method}", when=BEGAN, forged={key: "" if key == OVER else json.dumps([1, [], [], True])})

    assert status != 0
    assert told.count("\n") == 1, told
    assert not (tmp_path / "run" / "summary.json").exists()
