"""Laws of random streams: seeded for many ranks at once they are NumPy's."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hetsim.cluster.streams import generator

SEEDS, SMALL = st.integers(0, 2**63 - 1), st.integers(0, 12)


@given(SEEDS | SMALL, st.integers(0, 2_000_000) | SMALL | st.integers(2**32 - 2, 2**32 + 2), SMALL)
def test_a_stream_of_a_rank_is_numpys(seed: int, rank: int, purpose: int):
    assert generator(seed, rank, purpose).bit_generator.state == np.random.default_rng((seed, rank, purpose)).bit_generator.state


def test_streams_of_more_numbers_are_numpys_too():
    assert generator(3, 1, 8, 7).bit_generator.state == np.random.default_rng((3, 1, 8, 7)).bit_generator.state
