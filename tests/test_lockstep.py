"""One program for all ranks makes the run that the simulation makes event by event, to the last bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from worlds import Row, cluster, experiment, node, rows_of

from hetsim.cluster.compute_times import StepTimes
from hetsim.cluster.distributions import BLOCK, Distribution
from hetsim.cluster.model import SlowSpells
from hetsim.coordination.all_reduce import SynchronousAllReduce
from hetsim.coordination.plan import Plan
from hetsim.coordination.state import State
from hetsim.effects import Commit, Contribution, Gradient, Node, Now, Program, Start, Update, Wait
from hetsim.runtime.experiment import Experiment
from hetsim.runtime.rank import Checkpoint
from hetsim.runtime.recording import metrics
from hetsim.runtime.recording.recorder import Recorder
from hetsim.runtime.recording.trace import Trace
from hetsim.sim.lockstep import stretch
from hetsim.sim.lockstep.plan import ALL_RANKS
from hetsim.sim.lockstep.stretch import Stretch
from hetsim.sim.lockstep.times import VectorizedTimes
from hetsim.sim.lockstep.world import LockstepWorld
from hetsim.sim.world import EventWorld
from hetsim.vector import Phantom
from hetsim.workloads.phantom import PhantomTask

NETWORK = {"latency_seconds": 1e-3, "bytes_per_second": 1e6}
LOGNORMAL = {"distribution": "lognorm", "s": 0.3}
GAMMA = {"distribution": "gamma", "a": 4.0, "scale": 0.25}
NODES: list[dict[str, Any]] = [
    node(4e-3, 2e-3, seconds_per_update=1e-3),
    node(1e-3, 5e-3, seconds_per_update=7e-3, seconds_per_local_update=3e-3, overlap_seconds_per_byte=4e-7),
    node(2e-3),
    node(3e-3, 1e-3, seconds_per_update=1e-4, overlap_seconds_per_byte=1e-3),
]
NOISY = [{**NODES[0], "noise": LOGNORMAL}, {**NODES[1], "noise": GAMMA}, NODES[2], {**NODES[3], "noise": LOGNORMAL}]
JITTERY = {**NETWORK, "jitter_seconds": {"distribution": "expon", "scale": 2e-3}}
CLUSTERS = {"steady": cluster(*NODES, network=NETWORK), "noisy": cluster(*NOISY, network=JITTERY)}
BUDGETS: dict[str, dict[str, Any]] = {
    "updates": {"updates": 13},
    "epochs, a last batch for two of four": {"epochs": 2.57},
    "seconds": {"seconds": 0.9},
    "less than a batch": {"epochs": 0.02},
}
"""100 samples an epoch, batches of 40: of 257 positions 17 are left behind six batches, of 2 none."""

DELAYED = {"coordination": {"warm_up": 2}}
METHODS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "ssgd": (("method=ssgd",), {}),
    "fixed": (("method=ssgd", "allocation=fixed"), {"allocation": {"parts": [1, 3, 2, 2]}}),
    "dbs": (("method=dbs",), {}),
    "dbs every epoch": (("method=dbs", "allocation=dbs_per_epoch"), {}),
    "dbs every third update": (("method=ssgd", "allocation=dbs"), {"allocation": {"reallocate_every": 3}}),
    "overlapped": (("method=ssgd", "coordination=overlapped_all_reduce"), {"coordination": {"bucket_bytes": 1700}}),
    "overlapped, dbs": (("method=dbs", "allocation=dbs", "coordination=overlapped_all_reduce"), {"coordination": {"bucket_bytes": 3000}}),
    "omnilearn": (("method=omnilearn",), {}),
    "lb_bsp": (("method=lb_bsp",), {}),
    "optperf": (("method=optperf",), {"allocation": {"probes": 2}}),
    "dbs, measured before": (("method=dbs",), {"allocation": {"repetitions": 2}}),
    "optperf, rechecked": (("method=optperf",), {"allocation": {"probes": 1, "recheck_steps": 2, "dead_band": 0.0}}),
    "optperf, measured before": (("method=optperf",), {"allocation": {"probes": 2, "repetitions": 3}}),
    "ata": (("method=ata",), {"allocation": {"eta": 0.1}}),
    "ata, measured before": (("method=ata",), {"allocation": {"eta": 0.05, "samples_per_task": 8, "repetitions": 2}}),
    "ata, overlapped": (("method=ata", "coordination=overlapped_all_reduce"), {"coordination": {"bucket_bytes": 3000}}),
    "static": (("method=static",), {}),
    "hetgrad": (("method=hetgrad",), {}),
    "local_sgd": (("method=local_sgd",), {"coordination": {"period": 3}}),
    "local_sgd, dbs": (("method=local_sgd", "allocation=dbs"), {"coordination": {"period": 3}}),
    "diloco": (("method=diloco",), {"coordination": {"period": 2}}),
    "muloco": (("method=muloco",), {"coordination": {"period": 2}}),
    "sparse_loco": (("method=sparse_loco",), {"coordination": {"period": 2}}),
    "streaming_diloco": (("method=streaming_diloco",), {"coordination": {"period": 4}}),
    "streaming_diloco, dbs": (("method=streaming_diloco", "allocation=dbs"), {"coordination": {"period": 9, "fragments": 3, "delay": 2}}),
    "pipe_sgd": (("method=pipe_sgd",), DELAYED),
    "od_sgd": (("method=od_sgd", "coordination=one_step_delay_all_reduce"), DELAYED),
    "od_sgd, dc": (("method=od_sgd", "coordination=one_step_delay_all_reduce", "compensation=dc_adaptive"), DELAYED),
    "abs_sgd": (("method=abs_sgd",), DELAYED),
    "abs_sgd, dbs every third update": (("method=abs_sgd", "allocation=dbs"), {**DELAYED, "allocation": {"reallocate_every": 3}}),
}


def described(method: str, **keys: Any) -> Experiment:
    """A timing-only run of 40 samples a batch, 100 an epoch, with a vector of 8 kB."""
    choices, own = METHODS.get(method, ((f"method={method}",), {}))
    sizes = {"num_parameters": 2000, "num_samples": 100}
    return experiment(*choices, "workload=phantom", workload=sizes, batch_size=40, **{**own, **keys})


@dataclass
class Reported(Recorder):
    """All that a run reports: its checkpoints, its trace's rows in order, what each worker did, the summary."""

    commits: list[tuple[float, State, list[Contribution]]] = field(default_factory=list)
    checkpoints: list[Checkpoint] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    activity: list[metrics.RankActivity] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    profile_seconds: float = 0.0
    leaders: list[int] = field(default_factory=list)
    num_restarts: int = 0

    def commit(self, seconds: float, rank: int, state: State, applied: Sequence[Contribution]) -> None:
        """Remember it."""
        assert type(seconds) is float
        self.leaders.append(rank)
        self.commits.append((seconds, state.evolve(outstanding=tuple(state.outstanding)), list(applied)))

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Reported)
        assert self.commits == other.commits
        assert self.checkpoints == other.checkpoints
        assert self.rows == other.rows
        assert self.activity == other.activity
        assert (self.summary, self.profile_seconds) == (other.summary, other.profile_seconds)
        assert (self.leaders, self.num_restarts) == (other.leaders, other.num_restarts)
        return True


def reported(
    kind: type[EventWorld] | type[LockstepWorld], described: Experiment, checkpoint: Checkpoint | None = None, *, keep: bool = True
) -> Reported:
    """Run it, event by event or in lockstep."""
    seen, trace = Reported(), Trace(None, "full")
    keeper = seen.checkpoints.append if keep else None
    world = kind(described, *described.load(), [trace, seen], checkpoint=checkpoint, keep=keeper)
    world.run()
    seen.num_restarts = world.outcome.num_restarts
    seen.rows = sorted(rows_of(trace))
    seen.summary = world.metrics.summary()
    seen.activity = list(world.metrics.activity)
    seen.profile_seconds = world.record.profile_seconds
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("nodes", CLUSTERS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.sampled(24)
def test_lockstep_is_the_simulation_to_the_last_bit(method: str, nodes: str, budget: str):
    """Every commit with its state and what it is made of, every row of the trace, every worker's sums, the summary."""
    made = described(method, cluster=CLUSTERS[nodes], budget=BUDGETS[budget])

    assert LockstepWorld.suits(made, made.load()[0])
    assert reported(LockstepWorld, made) == reported(EventWorld, made)


@pytest.mark.parametrize("method", ["ssgd", "dbs", "hetgrad", "local_sgd", "pipe_sgd"])
def test_nodes_on_shares_of_a_core_are_the_simulations_too(method: str):
    """Shares by which no float is divided exactly, one of them of two nodes of a row."""
    first, *others = NOISY
    shares = cluster({**first, "count": 2, "cpu_quota": 0.3}, *({**one, "cpu_quota": 0.7} for one in others), network=NETWORK)
    made = described(method, cluster=shares, budget={"epochs": 2.57})

    assert reported(LockstepWorld, made) == reported(EventWorld, made)


CHANGING: dict[str, dict[str, Any]] = {
    "measured": {"table": ((4, 0.03), (10, 0.05), (30, 0.2))},
    "disturbed": {
        "slow_spells": SlowSpells(factor=3.0, seconds_between=Distribution("expon", {"scale": 0.1}), seconds_lasting=Distribution("expon"))
    },
    "in passes": {"micro_batch": 3},
    "loading": {"loading": 0.01},
    "throttled": {"slowdown": ((0.0, 1.0), (0.1, 2.5), (0.3, 1.0))},
}


def unlike(made: Experiment, nodes: str) -> Experiment:
    """The same with two nodes whose times are not affine: rank 1's as named, rank 3's throttled."""
    first, second, third, fourth = made.cluster.nodes
    others = (first, replace(second, **CHANGING[nodes]), third, replace(fourth, **CHANGING["throttled"]))
    return replace(made, cluster=replace(made.cluster, nodes=others))


@pytest.mark.parametrize("nodes", CHANGING)
@pytest.mark.parametrize("method", ["ssgd", "dbs", "static", "local_sgd", "od_sgd"])
def test_nodes_that_change_their_speed_are_asked_one_by_one(method: str, nodes: str):
    """Spells and recorded slowdowns beside plain nodes, tables and loaders; updates are slowed down too."""
    made = unlike(described(method, cluster=CLUSTERS["noisy"], budget={"epochs": 2.57}), nodes)

    assert reported(LockstepWorld, made) == reported(EventWorld, made)


def test_of_equal_nodes_one_is_asked_once(monkeypatch: pytest.MonkeyPatch):
    """Five of each kind, 4 samples each, twelve times."""
    asked: list[int] = []
    once = StepTimes.seconds
    monkeypatch.setattr(StepTimes, "seconds", lambda self, samples, *start: [asked.append(samples), once(self, samples, *start)][1])
    nodes = cluster(
        {"count": 5, "table": ((1, 0.1), (9, 0.4))}, {"count": 5, "seconds_per_sample": 0.1, "overhead_seconds": 0}, network=NETWORK
    )

    reported(LockstepWorld, described("ssgd", cluster=nodes, budget={"updates": 12}))

    assert asked == [4, 4]


@pytest.mark.parametrize("quantity", ["seconds", "update_seconds"])
@pytest.mark.parametrize("method", ["ssgd", "local_sgd"])
def test_a_new_property_of_nodes_is_not_ignored(method: str, quantity: str, monkeypatch: pytest.MonkeyPatch):
    """Whatever StepTimes says is asked: twice the seconds make another run, the same one in lockstep and event by event."""
    made = described(method, cluster=CLUSTERS["noisy"], budget={"updates": 5})
    before = reported(LockstepWorld, made)
    once = getattr(StepTimes, quantity)
    monkeypatch.setattr(StepTimes, quantity, lambda self, *asked, **local: 2 * once(self, *asked, **local))

    twice = reported(LockstepWorld, made)

    assert twice == reported(EventWorld, made)
    assert twice.summary["seconds"] > before.summary["seconds"]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ssgd", "dbs", "local_sgd", "od_sgd", "abs_sgd"])
def test_a_run_goes_on_from_any_commit_as_the_simulation_does(method: str):
    """Streams of chance, versions and epochs go on where they were; what was under way is handed out again."""
    made = unlike(described(method, cluster=CLUSTERS["noisy"], budget={"epochs": 5.57}), "measured")
    whole = reported(LockstepWorld, made)

    for checkpoint in whole.checkpoints[:-1:4]:
        assert reported(LockstepWorld, made, checkpoint) == reported(EventWorld, made, checkpoint)


@pytest.mark.slow
@examples(40)
@given(st.data())
def test_lockstep_is_the_simulation_on_any_small_cluster(data: st.DataObject):
    """One to six nodes of any speed, with noise or without; any method, budget and network."""
    numbers = st.floats(1e-4, 1e-1)
    nodes = data.draw(
        st.lists(
            st.builds(
                lambda per_sample, overhead, update, local, noise, overlap: node(
                    per_sample,
                    overhead,
                    seconds_per_update=update,
                    seconds_per_local_update=local,
                    noise=noise,
                    overlap_seconds_per_byte=overlap,
                ),
                numbers,
                st.just(0.0) | numbers,
                st.just(0.0) | numbers,
                st.none() | st.just(0.0) | numbers,
                st.sampled_from([None, LOGNORMAL, GAMMA]),
                st.sampled_from([0.0, 0.0, 1e-7, 1e-5, 1.0]),
            ),
            min_size=1,
            max_size=6,
        )
    )
    method = data.draw(st.sampled_from([method for method in METHODS if method != "fixed"]))
    budget = data.draw(
        st.one_of(
            st.builds(lambda epochs: {"epochs": epochs}, st.floats(0.01, 4.0)),
            st.builds(lambda updates: {"updates": updates}, st.integers(1, 12)),
            st.builds(lambda seconds: {"seconds": seconds}, st.floats(0.01, 1.5)),
        )
    )
    network = {"latency_seconds": data.draw(st.just(0.0) | numbers), "bytes_per_second": data.draw(st.sampled_from([1e5, 1e300]))}
    made = described(method, cluster=cluster(*nodes, network=network), budget=budget, seed=data.draw(st.integers(0, 3)))

    assert reported(LockstepWorld, made) == reported(EventWorld, made)


SOMETIMES = {"distribution": "expon", "scale": 4.0}
SHORTLY = {"distribution": "expon", "scale": 0.4}
FAULTS: dict[str, dict[str, Any]] = {
    "drawn": {
        "schedule": [{"nodes": "all", "seconds_to_crash": SOMETIMES, "seconds_to_repair": SHORTLY}],
        "checkpoint": {"every": 0.3, "seconds": 0.05, "restart_seconds": 0.2},
    },
    "scheduled": {
        "schedule": [
            {"nodes": [1], "join": 0.7},
            {"nodes": [0], "crash": 1.33, "repair": 2.2},
            {"nodes": "all", "crash": 3.1, "repair": 3.4},
            {"nodes": [2], "stop": 4.5, "continue": 4.6},
        ],
        "detection_seconds": 0.1,
        "regroup_seconds": 0.2,
    },
}


@pytest.mark.parametrize("faults", FAULTS)
@pytest.mark.parametrize("nodes", CLUSTERS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.sampled(15)
def test_between_two_changes_of_its_nodes_a_run_is_the_same_in_lockstep(
    method: str, nodes: str, faults: str, monkeypatch: pytest.MonkeyPatch
):
    """Commits, rows and sums, over losses, returns, checkpoints and restarts. Delayed methods have something under way at commits."""
    made = described(method, cluster={**CLUSTERS[nodes], "faults": FAULTS[faults]}, budget={"seconds": 5.5}, seed=3)
    monkeypatch.setattr(stretch, "MIN_MEMBERS", 1)
    stretches: list[bool] = []
    begin = Stretch.begin.__func__
    monkeypatch.setattr(Stretch, "begin", classmethod(lambda *world: [stretches.append(it := begin(*world)), it][1]))

    in_stretches = reported(EventWorld, made, keep=False)
    assert any(stretches) == vars(type(made.coordination)).get("begins_at_commits", False)
    monkeypatch.setattr(Stretch, "suits_members", lambda _: False)

    assert in_stretches == reported(EventWorld, made, keep=False)


@pytest.mark.parametrize("begins", [0, 150])
def test_whoever_is_not_asked_keeps_its_next_number(begins: int):
    """Over many blocks, with ranks left out at random, also of a resumed run: each node's times are its own stream's, in order."""
    nodes = unlike(described("ssgd", cluster=CLUSTERS["noisy"]), "measured").cluster.nodes
    alone = [StepTimes(one, seed=5, rank=rank) for rank, one in enumerate(nodes)]
    positions = [begins + 40 * rank for rank in range(len(nodes))]
    for times, position in zip(alone, positions, strict=True):
        times.skip(position)
    vectorized = VectorizedTimes(nodes, seed=5, positions=positions)
    rng = np.random.default_rng(0)

    for _ in range(3 * BLOCK):
        samples = rng.integers(0, 3, len(nodes))
        seconds = vectorized.seconds(samples, np.zeros(len(nodes)))

        assert seconds.tolist() == [one.seconds(int(b)) if b else 0.0 for one, b in zip(alone, samples, strict=True)]


@dataclass(frozen=True, kw_only=True)
class Overlapping(SynchronousAllReduce):
    """Computes a last, shorter global batch while a whole one is under way, and looks at the clock."""

    same_on_every_rank: ClassVar[bool] = True
    looked: dict[Any, Any]

    def program(self, node: Node, plan: Plan, state: State) -> Program[None]:
        """One version."""
        whole, shorter = plan.rounds(0, self.allocation.shares(state.allocation), 2)
        yield from Update(at=state.weights, gradient=state.weights)
        pending = yield from Start(Gradient(at=state.weights, batch=whole[node.rank], version=0))
        if shorter[node.rank]:
            yield from Gradient(at=state.weights, batch=shorter[node.rank], version=0)
        early = yield from Now()
        yield from Wait(pending)
        late = yield from Now()
        self.looked[id(node)] = (early, late)
        yield from Commit(1, replace(state, version=1))


def overlapping() -> tuple[Experiment, dict[Any, Any]]:
    """The above on four noisy nodes, and what it saw of the clock."""
    base = described("ssgd", cluster=CLUSTERS["noisy"], budget={"epochs": 0.57})
    policies = {
        axis: getattr(base.coordination, axis)
        for axis in ("allocation", "weighting", "discount", "compensation", "admission", "compression")
    }
    looked: dict[Any, Any] = {}
    return replace(base, coordination=Overlapping(looked=looked, **policies)), looked


def test_what_is_started_is_under_way_on_all_ranks():
    """A node computes one gradient at a time, each in its own seconds; the clock shows every rank's own."""
    (one, at_once), (other, one_by_one) = overlapping(), overlapping()

    assert reported(LockstepWorld, one) == reported(EventWorld, other)
    ((early, late),) = at_once.values()
    assert sorted(zip(early.tolist(), late.tolist(), strict=True)) == sorted(one_by_one.values())


@dataclass(frozen=True, kw_only=True)
class Derived(SynchronousAllReduce):
    """Does not say that it is the same on every rank."""


@dataclass(frozen=True, kw_only=True)
class Partial(SynchronousAllReduce):
    """Says so, and is not."""

    same_on_every_rank: ClassVar[bool] = True

    def program(self, node: Node, plan: Plan, state: State) -> Program[None]:
        """The first rank does nothing."""
        if node.rank == 0:
            return
        yield from super().program(node, plan, state)


def of(kind: type[SynchronousAllReduce]) -> Experiment:
    """Synchronous SGD by a class of one's own."""
    base = described("ssgd", cluster=CLUSTERS["steady"], budget={"updates": 2})
    policies = {
        axis: getattr(base.coordination, axis)
        for axis in ("allocation", "weighting", "discount", "compensation", "admission", "compression")
    }
    return replace(base, coordination=kind(**policies))


def test_a_program_says_for_itself_that_it_is_the_same_on_every_rank():
    """What is derived from one that does may well not be; nor may one decide by its rank after all."""
    derived, partial = of(Derived), of(Partial)

    assert not LockstepWorld.suits(derived, derived.load()[0])
    with pytest.raises(TypeError, match="not the same on every rank"):
        reported(LockstepWorld, partial)
    with pytest.raises(TypeError):
        [0, 1][ALL_RANKS]


def test_servers_and_vectors_of_numbers_are_played_event_by_event():
    """There each rank has something of its own."""
    server, alone = described("asgd", cluster=CLUSTERS["steady"]), described("ssgd", cluster=CLUSTERS["steady"])

    assert not LockstepWorld.suits(server, server.load()[0])
    assert not LockstepWorld.suits(alone, Numbers(Phantom(4), 100))


class Numbers(PhantomTask):
    """Has a number for its weights."""

    def initial(self) -> Any:
        return 0.5
