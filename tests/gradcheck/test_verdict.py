"""What a check plans, concludes and prints, without processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from hetsim.cli import ddp_check
from hetsim.gradcheck import verdict
from hetsim.gradcheck.plan import Windows, mix, plan, windows
from hetsim.gradcheck.samples import merged, packed
from hetsim.gradcheck.turning import REFUSED, VARIABLE, Turning
from hetsim.gradcheck.watch import rounding_of_products


def record(ends: list[int], *, batches: int = 20, **further: Any) -> dict[str, Any]:
    """A rank's record of steps after so many batches of four samples."""
    gradient = further.pop("gradient", [torch.tensor([1.0, 0.0]).double()])
    steps = [
        {
            "key": (0, end, ends[:place].count(end)), "loader": "0.0", "batches": end, "norm": 1.0, "gradient": gradient, "weights": [],
            "random": False,
        }
        for place, end in enumerate(ends)
    ]  # fmt: skip
    loaders = {"0.0": [[f"{batch}.{sample}" for sample in range(4)] for batch in range(batches)]}
    whole = {"loaders": loaders, "unbatched": [], "divided": [], "ended": [], "steps": steps, "epsilon": 2.0**-52, "has_batch_norm": False}
    return whole | further


@pytest.mark.parametrize(
    ("ends", "batches", "shape", "of_one_rank"),
    [
        ([1, 2, 3, 4], 20, (1, 0), range(3, 4)),
        ([2, 3, 4, 5], 20, (1, 1), range(3, 5)),  # a loop that looks ahead, or whose first step was skipped
        ([3, 6, 9], 20, (3, 0), range(6, 9)),
        ([4, 7, 10], 20, (3, 1), range(6, 10)),
        ([3, 6, 8], 8, (3, 0), range(5, 8)),
        ([2, 3, 4, 4], 4, (1, 1), range(2, 4)),
        ([5], 5, (5, 0), range(5)),
    ],
)
def test_the_windows_of_steps(ends: list[int], batches: int, shape: tuple[int, int], of_one_rank: range) -> None:
    """The batches of a step, those that a loop draws ahead, and the last ones."""
    seen = windows(record(ends, batches=batches))

    assert (seen.size, seen.ahead) == shape
    assert seen.of_one_rank == of_one_rank


def test_irregular_steps_have_no_windows() -> None:
    """Nothing is mixed then, and no step is left to one rank."""
    assert windows(record([1, 4, 6, 7])) == Windows()


def test_a_plan_has_each_sample_of_all_ranks_once() -> None:
    """In windows of two, mixed, and with the first rank's alone in the last step."""
    ranks = [record([2, 4, 6], batches=6) for _ in range(3)]
    batches = plan(ranks, folder="", mixed=True)["loaders"]["0.0"]

    assert [len(batch) for batch in batches] == [12] * 4 + [4] * 2
    for start in (0, 2):
        window = [*batches[start], *batches[start + 1]]
        assert sorted(window) == [(rank, number, index) for rank in range(3) for number in (start, start + 1) for index in range(4)]
        assert {number for _, number, _ in batches[start]} == {start, start + 1}
    assert {rank for batch in batches[4:] for rank, _, _ in batch} == {0}
    assert plan(ranks, folder="", mixed=False)["loaders"]["0.0"][5] == [(rank, 5, index) for rank in range(3) for index in range(4)]


def test_a_window_that_is_not_whole_stays_as_it_is() -> None:
    """The last batches of an epoch."""
    assert mix([[1, 2], [3, 4], [5]], 2)[2] == [5]


def test_the_weights_that_follow_a_step_are_those_of_the_same_optimizer() -> None:
    """Of a generator and a critic."""
    both = record([1, 1, 2, 2])
    for place, step in enumerate(both["steps"]):
        step["key"] = (place % 2, step["batches"], 0)

    assert plan([both], folder="", mixed=True)["following"] == {(0, 1, 0): 2, (1, 1, 0): 3}


@pytest.mark.parametrize(
    ("dtype", "error", "one_rank", "conclusion"),
    [
        (torch.float64, 1e-15, 0.1, verdict.RIGHT),
        (torch.float64, 1e-6, 0.1, verdict.MEANS),
        (torch.float32, 1e-6, 0.1, verdict.RIGHT),
        (torch.float32, 1e-6, 5e-6, verdict.ALIKE),
        (torch.float64, 0.0, 0.0, verdict.ALIKE),
        (torch.bfloat16, 0.003, 0.5, verdict.RIGHT),
        (torch.bfloat16, 0.05, 0.6, verdict.COARSENESS),
        (torch.bfloat16, 0.2, 0.5, verdict.MEANS),
    ],
)
def test_a_verdict_goes_by_the_precision_and_by_what_other_samples_would_give(
    dtype: torch.dtype, error: float, one_rank: float, conclusion: str
) -> None:
    """Right up to the root of a rounding, or a few coarse ones, and only where the samples of one rank are ten times as far off."""
    ranks = [record([1, 2, 3]), record([1, 2, 3], loaders={"0.0": [["other"]] * 20})]
    alone = record([1, 2, 3], epsilon=torch.finfo(dtype).eps)
    for step, off in zip(alone["steps"], (error, error, one_rank), strict=True):
        step["gradient"] = [torch.tensor([1.0, off]).double()]
    result = verdict.Comparison(ranks).verdict(alone)

    assert conclusion in result.text.splitlines()[-1]
    assert result.right == (conclusion == verdict.RIGHT)


def test_a_small_parameter_counts_by_its_own_size() -> None:
    """A wrong gradient of a hundredth of the whole is found; rounding errors of a parameter without a gradient are not."""
    large, small = torch.tensor([1.0]), torch.tensor([0.01])

    assert verdict.distance([large, 2 * small], [large, small], 1e-7) > 0.9
    assert verdict.distance([large, 1e-7 * small], [large, 0 * small], 1e-7) < 1e-6


def test_a_gradient_that_is_not_finite_is_not_right() -> None:
    """Neither in both runs nor in one."""
    bad = [torch.tensor([torch.nan, 0.0]).double()]
    for ours, its in ((bad, bad), (None, bad), (bad, None)):
        ranks, alone = (record([1, 2], **({} if gradient is None else {"gradient": gradient})) for gradient in (ours, its))

        assert not verdict.Comparison([ranks]).verdict(alone).right


def test_samples_are_the_same_bytes_in_each_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And without the rest of a tensor's storage."""
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    data = torch.arange(1_000_000)

    assert packed((data[3:5], "a")) == packed((torch.tensor([3, 4]), "a"))
    assert len(packed(data[3:5])) < 500
    with pytest.raises(ValueError, match="cannot be given to another process"):
        packed(lambda: 0)
    assert "type function" in (tmp_path / REFUSED).read_text(encoding="utf-8")


def test_batches_are_merged_row_by_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In dictionaries and tuples; other shapes are refused."""
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    whole = merged([{"x": torch.zeros(2, 3), "y": (torch.ones(2), "word")}, {"x": torch.ones(1, 3), "y": (torch.ones(1), "word")}])

    assert whole["x"].shape == (3, 3)
    assert whole["y"][0].shape == (3,)
    with pytest.raises(ValueError, match="give the DataLoader a batch_size"):
        merged([torch.zeros(2, 3), torch.zeros(2, 4)])


def test_uneven_shares_turn() -> None:
    """The split of three ranks, and that after one step."""
    rule = Turning()
    state = rule.initial(3, 12)

    assert rule.shares(state) == (6, 4, 2)
    assert rule.shares(rule.observe(state, ())) == (4, 2, 6)


def test_the_rounding_of_products_goes_by_torchs_settings() -> None:
    """Convolutions on a GPU use TF32 by default, other products if they are allowed to."""
    gpu, cpu = torch.device("cuda"), torch.device("cpu")

    assert rounding_of_products(torch.nn.Conv2d(1, 1, 1), gpu) == 2**-10
    assert rounding_of_products(torch.nn.Linear(1, 1), gpu) == rounding_of_products(torch.nn.Conv2d(1, 1, 1), cpu) == 0
    usual = torch.backends.cuda.matmul.fp32_precision
    try:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        assert rounding_of_products(torch.nn.Linear(1, 1), gpu) == 2**-10
    finally:
        torch.backends.cuda.matmul.fp32_precision = usual


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        (["nowhere.py"], "there is no script nowhere.py"),
        (["--processes", "1", __file__], "--processes must be from 2 to 64, not 1"),
        (["--minutes", "0", __file__], "--minutes must be positive, not 0"),
    ],
)
def test_the_command_says_what_is_wrong(
    typed: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence, exit status 1."""
    monkeypatch.setattr(sys, "argv", ["hetsim-ddp-check", *typed])

    with pytest.raises(SystemExit) as ended:
        ddp_check.main()

    assert ended.value.code == 1
    assert sentence in capsys.readouterr().err


SPAWNED = """
import time, torch.multiprocessing as mp

def work(rank):
    time.sleep(1000)

if __name__ == "__main__":
    mp.spawn(work, nprocs=2)
"""
HANGS = "import time\nprint('before it waits', flush=True)\ntime.sleep(1000)\n"
FAILS = "print('so far')\nraise KeyError('a key')\n"


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (SPAWNED, ["script.py: the script starts its ranks itself"]),
        (HANGS, ["before it waits", "has not made its first steps in 0.3 minutes in 2 processes"]),
        (FAILS, ["KeyError: 'a key'", "script.py failed in 2 processes: its last lines are above"]),
    ],
    ids=["spawn", "hang", "error"],
)
def test_a_script_that_cannot_be_checked_gets_a_sentence(text: str, lines: list[str], tmp_path: Path) -> None:
    """No hang, and no process that is left."""
    (tmp_path / "script.py").write_text(text, encoding="utf-8")
    minutes = "0.3" if text is HANGS else "3"
    command = [sys.executable, "-P", "-m", "hetsim.cli.ddp_check", "--processes", "2", "--minutes", minutes, "script.py"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True) as running:
        _, printed = running.communicate(timeout=200)

    assert running.returncode == 1
    assert all(line in printed for line in lines), printed
    assert "Traceback" not in printed or text is FAILS
    with pytest.raises(ProcessLookupError):
        os.killpg(running.pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.long
def test_a_module_is_checked_and_nothing_else_of_its_folder_runs(tmp_path: Path) -> None:
    """`-m package.train`, with the imports of its package and its arguments, beside a torch.py and a libcuda.so.1."""
    from scripts import script

    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "sizes.py").write_text("STEPS = 8", encoding="utf-8")
    text = "import sys\nfrom .sizes import STEPS\nassert sys.argv[1:] == ['--lr', '-m']\n" + script()
    (package / "train.py").write_text(text, encoding="utf-8")
    for folder in (tmp_path, package):
        (folder / "torch.py").write_text("raise SystemExit('a torch of the folder')", encoding="utf-8")
        (folder / "libcuda.so.1").write_text("no library", encoding="utf-8")
    command = [sys.executable, "-P", "-m", "hetsim.cli.ddp_check", "-m", "package.train", "--lr", "-m"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("the gradients are right\n")
    assert "6 steps of 3 processes with 4, 4, 4 samples, and of one with all; 4 parameters:" in done.stdout
