"""What a Team gains on ranks of unequal speed, against what it could: python benchmarks/team.py [--turns 3] [--noise 0.0] [rule …]

Three ranks of speeds 1:2:4 train a small model over gloo, two epochs of a hundred steps. A rank sleeps in proportion to its samples.
`--noise` multiplies each sleep by a random factor: it is the standard deviation of the factor's logarithm. Even shares and the rules take
turns. The gain is the time of the even shares over that of the rule, in the same turn. The bound is Σv/(N·min v). "Settled" is the second
half of the second epoch.

A row has:

- the milliseconds of a step, the gain, and the gain's part of the bound: each of both epochs and settled (median of the turns, extremes)
- the number of exchanges of measured times
- the number of steps with another split than the step before
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import time
from collections import defaultdict
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from hetsim.ddp import Team
from hetsim.ddp.rules import RULES
from hetsim.policies.allocation import OptPerf, SpeedProportional

SPEEDS = (1, 2, 4)
BATCH_SIZE, STEPS, EPOCHS = 84, 100, 2
CANDIDATES = {
    **RULES,
    "dbs_every_step": SpeedProportional(),
    "dbs_every_20": SpeedProportional(reallocate_every=20, smoothing=0.5, dead_band=0.05),
    "optperf_10_probes": OptPerf(probes=10),
}
USUAL = ("dbs", "optperf")
"""The rules that are compared if none is named."""


def epochs(rank: int, rule: str, noise: float, seconds: float) -> dict[str, Any]:
    """Two epochs with one rule: the seconds of all steps and of the settled ones, exchanges, changes of the split."""
    team = Team(BATCH_SIZE, CANDIDATES[rule])
    torch.manual_seed(0)
    model = team.wrap(DistributedDataParallel(nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(BATCH_SIZE * STEPS, 20)
    loader = team.loader(TensorDataset(x, x[:, :3].argmax(dim=1)))
    chance = torch.Generator().manual_seed(rank)
    ends, shares = [], []
    dist.barrier()
    ends.append(time.perf_counter())
    for _ in range(EPOCHS):
        for inputs, targets in loader:
            loss = nn.functional.cross_entropy(model(inputs), targets)
            factor = float(torch.exp(noise * torch.randn((), generator=chance)))
            time.sleep(factor * seconds * len(inputs) / SPEEDS[rank])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ends.append(time.perf_counter())
            shares.append(team.shares)
    half = EPOCHS * STEPS - STEPS // 2
    return {
        "all": (ends[-1] - ends[0]) / (EPOCHS * STEPS),
        "settled": (ends[-1] - ends[half]) / (STEPS // 2),
        "exchanges": team.num_exchanges,
        "changes": sum(one != other for one, other in itertools.pairwise(shares)),
        "last": shares[-1],
    }


def ranks(rank: int, arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=arguments.port)
    dist.init_process_group("gloo", rank=rank, world_size=len(SPEEDS))
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for _ in range(arguments.turns):
        for rule in ("even", *(arguments.rules or USUAL)):
            found[rule].append(epochs(rank, rule, arguments.noise, arguments.seconds))
    if rank == 0:
        bound = sum(SPEEDS) / (len(SPEEDS) * min(SPEEDS))
        print(f"bound {bound:.3f}; {arguments.seconds:g} s a sample; log-normal noise {arguments.noise:g}; {arguments.turns} turns")
        for rule, turns in found.items():
            steps = "  ".join(f"{1e3 * statistics.median(turn[part] for turn in turns):6.1f} ms" for part in ("all", "settled"))
            parts = []
            for part in ("all", "settled"):
                gains = [even[part] / turn[part] / bound for even, turn in zip(found["even"], turns, strict=True)]
                parts.append(
                    f"{bound * statistics.median(gains):5.3f} = {statistics.median(gains):.3f} ({min(gains):.3f} to {max(gains):.3f})"
                )
            counts = [statistics.median(turn[what] for turn in turns) for what in ("exchanges", "changes")]
            print(f"{rule:18} {steps}   {'   '.join(parts)}   {counts[0]:g} exchanges  {counts[1]:g} changes  {turns[-1]['last']}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rules", nargs="*", choices=[*CANDIDATES, []], metavar="rule", help=f"if none is given, {' and '.join(USUAL)}")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--noise", type=float, default=0.0)
    parser.add_argument("--seconds", type=float, default=0.01, help="of a sample, on the slowest rank")
    parser.add_argument("--port", default="29511")
    torch.multiprocessing.spawn(ranks, (parser.parse_args(),), nprocs=len(SPEEDS))
