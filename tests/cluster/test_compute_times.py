"""How long a gradient takes: an overhead and its samples, or what a table says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cluster_runs import timed, world
from worlds import node


def by_size(row: dict[str, Any], sizes: Sequence[int]) -> list[float]:
    """What the first gradient of so many samples takes, on a node of its own for each size."""
    workers = world({**row, "count": len(sizes)})
    run = timed("asgd", "allocation=fixed", workers=workers, updates=99, batch_size=sum(sizes), allocation={"parts": list(sizes)})
    first = {c.rank: c for group in reversed(run.applied) for c in group}
    assert [first[rank].samples for rank in range(len(sizes))] == list(sizes)
    return [first[rank].seconds for rank in range(len(sizes))]


def test_a_gradient_takes_an_overhead_and_its_samples():
    """overhead_seconds + b · seconds_per_sample."""
    assert by_size(node(0.25, 0.5), [1, 2, 5, 8]) == [0.75, 1.0, 1.75, 2.5]


def test_a_measured_gradient_takes_what_the_table_says():
    """Constant below the first point, linear between two, and on behind the last as between the last two."""
    row = {"count": 1, "table": [[4, 1.0], [8, 2.0], [16, 6.0]]}

    assert by_size(row, [1, 4, 5, 8, 10, 15, 16, 17, 24]) == [1.0, 1.0, 1.25, 2.0, 3.0, 5.5, 6.0, 6.5, 10.0]


def test_a_table_of_one_point_says_the_same_of_every_size():
    """There is no second point to go on by."""
    assert by_size({"count": 1, "table": [[4, 1.5]]}, [1, 4, 9]) == [1.5, 1.5, 1.5]


def test_a_table_may_fall_where_it_does_not_end():
    """A larger batch may have been measured to be faster; in between that is linear, too."""
    assert by_size({"count": 1, "table": [[2, 4.0], [4, 1.0], [8, 2.0]]}, [1, 3, 4, 6, 12]) == [4.0, 2.5, 1.0, 1.5, 3.0]


def test_a_measured_size_takes_exactly_what_was_measured():
    """To the last bit, whichever numbers: nothing is interpolated at a point."""
    table = [[1, 0.7], [10, 1.3], [33, 2.9]]

    assert by_size({"count": 1, "table": table}, [1, 10, 33]) == [0.7, 1.3, 2.9]
    assert by_size({"count": 1, "table": [table[0], [23, 2.9]]}, [1, 23]) == [0.7, 2.9]
