"""The catalogue: its tables are whole, what was measured is returned as it is, and an estimate is never silent."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace

import pytest

from hetsim.catalogue import curves
from hetsim.catalogue.estimates import Law
from hetsim.catalogue.tables import Catalogue, Gpu, MeasuredStep, Model, Source, shipped_catalogue
from hetsim.catalogue.times import Choice
from hetsim.cluster.compute_times import interpolate

SOURCE = Source("lab", "lab", "", "a lab", "https://example.org", "1", "2026", "MIT", "by hand")


def world(skipped: tuple[str, str] = ("", ""), *, noise: float = 0.0) -> Catalogue:
    """Four GPUs of speeds 1, 2, 4 and 8, five models, and a step that is exactly additive in logarithms."""
    gpus = {f"g{speed}": speed for speed in (1, 2, 4, 8)}
    rows = [
        MeasuredStep(gpu, f"m{work}", "fp32", 10, math.exp(noise * ((7 * place) % 5 - 2)) * work / speed, "lab", "")
        for place, (gpu, speed, work) in enumerate((gpu, speed, work) for gpu, speed in gpus.items() for work in (1, 3, 5, 7, 9))
        if (gpu, f"m{work}") != skipped
    ]
    models = {f"m{work}": Model(f"m{work}", "", "", 10) for work in (1, 3, 5, 7, 9)}
    return Catalogue({name: Gpu(name, name) for name in gpus}, models, {"lab": SOURCE}, tuple(rows))


def test_each_figure_has_its_source() -> None:
    """Rows name GPUs, models and sources that are described; figures of GPUs cite a document."""
    catalogue = shipped_catalogue()

    for row in catalogue.rows:
        assert row.gpu in catalogue.gpus
        assert row.model in catalogue.models
        assert all(value for key, value in vars(catalogue.sources[row.source]).items() if key != "traits")
        assert row.seconds > 0
        assert row.batch > 0
    for gpu in catalogue.gpus.values():
        assert gpu.memory_bytes
        assert gpu.inside
        assert gpu.bandwidth
        assert gpu.peak("fp32")
        assert gpu.peak("amp")
        assert gpu.source
        assert gpu.url.startswith("https://")
    assert all(bool(model.flops) == bool(model.flops_from) for model in catalogue.models.values())
    assert len(catalogue.gpus) >= 25
    assert sum(model.parameters is not None for model in catalogue.models.values()) >= 12


def test_names_are_found_by_alias_and_in_letters_of_either_case() -> None:
    """Another name is refused."""
    assert shipped_catalogue().gpu("A100").name == "a100-40gb"
    assert shipped_catalogue().gpu("RTX3090").name == "rtx3090"
    with pytest.raises(ValueError, match="no GPU of the catalogue"):
        shipped_catalogue().gpu("t44")
    with pytest.raises(ValueError, match="no model of the catalogue"):
        shipped_catalogue().model("alexnet")


def test_a_measured_curve_is_returned_as_it_was_measured() -> None:
    """T4 with ResNet-50, of Sia's artifact."""
    (times,) = Choice(shipped_catalogue()).times(["t4"], "resnet50")

    assert times.table[0] == (20, 0.14741)
    assert times.table[-1] == (200, 0.92353)
    assert str(times) == "t4 with resnet50 in amp: measured at 8 batch sizes (sia)"
    assert times.error == 0


def test_what_nobody_measured_is_estimated_and_says_so() -> None:
    """The interval and the number of pairs that it is from are in the sentence."""
    (times,) = Choice(shipped_catalogue()).times(["t4"], "bert-large", "fp16")

    assert times.num_measured == 0
    assert 0.05 < times.error < 1
    assert f"estimated, ± {100 * times.error:.0f} % (leave-one-out over {times.num_pairs} pairs)" in str(times)


def test_an_additive_world_is_estimated_exactly() -> None:
    """The pair that is missing takes what the law says, up to the ridge."""
    (times,) = Choice(world(("g4", "m5"))).times(["g4"], "m5")

    assert dict(times.table)[10] == pytest.approx(5 / 4, rel=0.01)


def test_larger_batches_of_larger_gpus_hide_nothing_of_their_speed() -> None:
    """Each GPU was measured with the batch that fits it. At one batch size the estimates differ as the GPUs do."""
    whole = world()
    rows = tuple(replace(row, batch=10 * int(row.gpu[1:]), seconds=row.seconds * int(row.gpu[1:])) for row in whole.rows)
    alone = tuple(row for row in rows if row.model != "m5" or row.gpu == "g1")
    fast, slow = Choice(replace(whole, rows=alone)).times(["g8", "g2"], "m5")

    assert interpolate(slow.table, 40) / interpolate(fast.table, 40) == pytest.approx(4, rel=0.02)


def test_leaving_out_is_fitting_without() -> None:
    """The errors of the hat matrix are those of laws that are fitted again without the pair."""
    whole = world(noise=0.1)
    left_out = Law(whole).left_out_errors
    again = world(("g4", "m5"), noise=0.1)
    row = next(row for row in whole.rows if (row.gpu, row.model) == ("g4", "m5"))
    error = abs(math.log(Law(again).seconds(row) / row.seconds))

    assert left_out["g4", "m5"] == pytest.approx(math.exp(error) - 1, rel=1e-6)


def test_a_single_point_is_on_a_line_with_the_fixed_part_of_other_curves() -> None:
    """On the other GPU 1 s is fixed, so it is here; for other programs no longer than the quickest step of the model."""
    known = [MeasuredStep("a", "m", "fp32", batch, 1.0 + 0.4 * batch, "lab", "") for batch in (1, 5, 10)]
    quick = MeasuredStep("c", "m", "fp32", 10, 0.5, "other", "")

    assert curves.FixedParts(known).seconds("lab", "m") == pytest.approx(1.0)
    assert curves.FixedParts([*known, quick]).seconds("lab", "m") == pytest.approx(1.0)
    assert curves.FixedParts([*known, quick]).seconds("other", "m") == pytest.approx(0.5)
    assert curves.line(10, 3.0, 1.0) == ((1, pytest.approx(1.2)), (10, 3.0))
    assert curves.line(10, 3.0, 5.0) == ((1, pytest.approx(2.73)), (10, 3.0))


@pytest.mark.slow
def test_the_catalogue_imports_no_torch() -> None:
    """It answers quickly."""
    program = "import sys; from hetsim.catalogue.times import Choice; from hetsim.catalogue.tables import shipped_catalogue; "
    program += "Choice(shipped_catalogue()).times(['t4'], 'resnet50'); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_slice_takes_its_share_of_the_speed_and_says_the_error() -> None:
    """Seven sevenths of an A100 take its seconds. One seventh takes seven times as long, apart from what no batch changes."""
    choice = Choice(shipped_catalogue())
    whole, full, slice_ = choice.times(["a100-40gb", "a100-40gb-mig-7g.40gb", "a100-40gb-mig-1g.5gb"], "resnet50", "amp")
    fixed = choice.law.fixed.seconds(*whole.series[:2])

    assert full.table == whole.table
    assert slice_.table[-1][1] - fixed == pytest.approx(7 * (whole.table[-1][1] - fixed))
    assert slice_.max_samples is not None
    assert whole.max_samples is not None
    assert 0.1 < slice_.max_samples / whole.max_samples < 0.125
    assert slice_.error == pytest.approx(0.17)
    assert "± 17 %" in str(slice_)
    assert "at 1/7 of its speed" in str(slice_)
