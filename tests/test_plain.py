"""State as plain values: JSON and back, of the same type, and of no class that the expected type does not name."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch

from hetsim.coordination.bookkeeping.pools import Cursors
from hetsim.coordination.plan import Layout, Split
from hetsim.effects import Batch
from hetsim.plain import Tensors, Unreadable, from_plain, reachable, to_plain
from hetsim.vector import Phantom, Vector


class Pair(NamedTuple):
    """A named tuple."""

    first: int
    second: str


@dataclass(frozen=True)
class Inner:
    """A dataclass in another one."""

    numbers: tuple[float, ...]


@dataclass(frozen=True)
class Longer(Inner):
    """A subclass."""

    more: bool = False


@dataclass(frozen=True)
class Outer:
    """A state."""

    inner: Inner | Longer | None
    pairs: Mapping[int, Pair]
    vector: Vector = None
    anything: Any = None
    ranges: Collection[Batch] = ()
    next_sample: int | Cursors = 0


@dataclass(frozen=True)
class Stranger:
    """No part of a state."""

    made: int = 0


def sent(value: Any, kind: Any = Outer) -> Any:
    """The value after its way through JSON."""
    tensors: Tensors = {}
    text = json.dumps(to_plain(value, tensors), allow_nan=False)
    return from_plain(kind, json.loads(text), tensors=dict(tensors.values()))


@pytest.mark.parametrize(
    "value",
    [
        Outer(None, {}),
        Outer(Inner((1.0, math.inf, 2)), {3: Pair(1, "a"), -1: Pair(2, "")}),
        Outer(Longer((), more=True), {}, Phantom(8, 2), {"a": [1, (2,)], (1, 2): frozenset({3}), None: {4, 5}}),
        Outer(None, {}, ranges=(Batch(0, 3), Batch(3, 4)), next_sample=Cursors((3, 4))),
    ],
)
def test_a_state_is_the_same_after_its_way_through_json(value: Outer) -> None:
    """With the classes of its parts, and tuples as tuples."""
    assert sent(value) == value
    assert type(sent(value).inner) is type(value.inner)
    assert type(sent(value).next_sample) is type(value.next_sample)


def test_a_tensor_that_occurs_twice_is_stored_once() -> None:
    """By its identity."""
    vector, tensors = torch.arange(3.0), Tensors()

    plain = to_plain((vector, {"again": vector}, vector.clone()), tensors)

    assert [name for name, _ in tensors.values()] == ["t0", "t1"]
    first, again, other = from_plain(Any, plain, tensors=dict(tensors.values()))
    assert first is again["again"] is vector
    assert torch.equal(other, vector)


def test_the_ranges_of_a_global_batch_are_written_out() -> None:
    """They are computed when they are read."""
    split = Split(0, 5, Layout.of((2, 3)))

    assert sent(split, tuple[Batch, ...]) == tuple(split)


@pytest.mark.parametrize("name", [f"{__name__}.Stranger", "os.system", "builtins.eval", "hetsim.effects.Batch "])
def test_only_classes_that_the_type_names_are_made(name: str) -> None:
    """At any place, also where the type says Any. A name is looked up, and nothing is imported."""
    plain = to_plain(Outer(None, {}))
    plain["object"][1]["anything"] = [{"object": [name, {"made": 1}]}]

    with pytest.raises(Unreadable, match="which is none of those that this run keeps"):
        from_plain(Outer, plain)


def test_the_classes_of_a_type_are_its_parts() -> None:
    """Through unions, mappings and tuples."""
    assert set(reachable(dict[str, Outer | None]).values()) == {Outer, Inner, Longer, Pair, Batch, Phantom, Cursors}


@pytest.mark.parametrize("entry", [None, 3, [], {"dict": []}, {"object": []}, {"object": ["a"]}, {"a": 1, "b": 2}, {"float": "one"}, 2**70])
def test_what_is_not_of_the_type_is_refused(entry: Any) -> None:
    """Whatever it is."""
    with pytest.raises(Unreadable):
        from_plain(Outer, entry)


@pytest.mark.parametrize("value", [object(), b"bytes", {"a": object()}, Outer(None, {}, anything=lambda: 0), torch.zeros(2)])
def test_what_is_no_plain_value_is_refused(value: Any) -> None:
    """A tensor, too, where nobody takes it."""
    with pytest.raises(TypeError, match="keep numbers, texts, tuples, mappings and dataclasses in it"):
        to_plain(value)
