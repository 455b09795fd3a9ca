"""Three real processes: a mean over other samples than the batch's is refused before the first backward pass, without false alarms."""

from __future__ import annotations

from typing import Any

import pytest
from divisor_laws import NO_MEAN, RIGHT, WRONG, all_of_them
from ranks import found_by, result, world

pytestmark = pytest.mark.slow
RANKS = 3
BFLOAT16 = 2.0**-7


def laws(_: int) -> dict[str, Any]:
    return found_by(all_of_them())


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    """What each rank found, by law."""
    return world(RANKS, laws)


@pytest.mark.parametrize("loss", [*WRONG, "within the model"])
def test_a_mean_over_fewer_is_refused(found: list[dict[str, Any]], loss: str) -> None:
    """On every rank that leaves out samples, with both remedies."""
    for rank in range(RANKS):
        sentence = result(found, f"refused: {loss}", rank)
        assert "call team.count(number) before backward" in sentence
        assert "loss='global'" in sentence


@pytest.mark.parametrize("loss", NO_MEAN)
def test_a_loss_that_no_weight_makes_right_is_refused(found: list[dict[str, Any]], loss: str) -> None:
    """A function of the mean over the batch is not the mean of what it gives on each rank; nothing divides a sum."""
    for rank in range(RANKS):
        assert NO_MEAN[loss][1] in result(found, f"refused: {loss}", rank)


@pytest.mark.parametrize("loss", [*RIGHT, "within the model", "counted"])
def test_a_loss_that_is_divided_by_the_batch_has_the_serial_gradient(found: list[dict[str, Any]], loss: str) -> None:
    """Also with gradients that are zero, and with divisors that the graph does not show."""
    for rank in range(RANKS):
        assert result(found, f"right: {loss}", rank) < 1e-12


def test_two_backward_passes_after_two_forward_passes_are_as_wrong_as_without_a_team(found: list[dict[str, Any]]) -> None:
    """DistributedDataParallel averages the gradients of the first backward pass only."""
    assert result(found, "in turn, Team") == pytest.approx(result(found, "in turn, DDP"), rel=1e-12)
    assert result(found, "in turn, DDP") > 0.01


def test_under_autocast_gradients_are_serial_up_to_rounding(found: list[dict[str, Any]]) -> None:
    for rank in range(RANKS):
        assert result(found, "autocast", rank) < 2 * BFLOAT16
