"""`+workload.num_samples=`: a fixed part of the training set, balanced by class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from worlds import experiment

from hetsim.files.identity import identity_of
from hetsim.workloads.data.digits import Digits
from hetsim.workloads.data.part import part_of


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.data())
@examples(60)
def test_a_part_has_as_many_of_each_class(labels: list[int], data: st.DataObject) -> None:
    """Up to one, as long as each class has any left; in order, each once; a larger part has all of a smaller one."""
    size = data.draw(st.integers(1, len(labels)))
    part = part_of(len(labels), size, np.array(labels))

    counts = np.bincount(np.array(labels)[part], minlength=5)
    left = np.bincount(labels, minlength=5) - counts
    assert all(counts[one] >= counts.max() - 1 for one in range(5) if left[one])
    assert part.tolist() == sorted(set(part.tolist()))
    assert len(part) == size
    assert set(part_of(len(labels), max(1, size - 1), np.array(labels))) <= set(part)


def test_without_labels_a_part_is_drawn() -> None:
    """Not the first samples, and the same again."""
    part = part_of(1000, 100, None)

    assert part.tolist() == part_of(1000, 100, None).tolist()
    assert part.tolist() != list(range(100))
    assert 300 < part.mean() < 700


@pytest.mark.parametrize("num_samples", [100, 105, 1437])
def test_a_part_of_the_digits_is_the_same_for_every_seed(num_samples: int) -> None:
    """Ten classes, as many of each; the test set is whole."""
    one, other = (experiment("workload=digits", workload={"num_samples": num_samples}, seed=seed).load()[0] for seed in (0, 1))

    counts = torch.bincount(one._y_train.data)
    assert torch.equal(one._x_train.data, other._x_train.data)
    assert (one.num_samples, len(one._x_train), len(one._y_test)) == (num_samples, num_samples, 360)
    assert num_samples == 1437 or counts.max() - counts.min() == (num_samples % 10 != 0)


def test_the_whole_set_as_a_part_is_the_set() -> None:
    """In its own order."""
    arrays = Digits(model="mlp").read()
    whole, part = (experiment("workload=digits", workload=keys).load()[0] for keys in ({}, {"num_samples": len(arrays.y_train)}))

    assert torch.equal(whole._x_train.data, part._x_train.data)
    assert torch.equal(whole._y_train.data, part._y_train.data)


def test_a_part_is_standardised_by_its_own_numbers(tmp_path: Path) -> None:
    """It is the training set of the run."""
    x, y = np.arange(40.0).reshape(40, 1), np.arange(40) % 2
    np.savez(tmp_path / "own.npz", x_train=x, y_train=y, x_test=x, y_test=y)

    task = experiment("workload=arrays", workload={"path": str(tmp_path / "own.npz"), "num_samples": 10}, dtype="float64").load()[0]

    assert task._mean.item() == pytest.approx(task._x_train.data.mean().item())
    assert len(task._x_train) == 10


@pytest.mark.parametrize(
    ("num_samples", "sentence"),
    [
        (1438, r"^workload\.num_samples=1438 is more than the 1437 samples of the training set: lower it$"),
        (0, r"^workload\.num_samples must be at least 1, not 0$"),
        (1.5, r"^workload\.num_samples must be a whole number, not 1\.5$"),
    ],
)
def test_a_part_that_is_none_is_refused(num_samples: float, sentence: str) -> None:
    """In one sentence."""
    with pytest.raises(ValueError, match=sentence):
        experiment("workload=digits", workload={"num_samples": num_samples}).load()


def test_the_key_has_no_part_in_the_identity_of_runs_without_it() -> None:
    """It is in no config that ships, so that finished runs are known again."""
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    from hetsim.trust.shipped import configs

    with initialize_config_dir(version_base="1.3", config_dir=str(configs())):
        plain, part = (OmegaConf.to_container(compose("config", overrides=words)) for words in ([], ["+workload.num_samples=100"]))
    assert "num_samples" not in plain["workload"]
    assert identity_of(plain) != identity_of(part)
