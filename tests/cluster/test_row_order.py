"""The order of the rows of a cluster is no matter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from cluster_runs import WIRE, base, built
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from worlds import node, simulate


@pytest.mark.slow
@examples(40)
@given(seed=st.integers(0, 2**32), order=st.permutations(range(5)), method=st.sampled_from(["ssgd", "asgd", "ssp", "local_sgd"]))
def test_the_order_of_the_rows_is_no_matter(seed: int, order: list[int], method: str):
    """Without noise the same commits at the same times, to the last bit; by whom, but for its rank. No two are at one moment."""
    rng = np.random.default_rng(seed)
    rows = [
        node(*rng.uniform(0.5, 2.0, 2).tolist(), uplink_bytes_per_second=rate, downlink_bytes_per_second=2 * rate)
        for rate in rng.uniform(20.0, 100.0, 5).tolist()
    ]

    def history(order: Sequence[int]) -> list[tuple[float, list[int]]]:
        workers = built(*(rows[place] for place in order), network=WIRE, server={"seconds_per_update": 0.3})
        run = simulate(replace(base(f"method={method}", batch_size=20, updates=12), cluster=workers))
        return [(seconds, sorted({order[c.rank] for c in group})) for seconds, group in zip(run.seconds, run.applied, strict=True)]

    assert history(order) == history(range(5))
