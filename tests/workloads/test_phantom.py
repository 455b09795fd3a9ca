"""A model of sizes only: how many bytes of it are sent."""

from __future__ import annotations

from typing import Any

import pytest
from worlds import cluster, experiment, node, simulate

SLOW = {"latency_seconds": 0.0, "bytes_per_second": 64.0}


def seconds(method: str, *, workers: int = 2, **workload: Any) -> float:
    """Of one update of workers that compute for a second."""
    made = experiment(
        f"method={method}",
        "workload=phantom",
        workload={"num_parameters": 32, "num_samples": 60_000, **workload},
        budget={"updates": 1},
        cluster=cluster(node(1.0, count=workers), network=SLOW),
        batch_size=workers,
    )
    return simulate(made).seconds[0]


@pytest.mark.parametrize(("method", "workers", "parameters_sent"), [("ssgd", 2, 32), ("asgd", 1, 64)])
@pytest.mark.parametrize("size", [1, 2, 4, 16])
def test_messages_have_as_many_bytes_a_parameter_as_are_sent(method: str, workers: int, parameters_sent: int, size: int) -> None:
    """In a ring, and to a server and back. By default those of float32."""
    assert seconds(method, workers=workers, bytes_per_parameter=size) == 1 + parameters_sent * size / 64
    if size == 4:
        assert seconds(method, workers=workers) == seconds(method, workers=workers, bytes_per_parameter=size)


@pytest.mark.parametrize("size", [0, -1, 1.5, 65, True])
def test_a_number_of_bytes_that_none_has_is_refused(size: Any) -> None:
    with pytest.raises(ValueError, match=r"^workload\.bytes_per_parameter must be"):
        seconds("ssgd", bytes_per_parameter=size)
