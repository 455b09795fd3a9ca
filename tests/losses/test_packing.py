"""A state on its way to another process: the same when it arrives, and nothing of it is code."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from methods import SHIPPED
from worlds import cluster, experiment, node, simulate

from hetsim.distributed.communication.packing import packed, unpacked
from hetsim.errors import RunFailed

THREE = cluster(*(node(seconds) for seconds in (1e-4, 5e-5, 7e-5)))


@pytest.mark.parametrize("method", SHIPPED)
def test_the_state_of_every_method_arrives_as_it_was(method: str) -> None:
    """With the weights to the last bit, and the states of all policies."""
    size = {"num_parameters": 4, "num_samples": 96}
    described = experiment(f"method={method}", "workload=quadratic", workload=size, batch_size=12, cluster=THREE, budget={"epochs": 2})
    state = simulate(described).states[-1]

    tensors: list[torch.Tensor] = []
    plain = json.loads(json.dumps(packed(state, tensors)))
    arrived = unpacked(plain, tensors)

    again: list[torch.Tensor] = []
    assert type(arrived) is type(state)
    assert packed(arrived, again) == plain
    assert all(torch.equal(one, other) for one, other in zip(tensors, again, strict=True))
    assert torch.equal(arrived.weights, state.weights)
    assert described.coordination.allocation.shares(arrived.allocation) == described.coordination.allocation.shares(state.allocation)


@pytest.mark.parametrize(
    "plain",
    [
        {"class": ["os", "system"], "fields": {}},
        {"class": ["subprocess", "Popen"], "fields": {}},
        {"class": ["no.such.module", "State"], "fields": {}},
    ],
)
def test_what_is_no_value_object_is_not_made(plain: dict[str, Any]) -> None:
    """Nor looked for on the disk."""
    with pytest.raises(RunFailed, match="which is not known here"):
        unpacked(plain, [])


def test_a_state_that_cannot_be_sent_says_what_to_do() -> None:
    """With the class's name."""
    with pytest.raises(RunFailed, match=r"builtins\.object in the state of a run cannot be sent to another process: make it a dataclass"):
        packed([object()], [])
