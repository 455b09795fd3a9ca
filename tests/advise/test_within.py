"""Whether a recommendation holds within the interval of an estimated GPU: both ends are timed again, and a change is said."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from hetsim.advice.candidates import Candidate, baseline
from hetsim.advice.ends import Ends, at_ends, unsure_gpus
from hetsim.advice.progress import Progress
from hetsim.advice.question import asked
from hetsim.advice.simulated import SimulatedRun
from hetsim.advice.timing import CandidateTimes

SLOW, NETWORK = 0.3, 0.2
"""The speed of the second node, times the first one's; the seconds of an all-reduce of both."""
QUESTION = asked(["t4 + l4", "model=resnet50", "network=1 Gbit/s"], None)
EVEN = baseline()
BOTH = replace(EVEN, allocation="dbs")
ALONE = replace(BOTH, leave_out=(1,))
WITHOUT = "ddp, allocation dbs, without the L4"


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

    question = QUESTION
    processes = SimpleNamespace(progress=Progress())

    def times(self, candidates: Iterable[Candidate], *, slower: Sequence[tuple[int, float]] = ()) -> list[CandidateTimes]:
        factor = dict(slower).get(1, 1.0)
        return [CandidateTimes(each, (seconds(each, factor),), SimulatedRun({}, ())) for each in candidates]


def at_both_ends(error: float) -> Ends:
    """What is said of a measured GPU and an estimated one, with this error."""
    named = QUESTION.named
    assert named is not None
    times = {name: replace(of_gpu, error=error if name == "l4" else 0.0) for name, of_gpu in named.times.items()}
    timing: Any = Formula()
    return at_ends(timing, EVEN, BOTH, [BOTH, ALONE, EVEN], unsure_gpus(replace(named, times=times)))


@pytest.mark.parametrize("error", [0.05, 0.1, 0.3, 0.5, 1.0])
def test_a_recommendation_that_changes_within_the_interval_says_so(error: float) -> None:
    """Both nodes are best as they are. With the slow one slower by the error, one alone is better from an error of a fifth on."""
    ends = [1 + error, 1 / (1 + error)]
    gains = [seconds(EVEN, factor) / seconds(BOTH, factor) for factor in ends]
    changes = any(seconds(ALONE, factor) < 0.99 * seconds(BOTH, factor) for factor in ends)
    slower = 1 + error
    gain = f"{seconds(EVEN, slower):.3g} times as fast as plain DDP"
    held = "changes" if changes else "stays best"
    remark = f"the recommendation {held} across the error range of the L4 (gain {min(gains):.3g} to {max(gains):.3g} times)"

    assert changes == (error >= 0.3)
    assert at_both_ends(error) == (
        Ends("unless the L4 is slower than estimated", (remark, f"if the L4 takes {slower:.3g} times as long, {WITHOUT} is better: {gain}"))
        if changes
        else Ends("", (remark,))
    )


def test_measured_gpus_have_no_interval() -> None:
    """Nothing is timed again."""
    assert at_both_ends(0.0) == Ends()


def test_left_out_nodes_change_the_numbers_of_named_gpus() -> None:
    """The two T4 are nodes 0 and 1, and node 0 is left out by the question: the L4 is then node 1."""
    named = asked(["2*t4 + l4", "model=resnet50", "network=1 Gbit/s", "++cluster.leave_out=[0]"], None).named

    assert named is not None
    assert named.ranks == {"t4": (0,), "l4": (1,)}
    assert [gpus.ranks for gpus in unsure_gpus(named)] == [(1,)]
