"""transformers' Trainer with a Team trains as one process does, resumes, and keeps even shares for a loss that it does not know."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ranks import result, world

pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("accelerate", reason="Accelerate is not installed")

import trainer_laws

pytestmark = pytest.mark.slow


IN_SHORT = ("tokens of an accumulation over two batches", "a mean over samples")
"""The losses of `make test`; all of them run with `-m long`."""
UNKNOWN_IN_SHORT = ("a loss that ignores num_items_in_batch in a part",)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return world(2, trainer_laws.run, tmp_path_factory.mktemp("trainer"), IN_SHORT, UNKNOWN_IN_SHORT)


def check_exact(folder: Path, names: Sequence[str], found: Sequence[dict[str, Any]]) -> None:
    """The weights after two epochs, in double precision, are those of a plain Trainer of the whole batch in one process."""
    (serial,) = world(1, trainer_laws.serial, folder, names)
    differences = {name: max(abs(rank[name] - serial[name]).max() for rank in found) for name in names}
    assert {name: difference for name, difference in differences.items() if not difference < 1e-12} == {}


def test_a_loss_trains_as_in_one_process(found: list[dict[str, Any]], tmp_path: Path):
    """With shares of 1 : 2."""
    check_exact(tmp_path, IN_SHORT, [result(found, "trained", rank) for rank in range(2)])


@pytest.mark.long
def test_every_kind_of_loss_trains_as_in_one_process(tmp_path: Path):
    names = tuple(trainer_laws.CASES)
    found = world(2, trainer_laws.run, tmp_path, names, tuple(trainer_laws.EVEN))
    check_exact(tmp_path, names, [result(found, "trained", rank) for rank in range(2)])
    for name in trainer_laws.EVEN:
        test_an_unknown_loss_trains_as_without_a_team(found, name)


@pytest.mark.parametrize("name", UNKNOWN_IN_SHORT)
def test_an_unknown_loss_trains_as_without_a_team(found: list[dict[str, Any]], name: str):
    difference, remark, error = result(found, "even")[name]

    assert difference < 1e-15
    assert remark.startswith("all ranks keep even shares, because the values of the loss are not those of")
    assert error.startswith("the shares are uneven, and the values of the loss are not those of")


def test_a_run_resumes_in_the_middle_of_an_epoch(found: list[dict[str, Any]]):
    """With the samples that are left, in their order, and to the weights and logged epochs of a run without a pause."""
    for rank in range(2):
        difference, (whole, later), (epochs, logged) = result(found, "resumed", rank)
        assert difference == 0
        assert logged == epochs
        assert later == whole[-len(later) :]
        assert 0 < len(later) < len(whole)


def test_what_cannot_be_balanced_gets_a_sentence(found: list[dict[str, Any]]):
    said = result(found, "refused")
    for name, (_, sentence) in trainer_laws.REFUSED.items():
        assert sentence in said[name]
    assert "the checkpoint has no state of a Team" in said["another Trainer's"]
    assert "this state has batch_size=12, and this Team has 24" in said["other steps"]
