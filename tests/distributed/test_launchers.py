"""Any launcher that says rank, number of processes and where they meet; SLURM's own variables; sentences for what does not fit."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from running import free_port
from worlds import exit_status

import hetsim
from hetsim.cli import main
from hetsim.distributed.environment import LOOPBACK, WATCH, Launched, check_alone, first_rank, interface_to, is_launched, launched
from hetsim.errors import RunFailed

PLAIN = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "29500"}
STEP = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "2",
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "7",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NODELIST": "rack[2-3]node[07-09,12],other",
}


def without(variables: dict[str, str], name: str) -> dict[str, str]:
    """These variables without one of them."""
    return {key: value for key, value in variables.items() if key != name}


def test_four_variables_are_enough() -> None:
    """How many processes are on this host is not known, unless it is said."""
    assert launched(PLAIN) == Launched(by="the launcher", rank=1, size=4, local_size=None, address="10.0.0.7", port=29500)
    known = launched({**PLAIN, "LOCAL_WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "x"})
    assert known is not None
    assert (known.by, known.one_host) == ("torchrun", True)


def test_a_slurm_step_of_several_tasks_is_a_run() -> None:
    """It meets on the first host of the step, at a port that its numbers give; MASTER_ADDR and MASTER_PORT say otherwise."""
    found = launched(STEP)

    assert found == Launched(by="SLURM", rank=3, size=7, local_size=2, address="rack2node07", port=20000 + (7 * 4711 + 2) % 10000)
    other = launched({**STEP, "MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "29500"})
    assert other is not None
    assert (other.address, other.port) == ("10.0.0.7", 29500)
    assert launched({**STEP, **PLAIN}) == launched(PLAIN)


@pytest.mark.parametrize(
    "changes",
    [
        {"SLURM_STEP_NUM_TASKS": "1"},  # a job of submitit's, or the shell of salloc
        {"SLURM_STEP_NUM_TASKS": None},  # the script of sbatch --ntasks 7
        {"SLURM_PROCID": None},  # the shell of salloc where SLURM starts no step for it
    ],
    ids=["one task", "a script", "a shell"],
)
def test_one_task_of_slurm_starts_processes_of_its_own(changes: dict[str, str | None]) -> None:
    """As if SLURM were not there, however many tasks the allocation has."""
    variables = {name: value for name, value in {**STEP, **changes}.items() if value is not None}

    assert launched(variables) is None
    assert not is_launched(variables)
    assert first_rank(variables)
    assert not first_rank(STEP)
    assert first_rank({**STEP, "SLURM_PROCID": "0"})


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        (
            {**PLAIN, "WORLD_SIZE": "four"},
            "WORLD_SIZE must be a whole number from 1 on, not 'four': correct it where the processes are started",
        ),
        ({**PLAIN, "RANK": "-1"}, "RANK must be a whole number from 0 on, not '-1'"),
        ({**PLAIN, "RANK": "4"}, "RANK=4 does not fit WORLD_SIZE=4: ranks count from 0 to 3"),
        ({**PLAIN, "MASTER_PORT": "65536"}, "MASTER_PORT must be at most 65535, not 65536"),
        (without(PLAIN, "MASTER_ADDR"), "RANK and WORLD_SIZE are set without MASTER_ADDR: set"),
        (without(PLAIN, "MASTER_PORT"), "MASTER_PORT is not set, and a launcher's other variables are"),
        (without(PLAIN, "RANK"), "RANK is not set, and a launcher's other variables are: let it set RANK, WORLD_SIZE, MASTER_ADDR"),
        ({"RANK": "0"}, "WORLD_SIZE is not set, and a launcher's other variables are"),
        ({**PLAIN, "LOCAL_WORLD_SIZE": "0"}, "LOCAL_WORLD_SIZE must be a whole number from 1 on, not '0'"),
        ({**PLAIN, "LOCAL_WORLD_SIZE": "9"}, "LOCAL_WORLD_SIZE=9 does not fit the 4 processes of the run"),
        ({**PLAIN, "LOCAL_RANK": "x"}, "LOCAL_RANK must be a whole number from 0 on, not 'x'"),
        ({**PLAIN, "RANK": "0", "LOCAL_RANK": "7", "LOCAL_WORLD_SIZE": "2"}, "LOCAL_RANK=7 does not fit RANK=0"),
        (
            {**PLAIN, "RANK": "3", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "2"},
            "LOCAL_RANK=2 does not fit LOCAL_WORLD_SIZE=2 and RANK=3 of 4",
        ),
        (
            {**PLAIN, "RANK": "3", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"},
            "LOCAL_RANK=0 does not fit LOCAL_WORLD_SIZE=2 and RANK=3 of 4",
        ),
        ({**STEP, "SLURM_PROCID": "0", "SLURM_LOCALID": "6"}, "SLURM_LOCALID=6 does not fit SLURM_PROCID=0"),
        ({**STEP, "SLURM_LOCALID": "3"}, "SLURM_LOCALID=3 does not fit SLURM_STEP_TASKS_PER_NODE=2(x3),1 and SLURM_PROCID=3 of 7"),
        ({**STEP, "SLURM_STEP_TASKS_PER_NODE": "2(3)"}, "SLURM_STEP_TASKS_PER_NODE must be the numbers of tasks of the hosts"),
        ({**STEP, "SLURM_NODEID": "4"}, "SLURM_NODEID=4 does not fit SLURM_STEP_TASKS_PER_NODE=2(x3),1, of 4 hosts"),
        (without(STEP, "SLURM_STEP_NODELIST"), "SLURM_PROCID is set without SLURM_STEP_NODELIST"),
    ],
)
def test_what_does_not_fit_is_one_sentence(variables: dict[str, str], sentence: str) -> None:
    """Before any process waits for another."""
    with pytest.raises(ValueError, match="^" + re.escape(sentence)):
        launched(variables)


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        (PLAIN, "the launcher started 4 processes, and each would simulate the same run: add backend=dist, or start one process"),
        (STEP, "SLURM started 7 processes, and each would simulate the same run: add backend=dist, or start one process"),
        ({"RANK": "1"}, "WORLD_SIZE is not set, and a launcher's other variables are"),
    ],
)
@pytest.mark.parametrize("sweep", [False, True], ids=["run", "sweep"])
def test_several_processes_do_not_simulate_the_same_run(
    variables: dict[str, str],
    sentence: str,
    sweep: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each would, in a folder of its own; in a sweep each run says so."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(main, "is_launched", lambda: False)  # a rank that has imported torch.distributed ends at once
    where = ["-m", f"hydra.sweep.dir={tmp_path / 'run'}"] if sweep else [f"hydra.run.dir={tmp_path / 'run'}"]

    assert exit_status(monkeypatch, "hetsim", main.main, *where, "workload=phantom", "budget.updates=3", "pictures=false") == 1

    assert f"hetsim: error: {sentence}" in capsys.readouterr().err
    assert not [*tmp_path.rglob("summary.json")]


PHANTOM = ("workload=phantom", "budget.updates=3", "pictures=false")
FROM_PYTHON: dict[str, Callable[[], object]] = {
    "hetsim.run": lambda: hetsim.run(*PHANTOM, folder="run"),
    "hetsim.sweep": lambda: hetsim.sweep({"workload": "phantom", "seed": [0, 1]}, folder="sweep"),
    "hetsim.advise": lambda: hetsim.advise("cluster=uniform4", "timing", "method=ssgd", processes=1),
    "hetsim.search": lambda: hetsim.search(
        *PHANTOM, "method=ssgd", "batch_size=64,128", objective="updates_per_second", folder="search", trials=1
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("call", FROM_PYTHON)
@pytest.mark.parametrize("variables", [PLAIN, {**PLAIN, "RANK": "0", "WORLD_SIZE": "1", WATCH: "1:2"}], ids=["torchrun", "hetsim-launch"])
def test_no_call_simulates_in_several_processes(
    call: str, variables: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor in one of hetsim-launch, whose purpose is to run for real."""
    monkeypatch.chdir(tmp_path)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    with pytest.raises((ValueError, RunFailed), match=r"each would simulate the same|starts the processes of real runs"):
        FROM_PYTHON[call]()
    assert not [*tmp_path.rglob("summary.json")]


@pytest.mark.parametrize(
    "variables", [{}, {"RANK": "0", "WORLD_SIZE": "1"}, {**STEP, "SLURM_STEP_NUM_TASKS": "1"}, without(STEP, "SLURM_PROCID")]
)
def test_one_process_may_simulate(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a launcher, of SLURM's, or of nobody."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    check_alone()


def test_a_step_whose_script_sets_some_of_the_variables_is_one_of_slurm() -> None:
    """As scripts for torch do, which leave the rank to SLURM."""
    found = launched({**STEP, "WORLD_SIZE": "7", "MASTER_ADDR": "10.0.0.7"})

    assert found is not None
    assert (found.by, found.rank, found.size, found.address) == ("SLURM", 3, 7, "10.0.0.7")
    assert first_rank({**STEP, "WORLD_SIZE": "7", "SLURM_PROCID": "0"})


def test_the_interface_is_the_one_that_reaches_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loopback reaches this machine; what has no address of ours is a sentence."""
    assert interface_to("127.0.0.1", 29500) == interface_to("localhost", 29500) == LOOPBACK
    with pytest.raises(ValueError, match=r"^MASTER_ADDR=no\.such\.host\.invalid cannot be reached .*: set it to an address"):
        interface_to("no.such.host.invalid", 29500)
    monkeypatch.setattr(socket, "if_nameindex", list)
    with pytest.raises(ValueError, match=r"was not found: set backend\.interface to its name"):
        interface_to("127.0.0.1", 29500)


def run(folder: Path, *typed: str, variables: list[dict[str, str]]) -> list[tuple[int, str]]:
    """Exit status and standard error of a process for each of these sets of variables."""
    two = "cluster.nodes=[{count: 2, seconds_per_sample: 1e-5, overhead_seconds: 0}]"
    words = ["backend=dist", "method=ssgd", "workload=quadratic", two, "budget.epochs=2", "pictures=false", f"hydra.run.dir={folder}"]
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "MASTER_", "RANK", "WORLD"))}
    processes = [
        subprocess.Popen([sys.executable, "-m", "hetsim", *words, *typed], env={**clean, **own}, stderr=subprocess.PIPE, text=True)
        for own in variables
    ]
    return [(process.wait(120), process.communicate()[1]) for process in processes]


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [pytest.param("plain", marks=pytest.mark.long), "SLURM"])
def test_processes_with_these_variables_are_a_run(launcher: str, tmp_path: Path) -> None:
    """Nothing is padded, and on one host no clock is read."""
    port = str(free_port())
    if launcher == "plain":
        each = [{**PLAIN, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "RANK": str(rank)} for rank in range(2)]
    else:
        hosts = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "localhost", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_NODEID": "0"}
        each = [{**STEP, **hosts, "MASTER_PORT": port, "SLURM_PROCID": str(rank)} for rank in range(2)]

    ended = run(tmp_path, variables=each)

    assert [status for status, _ in ended] == [0, 0], ended
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["num_updates"] == 16
    assert summary["emulation"] == {"emulate": "none", "reduction": "ordered", "library": "gloo"}


@pytest.mark.slow
def test_padding_on_hosts_that_are_not_known_to_be_one_works_on_one(tmp_path: Path) -> None:
    """The processes find out that they share a clock."""
    port = str(free_port())
    each = [{**PLAIN, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "RANK": str(rank)} for rank in range(2)]

    ended = run(tmp_path, "backend.emulate=pad", variables=each)

    assert [status for status, _ in ended] == [0, 0], ended
    assert json.loads((tmp_path / "summary.json").read_text())["emulation"]["emulate"] == "pad"
