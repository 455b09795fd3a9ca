"""Nodes that crash, come back, join late and leave for good, and what each coordination does then."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from methods import METHODS
from worlds import Run, cluster, experiment, node, simulate, tiles

from hetsim.cluster.distributions import Distribution
from hetsim.cluster.faults import Faults, Outages
from hetsim.cluster.outages import outages
from hetsim.cluster.parse.cluster import parse_cluster as described
from hetsim.coordination.bookkeeping.outstanding import Holding, Outstanding
from hetsim.coordination.plan import Plan
from hetsim.coordination.state import State
from hetsim.effects import Batch, Contribution
from hetsim.errors import RunFailed
from hetsim.policies.admission import Backup, Barrier, BoundedStaleness, Decision, SoftSync

ALL_REDUCE = ("method=ssgd",)
SERVER = ("method=ssgd", "coordination=parameter_server")


def world(*schedule: dict[str, Any], nodes: int = 3, detection: float = 0.0, regroup: float = 0.0, **more: Any) -> dict[str, Any]:
    """So many nodes of a second a sample, on which this happens."""
    faults = {"schedule": list(schedule), "detection_seconds": detection, "regroup_seconds": regroup}
    return {**cluster(node(1.0, count=nodes), **more), "faults": faults}


def run(*choices: str, on: dict[str, Any], **keys: Any) -> Run:
    """A timing-only run with a full trace."""
    return simulate(experiment(*choices, "workload=phantom", cluster=on, **keys), trace="full")


def history(run: Run) -> list[tuple[float, list[tuple[int, int, int]]]]:
    """(seconds, [(rank, first position, samples)]) of each commit."""
    return [
        (seconds, [(c.rank, c.batch.start, c.batch.samples) for c in group])
        for seconds, group in zip(run.seconds, run.applied, strict=True)
    ]


def kept(run: Run) -> list[Any]:
    """The contributions to the versions that count in the end: a training that has lost its weights makes some again."""
    groups: list[Any] = []
    for state, group in zip(run.states, run.applied, strict=True):
        groups[state.version - 1 :] = [group]
    return [contribution for group in groups for contribution in group]


def test_an_asynchronous_server_goes_on_without_a_worker_and_hands_out_its_range_again():
    """Worker 1 of three is away from 2.5 to 5.25 s. It held position 7; whoever comes next has it. From 5.25 on it has new ones."""
    away = world({"nodes": [1], "crash": 2.5, "repair": 5.25})

    its = run("method=asgd", on=away, batch_size=3, budget={"updates": 15})

    assert history(its)[6:] == [
        (3.0, [(0, 6, 1)]),
        (3.0, [(2, 8, 1)]),
        (4.0, [(0, 7, 1)]),
        (4.0, [(2, 9, 1)]),
        (5.0, [(0, 10, 1)]),
        (5.0, [(2, 11, 1)]),
        (6.0, [(0, 12, 1)]),
        (6.0, [(2, 13, 1)]),
        (6.25, [(1, 14, 1)]),
    ]


def test_a_server_learns_of_a_loss_when_it_is_detected():
    """Gone at 2.5 s and missed from 4.5 s on: until then nobody has position 7."""
    away = world({"nodes": [1], "leave": 2.5}, detection=2.0)

    its = run("method=asgd", on=away, batch_size=3, budget={"updates": 12})

    assert [(seconds, group[0].batch.start) for seconds, group in zip(its.seconds, its.applied, strict=True)][6:] == [
        *[(3.0, 6), (3.0, 8), (4.0, 9), (4.0, 10)],
        *[(5.0, 11), (5.0, 12)],
    ]
    assert tuple(its.states[-1].outstanding) == (Batch(7, 1),)  # the other one has it now, and is stopped


def test_who_is_back_before_it_was_missed_gets_a_new_range_and_the_old_one_goes_round_again():
    """Away from 2.5 to 2.75 s, which nobody would have noticed until 4.5 s: its ready tells that it holds nothing any more."""
    away = world({"nodes": [1], "crash": 2.5, "repair": 2.75}, detection=2.0)

    its = run("method=asgd", on=away, batch_size=3, budget={"epochs": 1}, workload={"num_samples": 12})

    assert history(its)[6:9] == [(3.0, [(0, 6, 1)]), (3.0, [(2, 8, 1)]), (3.75, [(1, 7, 1)])]
    assert tiles([c.batch for group in its.applied for c in group], 12)


def test_a_barrier_waits_no_longer_for_a_worker_that_is_gone():
    """Gone at 2.5 s, missed at 4.5 s: the round that the others ended at 4 s is applied at 4.5 s, without it."""
    away = world({"nodes": [1], "leave": 2.5}, detection=2.0)

    its = run(*SERVER, on=away, batch_size=6, budget={"updates": 3})

    assert history(its) == [
        (2.0, [(0, 0, 2), (1, 2, 2), (2, 4, 2)]),
        (4.5, [(0, 6, 2), (2, 10, 2)]),
        (6.5, [(0, 8, 2), (2, 12, 2)]),
    ]


def test_an_all_reduce_regroups_and_starts_again_from_the_last_commit_at_the_stated_cost():
    """Gone at 2.5 s; the others end their gradients at 4 s, regroup for 0.25 s, and have 3 of the 6 samples each, from position 6."""
    away = world({"nodes": [1], "leave": 2.5}, detection=0.5, regroup=0.25)

    its = run(*ALL_REDUCE, on=away, batch_size=6, budget={"updates": 3})

    assert history(its) == [
        (2.0, [(0, 0, 2), (1, 2, 2), (2, 4, 2)]),
        (7.25, [(0, 6, 3), (2, 9, 3)]),
        (10.25, [(0, 12, 3), (2, 15, 3)]),
    ]
    assert [(row.start, row.end, row.rank) for row in its.rows("regroup")] == [(4.0, 4.25, 0), (4.0, 4.25, 2)]


def test_who_comes_back_to_an_all_reduce_makes_everyone_begin_anew_with_it():
    """Back at 8 s, when the others are in a round that began at 7.25 s: they end it by themselves at 10.25 s, and it is void."""
    away = world({"nodes": [1], "crash": 2.5, "repair": 8.0}, detection=0.5, regroup=0.25)

    its = run(*ALL_REDUCE, on=away, batch_size=6, budget={"updates": 3})

    assert history(its)[1:] == [(7.25, [(0, 6, 3), (2, 9, 3)]), (12.5, [(0, 12, 2), (1, 14, 2), (2, 16, 2)])]
    assert [(row.start, row.end, row.rank) for row in its.rows("regroup")][2:] == [(10.25, 10.5, 0), (8.0, 10.5, 1), (10.25, 10.5, 2)]


def test_the_weights_travel_to_who_comes_back():
    """From 0 to 1 through a link of 8 bytes a second: 32 bytes take 4 s on top of the regroup's 0.25 s."""
    slow = {"latency_seconds": 0.0, "bytes_per_second": 8.0}
    away = world({"nodes": [1], "join": 1.0}, nodes=2, regroup=0.25, network=slow)

    its = run(*ALL_REDUCE, on=away, batch_size=2, budget={"updates": 1}, workload={"num_parameters": 8})

    assert [(row.end, row.rank) for row in its.rows("regroup")] == [(2.0 + 0.25 + 4.0, 0), (2.0 + 0.25 + 4.0, 1)]


def test_the_weights_do_not_come_from_who_is_gone():
    """Node 0, behind 100 s of latency, goes at 0.5 s; node 2 comes at 0.625 s, before that is noticed, and has them from node 1."""
    away = world({"nodes": [0], "leave": 0.5}, {"nodes": [2], "join": 0.625}, detection=1.0)
    away["nodes"] = [node(1.0, latency_seconds=100.0), node(1.0, count=2)]

    its = run(*ALL_REDUCE, on=away, batch_size=3, budget={"updates": 1})

    assert [(row.end, row.rank) for row in its.rows("regroup")] == [(1.0, 1), (1.0, 2)]


def test_versions_count_that_are_made_before_rank_0_has_joined():
    """Another one leads from the beginning, and goes on leading."""
    late = world({"nodes": [0], "join": 2.5}, nodes=2)

    its = run(*ALL_REDUCE, on=late, batch_size=2, budget={"updates": 4})

    assert [(row.end, row.rank, row.version) for row in its.rows("commit")] == [(2.0, 1, 1), (5.0, 1, 2), (6.0, 1, 3), (7.0, 1, 4)]


def test_where_nobody_is_left_of_those_who_led_another_one_leads():
    """Rank 0's commits are rank 1's from the regroup on, also when it is back."""
    away = world({"nodes": [0], "crash": 2.5, "repair": 7.5}, nodes=2)

    its = run(*ALL_REDUCE, on=away, batch_size=2, budget={"updates": 6})

    assert [(row.end, row.rank) for row in its.rows("commit")] == [(1.0, 0), (2.0, 0), (5.0, 1), (7.0, 1), (10.0, 1), (11.0, 1)]
    assert its.simulation.history.last.version == 6


def test_a_late_joiner_is_not_waited_for_and_takes_part_from_then_on():
    """Away until 2.5 s, with a server and without one."""
    asynchronous, synchronous = (
        run(*choices, on=world({"nodes": [1], "join": 2.5}, nodes=2), batch_size=2, budget={"updates": 5})
        for choices in (("method=asgd",), ALL_REDUCE)
    )

    assert [(s, group[0].rank) for s, group in zip(asynchronous.seconds, asynchronous.applied, strict=True)] == [
        *[(1.0, 0), (2.0, 0), (3.0, 0)],
        *[(3.5, 1), (4.0, 0)],
    ]
    assert history(synchronous)[:2] == [(2.0, [(0, 0, 2)]), (5.0, [(0, 2, 1), (1, 3, 1)])]


def test_what_a_node_was_doing_when_it_went_counts_up_to_then():
    """Half a gradient is half a second of computing, no iteration, and a row that ends there; then it is down."""
    away = world({"nodes": [1], "crash": 2.5, "repair": 5.25})

    its = run("method=asgd", on=away, batch_size=3, budget={"updates": 15})

    busy = its.simulation.metrics.activity[1]
    assert (busy.iterations, busy.compute_seconds, busy.down_seconds) == (3, 3.5, 2.75)
    assert [(row.start, row.end) for row in its.rows("gradient") if row.rank == 1][2:4] == [(2.0, 2.5), (5.25, 6.25)]
    assert [(row.start, row.end, row.rank) for row in its.rows("down")] == [(2.5, 5.25, 1)]


def test_what_is_under_way_to_or_from_a_node_that_goes_is_lost():
    """A gradient that was sent at 1 s and would arrive at 5 s does not, as its sender goes at 3 s."""
    slow = {"latency_seconds": 4.0, "bytes_per_second": 1e300}
    away = world({"nodes": [1], "leave": 11.0}, nodes=2, network=slow)

    its = run("method=asgd", on=away, batch_size=2, budget={"updates": 4})

    assert [(s, group[0].rank) for s, group in zip(its.seconds, its.applied, strict=True)] == [(13.0, 0), (22.0, 0), (31.0, 0), (40.0, 0)]


def test_a_flow_of_a_node_that_goes_leaves_its_share_to_the_others():
    """Two pushes of 32 bytes through 8 bytes a second from 1 s on; one is gone at 3 s, when both have had 8: the other ends at 6 s."""
    through = {"latency_seconds": 0.0, "bytes_per_second": 1e300}
    away = world({"nodes": [1], "leave": 3.0}, nodes=2, network=through)
    away["server"]["downlink_bytes_per_second"] = 8.0

    its = run("method=asgd", on=away, batch_size=2, budget={"updates": 1}, workload={"num_parameters": 8})

    assert history(its) == [(6.0, [(0, 0, 1)])]


def test_a_flow_to_a_node_that_goes_leaves_its_share_to_the_others():
    """Two pulls of 32 bytes through the server's 8 bytes a second from 0 s on; one is gone at 2 s, and the other has the rest at 5 s."""
    away = world({"nodes": [1], "leave": 2.0}, nodes=2, network={"latency_seconds": 0.0, "bytes_per_second": 1e300})
    away["server"]["uplink_bytes_per_second"] = 8.0

    its = run("method=asgd", on=away, batch_size=2, budget={"updates": 1}, workload={"num_parameters": 8})

    assert history(its) == [(2.0 + (32 - 8) / 8 + 1.0, [(0, 0, 1)])]


def test_the_jitter_between_two_ranks_goes_on_when_one_of_them_comes_back():
    """It is a stream of the pair's, not of a life's: no delay of before the crash comes again."""
    late = {"latency_seconds": 0.0, "bytes_per_second": 1e300, "jitter_seconds": {"distribution": "uniform"}}
    away = world({"nodes": [0], "crash": 9.0, "repair": 9.5}, nodes=1, network=late)

    its = run("method=asgd", on=away, batch_size=1, budget={"updates": 20})

    delays = [round(row.end - row.start, 9) for row in its.rows("message") if row.rank == 0]
    assert len(delays) > 15
    assert len(set(delays)) == len(delays)


def test_ranges_that_come_back_are_handed_out_in_the_order_of_the_losses():
    """And one that does not fit is handed out to its end before the next is begun."""
    state = State(weights=None, next_sample=20)
    plan = Plan(num_workers=3, batch_size=12, max_samples=(8, 3, 8))
    out = Outstanding(state)
    for rank, batch in ((0, Batch(0, 8)), (1, Batch(8, 4)), (2, Batch(12, 8))):
        out.holding[rank] = Holding(batch, None, 0)
    out.lose(2)
    out.lose(0)
    out.lose(0)

    assert [out.take(plan, 1, 3) for _ in range(4)] == [Batch(12, 3), Batch(15, 3), Batch(18, 2), Batch(0, 3)]
    assert list(out) == [Batch(3, 5), Batch(8, 4)]
    assert [out.take(plan, 0, 6) for _ in range(2)] == [Batch(3, 5), Batch(20, 6)]


def test_what_happens_to_nodes_behind_the_last_commit_does_not_count():
    """The run ends at 2 s, but its server hears of the slowest only at 10 s. Until then one joins, or one crashes and comes back."""
    slow = cluster(node(1.0), node(5.0), node(10.0))
    for fault, busy in (
        ({"join": 3.0}, (0, 0.0, 2.0)),
        ({"crash": 3.0, "repair": 9.0}, (0, 2.0, 0.0)),
        ({"crash": 1.5, "repair": 9.0}, (0, 1.5, 0.5)),
    ):
        away = {**slow, "faults": {"schedule": [{"nodes": [1], **fault}]}}

        its = run("method=asgd", on=away, batch_size=3, budget={"updates": 2})

        simulation = its.simulation
        told = simulation.metrics.summary()["per_worker"][1]
        assert its.seconds[-1] == 2.0
        assert (told["iterations"], told["compute_seconds"], told["down_seconds"]) == busy
        assert told["wait_seconds"] == 0.0


@pytest.mark.parametrize("method", ["asgd", "od_sgd", "ssgd", "pipe_sgd", "local_sgd"])
def test_everyone_may_join_late(method: str):
    """Nobody is there at 0 s; from 1 s on it is the run that it would have been."""
    later = world({"nodes": "all", "join": 1.0}, nodes=2)

    its = run(f"method={method}", on=later, batch_size=4, budget={"updates": 6})

    assert its.states[-1].version == 6
    assert min(row.start for row in its.rows("gradient")) >= 1.0


def test_a_cluster_that_dies_is_one_sentence():
    """When the last node is gone and none comes back, with a server and without one."""
    dies = world({"nodes": [0], "leave": 2.5}, {"nodes": [1], "leave": 3.5}, nodes=2)

    for choices in (("method=asgd",), ALL_REDUCE):
        with pytest.raises(RunFailed, match=r"^every node of the cluster is gone at 3\.5 s and none comes back, after \d updates: give"):
            run(*choices, on=dies, batch_size=2, budget={"updates": 9})


def test_nodes_that_go_faster_than_any_version_is_made_are_one_sentence():
    """A step takes 2 s, and each node goes after 1 s: that would never end."""
    second = {"distribution": "uniform", "loc": 1.0, "scale": 1e-3}
    hasty = world({"nodes": "all", "seconds_to_crash": second, "seconds_to_repair": second}, nodes=2)

    with pytest.raises(RunFailed, match=r"^nodes crashed 2000 times since version 0 and no new version was made until \d+\.\d+ s: let"):
        run("method=asgd", on=hasty, batch_size=4, budget={"updates": 9})


@pytest.mark.parametrize("choices", [("method=asgd",), SERVER, ALL_REDUCE, ("method=od_sgd", "coordination.warm_up=0")])
def test_a_cluster_that_was_dead_for_a_while_goes_on(choices: tuple[str, ...]):
    """Everyone is away from 2.5 to 5 s."""
    its = run(*choices, on=world({"nodes": "all", "crash": 2.5, "repair": 5.0}, detection=0.25), batch_size=3, budget={"updates": 9})

    assert its.simulation.history.last.version == 9
    assert not any(2.5 < seconds <= 5.0 for seconds in its.seconds)


def test_crashes_by_law_are_a_nodes_own_stream():
    """Up, down, up … from the seed and the rank; scheduled absences come first; without a repair there is one."""
    law = Distribution("expon", {"scale": 4.0})
    both = Outages(scheduled=((0.0, 2.0),), seconds_to_crash=law, seconds_to_repair=law)
    once = Outages(seconds_to_crash=law)
    made = replace(described({**world(nodes=2), "faults": None}), faults=Faults(nodes={0: both, 1: once}))

    its = outages(made, 0, seed=3)
    times = [next(its) for _ in range(200)]

    assert times[0] == (0.0, 2.0)
    assert all(one[1] < other[0] < other[1] for one, other in pairwise(times))
    assert sum(until - start for start, until in times[1:]) / 199 == pytest.approx(4.0, rel=0.25)
    assert [until for _, until in outages(made, 1, seed=3)] == [float("inf")]
    assert next(outages(made, 1, seed=4)) != next(outages(made, 1, seed=3))


@pytest.mark.slow
@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.sampled(12)
def test_every_method_hands_out_each_position_once_whoever_comes_and_goes(method: str):
    """An epoch budget is met exactly, with crashes by law on all nodes; nobody is left waiting; the same seed, the same trace."""
    up = {"distribution": "gamma", "a": 4.0, "scale": 5.0}
    down = {"distribution": "gamma", "a": 4.0, "scale": 1.0}
    away = world({"nodes": "all", "seconds_to_crash": up, "seconds_to_repair": down}, nodes=4, detection=0.5, regroup=0.25)
    away["faults"]["checkpoint"] = {"every": 8.0, "seconds": 0.25, "restart_seconds": 0.5}

    steps = {"local_sgd": 2, "diloco": 2, "muloco": 2, "sparse_loco": 2, "streaming_diloco": 4}  # between two averages
    few = [f"coordination.period={steps[method]}"] if method in steps else []

    few += ["coordination.num_regions=2", "coordination.merge_every=3"] if method == "halos" else []

    runs = [run(f"method={method}", *few, on=away, batch_size=16, budget={"epochs": 2}, workload={"num_samples": 100}) for _ in range(2)]

    its = runs[0]
    last = its.simulation.history.last
    assert its.rows("down")
    assert last.num_samples + last.num_samples_discarded == 200
    if not last.num_samples_discarded:
        assert tiles([c.batch for c in kept(its)], 200)
    assert its.rows() == runs[1].rows()


@pytest.mark.slow
@examples(60)
@given(data=st.data())
def test_whatever_happens_to_whom_no_position_is_lost(data: st.DataObject):
    """Random absences of three workers, any coordination: the run ends, or says that the cluster died."""
    schedule: list[dict[str, Any]] = []
    for rank in range(3):
        at = sorted(data.draw(st.lists(st.integers(1, 160), max_size=4, unique=True)))
        schedule += [{"nodes": [rank], "crash": a / 8, "repair": b / 8} for a, b in zip(at[::2], at[1::2], strict=False)]
        if len(at) % 2:
            schedule.append({"nodes": [rank], "leave": at[-1] / 8})
    method = data.draw(
        st.sampled_from(["asgd", "ssgd", "ssp", "backup", "softsync", "od_sgd", "pipe_sgd", "local_sgd", "dbs_sgd", "halos"])
    )
    detection = data.draw(st.sampled_from([0.0, 0.125, 1.5]))
    away = world(*schedule, detection=detection, regroup=detection / 2, seconds_per_update=0.125)

    try:
        few = ["coordination.period=2", "coordination.num_regions=2", "coordination.merge_every=2"] if method == "halos" else []
        its = run(f"method={method}", *few, on=away, batch_size=6, budget={"epochs": 1}, workload={"num_samples": 50})
    except RunFailed as error:
        if {rank for row in schedule for rank in row["nodes"] if "leave" in row} != {0, 1, 2}:
            raise
        if "every node of the cluster is gone" not in str(error):
            raise
        return

    last = its.simulation.history.last
    assert last.num_samples + last.num_samples_discarded == 50
    assert its.seconds == sorted(its.seconds)


def contribution(rank: int) -> Contribution:
    """A gradient of this rank."""
    return Contribution(rank, Batch(0, 1), 0, 1.0, 0.0)


@pytest.mark.parametrize("admission", [Barrier(), Backup(spares=0)])
def test_what_a_lost_worker_had_brought_counts_and_does_not_stand_for_another(admission: Barrier | Backup):
    """0 arrives and is lost, 1 arrives: 2 is still waited for."""
    state, _ = admission.arrived(admission.initial(3), contribution(0))
    state, left = admission.worker_left(state, 0)
    state, second = admission.arrived(state, contribution(1))
    state, third = admission.arrived(state, contribution(2))

    assert (left, second) == (Decision(), Decision())
    assert [c.rank for c in third.apply] == [0, 1, 2]


@pytest.mark.parametrize("admission", [Barrier(), Backup(spares=0), SoftSync(n=1)])
def test_who_joins_again_is_a_member_again(admission: Any):
    """As if it had never left."""
    left, _ = admission.worker_left(admission.initial(3), 1)

    assert left != admission.initial(3)
    assert admission.worker_joined(left, 1) == admission.initial(3)


def test_who_joins_a_bounded_staleness_stands_with_the_slowest():
    """It holds nobody back but those whom the slowest holds back."""
    ssp = BoundedStaleness(bound=1)
    state = ssp.initial(3)
    for rank in (0, 0, 1):
        state, _ = ssp.arrived(state, contribution(rank))
    state, _ = ssp.worker_left(state, 2)

    assert ssp.worker_joined(state, 2).num_steps == {0: 2, 1: 1, 2: 1}
