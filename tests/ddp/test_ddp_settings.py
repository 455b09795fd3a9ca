"""The script's own settings in three real processes: what it waits is no work, what it has set is kept, or refused in one sentence."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable
from datetime import timedelta
from types import MappingProxyType
from typing import Any

import pytest
import torch
from ranks import result, world
from setting_laws import CALLS, all_settings

from hetsim.ddp.clock import HostClock
from hetsim.ddp.grain import Grain
from hetsim.ddp.loader import Reshuffled
from hetsim.ddp.passes import backward_pass
from hetsim.ddp.schedule import Step
from hetsim.ddp.windows import Window
from hetsim.workloads.device import moved


@pytest.fixture(scope="module")
def found() -> list[dict]:
    """What each of three ranks found, by law."""
    return world(3, all_settings)


@pytest.mark.slow
@pytest.mark.realtime
@pytest.mark.parametrize("call", [*CALLS, "own"])
def test_a_call_that_waits_for_another_rank_is_no_work(found, call: str):
    """From when rank 0 was there until rank 1 was: collectives at once and later, one to one, and what the script says."""
    assert result(found, "waits")[call]


@pytest.mark.slow
def test_torch_has_its_own_methods_again_when_the_team_is_closed(found):
    """Of process groups and of what they return."""
    seen = result(found, "waits")

    assert all(seen["timed"])
    assert all(seen["undone"])


@pytest.mark.slow
def test_a_model_is_freed_with_its_team(found):
    """DDP's hooks do not keep it; torch has its own methods again without `close`."""
    for rank in range(3):
        assert result(found, "freed", rank) == [True, True]


def test_without_torchs_number_of_a_backward_pass_each_is_another(monkeypatch: pytest.MonkeyPatch):
    """It is private, and may go."""
    assert backward_pass() == backward_pass()

    monkeypatch.delattr(torch._C, "_current_graph_task_id")

    assert backward_pass() != backward_pass()


@pytest.mark.slow
def test_a_wrapped_model_can_be_copied(found):
    """A copy computes as the model does. Trained, it is refused, because no Team weights its gradients; another Team may wrap it."""
    for rank in range(3):
        seen = result(found, "copies", rank)
        assert seen["same"]
        assert "this model is a copy of one that a Team wraps" in seen["sentence"]
        assert seen["error"] == 0


@pytest.mark.slow
def test_a_second_communication_hook_is_refused(found):
    """Whether it was registered in Python or in C++."""
    for sentence in result(found, "hooked"):
        assert sentence.startswith("the model has a communication hook already")


@pytest.mark.slow
def test_shares_are_multiples_and_not_below_the_least(found):
    """Of 4 samples and at least 18, which 20 are, whatever the rule decides; a short last step is refused."""
    shares = result(found, "multiples")

    assert len(set(shares)) > 2
    assert all(sum(each) == 112 and min(each) >= 18 and not any(share % 4 for share in each) for each in shares)
    assert "add drop_last=True" in result(found, "short")


@pytest.mark.slow
def test_the_team_has_the_timeout_of_the_script(found):
    """Not torch's default of half an hour."""
    assert result(found, "timeout") == (timedelta(seconds=300),) * 2


@pytest.mark.parametrize(
    ("act", "sentence"),
    [
        (lambda: Grain(0), "multiple_of must be at least 1, not 0"),
        (lambda: Grain(1, 0), "at_least must be at least 1, not 0"),
        (lambda: Grain(8).units(100, 3), "batch_size=100 cannot be divided into multiples of multiple_of=8: take 96"),
        (lambda: Grain(8).units(16, 3), "batch_size=16 is less than 8 samples for each of 3 ranks"),
        (lambda: Grain(8, 9).units(32, 3), "batch_size=32 is less than 16 samples for each of 3 ranks"),
        (lambda: Grain(8).bounds((7, 99), 32), "max_samples of 7, 99 hold no split of batch_size=32 into multiples of 8"),
        (lambda: Grain(8).bounds((15, 31), 40), "max_samples of 15, 31 hold no split of batch_size=40"),
    ],
)
def test_shares_that_cannot_be_are_refused(act: Callable[[], Any], sentence: str):
    """One sentence."""
    with pytest.raises(ValueError, match="^" + sentence.replace("(", r"\(")):
        act()


def test_a_split_in_units_is_one_in_samples():
    """Ranks below the least get the fewest, and no rank more than its bound."""
    assert Grain(8).samples((1, 3), None) == (8, 24)
    assert Grain(2, 7).samples((1, 9, 10), None) == (8, 16, 16)
    assert Grain(2, 7).samples((1, 9, 10), (20, 20, 8)) == (8, 16, 16)
    assert Grain(8, 16).bounds((17, 40), 40) == (2, 5)


class Encoded:
    """A batch that moves itself, as that of a tokenizer."""

    device = "cpu"

    def to(self, device: str) -> Encoded:
        other = Encoded()
        other.device = device
        return other


def test_batches_are_moved_in_containers_of_their_types():
    """What has `to`, also within mappings of any kind, and what has not is left as it is."""
    given = defaultdict(list, x=torch.zeros(1), encoded=Encoded())
    parts = moved([OrderedDict(x=torch.zeros(1)), given, MappingProxyType({"x": torch.zeros(1)}), "text"], "meta")

    assert [type(part) for part in parts] == [OrderedDict, defaultdict, MappingProxyType, str]
    assert all(part["x"].device.type == "meta" for part in parts[:3])
    assert parts[1]["encoded"].device == "meta"
    assert parts[1]["absent"] == []
    assert given["x"].device.type == given["encoded"].device == "cpu"


def test_a_sampler_takes_set_epoch():
    """And does nothing; another loader cannot draw its samples, which no Team would weight."""
    assert Reshuffled().set_epoch(1) is None
    with pytest.raises(ValueError, match="another DataLoader cannot draw"):
        list(torch.utils.data.DataLoader(range(4), batch_sampler=Reshuffled()))


@pytest.mark.slow
def test_a_loader_has_what_scripts_read_of_a_data_loader(found):
    """timm sets the epoch of `batch_sampler`; a size that changes is named."""
    seen = result(found, "read")

    assert seen["same"]
    assert (seen["num_workers"], seen["pin_memory"]) == (0, False)
    assert seen["batch_size"].startswith("a Team's loader has no batch_size")


def test_waits_that_overlap_count_once():
    """A call within `waiting`, and a wait that began before the window."""
    waits = ((-1.0, 1.0), (2.0, 5.0), (3.0, 4.0), (4.5, 6.0))

    assert Window(0, Step(0, 0, 2, (1, 1), (1, 1), True), 1, 0, 0.0, 10.0, waits).seconds(HostClock()) == 5.0
