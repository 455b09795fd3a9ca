"""Processes that read the samples of a user's own data: the numbers are those without them, and no process outlives its rank."""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from own_modules import IMPORTS, REGRESSION, own, written
from worlds import UNEVEN, exit_status, simulate

import hetsim
from hetsim import memory
from hetsim.cli.main import main
from hetsim.effects import Batch
from hetsim.sim.backend import Simulator
from hetsim.workloads.own.loader_workers import LoaderWorkers
from hetsim.workloads.own.packing import pack
from hetsim.workloads.own.task import OwnTask

DRAWING = """
import random

class Drawn(Dataset):
    def __len__(self):
        return 30

    def __getitem__(self, index):
        x = torch.rand(3) + index / 30
        return x.double()[:2], float(np.random.rand() + random.random())

def loss(outputs, targets):
    return F.mse_loss(F.dropout(outputs).squeeze(1), targets)

@hetsim.workload
def build():
    return hetsim.Training(model=nn.Linear(2, 1), train=Drawn(), test=Drawn(), loss=loss)
"""
"""Each sample draws from all three generators, and so does the loss."""

OF_LISTS = DRAWING.replace(
    "def loss",
    """
class Drawn(Drawn):
    def __getitems__(self, indices):
        noise = torch.rand(len(indices))
        return [(torch.tensor([each, index / 30]), float(index)) for each, index in zip(noise, indices)]

def loss""",
    1,
)
"""A whole batch draws together."""

COLLATED = DRAWING.replace(
    "@hetsim.workload",
    """
def mixed(samples):
    x, y = torch.utils.data.default_collate(samples)
    return x + torch.rand(x.shape) + np.random.rand() + random.random(), y

@hetsim.workload""",
).replace("loss=loss", "loss=loss, collate=mixed")
"""Its collate draws, too."""

PARTS = DRAWING.replace("train=Drawn()", "train=Subset(Subset(Drawn(), range(5, 29)), range(1, 20))")
DICTIONARIES = DRAWING.replace("return x.double()[:2], float", "return {'x': x[:2], 'name': str(index)}, float").replace(
    "nn.Linear(2, 1)", "type('Of', (nn.Linear,), {'forward': lambda its, batch: nn.Linear.forward(its, batch['x'])})(2, 1)"
)
KINDS = {"tuples": DRAWING, "lists": OF_LISTS, "collate": COLLATED, "parts": PARTS, "dictionaries": DICTIONARIES}


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """What writes a module of this text, and says its name."""
    return lambda text: written(tmp_path, text, monkeypatch)


@contextlib.contextmanager
def loaded(name: str, **keys: Any) -> Iterator[OwnTask]:
    """The task of a module's `build`, closed afterwards."""
    task = own(name, **keys).load()[0]
    assert isinstance(task, OwnTask)
    with contextlib.closing(task):
        yield task


def seen(task: OwnTask) -> list[Any]:
    """Gradients and losses of batches at a stride, at none, and an evaluation; and what the generators give after each."""
    found: list[Any] = []
    for start, samples in ((0, 8), (8, 8), (16, 8), (24, 8), (32, 8), (5, 8), (47, 1), (50, 3)):
        gradient, loss = task.gradient(task.initial(), Batch(start, samples))
        found += [gradient.tolist(), loss, np.random.rand(), random.random()]
    return [*found, task.evaluate(task.initial())]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[pytest.mark.long] * (kind in ("tuples", "lists"))) for kind in KINDS])
@pytest.mark.sampled(1)
def test_samples_are_those_that_the_rank_would_have_read(kind: str, module: Callable[[str], str]) -> None:
    """Bit by bit, with what is drawn in them, by a collate and by the loss afterwards; also of a batch with fewer samples than workers."""
    name = module(KINDS[kind])
    with loaded(name) as alone, loaded(name, loader_workers=2) as helped:
        assert seen(helped) == seen(alone)


@pytest.mark.slow
def test_a_run_with_workers_is_the_run_without(module: Callable[[str], str]) -> None:
    """Several simulated ranks share one task, and its workers."""
    name = module(DRAWING)
    runs = [simulate(own(name, cluster=UNEVEN, batch_size=12, loader_workers=count)) for count in (0, 1)]

    assert torch.equal(runs[0].weights, runs[1].weights)
    runs[1].simulation.task.close()


@pytest.mark.slow
def test_the_next_batch_is_read_while_this_one_is_computed(module: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    """In a thread that waits for the workers, once batches are at a stride."""
    threads: list[str] = []
    ask = LoaderWorkers.read
    monkeypatch.setattr(LoaderWorkers, "read", lambda *a, **k: threads.append(threading.current_thread().name) or ask(*a, **k))

    with loaded(module(DRAWING), loader_workers=1) as task:
        del threads[:]
        for start in range(0, 40, 8):
            task.gradient(task.initial(), Batch(start, 8))

    assert [name.startswith("prefetch") for name in threads[:5]] == [False, False, False, True, True]


def test_without_workers_nothing_is_read_beside_the_program(module: Callable[[str], str]) -> None:
    """Samples draw from the generators that the program draws from."""
    with loaded(module(DRAWING)) as task:
        seen(task)
        assert not task._train.may_be_read_ahead
        assert not any(thread.name.startswith("prefetch") for thread in threading.enumerate())


def lives(process: int) -> bool:
    """Whether a process of this id runs; one that has ended and that nobody has waited for does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def all_end(processes: list[int], *, within: float = 60) -> bool:
    """Whether all of these processes end within these seconds."""
    until = time.monotonic() + within
    while any(map(lives, processes)) and time.monotonic() < until:
        time.sleep(0.02)
    return not any(map(lives, processes))


@pytest.mark.slow
def test_a_closed_task_has_no_processes(module: Callable[[str], str]) -> None:
    """Nor has one that nobody holds any more, or that could not be made."""
    with loaded(module(DRAWING), loader_workers=2) as task:
        assert task._workers is not None
        processes = task._workers.processes
        assert len(processes) == 2
        assert all(map(lives, processes))
    assert not any(map(lives, processes))

    before = children()
    with pytest.raises(ValueError, match="model has no parameters"):
        own(module(DRAWING.replace("nn.Linear(2, 1)", "nn.Tanh()")), loader_workers=1).load()
    with pytest.raises(ValueError, match="learning rate") as kept:
        own(module(DRAWING), optimizer={"lr": -1.0}, loader_workers=1).load()
    assert children() == before, kept


def children() -> set[int]:
    """The ids of the processes that this one has started and that run."""
    return {int(name) for name in Path("/proc/self/task").joinpath(str(os.getpid()), "children").read_text().split() if lives(int(name))}


STUCK = """
import os, time

class Points(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        if os.path.exists("stuck"):
            time.sleep(1000)
        return torch.rand(1), torch.rand(1)

@hetsim.workload
def build():
    return hetsim.Training(model=nn.Linear(1, 1), train=Points(), loss=F.mse_loss)
"""

KILLED = """
import os, threading, time
import numpy as np
from hetsim.workloads.own import Own
from hetsim.workloads.device import CPU

task = Own(module="{name}:build", loader_workers=2, trust=("{name}",)).load(seed=0, dtype="float32", device=CPU())
task._workers.read("train", np.arange(2), np.arange(2, dtype=np.uint64), together=False)
print(*task._workers.processes, flush=True)
if {busy}:
    open("stuck", "w").close()
    asked = ("train", np.arange(40), np.arange(40, dtype=np.uint64))
    threading.Thread(target=task._workers.read, args=asked, kwargs=dict(together=False)).start()
    time.sleep(0.5)
os.kill(os.getpid(), 9)
"""


@pytest.mark.slow
@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.sampled(1)
def test_workers_end_with_a_rank_that_is_killed(busy: bool, tmp_path: Path, module: Callable[[str], str]) -> None:
    """While they wait, and in the middle of a sample."""
    name = module(STUCK)
    script = KILLED.format(name=name, busy=busy)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"}

    ended = subprocess.run(
        [sys.executable, "-c", script], env=environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=False, timeout=120
    )

    assert ended.returncode == -signal.SIGKILL
    processes = [int(word) for word in ended.stdout.split()]
    assert len(processes) == 2
    assert all_end(processes)


@pytest.mark.slow
def test_a_worker_that_is_killed_is_one_sentence(module: Callable[[str], str]) -> None:
    """That says how it ended."""
    with loaded(module(DRAWING), loader_workers=2) as task:
        assert task._workers is not None
        os.kill(task._workers.processes[1], signal.SIGKILL)
        sentence = r"build: a loader worker ended by itself \(exit status -9\): lower workload.loader_workers if memory is short"
        for _ in range(2):
            with pytest.raises(ValueError, match=sentence):
                task.gradient(task.initial(), Batch(0, 8))


TWO = "cluster.nodes=[{count: 2, seconds_per_sample: 1e-5, overhead_seconds: 0}]"
FAILING = DRAWING.replace("x = torch", "assert index < 20, f'no sample {index}'\n        x = torch").replace("test=Drawn(), ", "")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["sim", "dist"])
@pytest.mark.sampled(1)
def test_what_a_sample_raises_is_the_sentence_that_it_was(
    backend: str, tmp_path: Path, module: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of the first sample that fails, with the file and the line, in both worlds."""
    name = module(FAILING)
    typed = ("workload=own", f"workload.module={name}:build", f"trust=[{name}]", f"backend={backend}", "method=ssgd", TWO)
    said = []
    for count in (0, 2 if backend == "sim" else 1):
        folder = f"hydra.run.dir={tmp_path / 'run'}"
        assert exit_status(monkeypatch, "hetsim", main, *typed, "batch_size=16", f"workload.loader_workers={count}", folder) == 1
        said.append(capfd.readouterr().err)

    number = 1 + (IMPORTS + FAILING).splitlines().index("        assert index < 20, f'no sample {index}'")
    assert "train[…] failed with AssertionError: no sample 2" in said[1]
    assert f" ({tmp_path}/{name}.py, line {number}): correct it\n" in said[1]
    assert said[1].count("\n") == 1
    if backend == "sim":  # of several ranks, which one is first differs from run to run
        assert said[0] == said[1]


@pytest.mark.slow
def test_the_traceback_survives_the_way_between_the_processes(module: Callable[[str], str]) -> None:
    """For hydra.verbose=true."""
    with pytest.raises(ValueError, match=r"train\[…\] failed with AssertionError") as failed:
        own(module(FAILING.replace("< 20", "< 0")), loader_workers=1).load()

    assert any("assert index < 0" in note for note in failed.value.__notes__)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "count", "sentence"),
    [
        (
            ("return x.double()[:2], float", "return (lambda: 0), float"),
            1,
            r"the samples of train cannot be handed from one process",
        ),
        (("x.double()[:2]", "x[: 1 + index % 2]"), 1, r"the samples of train make no batch \(RuntimeError: stack expects each"),
        (("class", "import nothing.at.all\nclass"), 1, r"cannot be imported \(ModuleNotFoundError"),
        (("return x", "raise MemoryError('out')\n        return x"), 1, r"^out$"),
        (("", ""), -1, "workload.loader_workers must be at least 0, not -1"),
        (("", ""), 65, "workload.loader_workers must be at most 64, not 65"),
        (("", ""), 1.5, "workload.loader_workers must be a whole number, not 1.5"),
    ],
)
def test_what_is_wrong_is_one_sentence(change: tuple[str, str], count: Any, sentence: str, module: Callable[[str], str]) -> None:
    """Also what only several processes make a mistake."""
    with pytest.raises((ValueError, MemoryError), match=sentence):
        own(module(DRAWING.replace(*change, 1)), loader_workers=count).load()


@pytest.mark.slow
def test_workers_with_nothing_to_do_are_refused(module: Callable[[str], str]) -> None:
    """Tensors are read by index."""
    with pytest.raises(
        ValueError, match=r"build: workload.loader_workers would do nothing, because all data are tensors, .*: leave it out"
    ):
        own(module(REGRESSION), loader_workers=2).load()


def test_workers_that_do_not_fit_into_memory_are_refused(module: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any is started."""
    made = own(module(DRAWING), loader_workers=64)
    monkeypatch.setattr(memory, "available_bytes", lambda: 10**9)

    with pytest.raises(ValueError, match=r"would take 9.6 GB of memory, and 1.0 GB are available: lower workload.loader_workers$"):
        Simulator().check(made)


TENSORS = {
    "numbers": torch.arange(6.0),
    "a number": torch.tensor(3),
    "none": torch.empty(0, 3),
    "truths": torch.tensor([True, False]),
    "bfloat16": torch.arange(6, dtype=torch.bfloat16),
    "complex": torch.randn(3, dtype=torch.complex128),
    "channels last": torch.rand(5, 4, 3).permute(2, 0, 1),
    "a crop of it": torch.rand(9, 8, 3).permute(2, 0, 1)[:, 2:5, 1:4],
    "one value": torch.tensor(2.0).expand(3, 4),
    "with a gradient": torch.ones(2, requires_grad=True),
    "sparse": torch.eye(3).to_sparse(),
}


@pytest.mark.parametrize("kind", TENSORS)
def test_a_tensor_is_handed_on_as_it_is(kind: str) -> None:
    """Its numbers, its type, and the order of its axes in memory, by which convolutions choose how they add up."""
    tensor = TENSORS[kind]
    found = pickle.loads(pack([tensor]))[0]

    assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(found.to_dense() if tensor.is_sparse else found, tensor.to_dense() if tensor.is_sparse else tensor)
    if not tensor.is_sparse:
        assert found.stride() == tensor.clone().stride()


def test_a_small_part_of_a_large_tensor_is_small() -> None:
    """As samples often are."""
    assert len(pack([*torch.zeros(100_000, 2)[:10]])) < 2000


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ssgd", "asgd"])
@pytest.mark.sampled(1)
def test_real_ranks_with_workers_train_as_without(method: str, module: Callable[[str], str], tmp_path: Path) -> None:
    """The same losses where time decides nothing, and no process is left."""
    before = children()
    name = module(DRAWING)
    words = ["workload=own", f"workload.module={name}:build", f"method={method}", TWO, "budget.epochs=null", "pictures=false"]
    words += ["backend=dist", "budget.updates=12", "batch_size=16"]

    def final(count: int) -> Any:
        words_of = (*words, f"workload.loader_workers={count}")
        return hetsim.run(*words_of, trust=[name], folder=tmp_path / str(count)).summary["final"]

    helped = final(1)

    assert helped["train_loss"] > 0
    if method == "ssgd":
        assert helped == final(0)
    started = Path("/proc").glob("[0-9]*/cmdline")
    mine = [path for path in started if b"loader_process" in _read(path) and str(tmp_path).encode() in _read(path)]
    assert mine == []
    assert len(children() - before) <= 2  # the forkserver and the tracker of resources


def _read(path: Path) -> bytes:
    with contextlib.suppress(OSError):
        return path.read_bytes()
    return b""
