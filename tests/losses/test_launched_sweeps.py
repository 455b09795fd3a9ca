"""hetsim-launch with several runs one after another in the same processes: what happens in one of them is no matter of the next."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from running import wait_for
from test_launched_losses import SECONDS, Hosts, hosts  # noqa: F401

from hetsim.runtime.checkpointing import STOPPED

pytestmark = pytest.mark.slow


def sweep(folder: Path) -> tuple[str, ...]:
    """Two runs in this folder."""
    return ("-m", "seed=0,1", f"hydra.sweep.dir={folder / 'sweep'}")


def seeds(folder: Path) -> list[str]:
    """The folders of the runs that have ended well."""
    return sorted(path.parent.name for path in folder.glob("sweep/*/summary.json"))


@pytest.mark.long
@pytest.mark.parametrize("which", ["asgd", "ssgd"])
def test_who_waits_for_the_end_of_a_run_is_not_lost(which: str, hosts: Any, tmp_path: Path) -> None:  # noqa: F811
    """Its leader evaluates for longer than a rank may be silent, and the others wait for the next run meanwhile."""
    started: Hosts = hosts(which, (2, 1), epochs=2, typed=("+workload.evaluation_seconds=1", *sweep(tmp_path)))

    statuses, told = started.end()

    assert (statuses, told) == ([0, 0], ["", ""])
    assert len(seeds(tmp_path)) == 2


@pytest.mark.long
@pytest.mark.parametrize("which", ["asgd", "ssgd"])
def test_a_sweep_that_is_asked_to_stop_ends_on_all_hosts(which: str, hosts: Any, tmp_path: Path) -> None:  # noqa: F811
    """The run under way is saved, and no process waits for the next one."""
    started: Hosts = hosts(which, (2, 1), epochs=4_000_000, typed=("checkpoint.every_updates=100", *sweep(tmp_path)))
    wait_for(lambda: list(tmp_path.glob("sweep/*/checkpoints/*.safetensors")) or started.calls[0].poll() is not None, SECONDS)

    started.calls[0].send_signal(signal.SIGTERM)
    statuses, told = started.end()

    assert statuses == [STOPPED, STOPPED], told


@pytest.mark.parametrize(
    ("which", "rank"),
    [("ssgd", 1), *(pytest.param(*each, marks=pytest.mark.long) for each in [("ssgd", 0), ("asgd", 0), ("od_sgd", 1)])],
)
def test_a_run_that_fails_on_one_rank_fails_on_all_and_the_next_one_goes_on(
    which: str,
    rank: int,
    hosts: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    """Of a sweep, as where each run has processes of its own."""
    started: Hosts = hosts(which, (2, 1), f"fail {rank} 6", typed=sweep(tmp_path))

    statuses, told = started.end()

    assert statuses == [1, 1]
    assert "this gradient failed" in "".join(told)
    assert "Traceback" not in "".join(told)
    assert ["-s1-" in name for name in seeds(tmp_path)] == [True], told
