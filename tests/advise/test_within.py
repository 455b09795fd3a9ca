"""Whether a recommendation holds within the interval of an estimated GPU: both ends are timed again, and a change is said."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from hetsim.advice.candidates import Candidate, baseline
from hetsim.advice.simulated import SimulatedRun
from hetsim.advice.timing import CandidateTimes, intervals
from hetsim.catalogue.tables import shipped_catalogue
from hetsim.catalogue.times import Times
from hetsim.config.resolved import Named

SLOW, NETWORK = 0.3, 0.2
"""The speed of the second node, times the first one's; the seconds of an all-reduce of both."""
EVEN = baseline()
BOTH = replace(EVEN, allocation="dbs")
ALONE = replace(BOTH, leave_out=(1,))


def seconds(candidate: Candidate, factor: float) -> float:
    """Of a step, if the second node takes so many times as long."""
    rate = SLOW / factor
    if candidate.leave_out == (1,):
        return 1.0
    if candidate.leave_out == (0,):
        return 1 / rate
    return NETWORK + (1 / (1 + rate) if candidate.allocation == "dbs" else 0.5 / rate)


class Formula:
    """Answers as a Timing does, by a formula."""

    def times(self, candidates: Iterable[Candidate], *, slower: Sequence[tuple[int, float]] = ()) -> list[CandidateTimes]:
        factor = dict(slower).get(1, 1.0)
        return [CandidateTimes(each, (seconds(each, factor),), SimulatedRun({}, ())) for each in candidates]


def said(error: float) -> list[str]:
    """What is said of a measured GPU and an estimated one, with this error."""
    its = {"a100-40gb": 0.0, "l4": error}
    times = {
        name: Times(shipped_catalogue().gpu(name), ("sia", "resnet50", "amp"), ((1, 1.0), (2, 2.0)), 0 if error else 2, error, 33, None)
        for name, error in its.items()
    }
    named = Named(shipped_catalogue().model("resnet50"), times, {}, {"a100-40gb": (0,), "l4": (1,)}, shipped_catalogue(), "")
    timing: Any = Formula()
    return list(intervals(named, timing, EVEN, timing.times([BOTH, ALONE, EVEN])))


@pytest.mark.parametrize("error", [0.05, 0.1, 0.3, 0.5, 1.0])
def test_a_recommendation_that_changes_within_the_interval_says_so(error: float) -> None:
    """Both nodes are best as they are. With the slow one slower by the error, one alone is better from an error of a fifth on."""
    ends = [1 + error, 1 / (1 + error)]
    gains = [seconds(EVEN, factor) / seconds(BOTH, factor) for factor in ends]
    changes = any(seconds(ALONE, factor) < 0.99 * seconds(BOTH, factor) for factor in ends)
    sentences = said(error)
    flips = [each for each in sentences if " is better" in each]

    assert changes == (error >= 0.3)
    held = "changes" if changes else "stays best"
    assert f"the recommendation {held} across the error range of l4 (gain {min(gains):.3g} to {max(gains):.3g} times)" in sentences
    slower = 1 + error
    better = f"if l4 takes {slower:.3g} times as long, {ALONE.label} is better: {seconds(EVEN, slower):.3g} times as fast as plain DDP"
    assert flips == ([better] if changes else [])


def test_measured_gpus_have_no_interval() -> None:
    """Nothing is timed again."""
    assert not any("error range" in each for each in said(0.0))
