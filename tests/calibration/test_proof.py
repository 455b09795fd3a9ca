"""A calibration tries its own predictions: what is far off is named, measured again, and stays a reason not to trust the file."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from test_fit import measured

from hetsim.calibration.among_workers import AmongWorkers
from hetsim.calibration.measuring import measure
from hetsim.calibration.measuring.proof import TriedMethod

NODES = "cluster.nodes=[{count: 2, seconds_per_sample: 1, overhead_seconds: 1}]"
WHERE = " (mean message: 2.4 ms predicted, 0.31 ms measured)"


def test_a_prediction_that_is_far_off_is_a_doubt() -> None:
    """Too fast or too slow."""
    assert TriedMethod("asgd", 10.9, 10.0, WHERE).doubt is None
    assert TriedMethod("asgd", 9.1, 10.0, WHERE).doubt is None
    assert TriedMethod("asgd", 4.0, 10.0, WHERE).doubt == f"asgd was predicted to make 4 updates/s and made 10{WHERE}"
    assert TriedMethod("asgd", 12.0, 10.0, WHERE).error == pytest.approx(0.2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("predicted", "real", "error", "seconds"),
    [
        ([10.0], [10.0], 0.0, 1),
        ([10.0], [5.0, 10.0], 0.0, 1),
        ([4.0, 9.9], [10.0, 10.0], -0.01, 1),
        ([10.0, 8.0], [5.0, 8.0], 0.0, 1),
        ([10.0, 8.5], [8.0, 5.0], 0.0625, 1),
        ([4.0, 8.0], [10.0, 10.0], -0.2, 1),
        ([8.0, 4.0], [10.0, 10.0], -0.2, 1),
        ([8.0], [10.0], -0.2, 0.4),
    ],
    ids=[
        "right at once",
        "only the runs were disturbed",
        "right when measured again",
        "both disturbed",
        "the second runs more disturbed",
        "better",
        "worse",
        "quick",
    ],
)
def test_what_is_far_off_is_tried_and_measured_again_and_the_better_one_is_kept(
    predicted: list[float],
    real: list[float],
    error: float,
    seconds: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """First the runs, and then the measurements, once each, unless it is to be quick. What stays off is a reason not to trust the file.

    `real` are the rates of the runs in turn, and `predicted` those of the measurements.
    """
    monkeypatch.chdir(tmp_path)
    among, around = measured()
    asked = []

    def taken(_experiment: object, _backend: object, kind: type, *_: object, twice: bool) -> object:
        assert twice == (seconds == 1)
        asked.append(kind)
        return among if kind is AmongWorkers else around

    runs: list[float] = []

    rates: dict[Path, float] = {}

    def run(*words: object) -> object:
        runs.append(real[len(runs)])
        rates[Path(str(words[-1]))] = runs[-1]
        return {}, ["ssgd could not be tried: a worker was lost"]

    def tried(_real: object, _cluster: object, _num: object, folder: Path) -> list[TriedMethod]:
        return [TriedMethod("asgd", predicted[len(asked) // 2 - 1], rates[folder], WHERE)]

    monkeypatch.setattr(measure, "measure", taken)
    monkeypatch.setattr(measure, "real_runs", run)
    monkeypatch.setattr(measure, "predict_runs", tried)

    measure.calibrate(Path("lab.yaml"), ["workload=digits", "batch_size=64", NODES], seconds=seconds, config_dir=None)

    assert len(asked) == 2 * len(predicted)
    assert runs == real
    held = yaml.safe_load(Path("lab.yaml").read_text())["calibrated"]
    assert held["tried"] == {"asgd": pytest.approx(error)}
    assert held["error"] == pytest.approx(abs(error))
    assert "ssgd could not be tried: a worker was lost" in held["doubts"]
    assert any(doubt.startswith("asgd was predicted") for doubt in held["doubts"]) == (abs(error) > 0.1)
    told = capsys.readouterr().out
    assert ("running the methods again" in told) == (len(real) > 1)
    assert ("measuring again" in told) == (len(predicted) > 1)
