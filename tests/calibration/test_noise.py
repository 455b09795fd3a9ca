"""The law of what is left after a fit: gamma, or the factors that were measured, whichever predicts the half that it has not seen."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from hetsim.calibration.noise import MAX_WRITTEN, Noise
from hetsim.cluster.distributions import parse_distribution


def normalised(factors: list[float]) -> list[float]:
    """Of mean 1."""
    mean = sum(factors) / len(factors)
    return [factor / mean for factor in factors]


def gamma(num: int = 4000, deviation: float = 0.2) -> list[float]:
    """Independent factors of this law."""
    chance = random.Random(1)
    return normalised([chance.gammavariate(1 / deviation**2, deviation**2) for _ in range(num)])


def two_modes(num: int = 4000) -> list[float]:
    """Most take 0.9, some 1.9, as where another process comes in now and then; neither of them exactly."""
    chance = random.Random(2)
    return normalised([(1.9 if chance.random() < 0.12 else 0.9) * chance.uniform(0.97, 1.03) for _ in range(num)])


def test_gamma_noise_stays_a_gamma_law() -> None:
    noise = Noise.fit(gamma())

    assert not noise.takes_measured
    assert noise.error_of_gamma < 0.02
    assert noise.as_row("lab-node0.csv")["noise"] == {
        "distribution": "gamma", "a": pytest.approx(25, rel=0.1), "scale": pytest.approx(0.04, rel=0.1)
    }  # fmt: skip


def test_two_modes_are_written_as_they_were_measured(tmp_path: Path) -> None:
    """A gamma law of their deviation is off by more than a tenth at its quantiles; the other half of the factors is not."""
    noise = Noise.fit(two_modes())
    file = tmp_path / "lab-node0.csv"
    file.write_text(noise.as_csv())
    law = parse_distribution("noise", noise.as_row(str(file))["noise"])

    assert noise.error_of_gamma > 0.1
    assert noise.error_of_measured < 0.02
    assert noise.takes_measured
    assert noise.as_row(None)["noise"]["distribution"] == "gamma"
    assert len(law.values) == MAX_WRITTEN
    assert sum(law.values) / MAX_WRITTEN == pytest.approx(1.0)
    assert (sum((value - 1) ** 2 for value in law.values) / MAX_WRITTEN) ** 0.5 == pytest.approx(noise.deviation, rel=0.01)


def test_few_factors_are_no_law_of_their_own() -> None:
    noise = Noise.fit(normalised([1.0, 1.0, 1.0, 2.0] * 12))

    assert not noise.takes_measured
    assert "quantiles" not in noise.describe()


def test_no_noise_is_none() -> None:
    assert Noise.fit([1.0] * 100).as_row("x.csv") == {}
    assert Noise().describe() == "noise 0.0 %, autocorrelation 0.00, no slow spells"


def test_times_that_depend_on_the_last_one_are_correlated() -> None:
    """Each is 0.6 of the last one's deviation and a new one: the lag-1 autocorrelation of such a series is 0.6."""
    chance, last = random.Random(3), 0.0
    factors = []
    for _ in range(20_000):
        last = 0.6 * last + chance.gauss(0.0, 0.02)
        factors.append(1 + last)

    assert Noise.fit(normalised(factors)).autocorrelation == pytest.approx(0.6, abs=0.02)
    assert Noise.fit(gamma()).autocorrelation == pytest.approx(0.0, abs=0.05)


def test_slow_spells_are_seen_and_single_slow_times_are_not() -> None:
    quiet = gamma(2000, 0.05)
    spells = [factor * (2.0 if 500 <= place < 520 or 900 <= place < 907 else 1.0) for place, factor in enumerate(quiet)]
    single = [factor * (2.0 if place % 10 == 0 else 1.0) for place, factor in enumerate(quiet)]

    assert Noise.fit(normalised(spells)).slow_spells == [pytest.approx(2.0, rel=0.05)] * 2
    assert "2 slow spells, 2 times as long" in Noise.fit(normalised(spells)).describe()
    assert Noise.fit(normalised(single)).slow_spells == []
    assert "no slow spells" in Noise.fit(normalised(single)).describe()


def test_what_was_taken_is_told() -> None:
    said = Noise.fit(two_modes()).describe()

    assert said.startswith("noise 32.1 %")
    assert "held-out quantiles: gamma law 1" in said
    assert said.endswith("uses the measured factors")
    assert Noise.fit(gamma()).describe().endswith("uses the gamma law")
