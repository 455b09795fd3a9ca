"""SparseLoCo: the changes of local steps are compressed by top-k, gathered by all ranks, and what is not sent is kept."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from threads import run_in_threads
from worlds import NO_NETWORK, cluster, experiment, node, simulate

from hetsim.distributed.rank.run import RankRun
from hetsim.effects import Batch
from hetsim.policies.compression import TopK
from hetsim.runtime.rank import RankState
from hetsim.vector import Phantom, nbytes

SMALL: dict[str, Any] = {
    "workload": {"num_parameters": 10, "num_samples": 90},
    "batch_size": 30,
    "dtype": "float64",
    "coordination": {"period": 3},
    "compression": {"keep": 1, "chunk": 4, "decay": 0.9},
    "local_learning_rate": 0.05,
    "budget": {"epochs": 12},
}


def largest(vector: torch.Tensor) -> torch.Tensor:
    """Of each four numbers the one of largest absolute value; zero for the others."""
    kept = torch.zeros_like(vector)
    for start in range(0, len(vector), 4):
        place = start + int(vector[start : start + 4].abs().argmax())
        kept[place] = vector[place]
    return kept


@pytest.mark.parametrize("world", ["sim", "dist"])
def test_it_is_the_algorithm_written_out(world: str):
    """e_i ← β e_i + Δ_i, W ← W − (1/N) Σ top-k(e_i), e_i ← e_i − top-k(e_i), in plain torch, and the residuals stay on their ranks."""
    workers = cluster(node(1e-4), node(3e-4), node(2e-4))
    made = experiment("method=sparse_loco", "local_optimizer=sgd", "workload=quadratic", **SMALL, cluster=workers)
    if world == "sim":
        last = simulate(made, saved=True).checkpoints[-1]
        weights, residuals = last.state.weights, [rank.own["compression"].after.residual for rank in last.ranks]
    else:
        kept: dict[int, RankState] = {}
        runs = run_in_threads(made, keep=lambda state: kept.update({state.rank: state}))
        assert isinstance(runs[0], RankRun), runs
        weights, residuals = runs[0].last.weights, [kept[rank].own["compression"].after.residual for rank in range(3)]

    task, _ = made.load()
    w, errors = task.initial(), [torch.zeros(10, dtype=torch.float64)] * 3
    for start in range(0, 12 * 90, 90):
        sent = []
        for i in range(3):
            x = w
            for step in range(3):
                x = x - 0.05 * task.gradient(x, Batch(start + 30 * step + 10 * i, 10))[0]
            errors[i] = 0.9 * errors[i] + (w - x)
            sent.append(largest(errors[i]))
            errors[i] = errors[i] - sent[i]
        w = w - sum(sent) / 3
    torch.testing.assert_close(weights, w, rtol=0, atol=1e-12)
    for mine, theirs in zip(residuals, errors, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)


def test_everything_kept_is_no_compression():
    """k = chunk: the parameters of DiLoCo's program, whatever the decay; two bits in full are it, too."""
    keys = {**SMALL, "compression": {"keep": 4, "chunk": 4}}
    plain = simulate(experiment("method=sparse_loco", "compression=none", "workload=quadratic", **{**SMALL, "compression": {}}))

    whole = simulate(experiment("method=sparse_loco", "workload=quadratic", **keys))
    bits = {**SMALL, "compression": {"threshold": 0.1, "full_every": 1}}
    two_bit = simulate(experiment("method=sparse_loco", "compression=two_bit", "workload=quadratic", **bits))

    for run in (whole, two_bit):
        torch.testing.assert_close(run.weights, plain.weights, rtol=0, atol=1e-12)


@pytest.mark.parametrize("work", ["quadratic", "phantom"])
def test_its_bytes_are_those_of_the_numbers_and_their_places(work: str):
    """Three chunks of 4 numbers, of which 1 is sent in 8 + 2 bytes: N−1 = 2 steps of 30 bytes over 1,000 bytes a second."""
    network = {**NO_NETWORK, "bytes_per_second": 1e3}
    workers = cluster(node(1.0, count=3), network=network)
    keys = {**SMALL, "budget": {"updates": 3}, "cluster": workers}

    run = simulate(experiment("method=sparse_loco", f"workload={work}", **keys), trace="full")

    assert {(row.kind, row.nbytes) for row in run.rows() if row.nbytes} == {("gather", 30)}
    assert run.seconds == [pytest.approx(versions * (3 * 10 + 2 * 0.03)) for versions in (1, 2, 3)]


def test_a_worker_without_samples_sends_what_it_has_kept_back():
    """Nothing of a residual is lost in a last, short round, in which only one worker has samples."""
    keys = {
        **SMALL,
        "budget": {"epochs": 1.01},
        "cluster": cluster(node(1e-4, count=3)),
        "compression": {"keep": 1, "chunk": 10, "decay": 1.0},
    }
    run = simulate(experiment("method=sparse_loco", "local_optimizer=sgd", "workload=quadratic", **keys), saved=True)
    before, after = (its.ranks for its in run.checkpoints)

    sent = [
        one.own["compression"].after.residual - other.own["compression"].after.residual
        for one, other in zip(before[1:], after[1:], strict=True)
    ]

    own = (run.states[0].weights - run.states[1].weights) - sum(sent)
    assert {c.rank for c in run.applied[1]} == {0}
    assert [int((vector != 0).sum()) for vector in sent] == [1, 1]
    assert int((own.abs() > 1e-12).sum()) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("size", "keep", "chunk", "tail"), [(1, 1, 1, 0), (7, 2, 4, 0), (9, 1, 4, 3), (40, 5, 12, 1), (3, 3, 8, 2), (3, 8, 8, 0)]
)
def test_what_is_sent_and_what_is_kept_are_the_vector(size: int, keep: int, chunk: int, tail: int, dtype: torch.dtype):
    """Of each chunk the largest numbers go; the tail goes whole and keeps nothing; a phantom of it has as many bytes."""
    compression = TopK(keep=keep, chunk=chunk, decay=1.0)
    vector = torch.randn(size + tail, dtype=dtype, generator=torch.Generator().manual_seed(size))
    num_parameters = size if tail else None

    state, payload = compression.pack(compression.initial(vector), vector, num_parameters)
    sent = compression.unpack(payload, vector, num_parameters)

    assert torch.equal(sent + state.residual, vector)
    assert torch.equal(sent[size:], vector[size:])
    for start in range(0, size, chunk):
        part, kept = vector[start : min(start + chunk, size)].abs(), sent[start : min(start + chunk, size)] != 0
        assert int(kept.sum()) == min(compression.keep, len(part))
        assert not kept.any() or kept.all() or part[kept].min() >= part[~kept].max()
    if not tail:
        phantom = Phantom(vector.nbytes, vector.itemsize)
        assert nbytes(compression.pack(compression.initial(phantom), phantom, None)[1]) == nbytes(payload)


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"keep": 5, "chunk": 4}, "compression.keep must be at most 4, not 5"),
        ({"keep": 1, "chunk": 10**5}, "compression.chunk must be at most 32768, not 100000"),
        ({"decay": 1.5}, "compression.decay must be at most 1, not 1.5"),
    ],
    ids=str,
)
def test_numbers_that_make_no_sense_are_refused(keys: dict[str, Any], sentence: str):
    """With the key and the value."""
    with pytest.raises(ValueError, match=sentence):
        experiment("method=sparse_loco", compression=keys)
