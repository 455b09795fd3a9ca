"""Divide a vector into fragments, which are exchanged and updated one by one."""

from __future__ import annotations

from hetsim import checks
from hetsim.coordination.plan import Plan
from hetsim.effects import Fragment
from hetsim.vector import Vector, length, piece, with_piece, with_tail

MAX_FRAGMENTS = 100_000
"""The maximum number of fragments, because a run makes a list of them."""


def check_fragments(period: int, count: int) -> None:
    """Raise ValueError unless the fragments divide the local steps."""
    checks.whole("coordination.fragments", count, most=MAX_FRAGMENTS)
    if period % count:
        raise ValueError(
            f"coordination.period={period} steps cannot be divided among coordination.fragments={count}: take a multiple of it"
        )


def divide_into_fragments(weights: Vector, plan: Plan, count: int) -> tuple[Fragment, ...]:
    """Divide the parameters into `count` consecutive fragments of nearly equal length. The last one also contains all other entries.

    Raises ValueError if a fragment would be empty.
    """
    size = length(weights)
    num_parameters = size if plan.num_parameters is None else plan.num_parameters
    if count > num_parameters:
        raise ValueError(
            f"coordination.fragments={count} is more than the model's {num_parameters} parameters: give at most {num_parameters}"
        )
    stops = [*(num_parameters * p // count for p in range(1, count)), size]
    return tuple(Fragment(start, stop) for start, stop in zip([0, *stops], stops, strict=False))


def fragment_entries(vector: Vector, fragment: Fragment) -> Vector:
    """The fragment's entries."""
    return piece(vector, fragment.start, fragment.stop)


def merge_fragment(x: Vector, weights: Vector, fragment: Fragment, local_share: float) -> Vector:
    """x with its fragment p replaced by (1 − α) Θ_p + α x_p, where Θ are the weights and α is `local_share`."""
    if local_share == 1.0:
        return x
    theta = fragment_entries(weights, fragment)
    if local_share:
        theta = (1 - local_share) * theta + local_share * fragment_entries(x, fragment)
    return with_piece(x, fragment.start, theta)


def difference(weights: Vector, x: Vector, fragment: Fragment, plan: Plan) -> Vector:
    """Θ_p − x_p for a fragment p, where x is x_p alone. Entries after the parameters, in the last fragment, are copied from x."""
    return with_tail(fragment_entries(weights, fragment) - x, x, parameters_in(fragment, plan))


def parameters_in(fragment: Fragment, plan: Plan) -> int:
    """How many of the fragment's entries are parameters. The other entries are averaged."""
    return (fragment.stop if plan.num_parameters is None else min(fragment.stop, plan.num_parameters)) - fragment.start
