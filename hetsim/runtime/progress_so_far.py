"""What the recorders of a run had seen at a checkpoint, so that the numbers of a run that goes on are those of the whole run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hetsim.runtime.curve import LearningCurve
from hetsim.runtime.history import History
from hetsim.runtime.metrics import Applied, RankActivity
from hetsim.runtime.rank import Checkpoint


def seen_by_leader(history: History, applied: Applied, curve: LearningCurve, *, profile_seconds: float) -> dict[str, Any]:
    """What the leader's recorders have seen, at one of its commits."""
    return {
        "applied": applied.saved(),
        "curve": curve.saved(),
        "divergence": history.divergence.saved(),
        "profile_seconds": profile_seconds,
        "first_sample": history.start.num_samples,
    }


def activity_until(activity: Sequence[RankActivity], seconds: Sequence[float]) -> tuple[dict[str, Any], ...]:
    """What each worker has done until its commit."""
    cut = []
    for its, moment in zip(activity, seconds, strict=False):
        copy = RankActivity.of_numbers(its.as_numbers(), its.num_ahead)
        copy.cut(moment)
        cut.append({**copy.as_numbers(), "recent": tuple(copy.recent)})
    return tuple(cut)


def activity_of(checkpoint: Checkpoint, num_workers: int, num_ahead: int) -> list[RankActivity]:
    """What each worker has done before this run goes on. A worker that is new was absent until now."""
    saved: Sequence[Mapping[str, Any]] = checkpoint.progress.get("activity", ())
    found = [RankActivity.of_numbers(numbers, num_ahead) for numbers in saved[:num_workers]]
    return [*found, *(RankActivity(num_ahead=num_ahead, down_seconds=checkpoint.began) for _ in range(num_workers - len(found)))]


def restore(progress: Mapping[str, Any], history: History) -> None:
    """Let the history go on from what the leader has seen before."""
    if progress:
        history.divergence.restore(progress["divergence"])
        history.start = history.start.evolve(num_samples=progress["first_sample"])
