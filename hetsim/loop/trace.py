"""The trace of a Team: the files of a run of `backend=dist`, which hetsim's commands read."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, is_dataclass, replace
from functools import partial
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import yaml

from hetsim import checks
from hetsim.coordination.state import State
from hetsim.distributed.communication.clock_alignment import Clocks, clock_id
from hetsim.distributed.pacing.padding import Pace
from hetsim.effects import Contribution
from hetsim.files.folder import FILES, UNFINISHED
from hetsim.files.writing import begun
from hetsim.loop.followed import Followed
from hetsim.loop.lanes import Lanes
from hetsim.policies.allocation.base import Allocation
from hetsim.runtime.experiment import Experiment
from hetsim.runtime.preparation import Preparation
from hetsim.runtime.recording.metrics import Metrics
from hetsim.runtime.recording.recorder import KINDS, Recorder
from hetsim.runtime.recording.run_record import RunRecord
from hetsim.runtime.recording.trace import Trace, TracePart, append_received

HEAD = b"script: "
"""The beginning of the config of a Team's run."""


class TeamTrace:
    """The intervals of this rank, which the leader collects at the end of each epoch. It writes all files in `close` or at its exit."""

    def __init__(self, folder: Path, lanes: Lanes, prepared: Preparation, pace: Pace, *, device: str) -> None:
        experiment = prepared.experiment
        self._lanes, self._clock, self._leader = lanes, pace.clock, experiment.leader
        self._rank: int = lanes.everyone.rank
        self._part = TracePart("full")
        self.recorders: list[Recorder] = [self._part]
        """The recorders of this rank's intervals."""
        self._clocks = Clocks.gather(lanes.everyone, clock_id(), leader=self._leader)
        self.began = self._clocks.begin(lanes.everyone, self._clock)
        """The time at which the run's clock is at 0, by this host's clock."""
        pace.sleep_until(self.began)
        self._files: _Files | None = None
        if self._rank == self._leader:
            self._files = _Files(folder, prepared, [device] * experiment.num_ranks)

    def commit(self, at: float, state: State, applied: Sequence[Contribution]) -> None:
        """Record a commit, on the leader."""
        if self._files is not None:
            self._files.record.history.commit(at - self.began, self._rank, state, applied)

    def collect(self) -> None:
        """Send the new intervals of all ranks to the leader. All ranks call this method."""
        control = self._lanes.everyone.control
        own = self._part.drain()
        if self._files is None:
            self._clocks.finish_with(control, self._clock, self._rank)
            control.send_bytes(own, self._leader)
            return
        for rank in control.members:
            if rank == self._leader:
                self._files.append(own, rank, self._clocks)
            else:
                self._clocks.finish_with(control, self._clock, rank)
                self._files.append(control.receive_bytes(rank), rank, self._clocks)

    def close(self) -> None:
        """Write the files."""
        self._part.__exit__()
        if self._files is not None:
            self._files.close()


class _Files:
    """The record and the trace of all ranks, on the leader."""

    def __init__(self, folder: Path, prepared: Preparation, devices: Sequence[str]) -> None:
        check_holds_nothing_else(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.glob(UNFINISHED):
            path.unlink(missing_ok=True)
        script = checks.printable(Path(sys.argv[0]).name) or "a script"
        experiment = replace(
            prepared.experiment, evaluate_every_epochs=1, evaluate_every_seconds=None, watch=None, stop_when_diverged=False,
            save_weights=None, pictures=False, trace="full",
        )  # fmt: skip
        self._folder, self._devices, self._script = folder, devices, script
        self._num_samples = prepared.task.num_samples
        self._trace = Trace(folder, "full")
        self._metrics = Metrics(
            experiment.num_workers, num_ahead=experiment.coordination.num_ahead, weights=experiment.weights_of(prepared.task)
        )
        self.record = RunRecord(replace(prepared, experiment=experiment), self._metrics, [self._trace], at_once=True, keeps=False)
        self._process = os.getpid()
        self._at_exit = Finalize(None, self.close, exitpriority=1)  # also where a process is multiprocessing's, and atexit is not called

    def append(self, pieces: Iterable[bytes], rank: int, clocks: Clocks) -> None:
        """Append a rank's intervals."""
        append_received(self._trace, iter(pieces), rank=rank, change=partial(self._counted, clocks.change(rank)))

    def _counted(self, change: Any, batch: Any) -> Any:
        rows = change(batch)
        columns = [column.to_pylist() for column in rows.columns]
        for row in zip(*columns, strict=True):
            kind = KINDS.index(row[3])
            if (count := self._metrics.on(kind)) is not None:
                count((*row[:3], kind, *row[4:]))
        return rows

    def close(self) -> None:
        """Write all files once, unless nothing was trained or this is a forked process."""
        self._at_exit.cancel()
        if os.getpid() != self._process or not self._metrics.applied.num_updates:
            return
        from hetsim.results.writing.summary import summary_of, write_summary

        self.record.history.close()
        with begun(self._folder / "config.yaml") as file:
            file.write(yaml.safe_dump(config_of(self.record.experiment, self._script, self._num_samples), sort_keys=False).encode())
        outcome = self.record.outcome()
        summary = summary_of(outcome, backend="dist", wall_seconds=self._metrics.applied.seconds, devices=self._devices)
        write_summary(self._folder, outcome, summary | {"cluster": "these machines", "workload": self._script})


def config_of(experiment: Experiment, script: str, num_samples: int) -> dict[str, Any]:
    """What hetsim's commands ask the config of a run for."""
    coordination = experiment.coordination
    allocation = coordination.allocation
    while isinstance(allocation, Followed):
        allocation = allocation.allocation
    return {
        "script": script,
        "method": experiment.method,
        "coordination": {"_target_": target(coordination)},
        "allocation": described(allocation),
        "weighting": {"_target_": target(coordination.weighting)},
        "workload": {"num_samples": num_samples},
        "seed": experiment.seed,
        "batch_size": experiment.batch_size,
    }


def described(allocation: Allocation) -> dict[str, Any]:
    """The allocation as in a config."""
    fields: dict[str, Any] = asdict(allocation) if is_dataclass(allocation) else {}
    return {"_target_": target(allocation), **{name: list(v) if isinstance(v, tuple) else v for name, v in fields.items()}}


def target(part: Any) -> str:
    """The name of its class, where a config finds it."""
    kind = type(part)
    shipped = kind.__module__.startswith("hetsim.policies.allocation.")
    return f"{'hetsim.policies.allocation' if shipped else kind.__module__}.{kind.__qualname__}"


def check_holds_nothing_else(folder: Path) -> None:
    """Raise ValueError if the folder contains files that a trace would replace, and no earlier trace of a Team."""
    names = [name for name in FILES if (folder / name).exists()]
    config = folder / "config.yaml"
    if names and not any(folder.glob(UNFINISHED)) and not (config.is_file() and config.read_bytes().startswith(HEAD)):
        raise ValueError(f"trace={folder} has a {names[0]} that no Team has written, and would replace it: give another folder")
