"""What the keeper decides, by what stands in the store and by its own clock; and what a mailbox does until a loss is told."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from fake_transport import FakeNetwork

from hetsim.distributed.communication.mailbox import Mailbox
from hetsim.distributed.membership.keeper import (
    BEGAN,
    GAP_SECONDS,
    OVER,
    Keeper,
    Loss,
    SurvivingRun,
    View,
    again_key,
    beat_key,
    join_key,
    view_key,
)
from hetsim.distributed.pacing.padding import Pace
from hetsim.effects import PeerLost

LOST_AFTER = 3.0
RUN = SurvivingRun(num_workers=2, num_ranks=2, leader=0, lost_after=LOST_AFTER)


class Store(dict[str, bytes]):
    """A store of one process."""

    def set(self, key: str, value: str) -> None:
        self[key] = value.encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self for key in keys)

    def compare_set(self, key: str, expected: str, value: str) -> None:
        if self.get(key, b"").decode() == expected:
            self.set(key, value)


class Kept:
    """A keeper of a run that has begun, whose ranks have beaten once; it looks when it is told to."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.store = Store()
        self.keeper = Keeper(self.store, self.told.append, RUN)
        self.store.set(BEGAN, "0.0")
        self.beat(0, 1)
        self.look(0.0)
        del self.told[:]

    def beat(self, *ranks: int) -> None:
        for rank in ranks:
            self.store.set(beat_key(rank, 0), f"{len(self.told)} {id(object())}")

    def look(self, until: float, *, beating: tuple[int, ...] = ()) -> None:
        """From the last look on, every half of the gap that it would count as one."""
        now = max(self.keeper._looked, 0.0)
        for count in range(int((until - now) / (GAP_SECONDS / 2)) + 1):
            for rank in beating:
                self.store.set(beat_key(rank, 0), f"{now} {count}")
            self.keeper.look(now + count * GAP_SECONDS / 2)

    def view(self) -> View:
        """The newest view."""
        return View.of_entries(json.loads(self.store[view_key(self.keeper.view.generation)]))


def test_who_does_not_beat_is_suspected() -> None:
    """After the time for it, and nobody else is."""
    run = Kept()

    run.look(2 * LOST_AFTER, beating=(0,))

    assert [what[:2] for what in run.told] == [("suspect", 1)]


def test_after_a_gap_of_its_own_the_keeper_suspects_nobody_at_once() -> None:
    """The whole run was suspended, so what it has not heard says nothing; who is silent from then on is suspected."""
    run = Kept()

    run.keeper.look(10 * LOST_AFTER)
    assert run.told == []
    run.look(12 * LOST_AFTER, beating=(0,))

    assert [what[:2] for what in run.told] == [("suspect", 1)]


def test_after_the_end_of_the_program_ranks_are_still_watched_and_none_joins() -> None:
    """Until their results are handed in, a rank may hang, and a connection may break."""
    run = Kept()
    run.keeper.hear("started", 2, 1, 0.0)
    run.store.set(OVER, "")
    run.look(1.0, beating=(0, 1))
    assert run.told == []
    assert run.view().over

    run.store.set(join_key(2, 1), "")
    run.store.set(again_key(run.keeper.view.generation), "")
    run.look(3 * LOST_AFTER, beating=(0,))
    run.keeper.hear("lost", 1, 0, 5.0)

    assert ("suspect", 1) in [what[:2] for what in run.told]
    assert (run.view().members, run.view().lost, run.view().over) == ({0: 0}, (Loss(1, 0, 5.0),), True)


def test_what_a_program_sends_before_it_knows_of_a_loss_does_not_reach_the_process_that_came_back() -> None:
    """It is an answer to the one that is lost, whose range is handed out again; what it sends afterwards arrives."""
    network, pace = FakeNetwork(2), Pace("none")
    server = Mailbox(network.transport(0), [1], lambda *_: 0.0, pace, began=pace.clock(), goes_on=True)
    server.lose(1)
    again = FakeNetwork(2)

    assert server.connect(1, again.transport(0))
    server.send(1, {"version": 1}, torch.ones(3), at=pace.clock())
    assert server.num_sent[1] == 0
    with pytest.raises(PeerLost) as told:
        server.receive(None)
    server.send(1, {"version": 2}, torch.ones(3), at=pace.clock())

    worker = Mailbox(again.transport(1), [0], lambda *_: 0.0, pace, began=pace.clock())
    assert told.value.rank == 1
    assert worker.receive(0).version == 2
