"""Merge the changes of several workers: their mean, or the mean of their norms along the mean of their directions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hetsim.vector import Vector, norm, piece, unit, weighted_sum, with_piece

MERGES = ("radial_directional", "mean")


def radial_directional(vectors: Sequence[Vector], factors: Callable[[], Sequence[float]], num_parameters: int) -> Vector:
    """(Σ f_m ‖Δ_m‖) · φ(Σ f_m φ(Δ_m)), where the f_m add up to 1 and φ(y) = y/‖y‖, φ(0) = 0.

    Radial-directional averaging of Decoupled DiLoCo, arXiv 2604.21428: a mean would be shorter where directions differ. Entries
    after the first `num_parameters` become the weighted mean.
    """
    mean = weighted_sum(vectors, factors)
    heads = [piece(vector, 0, num_parameters) for vector in vectors]
    length = weighted_sum([norm(head) for head in heads], factors)
    direction = unit(weighted_sum([unit(head) for head in heads], factors))
    return with_piece(mean, 0, length * direction)
