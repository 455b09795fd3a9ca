"""A step of synchronous SGD in real processes, relative to loops written by hand and to PyTorch's DDP, on equal nodes.

python benchmarks/step.py [--ranks 2 4] [--models mlp cnn] [--pairs 10] [--steps 20]

All contenders run in the same processes, in turn, so that other work on the machine disturbs all of them:

- hetsim's SSGD, and a loop with the same arithmetic, each with both reductions
- hetsim's SSGD with coordination=overlapped_all_reduce
- DDP with its default overlap

They take the same steps: 32 samples a rank, SGD with momentum, one torch thread, gloo on loopback, no padding.
Before anything is timed, their weights are compared.
A row has the medians of the pairs' ratios, by the clock and by the processor time of all ranks, and the extremes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from time import process_time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from training import machine

from hetsim.config.build import build_experiment
from hetsim.config.compose import entries_of
from hetsim.distributed.communication.gloo import GlooTransport
from hetsim.distributed.communication.reduction import Reduction
from hetsim.distributed.launch import local as launch
from hetsim.distributed.pacing.padding import Pace, clock
from hetsim.distributed.rank.run import FixedMembership, RankRun, prepare_rank
from hetsim.effects import Batch
from hetsim.runtime.experiment import Experiment
from hetsim.runtime.recording.recorder import UPDATE, Recorder
from hetsim.runtime.recording.trace import Trace, TracePart
from hetsim.trust.shipped import configs
from hetsim.workloads.data.base import Arrays
from hetsim.workloads.data.supervised import Supervised
from hetsim.workloads.models import registry
from hetsim.workloads.tasks.classification import Classification

SHARE = 32  # samples of a rank and step
SAMPLES = 10_000
RATE, MOMENTUM = 0.01, 0.9
MODELS = {"mlp": {"hidden": [512, 512]}, "cnn": {}}
COMPARED = {
    "ordered": ["loop ordered", "DDP", "native"],
    "native": ["loop native", "DDP"],
    "overlapped ordered": ["ordered", "DDP"],
    "overlapped": ["native", "DDP"],
    "loop native": ["DDP"],
}  # fmt: skip


def cnn(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """That of PyTorch's example for MNIST, without dropout: 1.2 million parameters, 98 % of them in a layer before the last."""
    return nn.Sequential(
        *(nn.Conv2d(shape[0], 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(64 * (shape[1] // 2 - 2) ** 2, 128), nn.ReLU(), nn.Linear(128, num_classes)),
    )


registry.OWN["cnn"] = cnn


@dataclass(frozen=True, kw_only=True)
class Images(Supervised):
    """Random bytes of MNIST's size, random labels."""

    name: str = "images"

    def read(self) -> Arrays:
        rng = np.random.default_rng(0)
        x, y = (
            rng.integers(0, high, size, dtype) for high, size, dtype in ((256, (SAMPLES, 1, 28, 28), np.uint8), (10, SAMPLES, np.int64))
        )
        return Arrays(x, y, x[:100], y[:100])


def experiment(coordination: str, model: str, num_ranks: int, steps: int) -> Experiment:
    """SSGD on equal nodes."""
    with initialize_config_dir(version_base="1.3", config_dir=str(configs())):
        config = compose(
            "config",
            overrides=["method=ssgd", f"coordination={coordination}", "workload=arrays", f"learning_rate={RATE}", f"momentum={MOMENTUM}"],
        )
    nodes = [{"count": num_ranks, "seconds_per_sample": 1e-6, "overhead_seconds": 1e-6}]
    changes = {"batch_size": SHARE * num_ranks, "cluster": {"nodes": nodes}, "budget": {"epochs": None, "updates": steps}}
    made, _ = build_experiment(entries_of(OmegaConf.merge(config, {**changes, "workload": {"path": __file__}})))
    return replace(made, workload=Images(model=model, model_options=MODELS[model]))


class Marks(Recorder):
    """Calls `mark` after each update."""

    def __init__(self, mark: Callable[..., None]) -> None:
        self.mark = mark

    def on(self, kind: int) -> Callable[..., None] | None:
        return self.mark if kind == UPDATE else None


class Contenders:
    """One rank's part of each contender: a call takes all steps, from the same weights, and returns the last weights."""

    def __init__(self, made: Experiment, overlapped: Experiment, transport: GlooTransport) -> None:
        self.made, self.overlapped = made, overlapped
        self.transport = transport
        self.rank, self.size = transport.rank, transport.size
        self.task, self.optimizers = made.load()
        self.task.evaluate = lambda _: None  # type: ignore[assignment, return-value, method-assign]
        self.marks: list[tuple[float, float]] = []
        """The time and the processor time after each step of the contender that was called last."""
        self.calls: dict[str, Callable[[], torch.Tensor]] = {
            "ordered": lambda: self.hetsim("ordered"),
            "native": lambda: self.hetsim("native"),
            "overlapped ordered": lambda: self.hetsim("ordered", overlapped=True),
            "overlapped": lambda: self.hetsim("native", overlapped=True),
            "loop ordered": lambda: self.loop(self.ordered()),
            "loop native": lambda: self.loop(self.native),
            "DDP": self.ddp,
        }

    def mark(self, *_: Any) -> None:
        """A step has ended."""
        self.marks.append((clock(), process_time()))

    def taken(self, name: str) -> tuple[float, float, torch.Tensor]:
        """Seconds of a step, and of all ranks' processors in it, without the first step; and the weights at the end."""
        self.marks.clear()
        self.transport.control.barrier()
        weights = self.calls[name]()
        (first, used), (last, used_at_last) = self.marks[0], self.marks[-1]
        ranks = self.transport.control.gather_numbers(last - first, used_at_last - used)
        num_steps = len(self.marks) - 1
        return ranks[0][0] / num_steps, sum(seconds for _, seconds in ranks) / num_steps, weights

    def hetsim(self, reduction: str, *, overlapped: bool = False) -> torch.Tensor:
        """hetsim's SSGD, with its trace; `overlapped` reduces during the backward pass."""
        made = self.overlapped if overlapped else self.made
        trace = TracePart(made.trace) if self.rank else Trace(None, made.trace)
        with trace:
            pace = Pace("none")
            run = RankRun(
                prepare_rank(self.transport, pace, made, self.task, self.optimizers), trace,
                membership=FixedMembership(
                    self.transport, leader=made.leader, reduction=Reduction.by_gloo(self.transport, self.task.device, reduction)
                ),
                pace=pace, recorders=[Marks(self.mark)],
            )  # fmt: skip
            run.run()
        return run.last.weights  # type: ignore[no-any-return]

    def loop(self, add_up: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """A plain loop on one flat vector, in place wherever it can be."""
        model = self.model()
        parameters = list(model.parameters())
        weights = nn.utils.parameters_to_vector(parameters).detach()
        nn.utils.vector_to_parameters(weights, parameters)  # which become views of it
        memory = torch.zeros_like(weights)
        for inputs, labels in self.batches():
            loss = functional.cross_entropy(model(inputs), labels)
            gradient = torch.cat([part.reshape(-1) for part in torch.autograd.grad(loss, parameters)]).div_(self.size)
            memory.mul_(MOMENTUM).add_(add_up(gradient))
            weights.add_(memory, alpha=-RATE)
            loss.item()
            self.mark()
        return weights

    def ordered(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """A sum in rank order, with buffers that are kept."""
        num_parameters = len(self.task.initial())
        size = -(-num_parameters // self.size)
        mine, parts, total = (torch.zeros(size * self.size) for _ in range(3))
        rows, first = parts.view(self.size, size), torch.empty(size)
        gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

        def add_up(gradient: torch.Tensor) -> torch.Tensor:
            mine[:num_parameters] = gradient
            dist.all_to_all_single(parts, mine)
            torch.add(rows[0], rows[1], out=first)
            for row in rows[2:]:
                first.add_(row)
            gather(total, first)
            return total[:num_parameters]

        return add_up

    @staticmethod
    def native(gradient: torch.Tensor) -> torch.Tensor:
        """Gloo's own sum, in place."""
        dist.all_reduce(gradient)
        return gradient

    def ddp(self) -> torch.Tensor:
        """DistributedDataParallel with its defaults, and torch.optim's SGD with its."""
        model = DistributedDataParallel(self.model())
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
        for inputs, labels in self.batches():
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            loss.item()
            self.mark()
        return nn.utils.parameters_to_vector(model.parameters()).detach()

    def model(self) -> nn.Module:
        """The model with its first weights."""
        workload, made = self.made.workload, self.made
        assert isinstance(workload, Supervised)
        return registry.build_model(workload.model, workload.model_options, shape=(1, 28, 28), num_classes=10, seed=made.seed).train()

    def batches(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """This rank's inputs and labels of each step: the samples that hetsim takes."""
        task, steps = self.task, self.made.budget.updates
        assert isinstance(task, Classification)
        assert steps is not None
        positions = torch.from_numpy(task.sequence.indices(Batch(0, steps * SHARE * self.size)))
        for indices in positions.split(SHARE)[self.rank :: self.size]:
            inputs, labels = task._x_train.data.index_select(0, indices).float(), task._y_train.data.index_select(0, indices)
            yield inputs.sub_(task._mean).mul_(task._scale), labels


def part(transport: GlooTransport, model: str, pairs: int, steps: int) -> tuple[int, list[dict[str, list[float]]]]:
    """One process: all contenders in turn, each time in the other order.

    The number of parameters, and of each repeat the seconds of a step by contender: of the clock, and of all ranks' processors.
    """
    contenders = Contenders(*(experiment(its, model, transport.size, steps) for its in ("all_reduce", "overlapped_all_reduce")), transport)
    times: list[dict[str, list[float]]] = []
    ends, names = {}, list(contenders.calls)
    for repeat in range(pairs + 1):
        times.append({})
        for name in names if repeat % 2 else reversed(names):
            *times[-1][name], ends[name] = contenders.taken(name)
        assert torch.equal(ends["ordered"], ends["loop ordered"])
        assert torch.equal(ends["ordered"], ends["overlapped ordered"])
        for end in ends.values():
            torch.testing.assert_close(end, ends["ordered"], rtol=1e-3, atol=1e-5)
    return len(ends["DDP"]), times[1:]


def in_processes(num_ranks: int, part: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What `part(transport, *arguments)` returns on each of so many ranks."""
    listening = launch.listen(None)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", *launch.PRELOAD])
    pipes = [context.Pipe(duplex=False) for _ in range(num_ranks)]
    port = listening.getsockname()[1]
    processes = [
        context.Process(target=in_process, args=(rank, num_ranks, listening, port, sender, part, arguments), daemon=True)
        for rank, (_, sender) in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    listening.close()
    for _, sender in pipes:
        sender.close()
    results = [receiver.recv() for receiver, _ in pipes]
    for process in processes:
        process.join()
    return results


def in_process(rank: int, num_ranks: int, listening: Any, port: int, sender: Any, part: Callable[..., Any], arguments: Any) -> None:
    """One of them."""
    fd = listening.detach() if rank == 0 else None
    store = dist.TCPStore("127.0.0.1", port, num_ranks, rank == 0, master_listen_fd=fd)  # type: ignore[attr-defined]
    with GlooTransport.connect(rank, num_ranks, store) as transport:
        sender.send(part(transport, *arguments))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    print(machine())
    print(f"{'model':6}{'parameters':>11}{'ranks':>6}  {'':28}{'ms':>7}{'ms':>7}   ratio of times (extremes)    of processor times")
    for model in arguments.models:
        for num_ranks in arguments.ranks:
            num_parameters, times = in_processes(num_ranks, part, model, arguments.pairs, arguments.steps)[0]
            for ours, theirs in ((ours, theirs) for ours, those in COMPARED.items() for theirs in those):
                row = f"{model:6}{num_parameters:11}{num_ranks:6}  {ours + ' / ' + theirs:28}"
                for name in (ours, theirs):
                    row += f"{statistics.median(taken[name][0] for taken in times) * 1e3:7.1f}"
                for kind in (0, 1):
                    ratios = sorted(taken[ours][kind] / taken[theirs][kind] for taken in times)
                    row += f"   {statistics.median(ratios):.3f} ({ratios[0]:.2f} … {ratios[-1]:.2f})"
                print(row, flush=True)


if __name__ == "__main__":
    main()
