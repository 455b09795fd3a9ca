"""A state on its way to another process: the same when it arrives, and nothing of it is code."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from methods import SHIPPED
from safetensors.numpy import save
from worlds import cluster, experiment, node, simulate

from hetsim.checkpoints.file import classes_of, pack_state, unpack_state
from hetsim.errors import RunFailed
from hetsim.plain import Tensors, to_plain

THREE = cluster(*(node(seconds) for seconds in (1e-4, 5e-5, 7e-5)))


@pytest.mark.slow
@pytest.mark.parametrize("method", SHIPPED)
@pytest.mark.sampled(20)
def test_the_state_of_every_method_arrives_as_it_was(method: str) -> None:
    """With the weights to the last bit, and the states of all policies."""
    size = {"num_parameters": 4, "num_samples": 96}
    described = experiment(f"method={method}", "workload=quadratic", workload=size, batch_size=12, cluster=THREE, budget={"epochs": 2})
    state = simulate(described).states[-1]

    arrived = unpack_state(pack_state(state), classes_of(described))

    sent: Tensors = {}
    again: Tensors = {}
    assert type(arrived) is type(state)
    assert to_plain(arrived, again) == to_plain(state, sent)
    assert all(torch.equal(one, other) for (_, one), (_, other) in zip(again.values(), sent.values(), strict=True))
    assert torch.equal(arrived.weights, state.weights)
    assert described.coordination.allocation.shares(arrived.allocation) == described.coordination.allocation.shares(state.allocation)


@pytest.mark.parametrize("name", ["os.system", "subprocess.Popen", "no.such.module.State"])
def test_what_is_no_value_object_is_not_made(name: str) -> None:
    """Nor looked for on the disk."""
    text = json.dumps({"object": [name, {}]}).encode()
    with pytest.raises(RunFailed, match=f"it has an object of the class '{name}', which is none of those that this run keeps"):
        unpack_state(save({"json": np.frombuffer(text, np.uint8)}), {})


@pytest.mark.parametrize("text", [b"[" * 100_000, b"\xff", b"{", b'{"tensor": "t0"}', b'{"a": 1, "b": 2}'])
def test_what_cannot_be_read_is_one_sentence(text: bytes) -> None:
    """At any depth."""
    with pytest.raises(RunFailed, match="a rank sent a state that cannot be read"):
        unpack_state(save({"json": np.frombuffer(text, np.uint8)}), {})


def test_a_state_that_cannot_be_sent_says_what_to_do() -> None:
    """With the class's name."""
    with pytest.raises(RunFailed, match=r"cannot hold a builtins\.object: keep numbers, texts, vectors, tuples, mappings and dataclasses"):
        pack_state([object()])
