"""Whether a started effect has its answer: in virtual time, and in real time on padded ranks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import pytest
from threads import run_in_threads
from worlds import cluster, experiment, node, simulate

from hetsim.coordination.base import Coordination
from hetsim.coordination.plan import Plan
from hetsim.coordination.state import State
from hetsim.distributed.rank.run import RankRun
from hetsim.effects import AllReduce, Batch, Commit, Done, Gradient, Node, Now, Program, Start, Update, Wait
from hetsim.policies.admission import Barrier


@dataclass(frozen=True, kw_only=True)
class Asking(Coordination):
    """Two ranks start a reduction that takes 2.5 gradients. Before each gradient they ask whether it is done, until it was twice."""

    needs_server: ClassVar[bool] = False
    seen: dict[int, list[tuple[float, bool]]] = field(default_factory=dict, compare=False)
    """By rank: the moment of each question, and the answer."""

    def program(self, node: Node, plan: Plan, state: State) -> Program[None]:
        pending = yield from Start(AllReduce(state.weights))
        seen = self.seen[node.rank] = []
        while sum(done for _, done in seen) < 2:
            now = yield from Now()
            seen.append((now, (yield from Done(pending))))
            yield from Gradient(at=state.weights, batch=Batch(0, 1), version=0)
        total = yield from Wait(pending)
        weights = yield from Update(at=state.weights, gradient=total)
        yield from Commit(1, replace(state, version=1, weights=weights))


@pytest.mark.parametrize("world", ["sim", "dist"])
def test_an_effect_is_done_once_its_answer_is_due(world: str):
    """Not a moment before, and from then on; asking takes no time. A real reduction may take longer, if the machine is busy."""
    unit = 0.03
    network = {"latency_seconds": 1.25 * unit, "bytes_per_second": 1e300, "sharing": "none"}
    base = experiment(
        "method=ssgd", "workload=phantom", batch_size=2, budget={"updates": 1}, cluster=cluster(node(unit, count=2), network=network)
    )
    asking = Asking(admission=Barrier())
    made = replace(base, coordination=asking)

    if world == "sim":
        assert simulate(made).seconds == [pytest.approx(5 * unit)]
    else:
        assert all(isinstance(run, RankRun) for run in run_in_threads(made, pad=True))

    assert set(asking.seen) == {0, 1}
    for seen in asking.seen.values():
        answers = [answer for _, answer in seen]
        assert answers == sorted(answers)
        assert answers.count(True) == 2
        assert seen[answers.index(True)][0] >= 2.5 * unit
        if world == "sim":
            assert seen == [(pytest.approx(k * unit), k >= 3) for k in range(5)]
