"""What a run can write, each command can read: runs of the largest and smallest texts and numbers, read back by every reader."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
from worlds import exit_status

import hetsim
from hetsim.checks import MAX_NAME, MAX_SECONDS, MIN_SECONDS, MOST
from hetsim.cli.calibrate import main as calibrate_main
from hetsim.cli.compare import main as compare_main
from hetsim.cli.report import main as report_main
from hetsim.cli.stragglers import main as stragglers_main
from hetsim.cli.table import main as table_main

WORDS = ("workload=phantom", "method=ssgd", "cluster=uniform4", "budget.epochs=null", "budget.updates=8", "pictures=false")
SAMPLES = f"workload.num_samples={MOST}"
EXTREMES: dict[str, tuple[str, ...]] = {
    # what is at its limit: the words
    "name of many letters": (f"cluster.name={'x' * MAX_NAME}",),
    "name of wide letters": (f"cluster.name='{'💥' * MAX_NAME}'",),
    "name of signs": (r"""cluster.name='$a_{ "<b>" | ` \\ # : % & , ='""",),
    "name of a number": ("cluster.name='1e5'",),
    "name of nothing": ("cluster.name='null'",),
    "name of a date": ("cluster.name='2001-01-01'",),
    "name of an option": ("cluster.name='--'",),
    "seed": (f"seed={2**63 - 1}",),
    "small rate": ("learning_rate=1e-300",),
    "large rate": ("learning_rate=1e300",),
    "small batch": ("batch_size=4",),
    "batch of 32 bits": (f"batch_size={2**34}", SAMPLES),
    "large batch": (f"batch_size={MOST}", SAMPLES),
    "large batch, a server": (f"batch_size={MOST}", SAMPLES, "method=asgd"),
    "large batch, local steps": (f"batch_size={MOST // 4}", SAMPLES, "method=local_sgd"),
    "vector": (f"workload.num_parameters={MOST}", "workload.bytes_per_parameter=64", "cluster.network.bytes_per_second=1e15"),
    "short gradients": (f"cluster.nodes=[{{count: 2, seconds_per_sample: {MIN_SECONDS}, overhead_seconds: 0}}]",),
    "long gradients": (f"cluster.nodes.0.seconds_per_sample={MAX_SECONDS}",),
    "long gradients of large batches": (f"cluster.nodes.0.seconds_per_sample={MAX_SECONDS}", f"batch_size={MOST}", SAMPLES, "method=asgd"),
    "latency": (f"cluster.network.latency_seconds={MAX_SECONDS}",),
    "slow network": ("cluster.network.bytes_per_second=0.001",),
    "fast network": ("cluster.network.bytes_per_second=1e300",),
    "short budget": (f"budget.seconds={MIN_SECONDS}",),
    "budget of seconds": (f"budget.seconds={MAX_SECONDS}",),
    "frequent evaluations": ("evaluate_every_epochs=1e-9",),
    "learned weights": ("workload=quadratic", "learning_rate=1e30", "nonfinite=skip"),
}
READERS: dict[str, tuple[Callable[[], None], Callable[[Path], tuple[object, ...]]]] = {
    # each command that reads a run, and what it is given
    "hetsim-table": (table_main, lambda run: (run,)),
    "hetsim-table of a folder": (table_main, lambda run: (run.parent,)),
    "hetsim-compare": (compare_main, lambda run: (run, run, "--json", run / "compared.json")),
    "hetsim-compare --perfetto": (compare_main, lambda run: (run, run, "--perfetto", run / "compared.pftrace")),
    "hetsim-compare --html": (compare_main, lambda run: (run, run, "--html", run / "compared.html")),
    "hetsim-compare --pictures": (compare_main, lambda run: (run, run, "--pictures", run / "pictures")),
    "hetsim-report --html": (report_main, lambda run: (run, "--html", run / "run.html")),
    "hetsim-report --perfetto": (report_main, lambda run: (run, "--perfetto", run / "run.pftrace")),
    "hetsim-stragglers": (stragglers_main, lambda run: (run, "--no-replay", "--json", run / "slow.json")),
    "hetsim-calibrate --from-trace": (calibrate_main, lambda run: (run / "calibrated.yaml", "--from-trace", run)),
}
IN_PYTHON: dict[str, Callable[[Any], object]] = {
    "trace": lambda run: run.trace(),
    "curve": lambda run: run.curve(),
    "config": lambda run: run.config,
    "timeline": lambda run: run.timeline(),
    "table": lambda run: hetsim.table([run]),
    "compare": lambda run: hetsim.compare(run, run),
}
DRAW = {
    *("hetsim-compare --html", "hetsim-compare --pictures", "hetsim-report --html", "hetsim-table", "hetsim-table of a folder"),
    "timeline",
}
"""Readers that draw, which takes long."""
LATE = ("long", "large batch", "latency", "slow network")
"""How the names of runs of over a billion seconds begin: neither a Perfetto trace nor a cluster of calibrated times goes so far."""

FEW_STEPS = ("large batch, a server", "long gradients of large batches", "short budget")
"""Runs with too few steps to compare ranks."""


def refusal(extreme: str, reader: str) -> str | None:
    """The sentence with which a reader may refuse a run, in part."""
    if "--perfetto" in reader and extreme.startswith(LATE):
        return "a Perfetto trace ends at"
    if reader == "hetsim-stragglers":
        return "give a longer trace" if extreme in FEW_STEPS else None
    if "--from-trace" in reader:
        return "take a shorter run" if extreme.startswith(LATE) else "give the trace of a longer run" if extreme == "short budget" else None
    return None


Check = Callable[[str, Collection[str]], None]


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Check:
    """Read a run of this extreme by these readers."""

    def read(extreme: str, readers: Collection[str]) -> None:
        hetsim.run(*WORDS, *EXTREMES[extreme], f"hydra.run.dir={tmp_path / 'run'}")
        for reader in readers:
            if reader in IN_PYTHON:
                assert IN_PYTHON[reader](hetsim.load(tmp_path / "run")) is not None
                continue
            main, given = READERS[reader]
            status = exit_status(monkeypatch, reader.partition(" ")[0], main, *given(tmp_path / "run"))
            told, sentence = capsys.readouterr().err, refusal(extreme, reader)
            assert status == (sentence is not None), (reader, told)
            assert (sentence or "") in told
            assert "skipped" not in told

    return read


@pytest.mark.slow
@pytest.mark.parametrize("extreme", EXTREMES)
@pytest.mark.sampled(8)
def test_what_a_run_writes_every_command_reads(extreme: str, check: Check) -> None:
    check(extreme, (READERS.keys() | IN_PYTHON.keys()) - DRAW)


@pytest.mark.long
@pytest.mark.parametrize("extreme", EXTREMES)
def test_what_a_run_writes_every_command_draws(extreme: str, check: Check) -> None:
    check(extreme, DRAW)
