"""Three real processes: losses that are normalised over all ranks, second losses, and several models under one Team."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest
from ddp_laws import BATCH_SIZE
from loss_laws import RANKS, all_losses
from model_laws import all_models
from ranks import found_by, result, world

pytestmark = pytest.mark.slow
F64 = 1e-12


def all_of_them(_: int) -> dict[str, Any]:
    return found_by({**all_losses(), **all_models()})


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    """What each rank found, by law."""
    return world(RANKS, all_of_them)


@pytest.mark.parametrize(
    "law",
    [
        "normalised",
        "normalised over windows",
        "second",
        "second, of tokens",
        "scaled, after a peek",
        "scaled, prefetched, alike",
        "copies",
        "copies used twice",
        "counted ahead",
        "common tensor",
    ],
)
def test_the_gradient_is_the_serial_one(found: list[dict[str, Any]], law: str) -> None:
    """Also in steps with fewer samples than ranks, and whatever the loop has drawn."""
    for rank in range(RANKS):
        assert result(found, law, rank) < F64


def test_a_number_of_all_ranks_must_not_count_a_sample_of_weight_zero(found: list[dict[str, Any]]) -> None:
    for rank in range(RANKS):
        assert "add drop_last=True to the loader, or sum up team.own(number) over the ranks" in result(found, "not left out", rank)


@pytest.mark.parametrize("loop", ["prefetched", "fetched between"])
def test_a_scaled_loss_of_one_of_several_batches_is_refused(found: list[dict[str, Any]], loop: str) -> None:
    """At the first step: the last one of the epoch has a different weight."""
    for rank in range(RANKS):
        steps, sentence = result(found, f"scaled, {loop}", rank)
        assert steps == 0
        assert "has drawn several batches since the last scaled loss" in sentence


def test_a_copy_of_a_batch_that_is_used_again_after_another_was_drawn_is_refused(found: list[dict[str, Any]]) -> None:
    """At the first such step."""
    for rank in range(RANKS):
        steps, sentence = result(found, "copies drawn ahead", rank)
        assert steps == 1
        assert "the model's input is none of their tensors" in sentence


@pytest.mark.parametrize("loop", ["", ", prefetched", ", fetched between", ", measured", ", buckets"])
def test_an_encoder_and_a_decoder_have_the_serial_gradients(found: list[dict[str, Any]], loop: str) -> None:
    """Each batch is one step, and as many are measured as of one module."""
    its = result(found, f"encoder and decoder{loop}")

    assert its["worst"] < F64
    assert its["position"] == 2 * BATCH_SIZE
    assert its["steps"] == (6 if loop == ", measured" else 8)
    assert its["splits"] > 1
    assert its["exchanges"] == (result(found, "encoder and decoder, measured in one")["exchanges"] if loop == ", measured" else 0)


@pytest.mark.parametrize("law", ["gan", "gan of tokens"])
def test_both_models_of_a_gan_have_the_serial_gradients(found: list[dict[str, Any]], law: str) -> None:
    """With two backward passes and two optimizers, each batch is one step."""
    its = result(found, law)

    assert its["worst"] < F64
    assert its["positions"] == [BATCH_SIZE, 2 * BATCH_SIZE, 3 * BATCH_SIZE, 0]


@pytest.mark.realtime
def test_what_the_models_wait_for_is_not_timed(found: list[dict[str, Any]]) -> None:
    """Ranks that sleep for 0, 40 and 80 ms a step."""
    fast, middle, slow = (median(each) for each in zip(*result(found, "timed"), strict=True))

    assert fast < 0.04 < middle < 0.08 < slow


@pytest.mark.parametrize(
    ("law", "what", "sentence"),
    [
        ("losses refused", "mode", "loss must be mean or global, not 'sum'"),
        ("losses refused", "counted", "count weights the gradients of a wrapped model whose loss is a mean"),
        ("models refused", "twice", "the Team weights the gradients of this model already: wrap it once"),
        ("models refused", "no loader", "let the Team of this loader wrap all models that it trains"),
    ],
)
def test_what_would_be_wrong_is_refused_on_every_rank(found: list[dict[str, Any]], law: str, what: str, sentence: str) -> None:
    for rank in range(RANKS):
        assert sentence in result(found, law, rank)[what]
