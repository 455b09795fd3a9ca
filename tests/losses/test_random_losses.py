"""Drawn faults under every method: no sample is lost or counted twice, and a run ends in time with all of its files."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from faulty import Faults, check_samples, survive
from methods import SHIPPED
from worlds import cluster, experiment, node

from hetsim.results.folder import FILES

pytestmark = [pytest.mark.slow, pytest.mark.long]

FOUR = cluster(
    *(node(seconds, 1e-3) for seconds in (1e-4, 5e-5, 7e-5, 2e-4)),
    network={"latency_seconds": 1e-4, "bytes_per_second": 1e9},
)
KINDS = ("kill", "kill", "stop", "segfault", "hold_gil", "drop_link")
NUM_DRAWN = 200
SURVIVE = [method for method in SHIPPED if method != "halos"]  # whose local servers do not go on without a worker


@pytest.mark.parametrize("seed", range(NUM_DRAWN))
def test_a_run_survives_drawn_losses(seed: int, tmp_path: Path) -> None:
    """One or two of four workers, never rank 0, are hurt at drawn updates; every method has its turn."""
    draw = random.Random(seed)
    method = SURVIVE[seed % len(SURVIVE)]
    size = {"num_parameters": 8, "num_samples": 480}
    described = experiment(
        f"method={method}", "workload=quadratic", workload=size, batch_size=24, cluster=FOUR, dtype="float64", budget={"epochs": 6}
    )
    faults = Faults()
    for rank in draw.sample([1, 2, 3], draw.choice([1, 1, 2])):
        faults = getattr(faults, draw.choice(KINDS))(rank=rank, at_update=draw.randrange(60))

    run = survive(described, faults, tmp_path, lost_after=1.0)

    assert run.seconds < 60
    assert {path.name for path in (tmp_path / "run").iterdir()} <= set(FILES)
    assert (tmp_path / "run" / "summary.json").exists()
    check_samples(run, described)
