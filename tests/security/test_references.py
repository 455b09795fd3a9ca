"""What a reference may say, by its place: a config has plain values and `${key}`; a typed folder has the time and Hydra's own, too."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from safetensors.torch import load_file, save_file
from worlds import exit_status

import hetsim
from hetsim.checkpoints import file as checkpoint_file
from hetsim.checkpoints.folder import newest
from hetsim.cli.compare import main as compare_main
from hetsim.cli.main import main
from hetsim.cli.table import main as table_main

QUICK = (
    *("workload=quadratic", "workload.num_parameters=6", "method=ssgd", "cluster=two_gpus"),
    *("budget.epochs=null", "budget.updates=2", "pictures=false", "trace=none"),
)
SECRET = "correct-horse-battery"

KEY, VARIABLE, ESCAPED, RESOLVER, OWN = "a key", "a variable", "a variable in Hydra's grammar", "a resolver", "hetsim's and Hydra's own"
REFERENCES = {
    "${seed}": KEY, "x${seed}-${cluster.name}": KEY,
    "${oc.env:HETSIM_TEST_SECRET}": VARIABLE, "${oc.env:NOT_THERE,x}": VARIABLE, "x${oc.decode:${oc.env:HETSIM_TEST_SECRET}}": VARIABLE,
    r"$\{oc.env:HETSIM_TEST_SECRET\}": ESCAPED,
    "${oc.select:seed}": RESOLVER, "${oc.create:[1]}": RESOLVER, "${cluster.${method}}": RESOLVER, "${ seed}": RESOLVER,
    "${now:%Y}": OWN, "${hydra:runtime.cwd}": OWN, "${hydra.job.name}": OWN, "${hetsim.name:seed}": OWN,
}  # fmt: skip
"""What is written, and what it refers to."""
SHELL = r"data_root has .*\$\{oc\.env:.*: hetsim reads no environment variables, so let the shell expand it, as in data_root=\$\w+"
NO_KEY = r"has .*\$\{.*: write the value out, or refer to a key of the config as \$\{key\}"
IN_FILE = r"has a reference in data_root that is no \$\{key\}: write the value out there, or type it"
PLACES: dict[str, dict[str, str | None]] = {
    # the place: for what a reference may refer to the sentence, or None where it is allowed
    "typed": {KEY: None, VARIABLE: SHELL, ESCAPED: SHELL, RESOLVER: NO_KEY, OWN: NO_KEY},
    "typed in a sweep": {KEY: None, VARIABLE: SHELL, ESCAPED: SHELL, RESOLVER: NO_KEY, OWN: NO_KEY},
    "typed in Python": {KEY: None, VARIABLE: SHELL, ESCAPED: SHELL, RESOLVER: NO_KEY, OWN: NO_KEY},
    "a typed folder": {
        KEY: None,
        **dict.fromkeys((VARIABLE, ESCAPED), SHELL.replace("data_root", "hydra.run.dir")),
        RESOLVER: NO_KEY,
        OWN: None,
    },
    "typed for Hydra": dict.fromkeys(REFERENCES.values(), r"hydra.job.name has .*\$\{.*: write the value out"),
    "a file of --config-dir": {KEY: None, ESCAPED: None, VARIABLE: IN_FILE, RESOLVER: IN_FILE, OWN: IN_FILE},
    "a file of the current folder": {KEY: None, ESCAPED: None, VARIABLE: IN_FILE, RESOLVER: IN_FILE, OWN: IN_FILE},
    "a resumed run": dict.fromkeys((VARIABLE, RESOLVER, OWN), r"data_root that is no \$\{key\}: begin the run again, and type the value")
    | {KEY: None, ESCAPED: None},
    "a file of a sweep": {
        KEY: r"data_root refers to another key in a config file: write the value out",
        **dict.fromkeys(
            (VARIABLE, ESCAPED, RESOLVER, OWN), r"data_root that is no \$\{key\}|data_root refers to another key in a config file"
        ),
    },
    "a grid in a file": {
        KEY: r"grid.ssgd.data_root refers to another key in a grid: write the value out",
        **dict.fromkeys((VARIABLE, ESCAPED, RESOLVER, OWN), r"grid.ssgd.data_root\.0 that is no \$\{key\}|refers to another key in a grid"),
    },
}


FILES = {
    "a file of --config-dir": ("theirs", "data_root: VALUE"),
    "a file of the current folder": (".", "data_root: VALUE"),
    "a file of a sweep": (".", "hydra: {sweeper: {params: {data_root: VALUE}}}"),
    "a grid in a file": (".", "grid: {ssgd: {data_root: [VALUE]}}"),
}
"""The folder of configs, and what the file says."""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a folder of configs in it; and that variable."""
    (tmp_path / "theirs" / "experiment").mkdir(parents=True)
    (tmp_path / "experiment").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HETSIM_TEST_SECRET", SECRET)
    return tmp_path


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that is saved."""
    folder = tmp_path_factory.mktemp("first")
    hetsim.run(*QUICK, "checkpoint.every_updates=100", folder=folder)
    return folder


def texts(folder: Path) -> str:
    """Every byte of every file below a folder, and their names."""
    return "\n".join(f"{path}\n{path.read_bytes().decode('latin1')}" for path in sorted(folder.rglob("*")) if path.is_file())


def quoted(text: str) -> str:
    """A text as YAML and as Hydra's grammar have it."""
    return f"'{text}'" if "'" not in text else f'"{text}"'


def rewritten(path: Path, old: str, new: str) -> None:
    """Change the config in a checkpoint, and let its digest be right again."""
    tensors = load_file(path)
    entries = json.loads(tensors.pop("json").numpy().tobytes())
    assert old in entries["config"]
    entries["config"] = entries["config"].replace(old, new)
    text = np.frombuffer(json.dumps(entries).encode(), np.uint8)
    about = {"format": "1", "hetsim": "0.1.0", "sha256": checkpoint_file.digest(text, tensors)}
    save_file({"json": torch.from_numpy(text.copy()), **tensors}, path, metadata=about)


def run_with(reference: str, place: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit status of a run with a reference at this place."""
    sweep = ["-m"] if "sweep" in place or "grid" in place else []
    words = ["hydra.run.dir=run", "hydra.sweep.dir=sweep"]
    if place == "a resumed run":
        rewritten(newest(Path("first")), "data_root: data", f"data_root: {quoted(reference)}")
        return exit_status(monkeypatch, "hetsim", main, "resume=first", "budget.updates=4", *words)
    if place in FILES:
        folder, text = FILES[place]
        text = text.replace("VALUE", quoted(reference))
        Path(folder, "experiment", "mine.yaml").write_text(f"# @package _global_\n{text}\n")
        words += ["--config-dir", folder, "experiment=mine"]
    elif place == "a typed folder":
        words[0] = f"hydra.run.dir=run/{reference}"
    else:
        words.append(f"{'hydra.job.name' if 'Hydra' in place else 'data_root'}={reference}")
    if place == "typed in Python":
        hetsim.run(*QUICK, words[-1], folder="run")
        return 0
    return exit_status(monkeypatch, "hetsim", main, *sweep, *QUICK, *words)


@pytest.mark.slow
@pytest.mark.parametrize("reference", REFERENCES)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.sampled(12)
def test_a_reference_is_allowed_or_one_sentence(
    place: str, reference: str, here: Path, first: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By what it refers to, and where it stands. No value of a variable is shown or written."""
    reason = PLACES[place][REFERENCES[reference]]
    if place == "a resumed run":
        shutil.copytree(first, here / "first")
    if place == "typed in Python" and reason is not None:
        with pytest.raises(ValueError, match=reason):
            run_with(reference, place, monkeypatch)
        return

    status = run_with(reference, place, monkeypatch)

    told = capsys.readouterr()
    assert status == (0 if reason is None else 1), told.err
    assert reason is None or re.search(reason, told.err), told.err
    assert reason is None or told.err.count("\n") == 1
    assert SECRET not in told.err + told.out + texts(here)


@pytest.mark.slow
def test_what_the_shell_expands_is_a_plain_value(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This is what to type for a variable."""
    assert exit_status(monkeypatch, "hetsim", main, *QUICK, f"data_root={here}", "hydra.run.dir=run") == 0
    assert OmegaConf.load("run/config.yaml").data_root == str(here)


@pytest.mark.slow
def test_a_run_of_an_earlier_version_with_a_variable_is_read(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its config has the reference as a plain text, and below its header the hash of the value."""
    for seed in (0, 1):
        words = (*QUICK, f"seed={seed}", f"hydra.run.dir=old/{seed}")
        assert exit_status(monkeypatch, "hetsim", main, *words) == 0
        path = here / "old" / str(seed) / "config.yaml"
        first, second, rest = path.read_text().split("\n", 2)
        text = rest.replace("data_root: data", "data_root: ${oc.env:HETSIM_TEST_SECRET}")
        path.write_text(f'{first}\n{second}\n# environment: {{"data_root": "0123456789ab"}}\n{text}')
    capsys.readouterr()

    assert exit_status(monkeypatch, "hetsim-table", table_main, "old") == 0
    assert exit_status(monkeypatch, "hetsim-compare", compare_main, "old/0", "old/1") == 0
    assert SECRET not in capsys.readouterr().out
