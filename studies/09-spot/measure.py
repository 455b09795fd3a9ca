"""Kill a rank of a real job under torchrun, and write what its restart took to measured.csv: python measure.py [--folder FOLDER]"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from cases import HERE
from common import Runs, arguments
from killed import EVERY, LOST_IN, NUM_STEPS

RANKS, REPEATS = 3, 3
FOUND = ["step_seconds", "megabytes", "save_seconds", "to_begin", "to_ready", "to_step", "steps"]


def measured() -> dict[str, object]:
    """One job: seconds from the kill until rank 0 has begun, is ready, and has made a step."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint, events = Path(folder) / "checkpoint", Path(folder) / "events"
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}", "--max-restarts=1"]
        variables = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
        command = [*torchrun, str(HERE / "killed.py"), str(checkpoint), str(events)]
        subprocess.run(command, check=True, env=os.environ | variables, stderr=subprocess.DEVNULL)
        killed = float((Path(folder) / "killed").read_text(encoding="utf-8"))
        noted = [(what, float(seconds)) for what, seconds in (line.split(",") for line in events.read_text(encoding="utf-8").splitlines())]
        megabytes = checkpoint.stat().st_size / 1e6
    steps = [seconds for what, seconds in noted if what == "step"]
    again = noted[[what for what, _ in noted].index("began", 1) :]
    after = {what: next(s for w, s in again if w == what) - killed for what in ("began", "ready", "step")}
    saves = sorted(seconds for what, seconds in noted if what == "saved")
    return {
        "step_seconds": steps[3] - steps[2],
        "megabytes": megabytes,
        "save_seconds": saves[len(saves) // 2],
        "to_begin": after["began"],
        "to_ready": after["ready"],
        "to_step": after["step"],
        "steps": len(steps),
    }


def main(given: Sequence[str] | None = None) -> None:
    runs = Runs(arguments(__doc__, HERE, given).folder / "measured.csv", ["repeat"], FOUND)
    for repeat in range(REPEATS):
        row = runs.row({"repeat": repeat}, measured)
        assert int(row["steps"]) == LOST_IN - 1 + NUM_STEPS - EVERY  # those after the checkpoint are made twice
        print(row)


if __name__ == "__main__":
    main()
