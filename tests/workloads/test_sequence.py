"""The one global sample sequence, and what is drawn from positions in it."""

from __future__ import annotations

import numpy as np
import pytest

from hetsim.effects import Batch
from hetsim.workloads.tasks.sequence import Sequence, word, words

N = 50


def test_each_epoch_is_a_permutation_of_its_own():
    """Every sample once in an epoch, in another order in the next."""
    sequence = Sequence(N, seed=3)

    epochs = [sequence.indices(Batch(epoch * N, N)).tolist() for epoch in range(4)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(N))] * 4
    assert len({tuple(epoch) for epoch in epochs}) == 4


def test_a_range_is_the_same_whoever_asks_and_whatever_was_asked_before():
    """By (seed, position) alone."""
    one, other = Sequence(N, seed=3), Sequence(N, seed=3)
    for epoch in range(9):
        other.indices(Batch(epoch * N, 1))

    assert one.indices(Batch(60, 30)).tolist() == other.indices(Batch(60, 30)).tolist()
    assert one.indices(Batch(60, 30)).tolist() != Sequence(N, seed=4).indices(Batch(60, 30)).tolist()


@pytest.mark.parametrize(("start", "samples"), [(0, 7), (45, 10), (45, 5), (50, 3), (20, 130), (149, 2)])
def test_a_range_may_lie_across_the_ends_of_epochs(start: int, samples: int):
    """A range is its positions one by one, wherever epochs end."""
    sequence = Sequence(N, seed=3)

    whole = sequence.indices(Batch(start, samples)).tolist()

    assert whole == [sequence.indices(Batch(position, 1)).item() for position in range(start, start + samples)]


def test_words_depend_on_seed_stream_and_position_alone():
    """However a range is cut; and on each of the three."""
    positions = np.arange(100)
    drawn = words(1, positions, stream=2)

    assert np.concatenate([words(1, positions[:37], stream=2), words(1, positions[37:], stream=2)]).tolist() == drawn.tolist()
    assert len(set(drawn.tolist()) | set(words(2, positions, stream=2).tolist()) | set(words(1, positions, stream=1).tolist())) == 300


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1])
def test_one_word_is_the_word_at_its_position(seed: int):
    """In Python's integers as in NumPy's, which wrap around."""
    positions = np.array([0, 1, 77, 2**40, 2**62])

    assert [word(seed, position, stream=3) for position in positions.tolist()] == words(seed, positions, stream=3).tolist()


def test_words_are_uniform_in_every_bit():
    """Of 20,000 neighbouring positions each of the 64 bits is set in half, to five standard deviations."""
    drawn = words(0, np.arange(20_000))

    set_bits = [int(((drawn >> np.uint64(bit)) & np.uint64(1)).sum()) for bit in range(64)]
    assert max(abs(count - 10_000) for count in set_bits) < 5 * (20_000 / 4) ** 0.5
