"""The small language model: the text that ships, its sequences, the transformer, and what is reported of it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from threads import run_in_threads
from torch.nn import functional
from worlds import cluster, experiment, node, simulate

from hetsim.distributed.rank.run import RankRun
from hetsim.effects import Batch
from hetsim.workloads.data.text import sequences, sonnets, tokens_of
from hetsim.workloads.task import Task

SMALL: dict[str, Any] = {"width": 16, "num_layers": 1, "context_length": 8, "num_samples": 120}
PARTS = np.split(tokens_of(sonnets())[0], [84_369])
"""The characters for training, and those for testing."""
THREE = cluster(node(2e-4), node(1e-4), node(1e-4))


def small(dtype: str = "float64", **keys: Any) -> Any:
    """A task of few numbers."""
    return experiment("workload=tiny_lm", workload={**SMALL, **keys}, dtype=dtype).load()[0]


def test_the_text_that_ships_is_the_sonnets():
    """All 154, of 14 lines each but for one of 15 and one of 12, in ASCII and below 100 KB."""
    poems = [len(poem.splitlines()) for poem in sonnets().strip().split("\n\n")]

    assert (len(poems), poems.count(14), poems[98], poems[125]) == (154, 152, 15, 12)
    assert sonnets().startswith("From fairest creatures we desire increase,\n")
    assert len(sonnets().encode("ascii")) < 100_000


def test_tokens_number_the_characters_of_the_text():
    """In the order of their codes."""
    tokens, vocabulary = tokens_of("to be")

    assert (tokens.tolist(), vocabulary) == ([4, 3, 0, 1, 2], " beot")
    assert len(tokens_of(sonnets())[1]) == 59


def test_sequences_follow_one_another_and_share_a_character():
    """The last one of a sequence is only predicted there; what fills no sequence is left out."""
    assert sequences(np.arange(9, dtype=np.uint8), 3).tolist() == [[0, 1, 2, 3], [3, 4, 5, 6]]
    assert sequences(np.arange(4, dtype=np.uint8), 3).tolist() == [[0, 1, 2, 3]]


def test_the_shipped_model_is_small():
    """About 110,000 parameters; its hidden matrices are those of attention and the feed-forward layers."""
    task: Task = experiment("workload=tiny_lm").load()[0]

    assert task.num_parameters == 109_243
    assert task.num_samples == 2636
    assert sum(math.prod(spec.shape) for spec in task.parameters() if spec.hidden) == 12 * 2 * 64**2


def test_no_position_sees_a_later_character():
    """Another last character changes the logits there alone."""
    model = small().model
    rows = torch.randint(59, (3, 8), generator=torch.Generator().manual_seed(0))
    other = rows.clone()
    other[:, -1] = (rows[:, -1] + 1) % 59

    one, two = model(rows), model(other)

    assert torch.equal(one[:, :-1], two[:, :-1])
    assert not torch.equal(one[:, -1], two[:, -1])


def test_a_gradient_is_of_the_mean_loss_of_each_character_of_the_sequences():
    """Written out character by character: the mean over two sequences is the mean of both."""
    task = small(num_samples=None)
    at = task.initial()
    (gradient, loss), *halves = (task.gradient(at, batch) for batch in (Batch(0, 2), Batch(0, 1), Batch(1, 1)))

    losses = []
    for row in torch.from_numpy(sequences(PARTS[0], 8))[task.sequence.indices(Batch(0, 2))].long():
        logits = task.model(row[None, :-1])[0]
        losses += [-functional.log_softmax(logits[k], 0)[row[k + 1]].item() for k in range(8)]

    assert loss == pytest.approx(sum(losses) / 16, rel=1e-12)
    torch.testing.assert_close(gradient, (halves[0][0] + halves[1][0]) / 2, rtol=0, atol=1e-15)
    assert task.loss_at(at, Batch(0, 2)) == pytest.approx(loss, rel=1e-12)


def test_what_is_reported_of_a_model_that_knows_nothing():
    """With weights of zero, all characters are equally likely: ln 59 nats, log2 59 bits, and the first character is always right."""
    task = small()
    test = sequences(PARTS[1], 8)

    found = task.evaluate(torch.zeros_like(task.initial()))

    assert found.train_loss == pytest.approx(math.log(59), rel=1e-12)
    assert found.metrics == pytest.approx({"test_loss": math.log(59), "test_bits_per_character": math.log2(59)}, rel=1e-12)
    assert found.test_accuracy == (test[:, 1:] == 0).mean()


@pytest.mark.slow
def test_it_trains_in_real_ranks_to_the_simulators_bits():
    """Below the bits of single characters' frequencies, 4.3, after a few updates."""
    keys = {"workload": {**SMALL, "num_samples": 600}, "batch_size": 60, "cluster": THREE, "budget": {"epochs": 4}}
    made = experiment("method=ssgd", "workload=tiny_lm", "optimizer=muon", optimizer={"lr": 0.02}, **keys)

    leader, simulated = run_in_threads(made)[made.leader], simulate(made)

    assert isinstance(leader, RankRun)
    assert torch.equal(leader.history.last.weights, simulated.weights)
    assert simulated.simulation.curve.points[-1].evaluation.metrics["test_bits_per_character"] < 4.0


def test_workers_may_have_sequences_of_their_own():
    """A quarter each; there are no labels to divide them by."""
    keys = {"workload": SMALL, "batch_size": 12, "data": "owned", "budget": {"epochs": 1}}
    run = simulate(experiment("method=ssgd", "workload=tiny_lm", "partition=even", **keys))

    assert run.simulation.task.pools == (30, 30, 30, 30)
    with pytest.raises(ValueError, match=r"^partition=contiguous goes by labels, but workload=tiny_lm has none at hand"):
        simulate(experiment("method=ssgd", "workload=tiny_lm", "partition=contiguous", **keys))


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"width": 30}, r"^workload\.width=30 cannot be divided among workload\.num_heads=4: take a multiple of it$"),
        ({"num_layers": 0}, r"^workload\.num_layers must be at least 1, not 0$"),
        ({"context_length": 10_000}, r"^workload\.context_length=10000 is too long for 9375 characters: lower it$"),
        ({"num_samples": 3000}, r"^workload\.num_samples=3000 is more than the 2636 samples of the training set: lower it$"),
        ({"width": 4_000_000}, r" GB of memory, .*: lower workload\.width or workload\.num_layers$"),
    ],
)
def test_sizes_that_cannot_be_are_refused_in_one_sentence(keys: dict[str, Any], sentence: str):
    """Before anything is built."""
    with pytest.raises(ValueError, match=sentence) as error:
        experiment("workload=tiny_lm", workload=keys).load()
    assert "\n" not in str(error.value)
