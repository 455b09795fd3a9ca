"""Whatever the order in which a loop draws batches, calls the model and goes backward: the gradient is the serial one, or a sentence."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ddp_laws import BATCH_SIZE
from order_laws import KEPT, LOOPS, NUMBER, TWO_ITERATORS, all_orders
from ranks import result, world

from hetsim.ddp.forwards import samples_in
from hetsim.ddp.schedule import Step
from hetsim.ddp.used import Given, storages_of, tensors

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    """What each of three ranks found."""
    return world(3, all_orders)


@pytest.mark.parametrize("loop", [loop.__name__ for loop in LOOPS])
def test_the_gradient_is_the_serial_one(found: list[dict[str, Any]], loop: str) -> None:
    """In each step, and each sample is taken once in each epoch, where the loop trains on all."""
    its = result(found, loop)

    assert its["worst"] < 1e-12
    for epoch in its["epochs"]:
        assert len(set(epoch)) == len(epoch)
        assert loop == "leaving_out" or epoch == list(range(NUMBER))


@pytest.mark.parametrize("loop", [loop.__name__ for loop in LOOPS if loop.__name__ != "leaving_out"])
def test_a_state_points_behind_the_last_gradient(found: list[dict[str, Any]], loop: str) -> None:
    """And not behind what was only drawn."""
    position, taken = result(found, loop)["state"]

    assert position == taken


def test_what_is_kept_in_a_window_is_not_drawn_again(found: list[dict[str, Any]]) -> None:
    """Its gradients wait for the end of the window: each sample of the epoch is taken once."""
    taken = [place for rank in range(3) for place in result(found, "left_in_a_window", rank)]

    assert sorted(taken) == list(range(4 * BATCH_SIZE))


def test_tensors_are_found_in_objects_that_contain_each_other() -> None:
    one, other = SimpleNamespace(x=torch.ones(2)), SimpleNamespace(y=[torch.ones(3)])
    one.other, other.one = [other], one

    assert [len(tensor) for tensor in tensors({"batch": [one, other]})] == [2, 3]


def test_a_copy_of_a_batch_that_was_drawn_ahead_is_refused(found: list[dict[str, Any]]) -> None:
    for rank in range(3):
        assert "the model's input is none of their tensors" in result(found, "copied", rank)


@pytest.mark.parametrize("loop", [loop.__name__ for loop in KEPT])
def test_a_batch_that_the_loop_has_kept_is_refused(found: list[dict[str, Any]], loop: str) -> None:
    """At its first backward pass, as the loader has given another one since, or none."""
    for rank in range(3):
        sentence, steps = result(found, loop, rank)
        assert sentence.startswith("the model's input is not of the batch that team.loader gave last")
        assert steps == (3 if loop == "replayed" else 4)


@pytest.mark.parametrize("loop", TWO_ITERATORS)
def test_two_iterators_at_a_time_are_refused(found: list[dict[str, Any]], loop: Any) -> None:
    """Before a sample counts twice: where the first one's batch arrives after the second one began, or where it is asked again."""
    for rank in range(3):
        sentence, steps = result(found, loop.__name__, rank)
        assert sentence.startswith("two iterators over team.loader(…) are in use at a time, such as in zip(loader, loader)")
        assert steps == TWO_ITERATORS[loop]


def test_batches_that_are_not_used_are_not_kept_in_memory(found: list[dict[str, Any]]) -> None:
    assert result(found, "released") == 0


def test_a_window_of_batches_may_be_drawn_ahead_and_copied(found: list[dict[str, Any]]) -> None:
    """They have the same weight, whichever of them the model is called with."""
    assert result(found, "ahead_in_windows") < 1e-12


def test_a_batch_of_another_size_is_refused_or_counted(found: list[dict[str, Any]]) -> None:
    assert "call team.count(len(batch)) on all ranks before backward" in result(found, "filtered")
    assert result(found, "counted") < 1e-12


def test_two_batches_under_one_backward_pass_are_right_or_refused(found: list[dict[str, Any]]) -> None:
    """They are right if their weights are the same. In the last pair of the other loop, the second batch has other shares."""
    assert result(found, "two_at_once") < 1e-12
    assert "gradients of two batches whose shares differ ((16, 8, 4) and (6, 3, 1))" in result(found, "two_of_other_weights")


def test_unequal_parts_of_a_batch_are_refused_or_counted(found: list[dict[str, Any]]) -> None:
    """Shares are 16, 8 and 4 samples. A loop over parts usually divides by their number, so only equal parts are sure to be right."""
    assert "the model was called with 3, 3, 3, 3 samples of a batch of 16" in result(found, "unequal_parts")
    assert result(found, "equal_parts") < 1e-12
    assert result(found, "counted_parts") < 1e-12


def test_a_batch_to_which_the_loop_has_added_samples_is_refused(found: list[dict[str, Any]]) -> None:
    assert "the model was called with 18 samples of a batch of 16" in result(found, "with_earlier_samples")


def test_other_tensors_than_the_batch_do_not_look_like_parts_of_it() -> None:
    """Offsets of a bag of words, sequences of other lengths, boxes of several images, time before samples."""
    words, sequences, boxes, times = torch.arange(4), torch.ones(4, 7), [torch.ones(4, 4), torch.ones(9, 4)], torch.ones(4, 4, 2)
    given = Given(
        0, Step(0, 0, 4, (4,), (4,), True), storages_of([words, sequences, times]), tuple(each.shape for each in (words, sequences, times))
    )

    assert samples_in([torch.arange(9), words], given, 4) == 4
    assert samples_in([sequences[:, :3]], given, 4) == 4
    assert samples_in(boxes, given, 4) == 4
    assert samples_in([times[:3]], given, 4) == 4
    assert samples_in([words[:3]], given, 4) == 3
    assert samples_in([sequences.repeat(2, 1)], given, 4) == 8
