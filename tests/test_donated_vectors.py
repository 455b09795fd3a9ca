"""Vectors that an effect may overwrite: no program reads them again, and a world overwrites them only if nobody else has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from donated import poisoned
from methods import METHODS
from test_every_method import short
from threads import run_in_threads
from torch import nn
from worlds import cluster, experiment, node, simulate

from hetsim import effects as fx
from hetsim.coordination.base import Coordination
from hetsim.coordination.parameter_server import ParameterServer
from hetsim.distributed.communication.channel import MOST_BUFFERS, Buffers
from hetsim.distributed.rank.run import RankRun
from hetsim.policies.admission import EveryGradient
from hetsim.policies.allocation import Allocation, Even, proportional
from hetsim.runtime.rank import RankState
from hetsim.workloads.device import CPU
from hetsim.workloads.optimizer import FlatOptimizer
from hetsim.workloads.task import OptimizerRecipe, Recipe
from hetsim.workloads.tasks.flat_model import FlatModel
from hetsim.workloads.tasks.quadratic_task import QuadraticTask

SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"momentum": 0.9},
    {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    {"momentum": 0.5, "dampening": 0.3, "maximize": True},
    {"weight_decay": 0.1, "maximize": True},
)
EQUAL = cluster(node(1e-5, count=2))


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.sampled(12)
def test_no_method_reads_a_donated_vector_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights of every version are the same if each donated vector is NaN after its effect."""
    described = short(name, "workload=quadratic", budget={"epochs": 2})
    with_recovery = Coordination.with_recovery
    expected = simulate(described)

    monkeypatch.setattr(Coordination, "with_recovery", lambda *asked: poisoned(with_recovery(*asked)))
    run = simulate(described)

    assert len(run.states) == len(expected.states)
    assert all(torch.equal(state.weights, other.weights) for state, other in zip(run.states, expected.states, strict=True))


@dataclass(frozen=True)
class Copied(Allocation):
    """What a user has who copies `Even` into a module of their own."""

    keeps_gradients = False

    def initial(self, num_workers: int, batch_size: int, max_samples: Sequence[int] | None = None) -> tuple[int, ...]:
        return proportional([1.0] * num_workers, batch_size, max_samples=max_samples)

    def shares(self, state: tuple[int, ...]) -> tuple[int, ...]:
        return state


class Inherited(Copied):
    """It may override anything, and says nothing of gradients."""


@pytest.mark.parametrize(("allocation", "free"), [(Even(), True), (Copied(), True), (Inherited(), False)])
def test_a_server_gives_a_gradient_away_if_each_policy_says_that_it_keeps_none(allocation: Allocation, free: bool) -> None:
    """The class itself must say so, wherever it is defined."""
    server = ParameterServer(allocation=allocation, admission=EveryGradient())
    gradient = torch.ones(3)
    applied = [fx.Contribution(0, fx.Batch(0, 1), 0, 1.0, 0.5, 0, gradient, gradient)]

    assert server.is_free(gradient, applied) is free


def test_a_program_that_reads_a_donated_vector_is_found() -> None:
    """The check above can fail."""

    def program() -> fx.Program[None]:
        gradient = torch.ones(3)
        weights = yield from fx.Update(torch.zeros(3), gradient, in_place=True)
        yield from fx.Update(weights, gradient[1:])

    checked = poisoned(program())
    next(checked)

    with pytest.raises(AssertionError, match="Update reads a vector that was donated"):
        checked.send(torch.ones(3))


@pytest.mark.parametrize("options", SETTINGS, ids=str)
@pytest.mark.parametrize("num_statistics", [0, 3])
def test_a_step_in_place_is_the_same_step(options: Mapping[str, Any], num_statistics: int) -> None:
    """Bit for bit; the weights that it begins at remain, and the momentum is in the same memory from the second step on."""
    recipe = OptimizerRecipe(Recipe("torch.optim.SGD", {"lr": 0.1, **options}), None)
    plain = FlatOptimizer(recipe, 5)
    in_place = plain.in_place(memory=True)
    memory, other = plain.initial(), in_place.initial()
    weights = moved = torch.randn(5 + num_statistics)
    addresses = set()
    for _ in range(4):
        gradient, before = torch.randn(len(weights)), moved.clone()
        memory, weights = plain.step(memory, weights, gradient.clone(), 0)
        other, new = in_place.step(other, moved, gradient, 0)

        assert torch.equal(new, weights)
        assert torch.equal(moved, before)
        assert new.data_ptr() == gradient.data_ptr() or num_statistics
        assert all(torch.equal(other[name], memory[name]) for name in memory)
        addresses |= {vector.data_ptr() for vector in other.values()}
        moved = new
    assert len(addresses) == bool(options.get("momentum"))


@pytest.mark.parametrize("name", ["ssgd", "ddp", "pipe_sgd", "diloco"])
def test_a_run_that_overwrites_has_the_simulators_bits(name: str) -> None:
    """In real time, where nobody else has the vectors."""
    described = short(name, "workload=quadratic", "optimizer=nesterov", budget={"epochs": 3})

    runs = run_in_threads(described)

    expected = simulate(described).weights
    assert all(isinstance(run, RankRun) and torch.equal(run.last.weights, expected) for run in runs)


def test_the_memory_of_a_commit_that_is_kept_is_not_overwritten() -> None:
    """A rank's state at each commit has the momentum of its version."""
    described = experiment("method=ssgd", "workload=quadratic", cluster=EQUAL, budget={"updates": 4}, momentum=0.9)
    expected = simulate(described, saved=True).checkpoints
    kept: list[RankState] = []

    run_in_threads(described, keep=kept.append)

    momenta = {state.version: state.optimizer["momentum_buffer"] for state in kept}
    assert len({momentum.data_ptr() for momentum in momenta.values()}) == 4
    for checkpoint in expected:
        assert torch.equal(momenta[checkpoint.state.version], checkpoint.ranks[0].optimizer["momentum_buffer"])


def test_a_gradient_that_its_task_keeps_is_not_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task may return the same vector again and again, unless it says that each one is new."""
    monkeypatch.setattr(QuadraticTask, "gradients_are_new", False)
    monkeypatch.setattr(QuadraticTask, "gradient", lambda task, *_: (task.curvature, 0.0))
    described = experiment("method=ssgd", "workload=quadratic", cluster=EQUAL, budget={"updates": 4}, momentum=0.9)

    runs = run_in_threads(described)

    expected = simulate(described).weights
    assert all(isinstance(run, RankRun) and torch.equal(run.last.weights, expected) for run in runs)


def test_memory_for_messages_is_given_again_once_no_tensor_is_in_it() -> None:
    """A slice or another view of what was received keeps it, and so does an array."""
    buffers = Buffers(64, CPU())
    first, second = buffers.take(), buffers.take()
    address, piece, array = first.data_ptr(), first.view(torch.float32)[3:5], second.numpy()

    assert first.data_ptr() != second.data_ptr()
    del first, second
    assert buffers.take().data_ptr() not in (address, array.ctypes.data)
    del piece
    assert buffers.take().data_ptr() == address


def test_so_much_memory_for_messages_is_kept() -> None:
    """What is needed at once for more payloads is given back to the system."""
    buffers = Buffers(64, CPU())
    taken = [buffers.take() for _ in range(MOST_BUFFERS + 2)]
    addresses = [tensor.data_ptr() for tensor in taken]
    del taken[:MOST_BUFFERS]

    again = [buffers.take() for _ in range(MOST_BUFFERS + 1)]

    assert len({*addresses}) == MOST_BUFFERS + 2
    assert [tensor.data_ptr() for tensor in again[:-1]] == addresses[:MOST_BUFFERS]
    assert again[-1].data_ptr() not in addresses


class Clamped(nn.Linear):
    """A layer that writes into its parameters by a way that PyTorch does not see."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.weight.data.clamp_(-0.01, 0.01)
        return super().forward(x)


@pytest.mark.parametrize(
    ("model", "is_copied"),
    [
        (nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1)), False),
        (Clamped(4, 1), True),
        (nn.Sequential(nn.Linear(4, 3), nn.utils.parametrizations.weight_norm(nn.Linear(3, 1))), True),
        (nn.Sequential(nn.Embedding(4, 3, max_norm=0.1)), True),
    ],
    ids=["layers", "own layer", "parametrized", "renormalised"],
)
def test_a_model_that_may_write_into_its_parameters_has_a_copy(model: nn.Module, is_copied: bool) -> None:
    """The weights of a version never change. A model of PyTorch's plain layers has them as views."""
    flat = FlatModel(model, [], seed=0, device=CPU())
    at = flat.initial + 1.0
    before = at.clone()
    inputs = torch.arange(4) if isinstance(model, nn.Sequential) and isinstance(model[0], nn.Embedding) else torch.ones(2, 4)

    gradient, _ = flat.gradient(at, fx.Batch(0, 2), lambda: model(inputs).sum())

    assert torch.equal(at, before)
    addresses = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    assert (at.untyped_storage().data_ptr() in addresses) is not is_copied
    assert gradient.untyped_storage().data_ptr() not in addresses
