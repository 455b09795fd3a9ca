"""How long a run that cannot continue takes to end: python benchmarks/endings.py [--repeats 5]

Real processes on this host, an endless quadratic, signs of life every 0.2 s, lost after 1 s without one. A process is killed or stopped two
seconds after the run has begun; a row has the seconds until the command has ended, medians (extremes), its exit status and its sentence.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WORDS = ("backend=dist", "workload=quadratic", "cluster=uniform4", "budget.epochs=1e6", "pictures=false", "trace=none")
LOSSES = ("backend.heartbeat_seconds=0.2", "backend.lost_after_seconds=1")
PYTHON = (sys.executable, "-m")
TORCHRUN = (*PYTHON, "torch.distributed.run", "--standalone", "--nproc-per-node")
CASES: dict[str, tuple[tuple[str, ...], tuple[str, ...], signal.Signals, int]] = {
    "the server is killed": ((*PYTHON, "hetsim"), ("method=asgd",), signal.SIGKILL, -1),
    "the server is stopped": ((*PYTHON, "hetsim"), ("method=asgd",), signal.SIGSTOP, -1),
    "halos: a local server is killed": ((*PYTHON, "hetsim"), ("method=halos",), signal.SIGKILL, -1),
    "hetsim-launch: the server is killed": ((*PYTHON, "hetsim.cli.launch", "--processes", "5", "--"), ("method=asgd",), signal.SIGKILL, -1),
    "torchrun: a worker is killed, server": ((*TORCHRUN, "5", "-m", "hetsim"), ("method=asgd",), signal.SIGKILL, -2),
    "torchrun: a worker is killed, all-reduce": ((*TORCHRUN, "4", "-m", "hetsim"), ("method=ssgd",), signal.SIGKILL, -2),
}
"""The command, its words, and what happens to which of its processes, counted from the one that was started last."""
LIMIT_SECONDS = 120


def descendants(ancestor: int) -> list[int]:
    """The living processes that a process and those after it have started, the oldest first."""
    parents, since = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if fields[0] != "Z":
            parents[int(path.parent.name)], since[int(path.parent.name)] = int(fields[1]), int(fields[19])
    found = {ancestor}
    while more := {pid for pid, parent in parents.items() if parent in found and pid not in found}:
        found |= more
    return sorted(found & since.keys(), key=since.__getitem__)


def ended(command: tuple[str, ...], words: tuple[str, ...], number: signal.Signals, which: int, folder: Path) -> tuple[float, int, str]:
    """Seconds from the signal to the end, the exit status, and the sentence that was told. No process is left."""
    process = subprocess.Popen(
        [*command, *WORDS, *LOSSES, *words, f"hydra.run.dir={folder}"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    all_of_them = [process.pid]
    try:
        while not (folder / ".config.yaml.unfinished").exists():
            time.sleep(0.05)
            assert process.poll() is None
        time.sleep(2)
        all_of_them, begun = descendants(process.pid), time.monotonic()
        os.kill(all_of_them[which], number)
        _, told = process.communicate(timeout=LIMIT_SECONDS)
        seconds = time.monotonic() - begun
        while any(Path(f"/proc/{pid}").exists() for pid in all_of_them):  # what multiprocessing starts for itself ends by itself
            time.sleep(0.05)
            assert time.monotonic() < begun + LIMIT_SECONDS
    finally:
        for pid in all_of_them:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    lines = told.strip().splitlines()
    return seconds, process.returncode, next((line for line in reversed(lines) if "lost" in line or "gone" in line), lines[-1])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for place, name in enumerate(arguments.cases):
            found = [ended(*CASES[name], Path(folder, f"{place}-{number}")) for number in range(arguments.repeats)]
            seconds = [each[0] for each in found]
            print(f"| {name} | {statistics.median(seconds):.2f} ({min(seconds):.2f} … {max(seconds):.2f}) | {found[-1][1]} |", flush=True)
            print(f"    {found[-1][2]}", flush=True)


if __name__ == "__main__":
    main()
