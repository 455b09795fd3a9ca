"""The scripts under docs/ddp run, plain, with a Team and under frameworks; `hetsim-ddp-check` tells right gradients from wrong."""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pages
import pytest
import torch
from ranks import run_scripts

from hetsim.cli import ddp_check
from hetsim.ddp.check import SERIAL, VARIABLE, WEIGHTED, Check, rounding_of_products

SCRIPTS = Path(__file__).parents[2] / "docs" / "ddp"
FRAMEWORKS = [name for name in ("accelerate", "lightning") if importlib.util.find_spec(name) is not None]
WITH_A_TEAM = ["with_team", *(f"with_{name}" for name in FRAMEWORKS)]
WRONG = """
import sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from hetsim.ddp import Team

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5)).double()
team = Team(30)
samples = torch.utils.data.TensorDataset(torch.randn(60, 4).double())
loader = team.loader(samples)
model = team.wrap(DDP(model))
for (x,) in loader:
    (model(x) ** 2).mean().backward()
"""

ROUNDED = """
import torch, torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from hetsim.ddp import Team

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(300, 20)
team = Team(60, max_samples=40)
loader = team.loader(torch.utils.data.TensorDataset(x, x[:, :3].argmax(dim=1)))
model = team.wrap(DDP(torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3))))
for inputs, targets in loader:
    with torch.autocast("cpu", torch.bfloat16):
        loss = cross_entropy(model(inputs), targets)
    loss.backward()
    break
"""

STEPS = """
import sys
import lightning
sys.path.insert(0, sys.argv[1])
from with_lightning import Classifier

class Counted(Classifier):
    steps = 0

    def training_step(self, batch, place):
        self.steps += 1
        return super().training_step(batch, place)

    def on_train_epoch_end(self):
        self.print(self.steps, self.team.epoch)

quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
lightning.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=4, use_distributed_sampler=False, **quiet).fit(Counted())
"""


def changed() -> tuple[list[str], list[str]]:
    """The lines that a Team brings to the plain script, and those that it takes away, but for the first line and empty ones."""
    plain, other = ((SCRIPTS / name).read_text(encoding="utf-8").splitlines()[1:] for name in ("plain.py", "with_team.py"))
    lines = [line for line in difflib.ndiff(plain, other) if line[2:].strip()]
    return [line[2:].strip() for line in lines if line[0] == "+"], [line[2:].strip() for line in lines if line[0] == "-"]


def test_a_team_is_five_lines() -> None:
    """And the call of set_epoch goes."""
    more, fewer = changed()

    assert len(more) == 5
    assert len(fewer) == 5
    assert fewer[3] == "sampler.set_epoch(epoch)"


def test_the_page_shows_these_lines() -> None:
    """In docs/guide/ddp.md."""
    shown = pages.text("ddp.md").split("```diff\n")[1].split("```")[0].splitlines()
    more, fewer = changed()

    assert [line[1:].strip() for line in shown if line[:1] == "+"] == more
    assert [line[1:].strip() for line in shown if line[:1] == "-"] == fewer


def test_the_page_shows_the_lines_of_the_trainers_script() -> None:
    """In docs/guide/ddp.md; test_ddp_trainer.py runs the script."""
    shown = pages.text("ddp.md").split("```diff\n")[2].split("```")[0].splitlines()
    script = [line.strip() for line in (SCRIPTS / "with_trainer.py").read_text(encoding="utf-8").splitlines()]

    assert {line[1:].strip() for line in shown if line[:1] == "+"} <= set(script)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Validating sparse tensor")  # of an earlier test, which torch keeps a list of
def test_both_versions_of_the_script_learn_and_the_frameworks_scripts_too(tmp_path: Path) -> None:
    """In three processes. The checkpoint of the one with a Team has where it is, and is read with weights_only."""
    names = ["plain", *WITH_A_TEAM]
    said = run_scripts(
        3, [(SCRIPTS / f"{name}.py", [str(tmp_path / name)] if "team" in name or name == "plain" else [], {}) for name in names]
    )

    for name, text in zip(names, said, strict=True):
        assert "epoch 1: " in text, name
    losses = [float(text.split()[-1]) for name, text in zip(names, said, strict=True) if name != "with_lightning"]
    assert all(loss < 0.5 for loss in losses)
    saved = torch.load(tmp_path / "with_team", weights_only=True)
    assert (saved["team"]["epoch"], saved["team"]["position"]) == (2, 0)


@pytest.mark.slow
@pytest.mark.skipif("lightning" not in FRAMEWORKS, reason="Lightning is not installed")
def test_lightning_makes_every_step_of_every_epoch(tmp_path: Path) -> None:
    """It asks for as many batches as the loader has steps, and never for one more: ten steps in each of four epochs."""
    (tmp_path / "steps.py").write_text(STEPS, encoding="utf-8")
    (said,) = run_scripts(2, [(tmp_path / "steps.py", [str(SCRIPTS)], {})])

    assert said.split() == ["10", "1", "20", "2", "30", "3", "40", "4"]


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders of checks of these scripts: each in three processes, and then in one."""
    folders = {name: tmp_path_factory.mktemp(name) for name in (*WITH_A_TEAM, "wrong")}
    (folders["wrong"] / "wrong.py").write_text(WRONG, encoding="utf-8")
    for size in (3, 1):
        runs = []
        for name, folder in folders.items():
            script = folder / "wrong.py" if name == "wrong" else SCRIPTS / f"{name}.py"
            runs.append((script, [str(folder / "checkpoint")], {VARIABLE: str(folder)}))
        run_scripts(size, runs)
    return folders


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_A_TEAM)
def test_the_check_finds_right_gradients_right(checked: dict[str, Path], name: str) -> None:
    """As far as single precision goes; plain averaging is far off."""
    said, right = ddp_check.verdict(checked[name])
    weighted, plain = (float(line.split(" by ")[1].split()[0]) for line in said.splitlines()[1:3])

    assert right
    assert weighted < 1e-5
    assert plain > 0.01
    assert "150, 100, 50 samples at first, and of one with all 300" in said
    assert not (checked[name] / "checkpoint").exists()


@pytest.mark.slow
def test_the_check_finds_wrong_gradients_wrong(checked: dict[str, Path]) -> None:
    """Dropout is drawn anew by each process."""
    said, right = ddp_check.verdict(checked["wrong"])

    assert not right
    assert "dropout" in said


def forked(command: Sequence[str], *, env: dict[str, str], **_: Any) -> subprocess.CompletedProcess[bytes]:
    """What torchrun would do with this command, in processes that are forked instead of started."""
    assert list(command[:6]) == [sys.executable, "-P", "-m", "hetsim.ddp.launched", "torchrun", "--standalone"]
    processes, script = int(command[6].removeprefix("--nproc-per-node=")), command[9:]
    run_scripts(processes, [(Path(script[0]), script[1:], {VARIABLE: env[VARIABLE]})])
    return subprocess.CompletedProcess(command, 0, b"", b"")


@pytest.mark.slow
@pytest.mark.parametrize("run", [forked, pytest.param(subprocess.run, marks=pytest.mark.long)], ids=["forked", "torchrun"])
@pytest.mark.long
def test_the_command_finds_gradients_right_that_are_computed_in_16_bits(
    run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a script that makes one step, under autocast, with bounds that hold a share of the batch and not all of it."""
    (tmp_path / "script.py").write_text(ROUNDED, encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["hetsim-ddp-check", "--processes", "2", str(tmp_path / "script.py")])
    monkeypatch.setattr(ddp_check.subprocess, "run", run)

    with pytest.raises(SystemExit) as ended:
        ddp_check.main()

    said = capsys.readouterr()
    assert ended.value.code == 0, said.err
    assert "1 steps of 2 processes with 40, 20 samples at first, and of one with all 60; 1 splits, 4 parameters:" in said.out
    assert "a rounding is 0.0078" in said.out
    assert said.out.endswith("the gradients are right\n")


@pytest.mark.parametrize(
    ("dtype", "error", "plain", "conclusion"),
    [
        (torch.float64, 1e-15, 0.1, "the gradients are right"),
        (torch.float64, 1e-6, 0.1, "the gradients are not those of one process"),
        (torch.float32, 1e-6, 0.1, "the gradients are right"),
        (torch.float32, 1e-6, 5e-6, "this proves nothing"),
        (torch.float64, 0.0, 0.0, "this proves nothing"),
        (torch.float64, 0.0, 1e-17, "this proves nothing"),
        (torch.bfloat16, 0.003, 0.5, "the gradients are right"),
        (torch.bfloat16, 0.05, 0.3, "this proves nothing"),
        (torch.bfloat16, 0.2, 0.5, "the gradients are not those of one process"),
    ],
)
def test_a_verdict_goes_by_the_precision_and_by_what_plain_averaging_would_be(
    tmp_path: Path, dtype: torch.dtype, error: float, plain: float, conclusion: str
) -> None:
    """Right up to the root of a rounding, and only where plain averages are ten times as far off."""
    right, other = torch.tensor([1.0, 0.0]).double(), torch.tensor([0.0, 1.0]).double()
    weighted = {"reduced": {"w": right + error * other}, "plain": {"w": right + plain * other}, "weighted": {"w": right}}
    weighted |= {"shares": [2, 1], "number": 0, "loss": "mean"}
    for name, step in ((SERIAL, {"reduced": {"w": right}}), (WEIGHTED, weighted)):
        torch.save({"steps": [step], "epsilon": torch.finfo(dtype).eps}, tmp_path / name)
    said, fine = ddp_check.verdict(tmp_path)

    assert said.splitlines()[-1].startswith(conclusion)
    assert fine == (conclusion == "the gradients are right")


def test_a_check_sees_in_which_precision_modules_compute(tmp_path: Path) -> None:
    """Outputs under autocast, here of a part of the model; and torch's settings of products of f32."""
    check = Check(tmp_path, 0, 1)
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    with torch.autocast("cpu", torch.bfloat16):
        half = torch.nn.Linear(2, 2)(torch.ones(1, 2))
    check._computed(torch.nn.Identity(), (), {"loss": torch.ones(1).double(), "hidden": [half]})

    assert check.epsilon == 2**-7
    assert rounding_of_products(torch.nn.Conv2d(1, 1, 1), gpu) == 2**-10
    assert rounding_of_products(torch.nn.Linear(1, 1), gpu) == rounding_of_products(torch.nn.Conv2d(1, 1, 1), cpu) == 0
    before = torch.backends.cuda.matmul.fp32_precision
    try:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        assert rounding_of_products(torch.nn.Linear(1, 1), gpu) == 2**-10
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


class Ended:
    """A process that has ended without a word."""

    returncode = 0

    def communicate(self) -> tuple[bytes, None]:
        """What it has printed."""
        return b"", None


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        (["nowhere.py"], "there is no script nowhere.py"),
        (["--processes", "1", __file__], "--processes must be from 2 to 64, not 1"),
        ([__file__], "has ended without a step"),
    ],
)
def test_the_command_says_what_is_wrong(
    typed: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """One sentence, exit status 1."""
    monkeypatch.setattr(sys, "argv", ["hetsim-ddp-check", *typed])
    monkeypatch.setattr(ddp_check.subprocess, "Popen", lambda *_, **__: contextlib.nullcontext(Ended()))

    with pytest.raises(SystemExit) as ended:
        ddp_check.main()

    assert ended.value.code == 1
    assert sentence in capsys.readouterr().err
