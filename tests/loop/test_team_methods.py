"""Every method in a plain loop: the weights of the simulator if time decides nothing, and the same weights on all ranks in any case."""

from __future__ import annotations

import math

import pytest
import torch
from loops import BATCH, SAMPLES, WORKERS, Trained, described, flat, model, train_all
from methods import SHIPPED
from ranks import world
from worlds import simulate

BY_TIME = ("abs_sgd", "acco", "ata", "dbs", "hetgrad", "lb_bsp", "omnilearn", "optperf", "static")
"""Methods without a server whose measured seconds decide the shares; `static` and `hetgrad` measure before the run."""
MEASURED_BEFORE = ("hetgrad", "static")
ON_TIERS = ("halos",)
"""Methods with local servers."""
SAME_AS_SIMULATED = (
    *("cd_sgd", "ddp", "diloco", "local_sgd", "mindflayer", "muloco", "od_sgd", "pipe_sgd", "sparse_loco", "ssd_sgd", "ssgd"),
    "streaming_diloco",
)
PERIOD = "coordination.period=3"
"""A whole number of rounds in an epoch, as the loop ends a round with each epoch, and the simulator does not."""
WORDS: dict[str, tuple[str, ...]] = dict.fromkeys(("diloco", "local_sgd", "muloco", "sparse_loco"), (PERIOD,))
WORDS["streaming_diloco"] = ("coordination.period=6",)
IN_SHORT = ("ssgd", "ddp", "dbs", "pipe_sgd", "diloco", "asgd", "od_sgd", "fedbuff", "rennala_stops")
"""The methods that represent each coordination's kind in `make test`."""


def trained(names: list[str]) -> dict[str, list[Trained]]:
    """Each rank's training by each of these methods."""
    made = [described(name, *WORDS.get(name, ())) for name in names]
    ranks = world(max(one.num_ranks for one in made), train_all, made)
    return {name: [rank[k] for rank in ranks if rank[k] is not None] for k, name in enumerate(names)}


@pytest.fixture(scope="module")
def few() -> dict[str, list[Trained]]:
    return trained(list(IN_SHORT))


def check(name: str, ranks: list[Trained]) -> None:
    """The laws of a training."""
    first = ranks[0]
    assert all(rank.weights == first.weights for rank in ranks)
    assert first.version > 0
    assert all(math.isfinite(weight) for weight in first.weights)
    assert first.weights != flat(model()).tolist()
    workers = [rank for rank in ranks if rank.trains]
    assert len(workers) == WORKERS
    if name in SAME_AS_SIMULATED or name in BY_TIME:  # the others compute some samples again, or drop some
        for epoch in range(2):
            seen = [
                sample for rank in workers for batch in rank.samples[([0, *rank.epochs][epoch]) : rank.epochs[epoch]] for sample in batch
            ]
            assert sorted(seen) == list(range(SAMPLES))
    if name in SAME_AS_SIMULATED:
        run = simulate(described(name, *WORDS.get(name, ())))
        assert first.version == run.states[-1].version
        assert torch.allclose(torch.tensor(first.weights, dtype=torch.float64), run.states[-1].weights, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", IN_SHORT)
def test_a_method_trains_in_a_plain_loop(name: str, few: dict[str, list[Trained]]):
    check(name, few[name])


@pytest.mark.long
def test_every_method_trains_in_a_plain_loop():
    names = [name for name in SHIPPED if name not in (*MEASURED_BEFORE, *ON_TIERS)]
    for name, ranks in trained(names).items():
        check(name, ranks)


def test_the_steps_of_an_epoch_are_those_of_the_batch_size(few: dict[str, list[Trained]]):
    assert few["ssgd"][0].epochs == [SAMPLES // BATCH, 2 * SAMPLES // BATCH]
