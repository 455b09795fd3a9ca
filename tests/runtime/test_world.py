"""The protocol of a world: every effect has a method of its name, or is declared unsupported."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from hetsim import effects as fx
from hetsim.distributed.rank.world import ProcessWorld
from hetsim.errors import ProgramError, RunFailed
from hetsim.runtime.recording.recorder import GRADIENT, UPDATE, Recorder, interval_recorder
from hetsim.runtime.world import World, as_program_error, effect_types, handlers, method_name, unsupported
from hetsim.sim.lockstep import LockstepWorld
from hetsim.sim.world import EventWorld

WORLDS = pytest.mark.parametrize("kind", [EventWorld, LockstepWorld, ProcessWorld])


def whole(**methods: Any) -> SimpleNamespace:
    """A world that has a method for every effect; these in the place of some."""
    names = {method_name(kind): (lambda *_, kind=kind: kind) for kind in effect_types()}
    return SimpleNamespace(**{"name": "backend=none", **names, **methods})


def test_each_effect_has_the_method_of_its_name() -> None:
    """AllReduce is answered by all_reduce, and so on."""
    table = handlers(whole())

    assert {kind: table[kind](None, None, None) for kind in table} == {kind: kind for kind in effect_types()}
    assert {method_name(kind) for kind in effect_types()} == {name for name in vars(World) if not name.startswith("_") and name != "name"}


@pytest.mark.parametrize("kind", {kind.__name__: kind for kind in effect_types()}.values())
def test_a_world_without_the_method_of_an_effect_is_refused(kind: type[fx.Effect[Any]]) -> None:
    """Before anything is run, with the method's name and the world's."""
    world = whole()
    delattr(world, method_name(kind))

    with pytest.raises(TypeError, match=rf"\(backend=none\) lacks the methods {method_name(kind)} for hetsim.effects.{kind.__name__}"):
        handlers(world)


@pytest.mark.usefixtures("older_objects_are_frozen")
def test_a_new_effect_is_asked_of_every_world() -> None:
    """Whoever adds one is told what is missing, also of an effect that is derived from another."""

    @dataclass(slots=True)
    class Sleep(fx.Effect[None]):
        """Wait."""

    class Nap(Sleep):
        """Wait a little."""

    try:
        with pytest.raises(
            TypeError, match=r"lacks the methods sleep for .*Sleep, nap for .*Nap: write them, or set them to `unsupported`"
        ):
            handlers(whole(sleep=None, nap=None))
    finally:
        del Sleep, Nap
        gc.collect()  # classes are only forgotten with their cycles


def test_an_unsupported_effect_is_one_sentence() -> None:
    """With the world and the effect."""
    table = handlers(whole(regroup=unsupported))

    with pytest.raises(RunFailed, match=r"^backend=none does not support the effect Regroup, which rank 3 asks for"):
        table[fx.Regroup](SimpleNamespace(rank=3), fx.Regroup(), None)


def test_what_is_no_effect_is_one_sentence() -> None:
    """A program that yields it has forgotten a `yield from`."""
    with pytest.raises(ProgramError, match=r"^rank 3 yields 5, which is not an effect: is a 'yield from' forgotten\?"):
        handlers(whole())[int](SimpleNamespace(rank=3), 5, None)


def test_a_missing_header_value_is_one_sentence() -> None:
    """With the value, the sender, and what the header holds; any other AttributeError stays what it is."""
    message, other = fx.Message(2, {"version": 1, "seconds": 0.5}), AttributeError("another", name="x", obj=3)
    with pytest.raises(AttributeError) as raised:
        _ = message.batch

    explanation = as_program_error(raised.value, 4)

    assert isinstance(explanation, ProgramError)
    assert str(explanation) == (
        "rank 4 reads 'batch' of a message from rank 2, whose header holds version, seconds: add batch=… to that Send"
    )
    assert as_program_error(other, 4) is None


@WORLDS
def test_the_worlds_have_twin_methods(kind: type[Any]) -> None:
    """Of the same names; what one of them does not support it says."""
    declared = {name for name in vars(World) if not name.startswith("_") and name != "name"}
    methods = {name for name in dir(kind) if name in declared}
    refused = {name for name in methods if getattr(kind, name) is unsupported}

    of_lockstep = {"send", "receive", "receive_within", "regroup", "attempt", "done"}
    assert refused == {EventWorld: set(), LockstepWorld: of_lockstep, ProcessWorld: {"regroup"}}[kind]


class Intervals(Recorder):
    """Keeps the intervals of one kind."""

    def __init__(self, kind: int) -> None:
        self.kind = kind
        self.rows: list[Any] = []
        self.interval = self.rows.append

    def on(self, kind: int) -> Any:
        return self.interval if kind == self.kind else None


def test_a_single_recorder_is_called_directly() -> None:
    """No layer of hetsim's own stands between a world and the one recorder that wants an interval; nobody wants: None."""
    one, other = Intervals(GRADIENT), Intervals(UPDATE)

    assert interval_recorder([one, other], GRADIENT) is one.interval
    assert interval_recorder([one, other], UPDATE) is other.interval
    assert interval_recorder([one, other], 2) is None


@pytest.mark.parametrize("count", [2, 3])
def test_several_recorders_are_all_called_in_order(count: int) -> None:
    """Whatever is recorded, each of them has it."""
    recorders = [Intervals(GRADIENT) for _ in range(count)]
    record = interval_recorder(recorders, GRADIENT)
    assert record is not None

    record((0.0, 1.0, 0, GRADIENT, 0, 1, 0, 0))

    assert [recorder.rows for recorder in recorders] == [[(0.0, 1.0, 0, GRADIENT, 0, 1, 0, 0)]] * count
