"""Each command that a command prints runs as it is printed, also with the user's own folder of configs."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from worlds import exit_status

pytestmark = pytest.mark.slow

CLUSTER = """
name: pair
nodes: [{count: 1, seconds_per_sample: 1 us, overhead_seconds: 0}, {count: 1, seconds_per_sample: 3 us, overhead_seconds: 0}]
network: {latency_seconds: 0, bytes_per_second: 1 GB/s}
server: {seconds_per_update: 0}
"""
QUICK = ("cluster=pair", "workload=phantom", "workload.num_samples=2000", "batch_size=100", "budget.epochs=1", "--config-dir=my configs")
ASKED = {
    # further words of the question
    "hetsim-search": ("method=ddp,ssgd", "pictures=false", "--objective=seconds", "--trials=2", "--sampler=random", "--folder=found"),
    "hetsim-advise": ("method=ssgd,asgd", "timing", "--processes=1"),
}


@pytest.mark.parametrize("name", ASKED)
def test_a_printed_command_runs_as_printed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my configs" / "cluster").mkdir(parents=True)
    (tmp_path / "my configs" / "cluster" / "pair.yaml").write_text(CLUSTER)
    words = ASKED[name]
    main = import_module(f"hetsim.cli.{name.removeprefix('hetsim-')}").main

    assert exit_status(monkeypatch, name, main, *QUICK, *words) == 0

    printed = re.findall(r": (hetsim .*)", capsys.readouterr().out)
    assert printed
    for command in printed:
        program, *arguments = shlex.split(command)
        assert program == "hetsim"
        ended = subprocess.run([sys.executable, "-m", "hetsim", *arguments], capture_output=True, text=True, timeout=200, check=False)
        assert ended.returncode == 0, ended.stderr
