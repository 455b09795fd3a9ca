"""All results about a job's stragglers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hetsim.files.outputs import is_output
from hetsim.straggling.from_run import read_run
from hetsim.straggling.job import Job
from hetsim.straggling.judging import JudgedJob, judge_job
from hetsim.straggling.kineto import profile_files, read_profiles
from hetsim.straggling.replay import Replay, replay_or_none

WRITER = "hetsim-stragglers"


@dataclass(frozen=True)
class StragglerFindings:
    """The stragglers, and the replay of the job; None with a reason without a replay."""

    judged_job: JudgedJob
    replay: Replay | None
    why_no_replay: str


def find(places: Sequence[Path], *, replay: bool = True) -> StragglerFindings:
    """Find the stragglers of the job at these places. Raises ValueError if no job can be read."""
    stragglers = judge_job(read_job(list(places)))
    return StragglerFindings(stragglers, *(replay_or_none(stragglers) if replay else (None, "")))


def read_job(places: list[Path]) -> Job:
    """The job in a run's folder, in a folder with profiler files, or in these files. Raises ValueError if there is none."""
    first = places[0]
    if len(places) == 1 and first.is_dir() and ((first / "summary.json").exists() or not profile_files(first)):
        return read_run(first)
    for place in places:
        if not place.exists():
            raise ValueError(f"{place} does not exist: give the folder of a run, or the files of torch.profiler")
        if not profile_files(place):
            raise ValueError(f"{place} is no .json or .json.gz of torch.profiler: give the folder of a run, or one file for each rank")
    profiles = [path for place in places for path in profile_files(place) if not is_output(path, "json", WRITER)]
    return read_profiles(profiles, str(first if len(places) == 1 else first.parent))
