"""A Team resumes on any number of ranks: docs/ddp/with_elastic.py, and under torchrun with ranks and hosts that are killed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_scripts

SCRIPT = Path(__file__).with_name("elastic_run.py")
BATCH_SIZE, NUM_STEPS, EVERY, LOST_IN = 300, 10, 5, 7
"""The script's; a rank is lost in the seventh step of the first epoch, after a checkpoint at the fifth."""
EACH_ONCE = list(range(BATCH_SIZE * NUM_STEPS))
SECONDS = 300


def steps_of(folder: Path) -> dict[int, list[tuple[int, list[int]]]]:
    """By restart: of each step in order, how many ranks made it, and the samples of all of them, sorted."""
    made: dict[int, dict[int, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for path in folder.iterdir():
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            made[row["restart"]][row["step"]].append(row)
    return {
        restart: [(len(rows), sorted(place for row in rows for place in row["samples"])) for _, rows in sorted(steps.items())]
        for restart, steps in made.items()
    }


def samples(steps: Sequence[tuple[int, list[int]]]) -> list[int]:
    """Those of all these steps, sorted."""
    return sorted(place for _, of_one in steps for place in of_one)


def from_checkpoint(checkpoint: Path, folder: Path, ranks: int) -> list[tuple[int, list[int]]]:
    """The steps of an undisturbed run of so many ranks that resumes from this checkpoint, and replaces it by its last one."""
    folder.mkdir()
    run_scripts(ranks, [(SCRIPT, [str(checkpoint), str(folder)], {})])
    return steps_of(folder)[0]


def assert_same_weights(checkpoint: Path, other: Path) -> None:
    """And so the same losses, to the rounding of other orders of summation; and the same position."""
    one, another = (torch.load(path, weights_only=True) for path in (checkpoint, other))
    assert one["team"]["epoch"] == another["team"]["epoch"] == 2
    for name, weight in one["model"].items():
        torch.testing.assert_close(weight, another["model"][name], rtol=1e-11, atol=1e-11)


@pytest.mark.slow
def test_the_script_resumes_a_run_of_three_ranks_on_two_and_on_four(tmp_path: Path) -> None:
    """The rest of the epoch and the next one take each sample once, and end with the weights of an undisturbed run."""
    names = ("lost", "undisturbed")
    for name in names:
        (tmp_path / f"steps {name}").mkdir()
    losses = (f"end:all:{LOST_IN}", "none:none:0")
    arguments = [[str(tmp_path / name), str(tmp_path / f"steps {name}"), loss] for name, loss in zip(names, losses, strict=True)]
    run_scripts(3, [(SCRIPT, given, {}) for given in arguments])
    before = steps_of(tmp_path / "steps lost")[0][:EVERY]

    for ranks in (2, 4):
        shutil.copy(tmp_path / "lost.kept", tmp_path / f"of {ranks}")
        steps = from_checkpoint(tmp_path / f"of {ranks}", tmp_path / f"steps of {ranks}", ranks)
        assert [size for size, _ in steps] == [ranks] * (2 * NUM_STEPS - EVERY)
        assert samples([*before, *steps[: NUM_STEPS - EVERY]]) == samples(steps[NUM_STEPS - EVERY :]) == EACH_ONCE
        assert_same_weights(tmp_path / f"of {ranks}", tmp_path / "undisturbed")


def assert_survived(folder: Path, checkpoint: Path, ranks: int) -> None:
    """After a loss in the first epoch, so many ranks have repeated what followed the checkpoint, and no other sample."""
    made = steps_of(folder)
    assert sorted(made) == [0, 1]
    lost, resumed = made[0], made[1]
    first = NUM_STEPS - EVERY
    assert [size for size, _ in lost] == [3] * (LOST_IN - 1)
    assert [size for size, _ in resumed] == [ranks] * (first + NUM_STEPS)
    assert samples(lost[EVERY:]) == samples(resumed[: LOST_IN - 1 - EVERY])
    assert samples([*lost[:EVERY], *resumed[:first]]) == samples(resumed[first:]) == EACH_ONCE

    other = checkpoint.with_name("undisturbed")
    shutil.copy(f"{checkpoint}.kept", other)
    steps = from_checkpoint(other, folder.with_name("steps undisturbed"), 3)
    assert [of_one for _, of_one in steps] == [of_one for _, of_one in resumed]
    assert_same_weights(checkpoint, other)


def torchrun(arguments: Sequence[str], tmp_path: Path, loss: str) -> subprocess.Popen[bytes]:
    """An agent of `elastic_run.py`."""
    command = [sys.executable, "-m", "torch.distributed.run", *arguments, "--max-restarts=3"]
    variables = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    given = [str(SCRIPT), str(tmp_path / "checkpoint"), str(tmp_path / "steps"), loss]
    with (tmp_path / "errors").open("ab") as errors:
        return subprocess.Popen([*command, *given], env=os.environ | variables, stderr=errors)


@pytest.mark.long
@pytest.mark.real_start
def test_a_run_survives_a_killed_rank(tmp_path: Path) -> None:
    """torchrun starts all three ranks again, and they resume at the last checkpoint."""
    (tmp_path / "steps").mkdir()
    agent = torchrun(["--standalone", "--nproc-per-node=3"], tmp_path, f"kill:1:{LOST_IN}")

    assert agent.wait(SECONDS) == 0, (tmp_path / "errors").read_text(encoding="utf-8")
    assert_survived(tmp_path / "steps", tmp_path / "checkpoint", 3)


@pytest.mark.long
@pytest.mark.real_start
def test_a_run_survives_a_lost_host(tmp_path: Path) -> None:
    """Of two agents, one is killed with its rank; the other continues with its two ranks."""
    (tmp_path / "steps").mkdir()
    agreed = "store_type=file,last_call_timeout=10,keep_alive_interval=1"  # they wait as long for a second agent
    both = ["--nnodes=1:2", "--rdzv-backend=c10d", f"--rdzv-endpoint={tmp_path / 'store'}", f"--rdzv-conf={agreed}"]
    agents = [torchrun([*both, f"--nproc-per-node={ranks}"], tmp_path, f"agent:2:{LOST_IN}") for ranks in (2, 1)]

    assert agents[0].wait(SECONDS) == 0, (tmp_path / "errors").read_text(encoding="utf-8")
    assert agents[1].wait(SECONDS) != 0
    assert_survived(tmp_path / "steps", tmp_path / "checkpoint", 2)
