"""hetsim-launch: one call on each host; here, several on one machine."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from threading import Event, Timer
from typing import Any

import pytest
import torch.distributed as dist
from running import family, free_port, wait_for
from threads import Board
from worlds import exit_status

from hetsim.cli import launch
from hetsim.distributed.launch import call as calls
from hetsim.distributed.launch import host as launch_host
from hetsim.distributed.launch import host_exchange as hosts
from hetsim.distributed.launch.call import Call, agree, open_store
from hetsim.distributed.launch.failure_report import Failure
from hetsim.distributed.launch.host_exchange import Hosts

TWO = "cluster.nodes=[{count: 2, seconds_per_sample: 1e-5, overhead_seconds: 0}]"
SERVER = ("backend=dist", "method=asgd", "workload=quadratic", TWO, "pictures=false", "trace=full")
"""A run of three processes."""


class Counting(Board):
    """The launchers' store, in one process."""

    def add(self, key: str, number: int) -> int:
        """Add to a number, and return it."""
        self.texts[key] = str(int(self.texts.get(key, "0")) + number)
        return int(self.texts[key])


def call(**changes: Any) -> Call:
    """One of two calls."""
    return Call(
        **{
            "nodes": 2,
            "node": 0,
            "processes": 1,
            "address": "127.0.0.1",
            "port": 29500,
            "words": ("method=asgd",),
            "version": "1.0",
            **changes,
        }
    )


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        (("--nodes", "2"), "--nodes 2 needs --node-rank K and --master HOST:PORT: give both"),
        (("--nodes", "2", "--node-rank", "2", "--master", "h:1"), "--node-rank must be from 0 to 1 with --nodes 2, not 2"),
        (("--master", "192.168.1.5"), "--master must be HOST:PORT, as in 192.168.1.5:29500, not 192.168.1.5"),
        (("--processes", "0"), "--processes must be at least 1, not 0"),
        (("--master", "192.0.2.99:29500"), "--master 192.0.2.99:29500 cannot be listened on (Cannot assign requested address): give"),
    ],
)
def test_a_call_that_cannot_work_is_one_sentence(
    typed: tuple[str, ...], sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before any process starts."""
    before = signal.getsignal(signal.SIGTERM)

    assert exit_status(monkeypatch, "hetsim-launch", launch.main, *typed, "method=asgd") == 1

    signal.signal(signal.SIGTERM, before)
    error = capsys.readouterr().err
    assert error.startswith(f"hetsim-launch: error: {sentence}")
    assert error.count("\n") == 1


@pytest.mark.parametrize("before", [(), ("--",), ("hetsim",), ("--", "hetsim")])
def test_hetsim_may_be_typed_before_its_words(before: tuple[str, ...]) -> None:
    """As hetsim-calibrate is before its own, and as other launchers need it."""
    assert launch._words([*before, "backend=dist", "method=asgd"]) == ("backend=dist", "method=asgd")
    assert launch._words([*before[:1], "hetsim-calibrate", "a.yaml"])[-2:] == ("hetsim-calibrate", "a.yaml")


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ({"words": ("method=ssgd",)}, "'method=asgd' was typed on node rank 0, and 'method=ssgd' was typed on node rank 1: type the same"),
        ({"nodes": 3}, "--nodes is 2 on node rank 0, and --nodes is 3 on node rank 1: give the same number on all hosts"),
        ({"node": 0}, "--node-rank 0 was given twice: give each host its own, from 0 to 1"),
    ],
)
def test_calls_that_do_not_fit_are_one_sentence(other: dict[str, Any], sentence: str) -> None:
    """The words, the number of hosts, and who is who."""
    store = Counting()
    store.texts |= {"called/0": "1", "node/0": json.dumps(call().shared_values())}

    with pytest.raises(ValueError, match="^" + sentence.replace("(", r"\(")):
        agree(store, call(**{"node": 1, **other}))
    if other.get("node") != 0:
        with pytest.raises(ValueError, match="^" + sentence):
            agree(store, call(nodes=5, node=2))


def test_other_versions_are_one_sentence_and_own_folders_of_data_none() -> None:
    """Each host has its data where it has them."""
    store = Counting()
    store.set("node/0", json.dumps(call(words=("method=asgd", "data_root=/a")).shared_values()))
    assert agree(store, call(node=1, processes=3, words=("method=asgd", "data_root=/b"))) == [1, 3]

    store.texts.pop("called/1")
    with pytest.raises(ValueError, match=r"on node rank 0, and there is hetsim 0\.0\.1, torch .* on node rank 1: install the same"):
        agree(store, call(node=1, words=("method=asgd",), version="0.0.1"))


def test_who_is_not_called_in_time_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for ever."""
    monkeypatch.setattr(calls, "RENDEZVOUS_TIMEOUT", calls.RENDEZVOUS_TIMEOUT * 0)

    with pytest.raises(calls.RunFailed, match=r"^hetsim-launch --node-rank 1 was not called: call it on that host \(waited for 0 s\)"):
        agree(Counting(), call())


@pytest.mark.parametrize("answer", ["silence", "a closed connection"])
def test_another_service_at_the_port_is_one_sentence(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the limit, and Ctrl-C is heard meanwhile."""
    monkeypatch.setattr(calls, "RENDEZVOUS_TIMEOUT", timedelta(seconds=0.3))
    other = socket.create_server(("127.0.0.1", 0))
    port = other.getsockname()[1]
    ends = {"silence": Timer(60, other.close), "a closed connection": Timer(0, lambda: [other.accept()[0].close() for _ in range(2)])}
    end = ends[answer]  # whoever waits for longer than the limit is let go
    end.daemon = True
    end.start()

    sentence = rf"^what answers at --master 127\.0\.0\.1:{port} is not hetsim-launch --node-rank 0: "
    with other, pytest.raises(calls.RunFailed, match=sentence):
        open_store(call(node=1, port=port))

    end.cancel()


def test_a_store_that_breaks_is_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without torch's stack of C++."""

    def broken(*_: object) -> None:
        raise dist.DistBackendError("Broken pipe\nException raised from sendBytes at Utils.hpp:642")

    monkeypatch.setattr(launch_host, "run_on_this_host", broken)
    before = signal.getsignal(signal.SIGTERM)

    assert exit_status(monkeypatch, "hetsim-launch", launch.main, "--master", "127.0.0.1:29500", "method=asgd") == 1

    signal.signal(signal.SIGTERM, before)
    sentence = "hetsim-launch --node-rank 0 at 127.0.0.1:29500 does not answer any more: call hetsim-launch again on all hosts"
    assert capsys.readouterr().err == f"hetsim-launch: error: {sentence}\n"


def test_every_host_knows_the_failure_nearest_to_the_cause() -> None:
    """By order, then by node rank; success is known, too."""
    store = Counting()
    both = [Hosts(store, call(node=node)) for node in range(2)]
    failures = [Failure(3, "rank 1 is gone"), Failure(1, "rank 1 was killed")]

    with both[0].talking(), both[1].talking():
        for host, failure in zip(both, failures, strict=True):
            host.end(failure)
        wait_for(lambda: all(host.complete for host in both))

        assert [host.failure for host in both] == [failures[1]] * 2


def test_what_one_host_refuses_names_it() -> None:
    """As a file that is missing there; what all refuse does not."""
    missing, gone = Failure(0, "mnist is missing"), Failure(3, "rank 2 is gone")
    host = Hosts(Counting(), call())

    host.outcomes = {0: gone, 1: missing}
    assert host.failure == Failure(0, "on node rank 1: mnist is missing")
    host.outcomes = {0: missing, 1: missing}
    assert host.failure == missing


def test_a_host_that_leaves_early_is_not_waited_for() -> None:
    """After Ctrl-C there, the launcher with the store does not wait for it."""
    store = Counting()
    host = Hosts(store, call(node=1))

    with host.talking():
        host.end(Failure(1, "the run was ended on node rank 1"))

    assert store.check(["left/1"])


@pytest.mark.realtime
def test_a_host_that_is_not_heard_of_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """And all others are told."""
    monkeypatch.setattr(hosts, "SILENT_SECONDS", 1.0)
    monkeypatch.setattr(hosts, "LEAVE_SECONDS", 0.0)
    store = Counting()
    first, third = (Hosts(store, call(nodes=3, node=node)) for node in (0, 2))
    store.set("beat/1", "7")

    with first.talking(), third.talking():
        wait_for(lambda: first.failure and third.failure)

        assert first.failure == third.failure == Failure(1, "nothing was heard of node rank 1 for 1 s: the run is lost")


def test_a_store_that_does_not_answer_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without waiting for the store's own timeout."""
    monkeypatch.setattr(hosts, "SILENT_SECONDS", 0.5)
    store = Counting()
    answers = Event()
    monkeypatch.setattr(store, "check", lambda _: not answers.wait(120))
    second = Hosts(store, call(node=1))

    with second.talking():
        wait_for(lambda: second.lost)
        answers.set()

        assert second.complete
        assert second.failure == Failure(2, "hetsim-launch --node-rank 0 at 127.0.0.1:29500 is gone: the run is lost")


Launchers = list[subprocess.Popen[str]]


@pytest.fixture
def launchers(tmp_path: Path) -> Iterator[Any]:
    """Starts hetsim-launch for two hosts, with two processes and one; at the end none is left."""
    both: Launchers = []

    def start(*typed: str, other: tuple[str, ...] | None = None) -> Launchers:
        port = free_port()
        for node, processes in enumerate((2, 1)):
            words = typed if node == 0 or other is None else other
            options = f"--nodes 2 --node-rank {node} --processes {processes} --master 127.0.0.1:{port}".split()
            command = [sys.executable, "-m", "hetsim.cli.launch", *options, "--", *SERVER, *words, f"hydra.run.dir={tmp_path / 'run'}"]
            both.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True))
        return both

    yield start
    for launcher in both:
        for pid in (launcher.pid, *family(launcher.pid)):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        launcher.wait()


def under_way(both: Launchers, folder: Path) -> list[list[int]]:
    """The processes of each launcher, once the run has begun."""
    wait_for(lambda: (folder / ".config.yaml.unfinished").exists() or any(each.poll() is not None for each in both), 120)
    assert [each.poll() for each in both] == [None, None], [each.communicate() for each in both]
    time.sleep(1.0)
    return [sorted(set(family(each.pid)) - {each.pid}) for each in both]


@pytest.mark.slow
def test_two_calls_are_one_run(launchers: Any, tmp_path: Path) -> None:
    """The leader is on the second host, and prints there."""
    both = launchers("budget.epochs=2")

    told = [each.communicate(timeout=240) for each in both]

    assert [each.returncode for each in both] == [0, 0], told
    assert [out.startswith("asgd on this hardware") for out, _ in told] == [False, True]
    assert [error for _, error in told] == ["", ""]
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["num_updates"] == 32
    wait_for(lambda: all(not family(each.pid) for each in both))


@pytest.mark.slow
def test_what_all_ranks_refuse_every_host_says_once(launchers: Any, tmp_path: Path) -> None:
    """As one sentence, with the exit status of a failure."""
    both = launchers("batch_size=1")

    told = [each.communicate(timeout=240)[1] for each in both]

    assert [each.returncode for each in both] == [1, 1]
    assert told[0] == told[1]
    assert told[0].startswith("hetsim-launch: error: ")
    assert told[0].count("\n") == 1
    assert not (tmp_path / "run").exists()


def without_gloos(text: str) -> str:
    """Without the lines in which gloo says that it tries again to connect."""
    return "".join(line for line in text.splitlines(keepends=True) if "gloo/transport" not in line)


@pytest.mark.slow
@pytest.mark.parametrize(
    "end",
    [
        "lose the leader",
        pytest.param("interrupt", marks=pytest.mark.long),
        pytest.param("kill the first launcher", marks=pytest.mark.long),
        "kill the second launcher",
    ],
)
@pytest.mark.sampled(1)
def test_no_process_is_left_on_any_host(end: str, launchers: Any, tmp_path: Path) -> None:
    """Whoever ends: both launchers say it in one sentence, and nothing unfinished is left."""
    both = launchers("budget.epochs=1000000", "backend.lost_after_seconds=3")
    first, second = under_way(both, tmp_path / "run")
    assert (len(first), len(second)) == (2, 1)
    lost = {"kill the first launcher": 0, "kill the second launcher": 1}.get(end)

    if end == "lose the leader":
        os.kill(second[0], signal.SIGKILL)
    elif end == "interrupt":
        os.killpg(both[0].pid, signal.SIGINT)
    elif lost is not None:
        both[lost].kill()
    told = [without_gloos(each.communicate(timeout=120)[1]) for each in both]

    wait_for(lambda: all(not family(each.pid) for each in both))
    assert all("Traceback" not in error for error in told), told
    assert not (tmp_path / "run").exists()
    for node, (launcher, error) in enumerate(zip(both, told, strict=True)):
        if node == lost:
            assert (launcher.returncode, error) == (-signal.SIGKILL, "")
        elif end == "interrupt" and node == 0:
            assert (launcher.returncode, error) == (130, "hetsim-launch: interrupted\n")
        else:
            assert launcher.returncode == 1
            assert error.startswith("hetsim-launch: error: ")
            assert error.count("\n") == 1
    if end == "lose the leader":
        lost_server = "the process of rank 2, the server, ended by itself (exit status -9): the run is lost"
        assert told[0] == told[1] == f"hetsim-launch: error: {lost_server}\n"
    if end == "interrupt":
        assert told[1] == "hetsim-launch: error: the run was ended on node rank 0\n"
