"""A split that changes at each step: whole batches, within the nodes' memory, the same ones on every rank."""

from __future__ import annotations

import pytest

from hetsim.calibration.program import ChangingSplit


@pytest.mark.parametrize("most", [None, (100, 30, 200)])
def test_each_step_has_another_split_of_the_batch(most: tuple[int, ...] | None) -> None:
    allocation = ChangingSplit()
    state, again = (allocation.initial(3, 240, most) for _ in range(2))

    splits = []
    for _ in range(40):
        splits.append(allocation.shares(state))
        assert splits[-1] == allocation.shares(again)
        state, again = (allocation.observe(each, ()) for each in (state, again))

    assert {sum(split) for split in splits} == {240}
    assert min(map(min, splits)) >= 1
    if most is None:
        assert len({split[0] for split in splits}) > 20
    else:
        assert all(part <= bound for split in splits for part, bound in zip(split, most, strict=True))
