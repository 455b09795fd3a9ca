"""`hetsim-ddp-check` finds right scripts right and wrong ones wrong, and starts nothing that lies in the current folder."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from ranks import run_scripts

from hetsim.cli import ddp_check
from hetsim.ddp import check
from hetsim.ddp.check import VARIABLE, Check, Turning, refuse_other_training
from hetsim.ddp.schedule import Data

SCRIPT = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import TensorDataset
from hetsim.ddp import Team

dist.init_process_group("gloo")
torch.manual_seed(0)
size = dist.get_world_size()
x = torch.randn({samples}, 4).double()
team = Team({batch})
loader = team.loader(TensorDataset(x, x.exp().sum(1)), {options})
model = team.wrap(DDP(torch.nn.Sequential({layers}torch.nn.Linear(4, 1)).double()), {wrapped})
encoder = {encoder}
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
first = None
for epoch in range(4):
    for step, (X, Y) in enumerate(loader):
        errors = ((model(encoder(X))[:, 0] - Y) ** 2)
        loss = errors.mean()
{loop}
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
WINDOWS = """
import contextlib, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import TensorDataset
from hetsim.ddp import Team

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(253, 4).double()
team = Team(20, accumulate=2)
model = team.wrap(DDP(torch.nn.Linear(4, 1).double()))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step, (X, Y) in enumerate(team.loader(TensorDataset(x, x.exp().sum(1)), drop_last=True)):
    reduces = step % 2 == 1 or dist.get_world_size() == 1  # Accelerate's no_sync does nothing in one process
    with contextlib.nullcontext() if reduces else model.no_sync():
        (((model(X)[:, 0] - Y) ** 2).mean() / 2).backward()
    if step % 2:
        optimizer.step()
        optimizer.zero_grad()
"""
IDENTITY = "torch.nn.Identity()"
DROPPED = "collate_fn=lambda rows: torch.utils.data.default_collate([row for row in rows if row[0][0] > 0] or rows)"
GLOBAL = "n = torch.tensor(float(len(X))); dist.all_reduce(n); loss = errors.sum() * size / n"
SECOND = "loss = {} + (model(x[dist.get_rank() :: size][: 18 // size][None]) ** 2).mean()"
"""With another dimension, by which the Team does not see how many samples there are."""
ENCODER = "team.wrap(DDP(torch.nn.Linear(4, 4).double()))"
DEFAULTS = {"samples": 253, "batch": "20", "options": "", "layers": "", "encoder": IDENTITY, "wrapped": "", "loop": "pass"}
RIGHT, WRONG = "the gradients are right", "the gradients are not those of one process"
TABLE = {
    "mean": ({}, RIGHT),
    "of few samples": ({"samples": 47}, RIGHT),
    "with drop_last": ({"options": "drop_last=True"}, RIGHT),
    "with loader workers": ({"options": "num_workers=1, multiprocessing_context='fork'"}, RIGHT),
    "mean over counted samples": ({"loop": "team.count(len(X))"}, RIGHT),
    "collate that drops samples, and counts": ({"options": DROPPED, "loop": "team.count(len(X))"}, RIGHT),
    "normalised over all ranks, and counted as one": ({"loop": GLOBAL + "; team.count(1)"}, RIGHT),
    "sum": ({"loop": "loss = errors.sum()"}, ddp_check.SUM),
    "normalised over all ranks": ({"loop": GLOBAL}, ddp_check.NORMALISED),
    "normalised over all ranks, and wrapped so": ({"loop": GLOBAL, "wrapped": "loss='global'"}, RIGHT),
    "mean, and wrapped as global": ({"wrapped": "loss='global'"}, ddp_check.MEAN),
    "global, and counts a copy of a sample": (
        {"samples": 241, "loop": "team.own(1); " + GLOBAL, "wrapped": "loss='global'"},
        ddp_check.COPIED,
    ),
    "wrong after the first change of the split": ({"loop": "first = first or len(X); team.count(first)"}, WRONG),
    "wrong in the short last step": ({"loop": "team.count(1 if step == len(loader) - 1 else len(X))"}, WRONG),
    "a second loss over other samples": ({"loop": SECOND.format("loss")}, ddp_check.CAUSES),
    "a second loss beside a scaled one": ({"loop": SECOND.format("team.scale(loss)"), "wrapped": "loss='global'"}, RIGHT),
    "an encoder and a decoder": ({"encoder": ENCODER}, RIGHT),
    "an encoder that is normalised over all ranks, and a decoder": ({"encoder": ENCODER, "loop": GLOBAL}, ddp_check.NORMALISED),
    "a mask on the loss": ({"loop": "loss = errors[1:].mean()"}, WRONG),
    "dropout": ({"layers": "torch.nn.Dropout(0.5), "}, ddp_check.CAUSES),
    "batch norm": ({"layers": "torch.nn.BatchNorm1d(4), ", "options": "drop_last=True"}, ddp_check.CAUSES),
    "batch size by the number of processes": ({"batch": "10 * size"}, RIGHT),
    "no_sync only in several processes": ({"script": WINDOWS}, RIGHT),
    "noise of each rank": ({"loop": "loss = loss * (1 + dist.get_rank())"}, WRONG),
}
SPAWNED = """
import torch.multiprocessing as mp
from torch.distributed import init_process_group
from hetsim.ddp import Team

def work(rank, size):
    init_process_group("gloo", init_method="tcp://127.0.0.1:12399", rank=rank, world_size=size)

if __name__ == "__main__":
    mp.spawn(work, args=(2,), nprocs=2)
"""


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, bool]]:
    """Of all scripts of the table, in one world of two processes and one of a single process."""
    folders = {name: tmp_path_factory.mktemp("script") for name in TABLE}
    for name, folder in folders.items():
        filled = DEFAULTS | TABLE[name][0]
        filled["loop"] = "        " + str(filled["loop"])
        (folder / "script.py").write_text(filled.get("script", SCRIPT.format(**filled)), encoding="utf-8")
    for size in (2, 1):
        run_scripts(size, [(folder / "script.py", [], {VARIABLE: str(folder)}) for folder in folders.values()])
    return {name: ddp_check.verdict(folder) for name, folder in folders.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLE)
def test_the_verdict_of_each_script(verdicts: dict[str, tuple[str, bool]], name: str) -> None:
    """Right or wrong, with the remedy where one is known, after at least six steps with two changes of the split."""
    said, right = verdicts[name]
    expected = TABLE[name][1]

    assert said.splitlines()[-1].endswith(expected) if expected != WRONG else WRONG in said, said
    assert right == (expected == RIGHT)
    assert int(said.split()[0]) >= (5 if "no_sync" in name else 6)  # with windows of two batches, ten batches
    assert int(said.partition("; ")[2].split()[0]) >= 2


@pytest.mark.parametrize(
    ("num_samples", "look_ahead", "accumulate"),
    [(20, 0, 1), (47, 0, 1), *((*case, windows) for case in ((93, 2), (10_013, 0), (10_013, 4), (10_000, 8)) for windows in (1, 3))],
)
def test_a_check_has_whole_epochs_with_the_last_step_of_the_run(tmp_path: Path, num_samples: int, look_ahead: int, accumulate: int) -> None:
    """An epoch is no longer than is needed, and its last step is as short as that of a whole epoch."""
    its, data = Check(tmp_path, 0, 2), Data(num_samples, 20, accumulate=accumulate, drop_last=accumulate > 1)
    short = its.shorten(data, look_ahead)

    assert its.num_steps * accumulate >= 6
    assert its.num_steps * accumulate % short.num_steps() == 0
    assert short.num_samples % 20 == num_samples % 20
    assert short.num_steps() <= 2 * (2 * accumulate + look_ahead) + 3 * accumulate + 6
    assert set(short.order(1)) <= set(range(num_samples))
    assert len(short.order(1)) == short.num_samples


def test_uneven_parts_are_passed_on() -> None:
    """The split of three ranks, and that after one window."""
    rule = Turning()
    state = rule.initial(3, 12)

    assert rule.shares(state) == (6, 4, 2)
    assert rule.shares(rule.observe(state, ())) == (4, 2, 6)


@pytest.mark.parametrize(("processes", "passes", "sentence"), [(2, 0, check.ALONE.format(2)), (1, 3, check.NO_TEAM + check.IN_LOOP)])
def test_a_script_that_trains_without_a_team_is_stopped(
    processes: int, passes: int, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At its first backward pass outside a process group, and after a few in one. A wrapped model ends the watch."""
    monkeypatch.setattr(torch.autograd, "backward", torch.autograd.backward)
    backward = torch.autograd.backward
    refuse_other_training(tmp_path, processes)
    loss = torch.ones((), requires_grad=True)
    for _ in range(passes):
        loss.backward()

    with pytest.raises(ValueError, match=re.escape(sentence)):
        loss.backward()

    assert (tmp_path / check.REFUSED).read_text(encoding="utf-8") == sentence
    monkeypatch.setattr(Check, "num_wrapped", 1)
    loss.backward()
    assert torch.autograd.backward is backward


def run_check(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command in this folder, as it is installed: without the folder on Python's path."""
    command = [sys.executable, "-P", "-m", "hetsim.cli.ddp_check", "--processes", "2", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.slow
@pytest.mark.long
def test_a_script_that_starts_its_ranks_itself_is_refused(tmp_path: Path) -> None:
    """One sentence, and no hang."""
    (tmp_path / "spawned.py").write_text(SPAWNED, encoding="utf-8")
    done = run_check(tmp_path, "spawned.py")

    assert done.returncode == 1
    assert done.stderr.startswith("hetsim-ddp-check: error: spawned.py: the script starts its ranks itself")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.long
def test_a_module_is_checked_and_nothing_else_of_its_folder_runs(tmp_path: Path) -> None:
    """`-m package.train`, with the imports of its package, beside a torch.py and a libcuda.so.1."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "sizes.py").write_text("STEPS = 8", encoding="utf-8")
    text = SCRIPT.format(**DEFAULTS | {"loop": "        pass"})
    (package / "train.py").write_text("from .sizes import STEPS\n" + text, encoding="utf-8")
    for folder in (tmp_path, package):
        (folder / "torch.py").write_text("raise SystemExit('a torch of the folder')", encoding="utf-8")
        (folder / "libcuda.so.1").write_text("no library", encoding="utf-8")
    done = run_check(tmp_path, "-m", "package.train")

    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("the gradients are right\n")
