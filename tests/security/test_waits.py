"""No command waits for a file that a stranger left: a pipe, or a file of the kernel, is refused in one sentence."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from worlds import exit_status

pytestmark = pytest.mark.slow

QUESTION = ("hetsim-advise", "2*t4", "model=resnet50", "network=1 Gbit/s")
COMMANDS = [  # but for hetsim-catalogue --from <(nvidia-smi -L), for which its user waits
    *(("hetsim-catalogue", "--file", file) for file in ("pipe.yaml", "/proc/kmsg")),
    (*QUESTION, "catalogue=pipe.yaml"),
    (*QUESTION, "prices=pipe.yaml"),
    ("hetsim", "--config-dir=own", "cluster=pipe"),
    ("hetsim", "resume=pipe.yaml"),
    ("hetsim-report", "run", "--html=a.html"),
    ("hetsim-compare", "run", "run"),
    ("hetsim-table", "sweep"),
    ("hetsim-stragglers", "profiles"),
    ("hetsim-stragglers", "packed"),
]


class Waited(BaseException):
    """Raised after ten seconds."""


@pytest.fixture
def pipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder of pipes that nobody writes to, and an end of waiting."""
    names = (
        "pipe.yaml",
        "own/cluster/pipe.yaml",
        "run/summary.json",
        "sweep/0/summary.json",
        "profiles/rank0.json",
        "packed/rank0.json.gz",
    )
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(tmp_path / name)
    monkeypatch.chdir(tmp_path)

    def stop(*_: object) -> None:
        raise Waited

    earlier = signal.signal(signal.SIGALRM, stop)
    signal.alarm(10)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, earlier)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.usefixtures("pipes")
def test_no_command_waits_for_a_pipe(command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    name, *words = command
    main = import_module(f"hetsim.cli.{name.removeprefix('hetsim-').replace('hetsim', 'main')}").main

    assert exit_status(monkeypatch, name, main, *words) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"{name}: error: ")
