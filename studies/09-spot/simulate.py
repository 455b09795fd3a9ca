"""Simulate what is missing in results.csv: python simulate.py [--quick] [--folder FOLDER] [--published FOLDER]

The traces may not be shipped, so they are read from `--published`; without it, or with --quick, a made one stands for them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from cases import HERE, INTERVAL, METHODS, MIXES, SERVERS, Market, job, made, mix, read
from common import Runs, arguments
from tqdm import tqdm

IDENTITY = ["trace", "method", "mix", "interval", "start"]
FOUND = ["num_nodes", "hours", "on_demand_hours", "spot_hours", "dollars", "repeated", "restarts"]
TRACES = {
    "4 nodes": "preemption_4-node_aws-08-03-2023_us-east-2a_v100_1.json",
    "16 nodes": "availability_16-node_aws-08-27-2023_us-west-2c_v100_1.json",
}
STARTS = 12
SAMPLES = 115_303_590
"""90 epochs of ImageNet."""
INTERVALS = (60.0, 300.0, 600.0, 1800.0, 3600.0)


def cases(starts: int) -> Iterator[tuple[str, str, float, int]]:
    """Method, mix, seconds between checkpoints and start; without spot nodes, all starts are alike."""
    for method in METHODS:
        for name in MIXES:
            yield from ((method, name, INTERVAL, start) for start in range(1 if name == "on demand" else starts))
    for interval in INTERVALS:
        yield from (("ssgd_torchrun", "spot", interval, start) for start in range(starts))


def row(market: Market, method: str, name: str, interval: float, start: int, starts: int, num_samples: int) -> dict[str, object]:
    """Simulate one job."""
    of = mix(market, MIXES[name], start * len(market.counts) // starts)
    found = job(method, of, num_samples, interval)
    hours = of.hours(found.seconds)
    return {
        "num_nodes": market.num_nodes,
        "hours": found.seconds / 3600,
        "on_demand_hours": float(sum(hours[: of.fixed])),
        "spot_hours": float(sum(hours[of.fixed :])),
        "dollars": of.dollars(found.seconds, server=method in SERVERS),
        "repeated": found.repeated / num_samples,
        "restarts": found.restarts,
    }


def main(given: Sequence[str] | None = None) -> None:
    given = list(sys.argv[1:] if given is None else given)
    at = given.index("--published") if "--published" in given else len(given)
    published, asked = given[at + 1 : at + 2], arguments(__doc__, HERE, given[:at] + given[at + 2 :], runs=True)
    if asked.quick or not published:
        markets, starts, num_samples = [made(4)], 2, SAMPLES // 20
    else:
        markets, starts, num_samples = [read(Path(published[0]) / file, name) for name, file in TRACES.items()], STARTS, SAMPLES
    runs = Runs(asked.folder / "results.csv", IDENTITY, FOUND)
    for market in markets:
        for case in tqdm(list(cases(starts)), disable=None):
            identity = dict(zip(IDENTITY, (market.name, *case), strict=True))
            runs.row(identity, lambda market=market, case=case: row(market, *case, starts, num_samples))


if __name__ == "__main__":
    main()
