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


@pytest.mark.parametrize("loss", [*WRONG, "within the model", "a summed loss within the model"])
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


def test_a_sum_within_the_model_is_refused(found: list[dict[str, Any]]) -> None:
    for rank in range(RANKS):
        assert NO_MEAN["sum"][1] in result(found, "refused: a sum within the model", rank)


def test_a_sum_that_the_model_returns_may_be_divided_outside(found: list[dict[str, Any]]) -> None:
    """By the number of samples, and by no other."""
    for rank in range(RANKS):
        assert not result(found, "outside: its number", rank)
        assert "a mean over 7.3" in result(found, "outside: a constant", rank)


@pytest.mark.parametrize("loss", [*RIGHT, "within the model", "a summed loss within the model", "counted"])
def test_a_loss_that_is_divided_by_the_batch_has_the_serial_gradient(found: list[dict[str, Any]], loss: str) -> None:
    """Also with gradients that are zero, and with divisors that the graph does not show."""
    for rank in range(RANKS):
        assert result(found, f"right: {loss}", rank) < 1e-12


@pytest.mark.parametrize("law", ["all_gather", "own all_gather", "measured"])
def test_a_loss_over_samples_of_all_ranks_is_refused(found: list[dict[str, Any]], law: str) -> None:
    """The gradients of other ranks' losses arrive here, and would get this rank's weight; also where shares may become unequal."""
    for rank in range(RANKS):
        assert "loss='global', and call team.scale(loss)" in result(found, f"across: {law}", rank)


@pytest.mark.parametrize("law", ["scaled", "own all_gather, scaled", "even"])
def test_a_scaled_loss_over_samples_of_all_ranks_has_the_serial_gradient(found: list[dict[str, Any]], law: str) -> None:
    """With equal shares, all weights are one, so no scale is needed."""
    for rank in range(RANKS):
        assert result(found, f"across: {law}", rank) < 1e-12


def test_two_backward_passes_after_one_forward_pass_are_as_wrong_as_without_a_team(found: list[dict[str, Any]]) -> None:
    """Only the gradients of the first are averaged."""
    for rank in range(RANKS):
        assert result(found, "again, Team", rank) == pytest.approx(result(found, "again, DDP", rank), rel=1e-12)
        assert max(result(found, "again, DDP", rank)) > 0.01


def test_two_backward_passes_after_two_forward_passes_are_as_wrong_as_without_a_team(found: list[dict[str, Any]]) -> None:
    """DistributedDataParallel averages the gradients of the first backward pass only."""
    assert result(found, "in turn, Team") == pytest.approx(result(found, "in turn, DDP"), rel=1e-12)
    assert result(found, "in turn, DDP") > 0.01


def test_under_autocast_gradients_are_serial_up_to_rounding(found: list[dict[str, Any]]) -> None:
    for rank in range(RANKS):
        assert result(found, "autocast", rank) < 2 * BFLOAT16
