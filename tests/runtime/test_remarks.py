"""What a user is told about a finished run: what was probably not meant, and nothing about what was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from methods import SHIPPED
from omegaconf import OmegaConf
from worlds import cluster, composed, experiment, node

from hetsim.policies.allocation.base import Allocation, Even
from hetsim.policies.allocation.periodic import ProportionalController, SpeedProportional
from hetsim.runtime.budget import DEFAULT_EPOCHS, Budget
from hetsim.sim import Simulator

TWO = cluster(node(1e-3, count=2))


def warnings(folder: Path, *choices: str, budget: dict[str, Any], **keys: Any) -> list[str]:
    """Of a timing-only run, as its summary has them: 100 samples an epoch, batches of 10."""
    what: dict[str, Any] = {"workload": {"num_samples": 100}, "batch_size": 10, "cluster": TWO, **keys}
    Simulator().run(experiment(*choices, "workload=phantom", budget=budget, **what), folder, "")
    found = json.loads((folder / "summary.json").read_text())["warnings"]
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize(
    ("budget", "remark"),
    [
        ({"epochs": 20}, None),
        ({"epochs": 20, "updates": 10}, None),  # the default has not ended it
        ({"epochs": 3, "updates": 1000}, None),  # chosen together: whichever comes first
        ({"epochs": None, "updates": 10}, None),
        ({"epochs": 20, "updates": 200}, None),
        ({"updates": 10, "seconds": 1.0}, None),
        ({"epochs": 20, "updates": 1000}, "ended the run at 200 of budget.updates=1000 updates: add budget.epochs=null to run on"),
        ({"epochs": 20, "seconds": 60}, "ended the run at 1 of budget.seconds=60 seconds: add budget.epochs=null to run on"),
        ({"epochs": 20, "updates": 300, "seconds": 60}, "at 200 of budget.updates=300 updates and 1 of budget.seconds=60 seconds: add"),
    ],
)
def test_epochs_that_nobody_chose_and_that_end_a_run_before_a_chosen_limit_are_told(
    budget: dict[str, Any], remark: str | None, tmp_path: Path
) -> None:
    """A run of 200 updates in 1 s."""
    found = warnings(tmp_path, "method=ssgd", budget=budget)

    assert len(found) == (remark is not None)
    assert all(sentence.startswith("budget.epochs=20, the default, ") and str(remark) in sentence for sentence in found)


def test_the_default_is_that_of_the_config() -> None:
    """In one place for the reader, in two for the machine."""
    assert OmegaConf.to_container(composed().budget) == {"epochs": DEFAULT_EPOCHS, "updates": None, "seconds": None}
    assert Budget(epochs=20.0, updates=2).remark(1, 1.0) is not None


TABLES = {
    "one point of another size": ([[[8, 0.5]], [[1, 0.1], [2, 0.2]]], "the table of worker 0 has one point, [8, 0.5], so its gradients"),
    "several": ([[[8, 0.5]], [[8, 0.5]]], "the table of worker 0 (and of 1 more) has one point, [8, 0.5], so its gradients take 0.5 s"),
    "one point of the size that it takes": ([[[5, 0.5]], [[5, 0.7]]], None),
    "two points": ([[[1, 0.1], [8, 0.5]], [[1, 0.1], [8, 0.5]]], None),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_of_one_point_is_told_where_it_stands_for_other_sizes(name: str, tmp_path: Path) -> None:
    """Then a gradient takes as long whatever its samples, which is right for the measured size alone."""
    tables, remark = TABLES[name]

    nodes = cluster(*({"count": 1, "table": table} for table in tables))
    found = warnings(tmp_path, "method=ssgd", cluster=nodes, budget={"updates": 3})

    assert len(found) == (remark is not None)
    assert all(str(remark) in sentence and "\n" not in sentence for sentence in found)


@pytest.mark.parametrize(
    ("allocation", "num_epochs", "told"),
    [
        (SpeedProportional(reallocate_every="epoch"), 1.2, True),
        (ProportionalController(reallocate_every="epoch"), 0.5, True),
        (SpeedProportional(reallocate_every="epoch"), 2.0, False),
        (SpeedProportional(reallocate_every="epoch", repetitions=1), 1.0, False),
        (SpeedProportional(), 0.1, False),
        (Even(), 0.1, False),
    ],
)
def test_a_split_once_an_epoch_in_less_than_two_is_told(allocation: Allocation, num_epochs: float, told: bool) -> None:
    """It is even for the whole first epoch, unless it was measured before the run."""
    assert (allocation.remark(num_epochs) is not None) == told


def test_it_is_told_of_the_run_that_was_made(tmp_path: Path) -> None:
    """By the samples that were applied, whatever ended it."""
    (sentence,) = warnings(tmp_path, "method=dbs", budget={"updates": 13})

    assert sentence.startswith("allocation.reallocate_every=epoch splits by speed from the second epoch on, and the run had 1.3: give it")


UNEVEN = cluster(node(1e-3), node(3e-3))


@pytest.mark.parametrize(
    ("choices", "told"),
    [
        (("method=pipe_sgd", "allocation=static"), True),
        (("method=ssgd", "allocation=static"), True),
        (("method=local_sgd", "allocation=static"), True),
        (("method=ssgd", "allocation=static", "weighting=per_sample"), False),
        (("method=ssgd",), False),
        (("method=dbs_sgd",), False),  # each gradient makes a version
        (("method=hetgrad",), False),
    ],
)
def test_unequal_shares_that_count_the_same_are_told(choices: tuple[str, ...], told: bool, tmp_path: Path) -> None:
    """Where all workers make a version together."""
    found = warnings(tmp_path, *choices, budget={"updates": 30}, cluster=UNEVEN)

    assert [remark for remark in found if "weighting=per_sample does that" in remark] == found
    assert bool(found) == told


@pytest.mark.slow
@pytest.mark.parametrize("method", SHIPPED)
@pytest.mark.sampled(12)
def test_no_shipped_method_counts_unequal_shares_the_same(method: str, tmp_path: Path) -> None:
    """With a barrier, but for the one that was published so."""
    found = warnings(
        tmp_path, f"method={method}", budget={"updates": 60}, cluster=cluster(node(1e-3), node(2e-3), node(4e-3)), batch_size=24
    )

    assert not [remark for remark in found if "weighting" in remark]
