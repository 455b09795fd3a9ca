"""The arithmetic of payloads: numbers where there are numbers, sizes where there are only sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from hetsim import vector
from hetsim.vector import Phantom

OF_FOUR_AND_NINE: dict[str, tuple[Callable[[Any], Any], list[float] | float]] = {
    "x + x": (lambda x: x + x, [8.0, 18.0]),
    "x - x": (lambda x: x - x, [0.0, 0.0]),
    "x * x": (lambda x: x * x, [16.0, 81.0]),
    "x / x": (lambda x: x / x, [1.0, 1.0]),
    "x - 1": (lambda x: x - 1.0, [3.0, 8.0]),
    "x / 2": (lambda x: x / 2.0, [2.0, 4.5]),
    "x ** 2": (lambda x: x**2, [16.0, 81.0]),
    "-x": (lambda x: -x, [-4.0, -9.0]),
    "abs(-x)": (lambda x: abs(-x), [4.0, 9.0]),
    "2 + x": (lambda x: 2.0 + x, [6.0, 11.0]),
    "2 - x": (lambda x: 2.0 - x, [-2.0, -7.0]),
    "2 * x": (lambda x: 2.0 * x, [8.0, 18.0]),
    "2 / x": (lambda x: 2.0 / x, [0.5, 2.0 / 9.0]),
    "sqrt": (vector.sqrt, [2.0, 3.0]),
    "zeros_like": (vector.zeros_like, [0.0, 0.0]),
    "norm": (vector.norm, 97.0**0.5),
}


@pytest.mark.parametrize("name", OF_FOUR_AND_NINE)
def test_a_phantom_stays_itself_whatever_is_done_to_it(name: str):
    """It takes time to move, and nothing else: every method runs on it unchanged."""
    operation, _ = OF_FOUR_AND_NINE[name]
    phantom = Phantom(12)

    assert operation(phantom) is phantom


@pytest.mark.parametrize("name", OF_FOUR_AND_NINE)
def test_an_operation_makes_a_new_vector(name: str):
    """What it says, and what a slower worker still holds does not change."""
    operation, meant = OF_FOUR_AND_NINE[name]
    x = torch.tensor([4.0, 9.0], dtype=torch.float64)

    result = operation(x)

    assert result.tolist() == meant
    assert x.tolist() == [4.0, 9.0]


def test_where_chooses_element_by_element():
    """The first where the condition holds, the second elsewhere; of phantoms, either."""
    x, y, phantom = torch.tensor([4.0, 9.0]), torch.tensor([1.0, 2.0]), Phantom(8)

    assert vector.where(x < 5.0, x, y).tolist() == [4.0, 2.0]
    assert vector.where(phantom, phantom, phantom) is phantom


def test_bytes_on_the_wire():
    """A number of float32 weighs four bytes, one of float64 eight, nothing nothing."""
    payloads = (Phantom(12), torch.zeros(3), torch.zeros(3, dtype=torch.float64), None)

    assert [vector.nbytes(payload) for payload in payloads] == [12, 12, 24, 0]
