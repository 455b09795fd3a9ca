"""Ranks that stand still in different places say where; ranks at the same place, and ranks that move, say nothing."""

from __future__ import annotations

import time

import pytest
import torch.distributed as dist

from hetsim.loop import watch
from hetsim.loop.watch import Watch


@pytest.mark.parametrize(
    ("places", "moves", "sentence"),
    [
        (("is in step 3", "is after step 2"), False, "rank 0 is in step 3; rank 1 is after step 2. All ranks must take the same steps"),
        (("is in step 3", "is in step 3"), False, ""),
        (("is in step 3", "is after step 2"), True, ""),
    ],
)
def test_ranks_that_stand_still_in_other_steps_are_named(
    places: tuple[str, str], moves: bool, sentence: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(watch, "LOOK_SECONDS", 0.02)
    store = dist.HashStore()

    def moving() -> str:
        return str(time.monotonic()) if moves else places[1]

    watches = [Watch(store, "team", 0, 2, lambda: places[0]), Watch(store, "team", 1, 2, moving)]
    deadline = time.monotonic() + (10.0 if sentence else 0.5)
    said = ""
    while time.monotonic() < deadline and not (sentence and sentence in said):
        time.sleep(0.02)
        said += capfd.readouterr().err
    for one in watches:
        one.close()

    assert sentence in said
    assert bool(said) is bool(sentence)
