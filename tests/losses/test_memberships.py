"""Every run is a `RankRun`. What a loss means is up to its membership: a fixed one never changes, so a loss ends the run."""

from __future__ import annotations

import inspect

import pytest
from fake_transport import FakeNetwork
from threads import run_in_threads
from worlds import cluster, experiment, node

from hetsim.distributed.rank.regrouping import RegroupingMembership
from hetsim.distributed.rank.run import FixedMembership, GroupMembership, RankRun
from hetsim.distributed.rank.surviving import ServedMembership, SurvivingMembership
from hetsim.effects import PeerLost
from hetsim.errors import RunFailed
from hetsim.runtime.rank import RankState


def test_every_run_is_of_one_class() -> None:
    """Runs differ by their memberships, each of which answers what a run asks."""
    assert RankRun.__subclasses__() == []
    assert {*GroupMembership.__subclasses__()} == {FixedMembership, SurvivingMembership}
    assert {*SurvivingMembership.__subclasses__()} == {ServedMembership, RegroupingMembership}
    assert not any(map(inspect.isabstract, (FixedMembership, ServedMembership, RegroupingMembership)))


def test_fixed_members_never_change() -> None:
    """Also if one is lost: then the run does not continue, and nothing is recorded."""
    membership = FixedMembership(FakeNetwork(3).transport(1), leader=0)

    assert membership.lose(2) is False
    assert (list(membership.members), list(membership.ranks_at_a_standstill())) == ([0, 1, 2], [0, 1, 2])
    assert membership.ledger.as_numbers(0.0) is None
    assert (membership.rank, membership.leader, membership.joined, membership.has_results) == (1, 0, False, True)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ssgd", "asgd"])
def test_with_fixed_members_a_loss_ends_the_run_of_each_rank(method: str) -> None:
    """The others raise PeerLost, with a server and without one. Otherwise, each would continue by itself."""
    described = experiment(
        f"method={method}", "workload=quadratic", cluster=cluster(node(1e-5), node(1e-5), node(1e-5)), batch_size=30,
        workload={"num_parameters": 6, "num_samples": 90}, budget={"epochs": 1000},
    )  # fmt: skip
    failing = 1 if method == "ssgd" else described.leader

    def fail(state: RankState) -> None:
        if state.rank == failing and state.version >= 3:
            raise RunFailed("this rank fails")

    ends = run_in_threads(described, keep=fail)

    assert str(ends[failing]) == "this rank fails"
    assert all(isinstance(end, PeerLost) for rank, end in enumerate(ends) if rank != failing), ends
