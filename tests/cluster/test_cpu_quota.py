"""A node that gets a share of a core: its work takes as many times as long as the share goes into one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cluster_runs import built, recorded, timed, times, world
from hypothesis import given
from hypothesis import strategies as st
from worlds import node

NOISE = {"distribution": "lognorm", "s": 0.3}
SPELLS = {"factor": 3.0, "seconds_between": 4.0, "seconds_lasting": 2.0}
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "affine": ({"seconds_per_sample": 0.3, "overhead_seconds": 0.7}, {"seconds_per_sample": 0.6, "overhead_seconds": 1.4}),
    "measured": ({"table": [[1, 0.7], [10, 1.3]]}, {"table": [[1, 1.4], [10, 2.6]]}),
}
"""A node, and one on which the same gradients take twice as long."""


@pytest.mark.parametrize("more", [{}, {"noise": NOISE}, {"slow_spells": SPELLS}, {"noise": NOISE, "slowdown": True}], ids=" ".join)
@pytest.mark.parametrize("kind", KINDS)
def test_half_a_core_takes_twice_as_long(kind: str, more: dict[str, Any], tmp_path: Path) -> None:
    """To the last bit, with the same draws, gradients and updates; slow spells and slowdowns come on top."""
    once, twice = KINDS[kind]
    if "slowdown" in more:
        more = {**more, "slowdown": recorded(tmp_path, (0.0, 1.0), (2.5, 2.2))}
    half = times({"count": 1, **once, **more, "seconds_per_update": 0.1, "seconds_per_local_update": 0.3, "cpu_quota": 0.5})
    slow = times({"count": 1, **twice, **more, "seconds_per_update": 0.2, "seconds_per_local_update": 0.6})

    for step in range(40):
        assert half.seconds(step % 17 + 1, float(step)) == slow.seconds(step % 17 + 1, float(step))
        for local in (False, True):
            assert half.update_seconds(float(step), local=local) == slow.update_seconds(float(step), local=local)


@given(st.floats(1e-3, 1.0), st.integers(1, 10**6))
def test_any_share_goes_into_the_whole(share: float, samples: int) -> None:
    """Described seconds divided by the share."""
    seconds = times(node(3e-4, 2e-3, cpu_quota=share)).seconds(samples)

    assert seconds == pytest.approx((2e-3 + samples * 3e-4) / share, rel=1e-12)


def test_a_whole_core_changes_nothing() -> None:
    """A node without a quota is the described one itself, and one with a whole core takes as long."""
    free, whole = (built(node(0.3, 0.7, **more)).nodes[0] for more in ({}, {"cpu_quota": 1.0}))

    assert free.on_its_share is free
    assert whole.on_its_share == free


@pytest.mark.parametrize("method", ["ssgd", "asgd", "hetgrad", "od_sgd"])
def test_a_run_on_half_a_core_each_is_the_run_on_nodes_of_half_the_speed(method: str) -> None:
    """Every commit at the same moment; so is what is measured before the run."""
    quotas = world(node(0.25, 0.5, seconds_per_update=0.125, cpu_quota=0.5), node(1.0, cpu_quota=0.25), node(1.0))
    slower = world(node(0.5, 1.0, seconds_per_update=0.25), node(4.0), node(1.0))

    capped, described = (timed(method, workers=workers, updates=12, batch_size=24) for workers in (quotas, slower))

    assert capped.seconds == described.seconds
    assert [state.allocation for state in capped.states] == [state.allocation for state in described.states]


def test_memory_is_not_divided() -> None:
    """A quota is one of time."""
    assert built(node(1.0, cpu_quota=0.5, max_samples=7), node(1.0)).max_samples == (7, 2**62)
    assert built(node(1.0, cpu_quota=0.5, max_samples=7)).nodes[0].on_its_share.max_samples == 7
