"""Drawn faults under every method: no sample is lost or counted twice, and a run ends in time with all of its files."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from faulty import Faults, applied_until, check_samples, survive
from methods import SHIPPED
from worlds import cluster, experiment, node, simulate

from hetsim.checkpoints.folder import newest
from hetsim.errors import RunStopped
from hetsim.files.folder import FILES
from hetsim.runtime.checkpointing import Checkpointing

pytestmark = [pytest.mark.slow, pytest.mark.long]

FOUR = cluster(
    *(node(seconds, 1e-3) for seconds in (1e-4, 5e-5, 7e-5, 2e-4)),
    network={"latency_seconds": 1e-4, "bytes_per_second": 1e9, "sharing": "none"},
)
KINDS = ("kill", "kill", "stop", "segfault", "hold_gil", "drop_links")
NUM_DRAWN = 200
NUM_SAVED = 76
LOST_AFTER_SECONDS = 3.0
"""A process gets no CPU for as long as a second where two cores have fifty threads to run."""
CHOICES = {"halos": ["coordination.num_regions=2", "coordination.merge_every=2", "coordination.period=2"]}
EPOCHS = {"halos": 60}
"""Most of what workers push while a merge is on its way makes no version, of which there are few, then; the others: six."""
HURT_UNTIL = {"halos": 0.03}
"""The share of the simulated versions at which processes are hurt: half, but where real runs, which do not wait, make fewer of them."""


@pytest.mark.parametrize("seed", range(NUM_DRAWN))
def test_a_run_survives_drawn_losses(seed: int, tmp_path: Path) -> None:
    """One to three of four workers are hurt at drawn updates, also who leads; every method has its turn."""
    draw = random.Random(seed)
    method = SHIPPED[seed % len(SHIPPED)]
    size = {"num_parameters": 8, "num_samples": 480}
    described = experiment(
        f"method={method}", "workload=quadratic", *CHOICES.get(method, ()), workload=size, batch_size=24, cluster=FOUR, dtype="float64",
        budget={"epochs": EPOCHS.get(method, 6)},
    )  # fmt: skip
    num_updates = len(simulate(described).seconds)
    latest = max(1, int(HURT_UNTIL.get(method, 0.5) * num_updates))
    faults = Faults()
    for rank in draw.sample(range(4), draw.choice([1, 1, 2, 3])):
        faults = getattr(faults, draw.choice(KINDS))(rank=rank, at_update=draw.randrange(latest))

    run = survive(described, faults, tmp_path, lost_after=LOST_AFTER_SECONDS)

    assert run.happened
    assert run.summary["emulation"]["losses"]
    assert run.summary["seconds"] < 60
    assert {path.name for path in (tmp_path / "run").iterdir()} <= set(FILES)
    assert (tmp_path / "run" / "summary.json").exists()
    check_samples(run, described)


@pytest.mark.parametrize("seed", range(NUM_SAVED))
def test_a_saved_run_survives_drawn_losses_and_goes_on_from_where_it_is_stopped(seed: int, tmp_path: Path) -> None:
    """It is saved often, stopped if it comes so far, resumed, and hurt again."""
    draw = random.Random(1000 + seed)
    method = SHIPPED[seed % len(SHIPPED)]
    size = {"num_parameters": 8, "num_samples": 480}
    described = experiment(
        f"method={method}", "workload=quadratic", *CHOICES.get(method, ()), workload=size, batch_size=24, cluster=FOUR, dtype="float64",
        budget={"epochs": EPOCHS.get(method, 6)},
    )  # fmt: skip
    saved = replace(described, checkpoint=Checkpointing(every_updates=draw.randrange(1, 9)))
    faults, again = Faults(), Faults()
    *hurt, asked = draw.sample(range(4), draw.choice([2, 3]))
    for rank in hurt:
        faults = getattr(faults, draw.choice(KINDS))(rank=rank, at_update=draw.randrange(20))
    again = getattr(again, draw.choice(KINDS))(rank=draw.randrange(4), at_update=draw.randrange(20, 60))

    try:
        whole = survive(
            saved, faults.terminate(rank=asked, at_update=draw.randrange(10, 30)), tmp_path / "first", lost_after=LOST_AFTER_SECONDS
        )
    except RunStopped:
        last = newest(tmp_path / "first" / "run")
        rest = survive(replace(saved, resume=last), again, tmp_path / "second", lost_after=LOST_AFTER_SECONDS)
        batches, summary = applied_until(tmp_path / "first", int(last.name[:12])) + rest.batches, rest.summary
    else:
        batches, summary = whole.batches, whole.summary

    positions = [position for batch in batches for position in range(batch.start, batch.stop)]
    assert len(positions) == len(set(positions)) == summary["num_samples"]
    assert summary["num_samples"] + summary["num_samples_discarded"] == EPOCHS.get(method, 6) * 480
    assert (tmp_path / "first" / "happened").read_text() or summary["num_updates"] < 20
    assert {path.name for path in tmp_path.glob("*/run/*")} <= {*FILES, "checkpoints"}
