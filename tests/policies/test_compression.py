"""Two bits a number: what goes through the wire, what comes out of it, and what is kept for the next push."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hetsim.policies.compression import NoCompression, TwoBit, TwoBitState
from hetsim.vector import Phantom, compress, decompress, nbytes

DTYPES = (torch.float32, torch.float64)


def quantised(value: float, threshold: float) -> float:
    """What two bits can say of a number."""
    return threshold if value >= threshold else -threshold if value <= -threshold else 0.0


def bits(vector: torch.Tensor) -> list[int]:
    """Its bytes, by which −0.0 and NaN are what they are."""
    return vector.clone().view(torch.uint8).tolist()


# Packing


@pytest.mark.parametrize("dtype", DTYPES)
@given(st.lists(st.sampled_from([-2.0, -0.5, -0.49, -0.0, 0.0, 0.25, 0.49, 0.5, 7.0, float("inf")]), max_size=9))
def test_what_comes_out_is_the_threshold_its_negative_or_zero(dtype: torch.dtype, values: list[float]):
    """+t from t on, −t from −t on, zero between; of any length, in its own kind."""
    vector = torch.tensor(values, dtype=dtype)

    result = decompress(compress(vector, 0.5, None), 0.5, vector, None)

    assert result.dtype == dtype
    assert result.tolist() == [quantised(value, 0.5) for value in values]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("threshold", [0.1, 1 / 3, 2e-7])
def test_packing_what_was_unpacked_changes_nothing(dtype: torch.dtype, threshold: float):
    """Also where the threshold is no number of its kind: it is rounded in the same way on both sides."""
    vector = torch.tensor([threshold, -threshold, 2 * threshold, threshold / 2, 0.0], dtype=dtype)

    once = decompress(compress(vector, threshold, None), threshold, vector, None)
    twice = decompress(compress(once, threshold, None), threshold, once, None)

    assert torch.equal(once, torch.tensor([threshold, -threshold, threshold, 0.0, 0.0], dtype=dtype))
    assert torch.equal(twice, once)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_tail", [0, 1, 3])
@pytest.mark.parametrize("num_parameters", range(10))
def test_four_numbers_are_a_byte_and_the_tail_goes_as_it_is(dtype: torch.dtype, num_parameters: int, num_tail: int):
    """⌈n/4⌉ bytes, and what stands behind the parameters to the bit: statistics, not gradients, NaN and −0.0 among them."""
    tail = torch.tensor([float("nan"), -0.0, 1e-30][:num_tail], dtype=dtype)
    vector = torch.cat([torch.arange(num_parameters, dtype=dtype) - 4.0, tail])

    packed = compress(vector, 2.0, num_parameters)
    result = decompress(packed, 2.0, vector, num_parameters)

    assert packed.dtype == torch.uint8
    assert nbytes(packed) == -(-num_parameters // 4) + num_tail * tail.itemsize
    assert result[:num_parameters].tolist() == [quantised(n - 4.0, 2.0) for n in range(num_parameters)]
    assert bits(result[num_parameters:]) == bits(tail)
    assert (len(result), result.dtype) == (len(vector), dtype)


def test_a_byte_holds_its_four_numbers_lowest_bits_first():
    """Codes 1 for +t, 2 for −t, 0 for neither: 1 + 2·4 + 0·16 + 1·64, and 2 in a byte that is padded with zeros."""
    vector = torch.tensor([1.0, -1.0, 0.0, 1.0, -1.0])

    assert compress(vector, 1.0, None).tolist() == [73, 2]


def test_packing_leaves_the_vector_as_it_was():
    """A slower worker may still hold it."""
    vector = torch.tensor([3.0, -3.0, 0.25, 9.0])
    packed = compress(vector, 1.0, 3)

    result = decompress(packed, 1.0, vector, 3)
    result[3] = 0.0

    assert vector.tolist() == [3.0, -3.0, 0.25, 9.0]
    assert decompress(packed, 1.0, vector, 3).tolist() == [1.0, -1.0, 0.0, 9.0]


@pytest.mark.parametrize(
    ("phantom", "packed"),
    [
        (Phantom(6400), 400),
        (Phantom(6400, itemsize=8), 200),
        (Phantom(4), 1),
        (Phantom(8, itemsize=8), 1),
        (Phantom(4 * 17), 5),
        (Phantom(8 * 17, itemsize=8), 5),
    ],
)
def test_a_phantom_shrinks_as_its_numbers_would(phantom: Phantom, packed: int):
    """16 times for float32, 32 times for float64, to a whole byte; and it comes out as it went in."""
    assert nbytes(compress(phantom, 1.0, None)) == packed
    assert nbytes(compress(torch.zeros(phantom.nbytes // phantom.itemsize), 1.0, None)) == packed
    assert decompress(compress(phantom, 1.0, None), 1.0, phantom, None) is phantom


# The rules


def test_without_compression_the_very_gradient_is_pushed():
    """No copy, no state."""
    nothing, gradient = NoCompression(), torch.ones(3)

    state, payload = nothing.pack(nothing.initial(gradient), gradient, 2)

    assert state is None
    assert payload is gradient
    assert nothing.unpack(payload, torch.zeros(3), 2) is gradient


def pushes(
    rule: TwoBit, gradients: list[torch.Tensor], num_parameters: int | None = None
) -> tuple[TwoBitState, list[torch.Tensor], list[int]]:
    """The last state, what a server takes the pushes for, and how many bytes each had."""
    state, received, sizes = rule.initial(gradients[0]), [], []
    for gradient in gradients:
        state, payload = rule.pack(state, gradient, num_parameters)
        received.append(rule.unpack(payload, gradient, num_parameters))
        sizes.append(nbytes(payload))
    return state, received, sizes


def test_what_is_left_out_is_added_to_the_next_push():
    """0.75 a push at a threshold of 1: nothing, then 1 of 1.5, then 1 of 1.25, then 1 of 1; −0.75 the same below zero."""
    gradient = torch.tensor([0.75, -0.75, 0.0], dtype=torch.float64)

    state, received, sizes = pushes(TwoBit(threshold=1.0), [gradient] * 5)

    assert [push.tolist() for push in received] == [[0.0, 0.0, 0.0], *[[1.0, -1.0, 0.0]] * 3, [0.0, 0.0, 0.0]]
    assert (state.residual.tolist(), state.num_pushes) == ([0.75, -0.75, 0.0], 5)
    assert sizes == [1] * 5


@given(
    st.lists(st.lists(st.integers(-64, 64), min_size=5, max_size=5), min_size=1, max_size=20),
    st.sampled_from([0.25, 1.0, 3.0]),
    st.none() | st.integers(1, 4),
)
def test_what_was_pushed_and_what_is_left_out_sum_to_the_gradients(numbers: list[list[int]], threshold: float, full_every: int | None):
    """Nothing is lost and nothing is pushed twice, full pushes or not; the numbers are eighths, so sums are exact."""
    gradients = [torch.tensor(row, dtype=torch.float64) / 8 for row in numbers]

    state, received, _ = pushes(TwoBit(threshold=threshold, full_every=full_every), gradients)

    assert torch.equal(sum(received) + state.residual, sum(gradients))


@pytest.mark.parametrize(
    ("full_every", "pushed", "residual"),
    [
        (None, [0.0] * 7, 7 / 8),
        (1, [1 / 8] * 7, 0.0),
        (2, [0.0, 2 / 8, 0.0, 2 / 8, 0.0, 2 / 8, 0.0], 1 / 8),
        (3, [0.0, 0.0, 3 / 8, 0.0, 0.0, 3 / 8, 0.0], 1 / 8),
    ],
)
def test_every_so_many_pushes_one_leaves_nothing_out(full_every: int | None, pushed: list[float], residual: float):
    """The k-th, the 2k-th and so on carry all that was left out before them, to a number; null: never."""
    gradient = torch.full((8,), 1 / 8, dtype=torch.float64)

    state, received, sizes = pushes(TwoBit(threshold=1.0, full_every=full_every), [gradient] * 7)

    assert [push.tolist() for push in received] == [[number] * 8 for number in pushed]
    assert sizes == [64 if number else 2 for number in pushed]
    assert (state.residual.tolist(), state.num_pushes) == ([residual] * 8, 7)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("full_every", [None, 2])
def test_the_tail_is_pushed_whole_every_time(dtype: torch.dtype, full_every: int | None):
    """Statistics behind the parameters are neither quantised nor added to what was left out, and leave nothing out."""
    gradients = [torch.tensor([0.75, 0.75, 0.1 * step, float("inf")], dtype=dtype) for step in range(5)]

    _, received, _ = pushes(TwoBit(threshold=1.0, full_every=full_every), gradients, num_parameters=2)

    assert [bits(push[2:]) for push in received] == [bits(gradient[2:]) for gradient in gradients]


@pytest.mark.parametrize("phantom", [Phantom(64), Phantom(64, itemsize=8)])
def test_two_bits_of_a_phantom_take_their_time_and_nothing_else(phantom: Phantom):
    """Every third push weighs what the gradient does, the others a byte for four numbers; a server gets the phantom."""
    state, received, sizes = pushes(TwoBit(threshold=1.0, full_every=3), [phantom] * 4)

    small = 64 // phantom.itemsize // 4
    assert sizes == [small, small, 64, small]
    assert all(push is phantom for push in received)
    assert state == TwoBitState(phantom, 4)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"threshold": 0}, r"^compression\.threshold must be a finite number above zero, not 0$"),
        ({"threshold": -1.0}, r"^compression\.threshold must be a finite number above zero, not -1\.0$"),
        ({"threshold": float("inf")}, r"^compression\.threshold must be a finite number above zero, not inf$"),
        ({"threshold": 1.0, "full_every": 0}, r"^compression\.full_every must be at least 1, not 0$"),
        ({"threshold": 1.0, "full_every": 2.5}, r"^compression\.full_every must be a whole number, not 2\.5$"),
    ],
)
def test_two_bits_refuse_what_makes_no_sense(options: dict[str, Any], sentence: str):
    """One sentence that names the key and the value."""
    with pytest.raises(ValueError, match=sentence):
        TwoBit(**options)
