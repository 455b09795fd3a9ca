"""Laws of the whole catalogue: one chip is one chip, no time beats a data sheet, what is unknown is bounded, and errors are printed."""

from __future__ import annotations

import contextlib
import itertools
from functools import cache
from pathlib import Path
from typing import Any

import pages
import pytest
import yaml

from hetsim.catalogue import curves
from hetsim.catalogue.own import catalogue_of
from hetsim.catalogue.tables import PRECISIONS, SHARDED, Catalogue, shipped_catalogue
from hetsim.catalogue.times import REACHED, STATES, STATES_IN_HALF, Choice, Times
from hetsim.cluster.compute_times import interpolate

SHIPPED = shipped_catalogue()
MEASURED = {(row.model, row.precision) for row in SHIPPED.rows}
TRIPLES = [triple for triple in itertools.product(SHIPPED.gpus, SHIPPED.models, PRECISIONS) if triple[1:] in MEASURED]


def times_of(gpu: str, model: str, precision: str) -> Times | None:
    """The times of a pair; None if the card cannot hold the model."""
    with contextlib.suppress(ValueError):
        (times,) = Choice(SHIPPED).times([gpu], model, precision)
        return times
    return None


@cache
def all_times() -> dict[tuple[str, str, str], Times | None]:
    """The times of all triples. They take seconds, so no process that only collects the tests looks them up."""
    return {triple: times_of(*triple) for triple in TRIPLES}


def test_the_same_chip_is_one_chip() -> None:
    """A card that a program did not measure takes the table of its twin, times their factor, and says so."""
    factors = Choice(SHIPPED).law.card_factors
    for gpu, model, precision in TRIPLES:
        for twin in [other.name for other in SHIPPED.gpus.values() if other.die == SHIPPED.gpus[gpu].die and other.name != gpu]:
            if not all(all_times()[card, model, precision] for card in (gpu, twin)):
                continue
            mine, its = Choice(SHIPPED).times([gpu, twin], model, precision)

            assert mine.series == its.series
            assert bool(mine.num_measured) == bool(its.num_measured)
            if mine.twin == twin:
                ratio, batch = factors[gpu] / factors[twin], its.largest_measured
                assert f"as {twin}, the same chip" in str(mine)
                assert mine.error > 0
                assert interpolate(mine.table, batch) >= 0.999 * ratio * interpolate(its.table, batch)
    assert factors["v100-32gb"] == factors["v100-16gb"]
    assert 1.3 < factors["h100-80gb-pcie"] / factors["h100-80gb"] < 1.8


def test_a_small_batch_of_a_large_card_takes_what_its_twin_takes() -> None:
    """BERT-large on both V100: the usual batch of 80 GB cards adds nothing to the fixed part."""
    small, large = Choice(SHIPPED).times(["v100-16gb", "v100-32gb"], "bert-large", "fp16")

    assert large.table == small.table
    assert interpolate(large.table, 4) < 0.11


def test_no_time_exceeds_the_peak_of_the_data_sheet() -> None:
    """Neither a measured row nor an estimate, at any batch size of its table and beyond. Estimates stay at what programs reach."""
    shares = sorted(map(SHIPPED.peak_share, SHIPPED.rows))

    assert shares[-1] <= 1
    assert shares[-len(shares) // 50] <= REACHED
    for (gpu, model, precision), times in all_times().items():
        flops, peak = SHIPPED.models[model].flops, SHIPPED.gpus[gpu].peak(precision)
        if times is not None and flops and peak:
            for batch in (*(batch for batch, _ in times.table), *([] if times.num_measured > 1 else [1, 10**6])):
                share = batch * flops / interpolate(times.table, batch) / peak
                assert share <= 1.0001 * (1 if times.num_measured else REACHED), (gpu, model, precision, batch)


def test_a_card_holds_the_states_of_what_it_trains() -> None:
    """Plain DDP with AdamW: 16 bytes a parameter, 8 in pure half. Other cards are refused, and no number of samples is unknown."""
    for (gpu, model, precision), times in all_times().items():
        states, memory = 16 * (SHIPPED.models[model].parameters or 0), SHIPPED.gpus[gpu].memory_bytes or 0
        if times is not None:
            assert times.max_samples is not None
            assert times.max_samples >= 1
            pure = "pure-half" in SHIPPED.sources[times.series[0]].traits
            assert states / (2 if pure else 1) <= memory, (gpu, model, precision)
        else:
            assert states > 0.4 * memory, (gpu, model, precision)
    sentence = r"mpt-13b is too large for t4 \(16 GB\) and l4 \(24 GB\): plain DDP with AdamW keeps 206 GB of weights, gradients and states"
    with pytest.raises(ValueError, match=sentence):
        Choice(SHIPPED).times(["t4", "l4"], "mpt-13b")


@pytest.mark.parametrize(
    ("gpu", "model", "precision", "most"),
    [
        ("rtx3090", "vit-base-patch16-224", "amp", 192),
        ("rtx2080ti", "vit-base-patch16-224", "amp", 90),
        ("gtx1080ti", "bert-large", "fp16", 10),
    ],
)
def test_memory_bounds_a_batch(gpu: str, model: str, precision: str, most: int) -> None:
    """By the largest batch that fits, or in proportion to the memory beside the states."""
    times = all_times()[gpu, model, precision]

    assert times is not None
    assert 1 <= (times.max_samples or 0) <= most


def test_a_source_that_may_have_stopped_early_refuses_no_card() -> None:
    """GPT-2 large has 12.4 GB of states. Four samples on 80 GB do not show that none fits into 24 GB."""
    times = all_times()["rtx3090", "gpt2-large", "fp32"]

    assert times is not None
    assert times.max_samples == 1


def test_one_point_is_not_a_curve() -> None:
    """Only measured curves of the card itself have no error. The others print theirs."""
    for times in filter(None, all_times().values()):
        assert (times.error == 0) == (times.num_measured > 1 and not times.twin)
        assert not times.error or f"± {100 * times.error:.0f} %" in str(times)


def test_steps_with_sharded_states_are_used_only_alone() -> None:
    """They say which share of them may be communication, and it is small."""
    for times in filter(None, all_times().values()):
        sharded = SHARDED in SHIPPED.sources[times.series[0]].traits
        others = [row for row in SHIPPED.rows if row.series[1:] == times.series[1:] and SHARDED not in SHIPPED.sources[row.source].traits]

        assert not (sharded and others)
        assert sharded == ("measured with FSDP" in str(times))
        if sharded:
            assert float(str(times).partition("at most ")[2].partition(" %")[0]) < 5


@pytest.fixture
def own(tmp_path: Path) -> Any:
    def catalogue(**content: Any) -> Catalogue:
        (tmp_path / "own.yaml").write_text(yaml.safe_dump(content))
        return catalogue_of(str(tmp_path / "own.yaml"))

    return catalogue


def test_rows_of_ones_own_bound_no_batch(own: Any) -> None:
    """A measured batch size is not the largest that fits."""
    rows = [{"gpu": "t4", "model": "my-net", "precision": "amp", "batch": 8, "seconds": 1.0}]
    both = Choice(own(models={"my-net": {"parameters": 10**7}}, rows=rows)).times(["t4", "a100"], "my-net")

    assert [times.max_samples for times in both] == [None, None]


def test_rows_of_ones_own_win(own: Any) -> None:
    """Also where a published program measured more GPUs and batch sizes; the others are estimated for the own program."""
    rows = [{"gpu": "t4", "model": "resnet50", "precision": "amp", "batch": 64, "seconds": 1.0}]
    mine, other = Choice(own(rows=rows)).times(["t4", "a100"], "resnet50")

    assert mine.series[0] == other.series[0] == "own"
    assert mine.table[-1] == (64, 1.0)
    assert interpolate(other.table, 64) < 0.8


def test_unknown_memory_is_that_of_the_smallest_card(own: Any) -> None:
    """The sentence says so."""
    rows = [{"gpu": "mine", "model": "ssd300", "precision": "amp", "batch": 4, "seconds": 1.0}]
    (times,) = Choice(own(gpus={"mine": {}}, rows=rows)).times(["mine"], "ssd300")
    smallest = min(row.batch for row in SHIPPED.rows if row.series[1:] == ("ssd300", "amp"))

    assert times.max_samples == smallest
    assert "its memory is unknown" in str(times)


@pytest.mark.slow
def test_nine_of_ten_sources_are_in_their_interval() -> None:
    """Each source is left out in turn; steps that were published elsewhere, too. Each large difference of two programs has a cause."""
    measured = pages.loaded(pages.DOCS.parent / "benchmarks" / "catalogue.py")

    assert measured.covered(measured.left_out_sources()) >= 0.9
    assert measured.covered(measured.published()) >= 0.9
    assert all(all(row) for row in measured.series_cells())
    steps = [step for step in measured.published() if step.model == "resnet50"]
    assert {(step.gpu, step.batch) for step in steps} >= {("rtx3090", 64), ("rtx4090", 64)}


def test_the_page_has_the_numbers_of_the_code() -> None:
    """Those in prose; `docs/refresh.py` writes the others."""
    page = pages.text("catalogue.md")

    for phrase in (
        f"exceeds {100 * REACHED:.0f} % of the peak",
        f"at most {curves.NEAR} times",
        f"{STATES} bytes a parameter",
        f"({STATES_IN_HALF} in",
    ):
        assert phrase in page
