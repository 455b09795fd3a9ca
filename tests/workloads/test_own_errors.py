"""What is wrong with a workload of the user's own is one sentence, with the file and the line where there is one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from own_modules import IMPORTS, written
from worlds import exit_status

from hetsim.cli.main import main

WHOLE = """
def loss(outputs, targets):
    return F.mse_loss(outputs, targets)

def error(outputs, targets):
    return F.l1_loss(outputs, targets)

@hetsim.workload
def build(hidden=4):
    x = torch.linspace(-1, 1, 40).unsqueeze(1)
    data = TensorDataset(x, x)
    model = nn.Linear(1, 1)
    return hetsim.Training(model=model, train=data, test=data, loss=loss, metrics={"test_error": error})
"""
FILE = r" \(/\S+/NAME.py, line \d+\): correct it$"

MISTAKES = {
    # what is replaced in it, by what: the sentence after `workload.module=NAME:build: `
    ("return F.mse_loss(outputs, targets)", "return F.mse_loss(outputs, targets, reduction='none')"): (
        r"the loss is a tensor of shape \(8, 1\): let it return a tensor of one number, the mean over the batch$"
    ),
    ("return F.mse_loss(outputs, targets)", "return 1.0"): r"the loss is 1.0: let it return a tensor of one number",
    ("return F.mse_loss(outputs, targets)", "pass"): r"the loss is None: let it return a tensor of one number",
    (
        "return F.mse_loss(outputs, targets)",
        "return torch.ones(())",
    ): r"the loss does not depend on the model's parameters: compute it from",
    (
        "return F.mse_loss(outputs, targets)",
        "return outputs.mean() / 0",
    ): r"the loss of the first 8 samples is -?(inf|nan) before any step: corr",
    ("return F.mse_loss(outputs, targets)", "return outputs.nothing"): r"the loss failed with AttributeError: 'Tensor' object has no attr.*"
    + FILE,
    (
        "return F.l1_loss(outputs, targets)",
        "return outputs",
    ): r"test_error is a tensor of shape \(8, 1\): let it return one number, the mean over the samples$",
    ("return F.l1_loss(outputs, targets)", "return 1 / 0"): r"test_error failed with ZeroDivisionError: division by zero" + FILE,
    (
        "nn.Linear(1, 1)",
        "nn.Linear(2, 1)",
    ): r"the model failed with RuntimeError: .*mat1 and mat2 shapes cannot be multiplied .*: correct it$",
    ("nn.Linear(1, 1)", "nn.Tanh()"): "model has no parameters that are trained: give it some$",
    ("nn.Linear(1, 1)", "nn.Linear(1, 1).requires_grad_(False)"): "model has no parameters that are trained",
    ("nn.Linear(1, 1)", "nn.Linear"): "model must be a torch.nn.Module, not <class",
    ("train=data", "train=TensorDataset(x[:0], x[:0])"): "train has no samples: give it at least one$",
    ("train=data", "train=iter(data)"): "train must be a map-style Dataset, with __len__ and __getitem__, not ",
    (
        "train=data",
        "train=[(x[i], object()) for i in range(40)]",
    ): r"the samples of train make no batch \(TypeError: default_collate: batch must",
    ("train=data", "train=[x[: 1 + i % 2] for i in range(40)]"): r"the samples of train make no batch \(RuntimeError: stack expects each",
    ("train=data", "train={str(i): x[i] for i in range(40)}"): r"train\[…\] failed with KeyError: \d+: correct it$",
    ("train=data", "train=Subset(data, [50])"): r"train\[…\] failed with \w+: .*: correct it$",
    ("train=data", "train=data, collate=1"): "collate must be a function, not 1$",
    ("train=data", "train=data, collate=lambda samples: samples.nothing"): r"collate failed with AttributeError: 'list' object .*" + FILE,
    ("test=data, ", ""): "metrics are of the test set, which is missing: give test=$",
    ("test_error", "test error"): r"metrics\['test error'\] has no name for a column: take letters, digits and _, as in test_error$",
    ("test_error", "samples"): r"metrics\['samples'\] has the name of a column that is there already: rename it$",
    ('{"test_error": error}', "[error]"): r"metrics must map names to functions, as in \{'test_error': error\}$",
    ("error}", "1}"): r"metrics\['test_error'\] must be a function, not 1$",
    ("loss=loss", "loss='mse'"): "loss must be a function, not 'mse'$",
    ("x = torch", "raise KeyError('nothing')\n    x = torch"): "the function failed with KeyError: 'nothing'" + FILE,
    ("x = torch", "exit(3)\n    x = torch"): "the function failed with SystemExit: 3" + FILE,
    ("loss=loss", "lose=loss"): "the function failed with TypeError: Training.__init__.* got an unexpected keyword argument 'lose'" + FILE,
}
OTHERS = {
    # of other sentences, the whole
    ("return hetsim.Training", "return dict"): r"^workload\.module=NAME:build returns \{.*: return a hetsim\.Training$",
    ("build(hidden=4)", "build(hidden)"): r"^workload\.options\.hidden is missing: give it a value, as in \+workload\.options\.hidden=…$",
    (
        "build(hidden=4)",
        "built()",
    ): r"^workload\.module=NAME:build is not there: NAME has no 'build', so correct the name$",
    (
        "@hetsim.workload",
        "",
    ): r"^workload\.module=NAME:build is not a workload: write @hetsim\.workload above a function",
    (
        "def loss",
        "def loss(",
    ): r"^workload\.module=NAME:build: NAME cannot be imported \(SyntaxError: .* \(NAME.py, line 11\)\): correct it$",
    (
        "def loss",
        "1 / 0\ndef loss",
    ): r"^workload\.module=NAME:build: NAME cannot be imported \(ZeroDivisionError: division by zero, line 11\): corr",
    ("def loss", "import nothing.at.all\ndef loss"): r"^workload\.module=NAME:build: NAME cannot be imported \(ModuleNotFoundError: No mod",
}
SENTENCES = {change: rf"^workload\.module=NAME:build: {sentence}" for change, sentence in MISTAKES.items()} | OTHERS


def told(
    folder: Path, text: str, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[str, str]:
    """The name of the module, and what the command says on standard error after it has failed."""
    name = written(folder, text, monkeypatch)
    quick = ("workload=own", f"workload.module={name}:build", f"trust=[{name}]", "batch_size=12", "budget.updates=3", "pictures=false")
    assert exit_status(monkeypatch, "hetsim", main, *quick, f"hydra.run.dir={folder / 'run'}", *words) == 1
    assert not (folder / "run").exists()
    return name, capsys.readouterr().err


@pytest.mark.parametrize("change", SENTENCES, ids=lambda change: f"{change[0]} → {change[1]}")
@pytest.mark.sampled(14)
def test_a_mistake_is_one_sentence(
    change: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 1, and nothing is left."""
    assert WHOLE.count(change[0]) >= 1
    name, sentence = told(tmp_path, WHOLE.replace(*change), ("method=ssgd",), monkeypatch, capsys)

    assert sentence.startswith("hetsim: error: ")
    assert sentence.count("\n") == 1
    assert re.search(SENTENCES[change].replace("NAME", name), sentence.removeprefix("hetsim: error: ").rstrip("\n"))


def test_targets_that_fail_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """They are asked for where a part of the data is to be balanced."""
    text = WHOLE.replace("train=data", "train=type('T', (list,), {'targets': property(lambda its: 1 / 0)})(data)")
    name, sentence = told(tmp_path, text, ("method=ssgd", "+workload.num_samples=20"), monkeypatch, capsys)

    start = f"hetsim: error: workload.module={name}:build: the targets of the data failed with ZeroDivisionError: division by zero ("
    assert sentence.startswith(start)
    assert sentence.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("+workload.options.hiden=3",), "workload.options.hiden is not an argument of NAME:build (hidden); did you mean 'hidden'?"),
        (("workload.options=3",), "workload.options must be a mapping, not 3"),
        (("+workload.num_samples=41",), "workload.num_samples=41 is more than the 40 samples of the training set: lower it"),
        (("+workload.options.hidden={_target_: os.system}",), "workload.options.hidden._target_ is not allowed"),
        (
            ("+workload.trust=[os]",),
            "workload.trust is not a key of hetsim.workloads.own.Own (module, options, num_samples, loader_workers, name)",
        ),
        (("workload.module=???",), "workload.module is missing: give it a value"),
    ],
)
def test_a_wrong_key_is_one_sentence(
    words: tuple[str, ...], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """That names it."""
    name, said = told(tmp_path, WHOLE, words, monkeypatch, capsys)

    assert said.count("\n") == 1
    assert sentence.replace("NAME", name) in said


LATE = """
calls = 0

def loss(outputs, targets):
    global calls
    calls += 1
    if calls > 4:
        raise RuntimeError("too late")
    return F.mse_loss(outputs, targets)

@hetsim.workload
def build():
    x = torch.linspace(-1, 1, 400).unsqueeze(1)
    return hetsim.Training(model=nn.Linear(1, 1), train=TensorDataset(x, x), loss=loss)
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ssgd", "asgd", "od_sgd"])
@pytest.mark.parametrize("backend", ["sim", "dist"])
def test_what_fails_in_the_middle_of_a_run_is_one_sentence(
    backend: str, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """In both worlds, with the line; also where gradients are computed beside the program."""
    name = written(tmp_path, LATE, monkeypatch)
    typed = ("workload=own", f"workload.module={name}:build", f"trust=[{name}]", f"backend={backend}", f"method={method}")
    quick = ("batch_size=12", "budget.updates=30", "cluster=uniform4", f"hydra.run.dir={tmp_path / 'run'}")

    assert exit_status(monkeypatch, "hetsim", main, *typed, *quick) == 1

    number = 1 + (IMPORTS + LATE).splitlines().index('        raise RuntimeError("too late")')
    assert capfd.readouterr().err == (
        f"hetsim: error: workload.module={name}:build: the loss failed with RuntimeError: too late"
        f" ({tmp_path}/{name}.py, line {number}): correct it\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize("backend", [pytest.param("sim", marks=pytest.mark.long), "dist"])
def test_verbose_shows_the_traceback(backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the user's own code, whichever process it ran in."""
    name = written(tmp_path, LATE, monkeypatch)
    typed = ("workload=own", f"workload.module={name}:build", f"trust=[{name}]", f"backend={backend}", "hydra.verbose=true")
    command = [sys.executable, "-m", "hetsim", *typed, "method=ssgd", "batch_size=12", f"hydra.run.dir={tmp_path / 'run'}"]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"}

    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert ended.returncode == 1
    assert ended.stderr.count('    raise RuntimeError("too late")') == 1
    assert f'File "{tmp_path}/{name}.py"' in ended.stderr
