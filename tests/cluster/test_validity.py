"""What a calibrated cluster holds for: no time depends on it, and a run of something else is told."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from worlds import cluster, composed, experiment, node

from hetsim.cluster.parse.cluster import parse_cluster
from hetsim.config.cluster_files import written_cluster
from hetsim.distributed.rank.results import calibration_warnings, crowded_warnings
from hetsim.results.reading.finished_runs import FinishedRun
from hetsim.results.tables.metrics import METRICS, Target
from hetsim.results.tables.rows import TableRow
from hetsim.results.writing.describe import describe, formatted
from hetsim.sim import Simulator

HELD = {
    "date": "2026-11-23", "machine": "x86_64", "workload": "digits", "num_parameters": 2410, "samples": [4, 64], "dtype": "float32",
    "torch": str(torch.__version__), "threads": 1, "device": "cpu", "error": 0.0217,
}  # fmt: skip


def described(**changes: Any) -> dict[str, Any]:
    """Two nodes that were calibrated, but for these changes."""
    return {**cluster(node(1e-3, count=2)), "calibrated": {**HELD, **changes}}


def summary(folder: Path, *choices: str, held: dict[str, Any] | None = HELD, batch_size: int = 64, **keys: Any) -> dict[str, Any]:
    """Of a run of one epoch at most."""
    what = {**cluster(node(1e-3, count=2)), **({} if held is None else {"calibrated": held})}
    made = experiment(*choices, cluster=what, batch_size=batch_size, budget={"updates": 3}, **keys)
    Simulator().run(made, folder, "")
    found = json.loads((folder / "summary.json").read_text())
    assert isinstance(found, dict)
    return found


def test_what_was_calibrated_is_run_without_a_word(tmp_path: Path) -> None:
    assert summary(tmp_path, "workload=digits", "method=ssgd")["warnings"] == []


@pytest.mark.parametrize(
    ("held", "batch_size", "told"),
    [
        ({"workload": "mnist"}, 64, "workload mnist (here digits)"),
        ({"num_parameters": 7}, 64, "7 parameters (here 2410)"),
        ({"dtype": "float64"}, 64, "dtype float64 (here float32)"),
        ({}, 6, "4 to 64 samples a gradient (here 3)"),
        ({}, 130, "4 to 64 samples a gradient (here 65)"),
        (
            {"workload": "mnist", "num_parameters": 7}, 200,
            "workload mnist (here digits), 7 parameters (here 2410) and 4 to 64 samples a gradient (here 100)",
        ),
    ],
)  # fmt: skip
def test_a_run_of_something_else_says_so_in_one_sentence(held: dict[str, Any], batch_size: int, told: str, tmp_path: Path) -> None:
    (warning,) = summary(tmp_path, "workload=digits", "method=ssgd", held={**HELD, **held}, batch_size=batch_size)["warnings"]

    assert warning == (f"the cluster was calibrated with {told}, so its times may be wrong here: calibrate again with what you train")


def test_a_share_outside_the_range_is_told_of_an_unequal_split(tmp_path: Path) -> None:
    (warning,) = summary(
        tmp_path, "workload=digits", "method=ssgd", "allocation=fixed", "weighting=per_sample", allocation={"parts": [1, 31]}
    )["warnings"]

    assert "4 to 64 samples a gradient (here 2 to 62)" in warning


def test_a_phantom_of_the_same_size_stands_for_the_workload(tmp_path: Path) -> None:
    """As large studies take one; of another size it sends other messages."""
    same, other = (
        summary(tmp_path / str(size), "workload=phantom", "method=ssgd", workload={"num_parameters": size})["warnings"]
        for size in (2410, 9)
    )

    assert same == []
    assert "2410 parameters (here 9)" in other[0]


def test_no_number_depends_on_it(tmp_path: Path) -> None:
    with_it, without = (
        summary(tmp_path / str(place), "workload=digits", "method=asgd", held=held) for place, held in enumerate((HELD, None))
    )

    assert with_it.pop("calibrated") == {"date": "2026-11-23", "composed": [], "error": 0.0217, "spread": pytest.approx(1.199, abs=1e-3)}
    assert "calibrated" not in without
    assert {**with_it, "wall_seconds": 0.0} == {**without, "wall_seconds": 0.0}


def test_the_error_stands_beside_the_prediction(tmp_path: Path) -> None:
    predicted = summary(tmp_path / "predicted", "workload=digits", "method=asgd")
    composed_of = summary(tmp_path / "composed", "workload=digits", "method=asgd", held={**HELD, "composed": ["fast", "slow"]})
    by_hand = summary(tmp_path / "by hand", "workload=digits", "method=asgd", held=None)

    assert describe(predicted).splitlines()[-1] == ("  calibrated on 2026-11-23; the calibration's own hold-out error: gradients 2.2 %")
    predicted["calibrated"]["tried"] = {"ssgd": -0.021, "asgd": 0.1}
    assert (
        describe(predicted).splitlines()[-1]
        == "  calibrated on 2026-11-23; its predictions then, against real runs: ssgd -2.1 %, asgd +10.0 %"
    )
    assert "composed of fast, slow and was never measured as a whole; mean error of their calibrations: 2.2 %" in describe(composed_of)
    assert "calibrat" not in describe(by_hand)
    assert "calibrat" not in describe({**predicted, "backend": "dist"})  # a measurement needs no error of a prediction


@pytest.mark.parametrize(
    ("tried", "factor"),
    [
        ({"ssgd": 0.0, "local_sgd": 0.0, "asgd": 0.0}, math.exp(1.895 * math.sqrt(4 * 0.01 / 7))),
        ({"ssgd": 0.1, "local_sgd": -0.2, "asgd": 0.05}, math.exp(1.895 * math.sqrt((0.04 + 0.009084 + 0.049793 + 0.002380) / 7))),
    ],
)
def test_a_prediction_has_an_interval(tried: dict[str, float], factor: float, tmp_path: Path) -> None:
    """By Student's t, of what was tried, and of earlier studies as of four more."""
    held = parse_cluster(described(tried=tried)).calibrated
    assert held is not None
    assert held.spread == pytest.approx(factor, rel=1e-4)

    predicted = summary(tmp_path, "workload=digits", "method=asgd", held={**HELD, "tried": tried})
    low, high = (formatted(predicted["updates_per_second"] * end) for end in (1 / factor, factor))
    assert f"updates/s ({low} … {high}, 90 %)" in describe(predicted)
    assert "90 %" not in describe({**predicted, "backend": "dist"})


def test_a_tables_intervals_are_as_wide(tmp_path: Path) -> None:
    """Of seconds and rates, also those of a single run; not of losses."""
    run = cast(FinishedRun, SimpleNamespace(summary=summary(tmp_path, "workload=digits", "method=asgd")))
    row = TableRow({}, [run])
    found = {name: row.estimate(METRICS[name], Target(), scale="logarithmic") for name in ("updates_per_second", "final_loss")}

    rate = found["updates_per_second"]
    assert rate.mean is not None
    assert rate.bounds == pytest.approx((rate.mean / 1.199, rate.mean * 1.199), rel=1e-3)
    assert found["final_loss"].bounds is None


def test_real_processes_are_compared_with_those_that_were_measured() -> None:
    def told(held: dict[str, Any], **keys: Any) -> list[str]:
        return calibration_warnings(experiment("workload=digits", "method=ssgd", cluster=described(**held), **keys))

    assert told({}) == []
    assert "PyTorch 0.4 (here " in told({"torch": "0.4"})[0]
    assert "threads=3 (here 1)" in told({"threads": 3})[0]
    assert "device=cuda (here cpu)" in told({"device": "cuda"})[0]
    assert calibration_warnings(experiment("workload=digits", "method=ssgd")) == []
    on_gpu = parse_cluster(described(device="cuda:1")).calibrated
    assert on_gpu is not None
    assert on_gpu.process_warning(torch=HELD["torch"], threads=1, device="cuda") is None  # which of several is the launcher's choice


@pytest.mark.parametrize(
    ("held", "message"),
    [
        ("yes", "cluster.calibrated must be a mapping of keys such as date"),
        ({**HELD, "day": 1}, "cluster.calibrated.day is unknown"),
        ({key: value for key, value in HELD.items() if key != "error"}, "cluster.calibrated.error is missing"),
        ({**HELD, "samples": [64, 4]}, "cluster.calibrated.samples must be the smallest and the largest batch"),
        ({**HELD, "samples": [4]}, "cluster.calibrated.samples must be the smallest and the largest batch"),
        ({**HELD, "samples": 4}, "cluster.calibrated.samples must be a list of two sizes"),
        ({**HELD, "samples": [1.5, 4]}, "cluster.calibrated.samples.0 must be a whole number"),
        ({**HELD, "error": -0.1}, "cluster.calibrated.error must be a finite number of at least zero"),
        ({**HELD, "error": 1e9}, "cluster.calibrated.error must be a share of a gradient's time"),
        ({**HELD, "workload": "a\nb"}, "cluster.calibrated.workload must have printable letters only"),
        ({**HELD, "torch": 2.15}, "cluster.calibrated.torch must be a name, not 2.15"),
        ({**HELD, "date": "d" * 2000}, "cluster.calibrated.date must have at most 1000 letters"),
        ({**HELD, "device": "tpu"}, "cluster.calibrated.device must be cpu, cuda, cuda:K or auto"),
        ({**HELD, "tried": 0.1}, "cluster.calibrated.tried must be a mapping, such as {ssgd: 0.02}"),
        ({**HELD, "tried": {"ssgd": -1}}, "cluster.calibrated.tried.ssgd must be a relative error above -1"),
        ({**HELD, "composed": "fast"}, "cluster.calibrated.composed must be a list of names of clusters"),
        ({**HELD, "composed": [1]}, "cluster.calibrated.composed.0 must be a name"),
        ({**HELD, "composed": ["x"] * 101}, "cluster.calibrated.composed must be at most 100 names, not 101"),
    ],
)
def test_a_mistake_in_it_is_one_sentence(held: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        parse_cluster({**cluster(node(1e-3)), "calibrated": held})


def test_clusters_that_were_calibrated_before_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_cluster(cluster(node(1e-3))).calibrated is None
    assert parse_cluster({**cluster(node(1e-3)), "calibrated": None}).calibrated is None
    assert "calibrated" not in composed().cluster
    studied = sorted((Path(__file__).parents[2] / "studies").glob("*/calibrated/cluster/*.yaml"))
    assert studied
    for file in studied:
        monkeypatch.chdir(file.parents[2])  # the files of measured noise are named from there
        assert written_cluster("", file).num_workers > 1


def test_more_threads_than_cores_are_told() -> None:
    """Two ranks with two threads each took 20 to 40 times as long on two cores as with one."""
    (warning,) = crowded_warnings(2, [2, 2], 2)

    assert warning.startswith("the workers compute with 4 threads on 2 cores")
    assert crowded_warnings(2, [2, 2], 4) == crowded_warnings(1, [1, 1, 1], 2) == crowded_warnings(4, [1, 1], 2) == []
