"""Loops in three real processes: each epoch is whole, whatever ends it, and each position is taken once, resumed or not."""

from __future__ import annotations

from pathlib import Path

import pytest
from ddp_laws import BATCH_SIZE, PARTS
from loop_laws import LOOPS, NUMBER, WITH_WORKERS, all_loops, rest
from ranks import result, world

from hetsim.files.summary_and_curve import read_summary

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of traces."""
    return tmp_path_factory.mktemp("traces")


@pytest.fixture(scope="module")
def found(folder: Path) -> list[dict]:
    """What each rank found, by loop."""
    return world(len(PARTS), all_loops, str(folder))


def everywhere(found: list[dict], law: str) -> list:
    """What a law returned on each rank."""
    return [result(found, law, rank) for rank in range(len(PARTS))]


@pytest.mark.parametrize("loop", [*LOOPS, WITH_WORKERS])
@pytest.mark.sampled(2)
def test_every_epoch_is_whole(found, loop: str):
    """Also where the loop does not ask for a batch after the last one, as Lightning's: three steps in each of four epochs."""
    each = [rank[loop] for rank in everywhere(found, "epochs")]

    for epoch in range(4):
        steps, _, over = each[0][epoch]
        assert steps == 3
        assert over == epoch + 1
        assert sorted(place for rank in each for place in rank[epoch][1]) == list(range(NUMBER))


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("step", range(3))
def test_a_resumed_loop_takes_each_position_once_in_each_epoch(found, step: int, loop: str):
    """Saved in the body of any step, the last one of an epoch too, after which the next epoch begins and none is empty."""
    each = [rank[f"{step} {loop}"] for rank in everywhere(found, "resumed")]

    assert each[0]["begun"] == (1 if step == 2 else 0)
    assert each[0]["ended"] == 3
    for epoch in range(3):
        assert sorted(place for rank in each for place in rank["places"][epoch]) == list(range(NUMBER))


@pytest.mark.parametrize("other", ["batch size", "rule", "parts"])
def test_a_run_is_resumed_with_another_batch_size_or_rule(found, other: str):
    """Each position once; the split begins anew."""
    each = [rank[other] for rank in everywhere(found, "resumed_otherwise")]

    assert sorted(place for rank in each for place in rank["places"]) == list(range(NUMBER))
    assert each[0]["shares"] == {"batch size": (7, 4, 2), "rule": (10, 9, 9), "parts": (4, 8, 16)}[other]


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_run_is_resumed_by_another_number_of_ranks(found, ranks: int):
    """Two or four take what three have left."""
    state, _ = result(found, "saved")
    before = [place for _, places in everywhere(found, "saved") for place in places]
    after = [place for places in world(ranks, rest, state) for place in places]

    assert len(after) == NUMBER - 2 * BATCH_SIZE
    assert sorted(before + after) == list(range(NUMBER))


@pytest.mark.parametrize("loop", LOOPS)
def test_the_trace_has_every_step_of_every_loop(found, folder: Path, loop: str):
    """With `close`; without, the step after which the loop asks for no other batch is missing."""
    result(found, "traced")
    with_close, without = (read_summary(folder / f"{loop} {closed}") for closed in (True, False))

    assert (with_close["num_updates"], with_close["num_samples"]) == (6, 2 * NUMBER)
    assert without["num_updates"] == (6 if loop == "whole" else 5)


def test_a_window_without_no_sync_is_one_update_of_the_trace(found, folder: Path):
    """Gradients of both its steps are reduced, and its samples count once."""
    result(found, "accumulated")
    summary = read_summary(folder / "accumulated")

    assert (summary["num_updates"], summary["num_samples"]) == (4, 8 * BATCH_SIZE)
