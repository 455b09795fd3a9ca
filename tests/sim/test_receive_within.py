"""A message is waited for so long, and no longer: in virtual time, and in real time on padded ranks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pytest
from threads import run_in_threads
from worlds import cluster, experiment, node, simulate

from hetsim.coordination.base import Coordination
from hetsim.coordination.plan import Plan
from hetsim.coordination.state import State
from hetsim.distributed.rank.run import RankRun
from hetsim.effects import Batch, Commit, Gradient, Node, Now, PeerLost, Program, Receive, ReceiveWithin, Send, Update
from hetsim.policies.admission import EveryGradient

Seen = list[tuple[Any, float]]


@dataclass(frozen=True, kw_only=True)
class Impatient(Coordination):
    """The one worker sends after 1 s, and again after 1 s; the message is under way for a quarter. The server waits for so many seconds."""

    needs_server: ClassVar[bool] = True
    regroups: ClassVar[bool] = False
    unit: float
    waits: tuple[float, ...]
    seen: Seen = field(default_factory=list, compare=False)

    def program(self, node: Node, plan: Plan, state: State) -> Program[None]:
        return self.server(state) if node.rank == node.server else self.worker(node, state)

    def server(self, state: State) -> Program[None]:
        """Note what was answered, and when."""
        try:
            for wait in self.waits:
                message = yield from ReceiveWithin(wait * self.unit)
                now = yield from Now()
                self.seen.append((None if message is None else message.number, now / self.unit))
            message = yield from Receive()
            self.seen.append((message.number, (yield from Now()) / self.unit))
        except PeerLost as lost:
            self.seen.append((lost.rank, (yield from Now()) / self.unit))
        weights = yield from Update(at=state.weights, gradient=state.weights)
        yield from Commit(1, replace(state, version=1, weights=weights))

    def worker(self, node: Node, state: State) -> Program[None]:
        """Two messages."""
        for number in (1, 2):
            yield from Gradient(at=state.weights, batch=Batch(0, 1), version=0)
            yield from Send(node.server, number=number)


def waiting(unit: float, *waits: float, **more: Any) -> Any:
    """With these waits, in units of seconds."""
    link = {"latency_seconds": unit / 4, "bytes_per_second": 1e300}
    base = experiment(
        "method=asgd", "workload=phantom", batch_size=1, budget={"updates": 1}, cluster={**cluster(node(unit), network=link), **more}
    )
    return replace(base, coordination=Impatient(unit=unit, waits=waits, admission=EveryGradient()))


def test_in_virtual_time_what_is_due_at_the_very_end_counts():
    """None at 0 s, at once; None at 1 s; at 1¼ s the message; none is due with it, so None at once; then the second one."""
    made = waiting(1.0, 0.0, 1.0, 0.25, 0.0)

    simulate(made)

    assert made.coordination.seen == [(None, 0.0), (None, 1.0), (1, 1.25), (None, 1.25), (2, 2.25)]


def test_a_message_that_is_there_is_answered_at_once_and_a_question_that_was_answered_does_not_expire():
    """The second question is answered by the second message, before the first one's time would have been over."""
    made = waiting(1.0, 5.0, 5.0)

    with pytest.raises(Exception, match=r"the simulation can make no progress: rank 1 waits for a message from anyone"):
        simulate(made)

    assert made.coordination.seen == [(1, 1.25), (2, 2.25)]


def test_a_lost_rank_is_reported_to_who_waits_for_a_while():
    """As to who waits for ever."""
    made = waiting(1.0, 9.0, 9.0, faults={"schedule": [{"nodes": [0], "crash": 1.5, "repair": 20.0}], "detection_seconds": 0.25})

    simulate(made)

    assert made.coordination.seen == [(1, 1.25), (0, 1.75)]


@pytest.mark.realtime
@pytest.mark.slow
def test_in_real_time_too():
    """Padded, in units of a tenth of a second; None at the moment at which the time is over, not later."""
    made = waiting(0.1, 0.0, 1.0, 0.5, 0.0)

    ends = run_in_threads(made, pad=True)

    assert all(isinstance(end, RankRun) for end in ends), ends
    seen = made.coordination.seen
    assert [number for number, _ in seen] == [None, None, 1, None, 2]
    assert [now for _, now in seen[:2]] == pytest.approx([0.0, 1.0], abs=1e-6)
    assert seen[2][1] >= 1.25 - 1e-6
    assert seen[4][1] >= 2.25 - 1e-6
