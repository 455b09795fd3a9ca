"""The serial law: synchronous SGD weighted per sample is serial SGD on the same sample sequence, however the batch is split."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from worlds import ALLOCATIONS, SYNCHRONOUS, UNEVEN, method, simulate

from hetsim.effects import Batch
from hetsim.workloads.data.digits import Digits
from hetsim.workloads.tasks.sequence import Sequence

pytestmark = pytest.mark.slow

BATCH, RATE, MOMENTUM, DECAY = 200, 0.2, 0.9, 0.5  # the last batch of two epochs has 74 samples
KEYS: dict[str, Any] = {"cluster": UNEVEN, "dtype": "float64", "batch_size": BATCH, "budget": {"epochs": 2}, "optimizer": {"lr": RATE}}
STEPS = {"learning_rate_schedule": {"_target_": "torch.optim.lr_scheduler.StepLR", "step_size": 1, "gamma": DECAY}}


def serial(initial: torch.Tensor, *, decay: float = 1.0) -> torch.Tensor:
    """Two epochs of SGD with momentum on the digits by one machine, written out; the rate decays once an epoch of applied samples."""
    arrays = Digits(model="mlp").read()
    images, labels = torch.tensor(arrays.x_train, dtype=torch.float64), torch.tensor(arrays.y_train)
    images = (images - images.mean()) / images.std(correction=0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).double()
    vector_to_parameters(initial.clone(), model.parameters())
    sequence, velocity, end = Sequence(len(labels), seed=0), 0.0, 2 * len(labels)
    for start in range(0, end, BATCH):
        indices = sequence.indices(Batch(start, min(BATCH, end - start)))
        loss = functional.cross_entropy(model(images[indices]), labels[indices])
        gradient = parameters_to_vector(torch.autograd.grad(loss, list(model.parameters())))
        velocity = MOMENTUM * velocity + gradient
        weights = parameters_to_vector(model.parameters()) - RATE * decay ** (start // len(labels)) * velocity
        vector_to_parameters(weights.detach(), model.parameters())
    return parameters_to_vector(model.parameters()).detach()


def apart(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest difference of two parameters."""
    return (one - other).abs().max().item()


@pytest.mark.parametrize("allocation", ALLOCATIONS)
@pytest.mark.parametrize("coordination", SYNCHRONOUS)
def test_synchronous_sgd_weighted_per_sample_is_serial_sgd(coordination: str, allocation: str):
    """In float64 to 1e-12, under any allocation, over two epochs with a last batch that is shorter than one worker's part."""
    run = simulate(method(coordination, allocation, "weighting=per_sample", **KEYS))

    initial = run.simulation.task.initial()
    assert apart(run.weights, serial(initial)) < 1e-12
    assert apart(run.weights, initial) > 1e-2
    assert run.states[-1].version == 15


@pytest.mark.parametrize("coordination", SYNCHRONOUS)
def test_the_serial_law_holds_under_a_schedule_by_epochs(coordination: str):
    """The rate of an update is that of the epochs applied before it, whoever does it."""
    run = simulate(method(coordination, "dbs", "weighting=per_sample", **KEYS, **STEPS))

    initial = run.simulation.task.initial()
    assert apart(run.weights, serial(initial, decay=DECAY)) < 1e-12
    assert apart(run.weights, serial(initial)) > 1e-3


@pytest.mark.parametrize("allocation", ["fixed", "dbs"])
@pytest.mark.parametrize("coordination", SYNCHRONOUS)
def test_weighted_per_worker_an_unequal_split_is_not_serial_sgd(coordination: str, allocation: str):
    """A slow worker's few samples count as much as a fast one's many."""
    run = simulate(method(coordination, allocation, "weighting=per_worker", **KEYS))

    assert apart(run.weights, serial(run.simulation.task.initial())) > 1e-3


@pytest.mark.parametrize("weighting", ["per_worker", "per_sample"])
@pytest.mark.parametrize("allocation", ALLOCATIONS)
def test_a_server_behind_a_barrier_is_the_all_reduces_twin(allocation: str, weighting: str):
    """The same sums in the same order: the same parameters, bit by bit, and the same samples in every version."""
    one, other = (simulate(method(coordination, allocation, f"weighting={weighting}", **KEYS)) for coordination in SYNCHRONOUS)

    assert torch.equal(one.weights, other.weights)
    assert [[(c.rank, c.batch) for c in group] for group in one.applied] == [[(c.rank, c.batch) for c in group] for group in other.applied]


@pytest.mark.parametrize("seconds", [0.5, 7.0])
def test_time_does_not_change_what_is_learned(seconds: float):
    """A synchronous method under a fixed split learns the same however slow a node is."""
    slow = {**UNEVEN, "nodes": [{**entry, "overhead_seconds": seconds * index} for index, entry in enumerate(UNEVEN["nodes"])]}
    one, other = (simulate(method("all_reduce", "fixed", **{**KEYS, "cluster": workers})) for workers in (UNEVEN, slow))

    assert torch.equal(one.weights, other.weights)
    assert one.seconds != other.seconds
