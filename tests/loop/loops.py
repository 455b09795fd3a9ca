"""Plain training loops of a small model, each in the ranks of a process group, and the same model as a workload of the simulator."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset
from worlds import experiment

from hetsim.effects import Batch
from hetsim.loop import Team
from hetsim.runtime.experiment import Experiment
from hetsim.trust.names import resolve
from hetsim.workloads.task import Evaluation, OptimizerRecipe, Task, Workload
from hetsim.workloads.tasks.flat_model import FlatModel, FlatTask
from hetsim.workloads.tasks.sequence import Sequence as SampleSequence

SAMPLES, BATCH = 144, 24
WORKERS = 2


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets."""
    x = torch.randn(SAMPLES, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return x, torch.sin(x).sum(1, keepdim=True)


def model(*, normalised: bool = False) -> nn.Module:
    """A network, the same on every rank."""
    torch.manual_seed(5)
    middle = [nn.BatchNorm1d(8)] if normalised else []
    return nn.Sequential(nn.Linear(6, 8), *middle, nn.Tanh(), nn.Linear(8, 1)).double()


class Small(FlatTask):
    """The model as a task of hetsim's."""

    def __init__(self, seed: int, device: Any) -> None:
        self.device, self.num_samples = device, SAMPLES
        self.sequence = SampleSequence(SAMPLES, seed=seed)
        self.flat = FlatModel(model(), [], seed=seed, device=device)
        self.num_parameters = self.flat.num_parameters
        self.x, self.y = data()

    def gradient(self, at: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, float]:
        indices = self.sequence.indices(batch)
        return self.flat.gradient(at, batch, lambda: mse_loss(self.flat.model(self.x[indices]), self.y[indices]))

    def evaluate(self, at: torch.Tensor) -> Evaluation:
        return Evaluation()


@dataclass(frozen=True)
class SmallWorkload(Workload):
    """Its description."""

    name: str = "small"
    imports: ClassVar[tuple[str, ...]] = ()

    def load(self, *, seed: int, dtype: str, device: Any) -> Task:
        return Small(seed, device)


def described(method: str, *words: str, epochs: int = 2) -> Experiment:
    """A method on equal workers, with the small model."""
    cluster = ("cluster=uniform4", f"cluster.nodes.0.count={WORKERS}", "dtype=float64")
    made = experiment(f"method={method}", *cluster, *words, batch_size=BATCH, budget={"epochs": epochs})
    return replace(made, workload=SmallWorkload())


def optimizer_of(recipe: OptimizerRecipe | None, parameters: Any) -> torch.optim.Optimizer:
    """What a script would create."""
    assert recipe is not None
    kind: Any = resolve(recipe.optimizer.target, key="optimizer", group="optimizer", kind=torch.optim.Optimizer, trust=())
    made: torch.optim.Optimizer = kind(parameters, **recipe.optimizer.options)
    return made


@dataclass
class Trained:
    """What a rank's loop saw."""

    weights: list[float]
    samples: list[list[int]]
    """The samples of each of its batches, by number."""
    epochs: list[int]
    """How many batches there were when each epoch ended."""
    version: int
    trains: bool
    seconds: float = 0.0
    said: str = ""


def train(made: Experiment, group: Any = None, *, epochs: int = 2, wrapped: bool = True, **options: Any) -> Trained:
    """The loop of a user."""
    x, y = data()
    net = model()
    recipe = made.local_optimizer if made.coordination.trains_locally else made.optimizer
    optimizer = optimizer_of(recipe, net.parameters())
    called: nn.Module = net
    if wrapped and made.coordination.overlapped_bytes is not None:
        called = DistributedDataParallel(net, process_group=group)
    team = Team._of(called, optimizer, made, group=group)
    samples: list[list[int]] = []
    ends = []
    loader = team.loader(TensorDataset(torch.arange(SAMPLES), x, y), **options)
    for _ in range(team.epoch, epochs):
        for number, a, b in loader:
            samples.append(number.tolist())
            optimizer.zero_grad()
            team.share(mse_loss(called(a), b, reduction="none")).backward()
            team.step()
        ends.append(len(samples))
    trained = Trained(flat(net).tolist(), samples, ends, team._programs.state.version, team.trains)  # type: ignore[union-attr]
    team.close()
    return trained


def flat(net: nn.Module) -> torch.Tensor:
    """The weights of a model."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in net.parameters()])


def train_all(rank: int, made: Sequence[Experiment]) -> list[Trained | str | None]:
    """Each of these methods in a loop. None on a rank that the method does not have, and a text for an error."""
    groups = {size: dist.new_group(list(range(size))) for size in range(1, dist.get_world_size() + 1)}
    results: list[Trained | str | None] = []
    for one in made:
        results.append(train(one, groups[one.num_ranks]) if rank < one.num_ranks else None)
        dist.barrier()
    return results


def from_all(mine: list[int]) -> torch.Tensor:
    """The numbers of all ranks, in rank order."""
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return torch.tensor([number for numbers in everyone for number in numbers])


def serial_steps(
    team: Team, net: nn.Module, loader: Any, optimizer: torch.optim.Optimizer, called: nn.Module, x: torch.Tensor,
    loss: Callable[[Team, torch.Tensor, torch.Tensor], torch.Tensor], serial_loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> float:  # fmt: skip
    """The largest relative distance of a step's gradient, by SGD of rate 1, from that of one process on the same samples."""
    worst = 0.0
    for batch in loader:
        number = batch[0]
        before = copy.deepcopy(net)
        optimizer.zero_grad()
        loss(team, called(x[number]), number).backward()
        mine = number.tolist() if team.samples else []
        team.step()
        samples = from_all(mine)
        before.zero_grad()
        serial_loss(before(x[samples]), samples).backward()
        gradients = (torch.zeros_like(parameter) if parameter.grad is None else parameter.grad for parameter in before.parameters())
        right = torch.cat([gradient.reshape(-1) for gradient in gradients])
        taken = flat(before) - flat(net)
        worst = max(worst, float((taken - right).norm() / right.norm()))
    return worst


def caught(function: Callable[[], Any]) -> str:
    """The sentence of the error that it raises, or of its warning; or else what it returns, as a text."""
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        try:
            result = function()
        except ValueError as error:
            return str(error)
    return " ".join([*(str(one.message) for one in given), str(result)])
