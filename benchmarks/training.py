"""The speed of training in virtual time, relative to a plain PyTorch loop, and its memory.

python benchmarks/training.py [--workers 16 256] [--processes 1 2 auto batched] [--model mlp] [--momenta 0 0.9] [--repeats 7] [--epochs 2]
    [--samples 60000] [override …]
python benchmarks/training.py --memory [--workers 16 256] [override …]

The loop and the simulation take the same steps: an MLP 784-32-10 on as many samples as MNIST's, kept as bytes, 32 shuffled
samples a step, standardised, one torch thread, no evaluation. The simulation is `method=asgd trace=commits` on workers of eight
speeds with noise.

`--model lenet` takes LeNet instead, and `--model resnet20` ResNet-20. The loop and the simulation with each number of
`--processes` are timed in turn; the ratio is the loop's seconds over the simulation's, the median over the repeats. `batched` is one
process with `backend.batched=auto`. With the override `device=cuda`, the loop and the simulation compute on the GPU.
Memory is how much the resident set of a process of its own grew at the most, counted in vectors of the model's size.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import statistics
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from torch.nn import functional

from hetsim.config.build import build_experiment
from hetsim.config.compose import entries_of
from hetsim.effects import Batch
from hetsim.runtime.experiment import Experiment
from hetsim.runtime.recording.trace import Trace
from hetsim.sim.gradient_processes import AUTO
from hetsim.sim.world import EventWorld
from hetsim.trust.shipped import configs
from hetsim.workloads.data.base import Arrays
from hetsim.workloads.data.supervised import Supervised
from hetsim.workloads.models.registry import build_model
from hetsim.workloads.task import Evaluation

SHARE = 32  # samples per step
SAMPLES = 60_000
MOMENTA = (0.0, 0.9)  # that of asgd in conf/method, and the usual one
METHODS = (("method=asgd",), ("method=ssgd",), ("method=ssgd", "coordination=parameter_server"))  # with N versions in use, one, and one
SHAPES: dict[str, tuple[int, ...]] = {"mlp": (784,), "lenet": (1, 28, 28), "resnet20": (3, 32, 32)}
BATCHED = "batched"
HIDDEN = 1000  # width of the model for measuring memory: vectors of 3.2 MB


@dataclass(frozen=True, kw_only=True)
class Synthetic(Supervised):
    """Random bytes of MNIST's size, random labels."""

    name: str = "synthetic"

    def read(self) -> Arrays:
        return synthetic(SHAPES[self.model])


@cache
def synthetic(shape: tuple[int, ...]) -> Arrays:
    """The data, made once."""
    rng = np.random.default_rng(0)
    x, y = (rng.integers(0, 256, (count, *shape), dtype=np.uint8) for count in (SAMPLES, 100)), rng.integers(0, 10, SAMPLES + 100)
    return Arrays(next(x), y[:SAMPLES], next(x), y[SAMPLES:])


def experiment(*choices: str, workers: int, model: str = "mlp", hidden: int = 32, samples: int = SAMPLES, **keys: object) -> Experiment:
    """These choices, with this number of workers, of eight speeds and with noise. `hidden` is the width of the MLP."""
    with initialize_config_dir(version_base="1.3", config_dir=str(configs())):
        config = compose("config", overrides=[*choices, "workload=arrays", "pictures=false"])
    noisy = {"count": workers // 8, "overhead_seconds": 1e-3, "noise": {"distribution": "lognorm", "s": 0.2}}
    speeds = [{**noisy, "seconds_per_sample": 1e-4 * speed} for speed in range(1, 9)]
    changes = {"batch_size": SHARE * workers, "cluster": {"nodes": speeds}, "workload": {"path": __file__}, **keys}
    made, _ = build_experiment(entries_of(OmegaConf.merge(config, changes)))
    options = {"hidden": [hidden]} if model == "mlp" else {}
    return replace(made, workload=Synthetic(model=model, model_options=options, num_samples=None if samples == SAMPLES else samples))


def unevaluated(*_: torch.Tensor) -> Evaluation:
    """In place of an evaluation, which is not to be measured."""
    return Evaluation()


def simulated(made: Experiment, processes: int | str) -> float:
    """Seconds of a simulation with this number of processes, without loading."""
    task, optimizers = made.load()
    task.evaluate = unevaluated  # type: ignore[method-assign]
    start = perf_counter()
    how: Any = {"batched": AUTO} if processes == BATCHED else {"processes": processes}
    simulation = EventWorld(made, task, optimizers, [Trace(None, made.trace)], **how)
    simulation.run()
    seconds = perf_counter() - start
    assert made.budget.epochs is None or simulation.history.last.num_samples == made.budget.epochs * task.num_samples
    return seconds


def plain(made: Experiment) -> float:
    """Seconds of a plain loop over the same data with the same model and optimizer, without loading."""
    torch.set_num_threads(made.threads)
    assert isinstance(made.workload, Synthetic)
    name, shape = made.workload.model, SHAPES[made.workload.model]
    arrays = synthetic(shape)
    count = made.workload.num_samples or SAMPLES
    x, y = (torch.from_numpy(part[:count]).to(made.device) for part in (arrays.x_train, arrays.y_train))
    scale, mean = torch.std_mean(x.float(), 0, correction=0)
    scale = 1 / scale
    model = build_model(name, made.workload.model_options, shape=shape, num_classes=10, seed=made.seed).to(made.device)
    optimizer = torch.optim.SGD(model.parameters(), **made.optimizer.optimizer.options)
    rng = np.random.default_rng(made.seed)
    assert made.budget.epochs is not None
    start = perf_counter()
    for _ in range(int(made.budget.epochs)):
        for indices in torch.from_numpy(rng.permutation(count)).to(made.device).split(SHARE):
            inputs = x.index_select(0, indices).float().sub_(mean).mul_(scale)
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs), y.index_select(0, indices)).backward()
            optimizer.step()
    if made.device != "cpu":
        torch.cuda.synchronize()
    return perf_counter() - start


def speed(
    workers: int, momentum: float, model: str, processes: list[int | str], repeats: int, epochs: int, samples: int, overrides: list[str]
) -> str:
    """A row for each number of processes: all alternate with the loop, so that other work on the machine slows all."""
    made = experiment(
        "method=asgd", "trace=commits", "learning_rate=0.001", f"momentum={momentum}", f"budget.epochs={epochs}",
        *overrides, workers=workers, model=model, samples=samples,
    )  # fmt: skip
    steps = epochs * samples / SHARE
    times = [(plain(made), *(simulated(made, each) for each in processes)) for _ in range(repeats + 1)][1:]
    loop, *ours = (statistics.median(seconds) / steps * 1e6 for seconds in zip(*times, strict=True))
    lines = []
    for i, (each, its) in enumerate(zip(processes, ours, strict=True), 1):
        ratios = sorted(seconds[0] / seconds[i] for seconds in times)
        spread = f"{statistics.median(ratios):8.3f}   {ratios[0]:.3f} … {ratios[-1]:.3f}"
        lines.append(f"{workers:7}{momentum:10}{each:>11}{loop:14.1f}{its:15.1f}{spread}")
    return "\n".join(lines)


def peak(method: tuple[str, ...], workers: int, updates: int, overrides: list[str]) -> str:
    """One row, to be measured in its own process."""
    made = experiment(*method, "trace=none", f"budget={{epochs: null, updates: {updates}}}", *overrides, workers=workers, hidden=HIDDEN)
    task, optimizers = made.load()
    task.evaluate = unevaluated  # type: ignore[method-assign]
    weights = task.initial()
    optimizers.main.step(optimizers.main.initial(), weights, task.gradient(weights, Batch(0, SHARE))[0], 0)
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    EventWorld(made, task, optimizers).run()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    return f"{' '.join(method):44}{workers:7}{grown / 1e6:9.0f}{grown / weights.nbytes:9.1f}"


def machine() -> str:
    """The machine and the versions of libraries."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")] or [platform.processor()]
    return f"{names[0]}, {os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[16, 256])
    parser.add_argument("--processes", type=lambda word: word if word in (AUTO, BATCHED) else int(word), nargs="+", default=[1])
    parser.add_argument("--model", choices=SHAPES, default="mlp")
    parser.add_argument("--momenta", type=float, nargs="+", default=MOMENTA)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--memory", action="store_true", help="measure memory instead")
    arguments, overrides = parser.parse_known_args()
    print(machine())
    if arguments.memory:
        print(f"{'method':44}{'workers':>7}{'MB':>9}{'vectors':>9}")
        os.environ["MALLOC_MMAP_THRESHOLD_"] = "1000000"  # glibc gives a vector's memory back as soon as it is deallocated
        with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
            for method in METHODS:
                for workers in arguments.workers:
                    updates = 4 * workers if method == METHODS[0] else 4
                    print(pool.submit(peak, method, workers, updates, overrides).result(), flush=True)
        return
    print(f"{'workers':>7}{'momentum':>10}{'processes':>11}{'loop µs/step':>14}{'hetsim µs/step':>15}{'ratio':>8}   spread")
    for workers in arguments.workers:
        for momentum in arguments.momenta:
            about = (momentum, arguments.model, arguments.processes, arguments.repeats, arguments.epochs, arguments.samples)
            print(speed(workers, *about, overrides), flush=True)


if __name__ == "__main__":
    main()
