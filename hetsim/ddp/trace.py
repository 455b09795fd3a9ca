"""The trace of `Team(trace=…)`: the files of a hetsim run, so that hetsim's commands accept your own training.

Each rank has a row for each window. Rank 0 gathers the rows at the end of an epoch, and writes the files in `close` or when its process
ends.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import zlib
from collections.abc import Sequence
from multiprocessing.util import Finalize
from pathlib import Path
from statistics import median
from typing import Any

import torch
import yaml

from hetsim import checks
from hetsim.ddp.clock import Clock
from hetsim.ddp.exchange import Control
from hetsim.ddp.windows import Window
from hetsim.effects import Batch, Contribution
from hetsim.files.folder import FILES, UNFINISHED, finish_run
from hetsim.files.writing import begun
from hetsim.policies.allocation import Allocation
from hetsim.runtime.recording.metrics import Metrics, ratio
from hetsim.runtime.recording.recorder import ALL_REDUCE, APPLY, COMMIT, GRADIENT, UPDATE
from hetsim.runtime.recording.trace import Trace

UNREAD = 64
"""The number of windows whose marks are kept before the oldest are read. By then, a GPU has reached these."""
BOOT = Path("/proc/sys/kernel/random/boot_id")
COORDINATION, WEIGHTING = "hetsim.coordination.all_reduce.SynchronousAllReduce", "hetsim.policies.weighting.PerSample"
COLUMNS = 5
"""The columns of a window: its begin, gradients ready, gradients reduced, loop continued, and this rank's samples."""


class TeamTrace:
    """The windows of this rank. On rank 0, also the windows of all ranks as a trace, with their sums."""

    def __init__(self, folder: Path, control: Control, *, batch_size: int, seed: int, allocation: Allocation) -> None:
        self._control, self._folder = control, folder
        self._open: tuple[Window, Any, Clock] | None = None
        self._marked: list[tuple[Window, Any, Any, Clock]] = []
        self._rows: list[tuple[float, ...]] = []
        self._files: _Files | None = None
        if control.rank == 0:
            self._files = _Files(folder, control.size, batch_size=batch_size, seed=seed, allocation=allocation)
        self.nbytes = 0
        """The size of the gradients in bytes."""

    def reduced(self, window: Window, mark: Any, clock: Clock) -> None:
        """The last gradients of this window are reduced. A second backward pass in the window replaces the first."""
        self._open = (window, mark, clock)

    def updated(self, mark: Any) -> None:
        """The loop continues."""
        if self._open is not None:
            window, reduced, clock = self._open
            self._open = None
            self._marked.append((window, reduced, mark, clock))
            self._read(keep=UNREAD)

    def _read(self, *, keep: int) -> None:
        while len(self._marked) > keep:
            window, reduced, updated, clock = self._marked.pop(0)
            start, end, last, done = (clock.seconds(mark) for mark in (window.start, window.end, reduced, updated))
            waited = window.waited(clock)
            samples = window.num_steps * window.step.shares[self._control.rank]
            self._rows.append((start + waited, end, max(end, last), max(end, last, done), samples))

    def gather(self) -> None:
        """Send the new finished windows of all ranks to rank 0. All ranks call this method."""
        self._read(keep=0)
        rows = torch.tensor(self._rows, dtype=torch.float64).reshape(-1, COLUMNS)
        self._rows.clear()
        parts = self._control.gather_rows(rows)
        hosts = [host for (host,) in self._control.gather([zlib.crc32(BOOT.read_bytes()) if BOOT.exists() else 0])]
        nbytes = self._control.gather([self.nbytes])[0][0]
        if self._files is not None:
            self._files.append([part.tolist() for part in parts], hosts, nbytes)

    def close(self) -> None:
        """Send the last windows to rank 0, which writes the files, once. All ranks call this method."""
        if self._open is not None:
            self.updated(self._open[1])
        self.gather()
        if self._files is not None:
            self._files.close()


def check_holds_nothing_else(folder: Path) -> None:
    """Raise ValueError if the folder contains files that a trace would replace, and no earlier trace of a Team."""
    names = [name for name in FILES if (folder / name).exists()]
    config = folder / "config.yaml"
    if names and not any(folder.glob(UNFINISHED)) and not (config.is_file() and config.read_bytes().startswith(b"script: ")):
        raise ValueError(f"trace={folder} has a {names[0]} that no Team has written, and would replace it: give another folder")


class _Files:
    """The trace, and the sums for the summary, on rank 0."""

    def __init__(self, folder: Path, size: int, *, batch_size: int, seed: int, allocation: Allocation) -> None:
        self._folder, self._size, self._seed = folder, size, seed
        check_holds_nothing_else(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._config = {
            "script": checks.printable(Path(sys.argv[0]).name),
            "coordination": {"_target_": COORDINATION},
            "allocation": described(allocation),
            "weighting": {"_target_": WEIGHTING},
            "seed": seed,
            "batch_size": batch_size,
        }
        self._trace = Trace(folder, "full")
        self._metrics = Metrics(size, num_ahead=1, weights=lambda group: ((c.rank, float(c.samples)) for c in group))
        self._began: float | None = None
        self._num_samples = 0
        self._shares: list[int] = []
        self._process = os.getpid()
        self._closed = False
        self._at_exit = Finalize(None, self.close, exitpriority=1)  # also where a process is multiprocessing's, and atexit is not called

    def append(self, parts: Sequence[Sequence[Sequence[float]]], hosts: Sequence[int], nbytes: int) -> None:
        """Append the windows of each rank. Clocks of other hosts than rank 0's are shifted so that reductions end at the same time."""
        num_windows = min(len(part) for part in parts)
        if not num_windows or self._closed:
            return
        shifts = [
            0.0 if hosts[rank] == hosts[0] else median(parts[0][place][2] - part[place][2] for place in range(num_windows))
            for rank, part in enumerate(parts)
        ]
        if self._began is None:
            self._began = min(part[0][0] + shift for part, shift in zip(parts, shifts, strict=True))
        record = self._trace.record
        gradient, update = self._metrics.on(GRADIENT), self._metrics.on(UPDATE)
        assert gradient is not None
        assert update is not None
        for place in range(num_windows):
            version, applied = self._metrics.applied.num_updates, list[Contribution]()
            for rank, part in enumerate(parts):
                *times, count = part[place]
                start, end, reduced, done = (moment + shifts[rank] - self._began for moment in times)
                samples = int(count)
                gradient((start, end, rank, GRADIENT, version, samples, 0, 0))
                update((reduced, done, rank, UPDATE, version, 0, 0, 0))
                record((start, end, rank, GRADIENT, version, samples, 0, 0))
                record((end, reduced, rank, ALL_REDUCE, version, 0, 0, nbytes))
                record((reduced, done, rank, UPDATE, version, 0, 0, 0))
                applied.append(Contribution(rank, Batch(0, samples), version, end - start, 0.0))
            moment = parts[0][place][3] - self._began
            num_samples = sum(c.samples for c in applied)
            if num_samples >= sum(self._shares):  # the last step of an epoch may be short
                self._shares = [c.samples for c in applied]
            for c in applied:
                record((moment, moment, c.rank, APPLY, version + 1, c.samples, 0, 0))
            record((moment, moment, 0, COMMIT, version + 1, num_samples, 0, 0))
            self._num_samples += num_samples
            self._metrics.applied.commit(moment, applied)
            self._trace.spill()

    def close(self) -> None:
        """Write all files, unless there are no windows or another process writes them."""
        if self._closed or os.getpid() != self._process:
            return
        self._closed = True
        self._at_exit.cancel()
        if not self._metrics.applied.num_updates:
            return
        self._trace.close()
        contents = {
            "config.yaml": yaml.safe_dump(self._config, sort_keys=False),
            "curve.csv": "seconds,version,samples,train_loss,test_accuracy\n",
            "summary.json": json.dumps(self._summary(), indent=2, allow_nan=False) + "\n",
        }
        for name, text in contents.items():
            with begun(self._folder / name) as file:
                file.write(text.encode())
        finish_run(self._folder, ["trace.parquet", *contents])

    def _summary(self) -> dict[str, Any]:
        numbers = self._metrics.summary()
        applied = self._metrics.applied
        return {
            "method": "ddp",
            "backend": "dist",
            "cluster": "these machines",
            "workload": self._config["script"] or "a script",
            "seed": self._seed,
            "num_workers": self._size,
            "num_updates": applied.num_updates,
            "num_samples": self._num_samples,
            "num_samples_discarded": 0,
            "num_samples_in_flight": 0,
            "profile_seconds": 0.0,
            "samples_per_second": ratio(self._num_samples, applied.seconds),
            **numbers,
            "batch_sizes": self._shares,
            "final": {"train_loss": None, "test_accuracy": None},
            "class_accuracy": None,
            "diverged": False,
            "weight_shares": applied.weight_shares,
            "pools": None,
            "wall_seconds": applied.seconds,
            "devices": [],
            "emulation": None,
            "warnings": [],
        }


def described(allocation: Allocation) -> dict[str, Any]:
    """The allocation as in a config."""
    kind = type(allocation)
    shipped = kind.__module__.startswith("hetsim.policies.allocation.")
    place = "hetsim.policies.allocation" if shipped else kind.__module__
    fields: dict[str, Any] = dataclasses.asdict(allocation) if dataclasses.is_dataclass(allocation) else {}
    return {"_target_": f"{place}.{kind.__qualname__}", **{name: list(v) if isinstance(v, tuple) else v for name, v in fields.items()}}
