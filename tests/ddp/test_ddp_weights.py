"""Weights in four real processes: in groups of them, of tokens, under hooks that compress, of scaled losses; and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from ranks import result, world
from weight_laws import RANKS, all_weights, checked_alone

pytestmark = pytest.mark.slow
F64 = 1e-12


@pytest.fixture(scope="module")
def found() -> list[dict]:
    """What each rank found, by law."""
    return world(RANKS, all_weights)


@pytest.mark.parametrize("hook", ["allreduce", "given"])
@pytest.mark.sampled(1)
def test_groups_of_ranks_keep_their_gradients_apart(found, hook: str):
    """Two Teams of two ranks: the gradient of each is that of one process with its samples, whether the hook is given the group or not."""
    for rank in range(RANKS):
        assert result(found, "subgroups", rank)[hook] <= F64


def test_a_hook_in_a_group_averages_over_its_ranks(found):
    """One that compresses is given the group, too; one whose state has the group of all is refused."""
    for rank in range(RANKS):
        seen = result(found, "subgroups", rank)
        assert 0 < seen["fp16"] < 0.01
        assert seen["refused"] == [
            "the hook's state has another process group than the model, over whose ranks it would average: give it the model's"
        ]


def test_many_tokens_are_counted_exactly(found):
    """Thousands a sample, and none on one rank of the first step: the mean over all of them, in a short step too."""
    for rank in range(RANKS):
        assert max(result(found, "tokens", rank)["errors"]) <= F64


def test_counted_gradients_are_of_the_size_of_a_mean(found):
    """So that they fit into 16 bits: the error is that of these."""
    for rank in range(RANKS):
        seen = result(found, "tokens_fp16", rank)
        assert seen["numbers"]
        assert 1e-6 < max(seen["errors"]) < 2e-3


def test_power_sgd_averages_weighted_gradients(found):
    """With error feedback: exact where its rank is that of the gradient."""
    assert result(found, "power_sgd") <= F64


def test_a_contrastive_loss_is_scaled(found):
    """Over the samples of all ranks, which send gradients back: that of one process."""
    for rank in range(RANKS):
        assert result(found, "contrastive", rank) <= F64


def test_a_scaled_loss_of_weight_zero_adds_nothing_that_is_no_number(found):
    """0/0 on a rank without tokens, in a model whose ranks exchange gradients in the backward pass: the mean over the others' tokens."""
    for rank in range(RANKS):
        seen = result(found, "no_tokens", rank)
        assert seen["error"] <= F64
        assert seen["values"] == [0.0, 0.0] if rank == 1 else min(seen["values"]) > 0


def test_means_are_not_truncated(found):
    """Shares of 16, 8, 4 and 4: of truth values and whole numbers in torch's default dtype, of others in theirs."""
    seen = result(found, "means")

    assert seen["truth"].tolist() == [0.5, 1.0]
    assert float(seen["whole"]) == float(seen["half"]) == seen["number"] == (8 + 2 * 4 + 3 * 4) / 32
    assert [seen[name].dtype for name in ("truth", "whole", "half")] == [torch.get_default_dtype()] * 2 + [torch.bfloat16]


@pytest.mark.realtime
def test_a_module_that_the_script_calls_itself_is_timed_as_computing(found):
    """Steps with 20 ms of sleep before DDP is called and 50 ms after the backward pass: every rank takes 20 ms or more."""
    seen = result(found, "called_directly")

    assert len(seen) >= 3
    assert all(0.02 <= seconds < 1.0 for each in seen for seconds in each)


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("short", "the last step of this epoch has 2 samples for 4 ranks"),
        ("before the loader", "load_state_dict was not given the same state on all ranks: load it on each of them"),
        ("after it", "load_state_dict was not given the same state on all ranks: load it on each of them"),
        ("junk", "this is not what state_dict of a Team returns, as it has no position"),
        ("traced", "a trace, and hetsim-ddp-check, have the steps of a wrapped model"),
        ("others", "allocation must be the same on all ranks"),
        ("stream", "an IterableDataset has its own order of samples"),
        ("counted", "leave no_sync out, or do not wrap the model and take team.scale(loss, tokens)"),
    ],
)
def test_what_would_be_wrong_is_refused_on_every_rank(found, what: str, sentence: str):
    """One sentence, the same on all ranks."""
    for rank in range(RANKS):
        assert sentence in result(found, "refused", rank)[what]


@pytest.mark.parametrize("what", ["dropped", "own"])
def test_what_is_right_is_not_refused(found, what: str):
    """A scaled loss without a short step; an allocation of the user's own that is printed as something else in every process."""
    for rank in range(RANKS):
        assert result(found, "refused", rank)[what] == ""


def test_a_check_in_one_process_is_not_bounded(tmp_path: Path):
    """`max_samples` is what fits into the memory of each of several."""
    assert set(world(1, checked_alone, str(tmp_path))[0].values()) == {""}
