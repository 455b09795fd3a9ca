"""Are slow ranks of real runs found, and is the time without them predicted?

    python benchmarks/stragglers.py [--turns 3] [padded] [team] [quota]

Each job runs in real processes with a throttled rank and without. A row has the ranks that hetsim-stragglers finds in the throttled run,
the milliseconds of a step there, and those without the throttle, predicted from the throttled run and measured; then the same of DBS.

- padded: four workers, of which one is slowed by the described cluster (`backend=dist`)
- quota: four workers of 0.4 of a core, of which one has 0.2 (`backend.emulate=quota`; it needs cgroups, so it runs only if it is named)
- Team: a script of three ranks that sleep in proportion to their samples, of which one sleeps twice as long
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import hetsim
from hetsim import Team

WORDS = ("backend=dist", "workload=digits", "batch_size=64", "budget.epochs=null", "pictures=false", "cluster=uniform4")
FAST = "count: 3, seconds_per_sample: 2e-3, overhead_seconds: 2e-3"
LAST = "count: 1, seconds_per_sample: {}, overhead_seconds: 2e-3"
QUOTA = "count: {}, seconds_per_sample: 1e-5, overhead_seconds: 0, cpu_quota: {}"
RANKS, STEPS, BATCH_SIZE, SECONDS = 3, 150, 48, 2e-3


def job(folder: Path, *words: str) -> Any:
    """The slow ranks of a run."""
    command = [sys.executable, "-m", "hetsim", *WORDS, f"hydra.run.dir={folder}", *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return hetsim.stragglers(folder)


def ranks(rank: int, folder: Path, allocation: str, slow: float, port: int) -> None:
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    team = Team(model, optimizer, batch_size=BATCH_SIZE, allocation=allocation, trace=folder)
    x = torch.randn(BATCH_SIZE * STEPS, 20)
    for inputs, targets in team.loader(TensorDataset(x, x[:, :3].argmax(dim=1))):
        time.sleep(SECONDS * len(inputs) * (slow if rank == 1 else 1.0))
        optimizer.zero_grad()
        team.share(nn.functional.cross_entropy(model(inputs), targets, reduction="none")).backward()
        team.step()
    team.close()
    dist.barrier()
    dist.destroy_process_group()


def team(folder: Path, allocation: str, slow: float) -> Any:
    """The slow ranks of a script with a Team."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(ranks, (folder, allocation, slow, port), nprocs=RANKS)
    return hetsim.stragglers(folder)


def milliseconds(found: Any) -> float:
    return 1e3 * float(found.data["seconds"]) / int(found.data["num_steps"])


def row(name: str, turns: list[dict[str, Any]]) -> str:
    """Who was found, and predicted and measured times."""
    slow = [turn["slow"].data for turn in turns]
    named = [[its for its in data["stragglers"] if its["rank"] is not None and (its["cost"] or 0) > 0.01] for data in slow]
    who = [", ".join(f"rank {its['rank']} {'+'.join(its['kinds'])}" for its in these) or "nobody" for these in named]
    before = statistics.median(milliseconds(turn["slow"]) for turn in turns)
    line = f"{name:22} {'; '.join(f'{who.count(each)} × {each}' for each in dict.fromkeys(who)):38} {before:8.1f}"
    for key, change in (("healthy", "at the median"), ("dbs", "DBS")):
        if key not in turns[0]:
            continue
        predicted, measured = [], []
        for turn, data in zip(turns, slow, strict=True):
            saved = [saved for what, saved in (data["replay"] or {"saved": {}})["saved"].items() if what.endswith(change)]
            predicted.append(milliseconds(turn["slow"]) * (1 - (saved[-1] if saved else 0.0)))
            measured.append(milliseconds(turn[key]))
        one, other = statistics.median(predicted), statistics.median(measured)
        line += f" {one:10.1f} {other:9.1f} {one / other - 1:+8.1%}"
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("jobs", nargs="*", metavar="job", help="padded, team, quota")
    given = parser.parse_args()
    jobs = given.jobs or ["padded", "team"]
    print(f"{'job':22} {'found':38} {'measured':>8} {'without':>10} {'measured':>9} {'error':>8} {'DBS':>10} {'measured':>9} {'error':>8}")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        load = place / "load.csv"
        load.write_text("seconds,factor\n0,1\n1,3\n1.6,1\n")
        slow, usual = (f"[{{{FAST}}},{{{LAST.format(seconds)}}}]" for seconds in ("4e-3", "2e-3"))
        spell = f"[{{{FAST}}},{{{LAST.format('2e-3')}, slowdown: '{load}'}}]"
        padded = {
            "padded, chronic": {"slow": (slow, "even"), "healthy": (usual, "even"), "dbs": (slow, "dbs")},
            "padded, a spell": {"slow": (spell, "even"), "healthy": (usual, "even")},
        }
        for number, (name, runs) in enumerate(padded.items() if "padded" in jobs else ()):
            turns = [
                {
                    key: job(
                        place / f"{number}-{key}-{turn}",
                        *(
                            "method=ssgd",
                            f"cluster.nodes={nodes}",
                            f"allocation={allocation}",
                            "weighting=per_sample",
                            "budget.updates=80",
                        ),
                    )
                    for key, (nodes, allocation) in runs.items()
                }
                for turn in range(given.turns)
            ]
            print(row(name, turns), flush=True)
        if "quota" in jobs:
            quotas = {"slow": (3, 0.4, 1, 0.2), "healthy": (3, 0.4, 1, 0.4)}
            turns = []
            for turn in range(given.turns):
                made = {key: f"[{{{QUOTA.format(*its[:2])}}},{{{QUOTA.format(*its[2:])}}}]" for key, its in quotas.items()}
                common = ("method=ssgd", "batch_size=65536", "backend.emulate=quota", "budget.updates=40")
                turns.append({key: job(place / f"quota-{key}-{turn}", *common, f"cluster.nodes={its}") for key, its in made.items()})
            print(row("quota, chronic", turns), flush=True)
        if "team" in jobs:
            settings = {"slow": ("even", 2.0), "healthy": ("even", 1.0), "dbs": ("dbs", 2.0)}
            turns = [{key: team(place / f"team-{key}-{turn}", *its) for key, its in settings.items()} for turn in range(given.turns)]
            print(row("Team, chronic", turns), flush=True)


if __name__ == "__main__":
    main()
