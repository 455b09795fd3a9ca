"""Admission at work: the server in virtual time under every rule of what it applies and whom it frees."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from typing import Any

import pytest
from methods import DROPPING
from test_programs_by_hand import PLAIN, exchange, finished, gradient, ready
from worlds import UNEVEN, Run, cluster, experiment, node, simulate, tiles

from hetsim.coordination.parameter_server import ParameterServer
from hetsim.coordination.plan import Plan
from hetsim.effects import Batch, Node, PeerLost, Receive
from hetsim.policies.admission import Admission, Barrier, BoundedStaleness, Decision, SoftSync
from hetsim.runtime.experiment import Experiment

ADMISSIONS: dict[str, dict[str, Any]] = {
    "ssp": {"bound": 1},
    "softsync": {"n": 1},
    "backup": {"spares": 1},
    "ringmaster": {"max_delay": 2},
    "barrier": {},
    "rennala": {"batch": 2},
    "malenia": {},
}
ALONE: dict[str, dict[str, Any]] = {**ADMISSIONS, "backup": {"spares": 0}}
BUDGETS: dict[str, dict[str, Any]] = {"updates": {"updates": 11}, "seconds": {"seconds": 0.1}, "epochs": {"epochs": 3.5}}
ONE = {**UNEVEN, "nodes": UNEVEN["nodes"][:1]}
LINK = {"latency_seconds": 0.125, "bytes_per_second": 64.0, "sharing": "none"}
READY, MESSAGE = 0.125, 0.125 + 32 / 64
EVERY_ADMISSION = pytest.mark.parametrize("admission", ADMISSIONS)
EVERY_BUDGET = pytest.mark.parametrize("budget", BUDGETS)
NOISE = {"distribution": "lognorm", "s": 0.1}


def served(rule: str, *, on: str = "phantom", **keys: Any) -> Experiment:
    """A server with this admission, plain SGD, and 90 samples an epoch."""
    keys = {"workload": {"num_parameters": 8, "num_samples": 90}, "batch_size": 31, "admission": ADMISSIONS.get(rule, {}), **keys}
    return experiment("method=asgd", f"admission={rule}", f"workload={on}", **keys)


@pytest.fixture
def dropped(monkeypatch: pytest.MonkeyPatch) -> list[Batch]:
    """The ranges of the gradients that admission has dropped so far."""
    ranges: list[Batch] = []

    def listening(kind: type[Admission]) -> None:
        arrived = kind.arrived

        def told(self: Admission, state: Any, contribution: Any) -> tuple[Any, Decision]:
            state, decision = arrived(self, state, contribution)
            ranges.extend(c.batch for c in decision.drop)
            return state, decision

        monkeypatch.setattr(kind, "arrived", told)

    kinds: list[type[Admission]] = [Admission]
    for kind in kinds:
        kinds += kind.__subclasses__()
        if "arrived" in vars(kind):
            listening(kind)
    return ranges


def applied(run: Run) -> list[Batch]:
    """The ranges that went into versions."""
    return [c.batch for group in run.applied for c in group]


def staleness(run: Run, *, after: int = 0) -> list[int]:
    """Of every gradient applied behind so many updates."""
    return [c.staleness for group in run.applied[after:] for c in group]


@pytest.mark.slow
@pytest.mark.parametrize(("workload", "workers"), [("phantom", 3), ("quadratic", 1)])
@EVERY_BUDGET
@EVERY_ADMISSION
@pytest.mark.sampled(24)
def test_everyone_is_sent_home_when_the_budget_ends(admission: str, budget: str, workers: int, workload: str):
    """No rank still waits, whoever was held back; updates are met exactly, and the first commit behind the seconds is the last."""
    parameters = (ALONE if workers == 1 else ADMISSIONS)[admission]
    where = ONE if workers == 1 else UNEVEN

    run = simulate(served(admission, on=workload, cluster=where, admission=parameters, budget=BUDGETS[budget]))

    assert all(process.done for process in run.simulation.processes)
    assert [state.version for state in run.states] == list(range(1, len(run.states) + 1))
    if budget == "updates":
        assert run.states[-1].version == 11
    if budget == "seconds":
        assert run.seconds[-2] < 0.1 <= run.seconds[-1]


@EVERY_BUDGET
@pytest.mark.parametrize("bound", [0, 1, 3])
def test_a_worker_held_back_by_ssp_at_the_end_is_sent_home(bound: int, budget: str):
    """The fast ones wait for a slow one while the last commit is made by a third."""
    workers = cluster(node(1e-5), node(2e-3), node(1e-4), node(2.1e-3), seconds_per_update=1e-5)

    run = simulate(served("ssp", admission={"bound": bound}, cluster=workers, budget=BUDGETS[budget]))

    assert all(process.done for process in run.simulation.processes)


@pytest.mark.slow
@pytest.mark.parametrize("updates", range(1, 13))
@EVERY_ADMISSION
@pytest.mark.sampled(24)
def test_everyone_is_sent_home_whoever_makes_the_last_version(admission: str, updates: int):
    """At whichever version the budget ends; behind it no step is taken."""
    run = simulate(served(admission, on="quadratic", cluster=UNEVEN, budget={"updates": updates}))

    assert run.states[-1].version == run.num_steps == updates
    assert all(process.done for process in run.simulation.processes)


def test_who_is_held_back_goes_home_at_the_last_commit():
    """By hand: under ssp with bound 0 the first two wait for the third, and the server does not wait for it to tell them."""
    method = ParameterServer(**{**PLAIN, "admission": BoundedStaleness(bound=0)})
    plan = Plan(num_workers=3, batch_size=6)
    program = method.program(Node(3, 3), plan, method.initial(plan, 10.0))

    asked = exchange(
        program,
        *(ready(0), None, ready(1), None, ready(2), None),
        *(gradient(0, 1.0, version=0), 9.0, True),
        *(gradient(1, 2.0, version=0), 7.0, False, None, None),
        gradient(2, 3.0, version=0),
    )

    home = {"version": 2, "batch": Batch(6, 0)}
    assert asked[-5:] == [
        ("commit", 2, 7.0, 6, 4, [(1, 2, 1)]),
        ("send", 0, None, home),
        ("send", 1, None, home),
        Receive(),
        ("send", 2, None, home),
    ]
    assert finished(program, None)


@pytest.mark.parametrize("order", [(1, 0, 2), (2, 0, 1)], ids=str)
def test_behind_a_barrier_the_first_ranges_go_by_rank(order: tuple[int, ...]) -> None:
    """Not by who asks first, which in real processes is chance."""
    plan = Plan(num_workers=3, batch_size=6, num_positions=12)
    coordination = ParameterServer(**PLAIN, admission=Barrier())
    program = coordination.program(Node(3, 3), plan, coordination.initial(plan, 10.0))
    program.send(None)

    handed = {}
    for rank in order:
        sent = program.send(ready(rank))
        handed[sent.to] = sent.header["batch"]
        program.send(None)

    assert handed == {0: Batch(0, 2), 1: Batch(2, 2), 2: Batch(4, 2)}


def test_without_a_barrier_the_first_ranges_go_to_who_asks_first() -> None:
    """A version may be there before another worker has asked: its range is then one of that version."""
    plan = Plan(num_workers=3, batch_size=6, num_positions=12)
    coordination = ParameterServer(**PLAIN, admission=SoftSync(n=1))
    program = coordination.program(Node(3, 3), plan, coordination.initial(plan, 10.0))
    program.send(None)

    assert program.send(ready(2)).header["batch"] == Batch(0, 2)


def test_behind_a_barrier_the_range_of_who_is_lost_before_it_asks_is_for_the_next() -> None:
    """It is handed out again first, as any other of a lost worker."""
    plan = Plan(num_workers=3, batch_size=6, num_positions=12)
    coordination = ParameterServer(**PLAIN, admission=Barrier())
    program = coordination.program(Node(3, 3), plan, coordination.initial(plan, 10.0))
    program.send(None)
    program.throw(PeerLost.of(1))
    assert program.send(ready(2)).header["batch"] == Batch(2, 2)


@EVERY_ADMISSION
def test_every_position_is_applied_or_dropped_once(admission: str, dropped: list[Batch]):
    """Together they cover three and a half epochs, and each was computed once; only the rules that drop do so."""
    run = simulate(served(admission, cluster=UNEVEN, budget={"epochs": 3.5}))

    assert tiles(applied(run) + dropped, 315)
    assert tiles(run.computed, 315)
    assert bool(dropped) == (admission in DROPPING)


@EVERY_BUDGET
@EVERY_ADMISSION
def test_dropped_samples_are_counted_at_every_commit(admission: str, budget: str, dropped: list[Batch]):
    """num_samples_discarded is what was dropped so far; what is neither applied nor that is in flight."""
    so_far: list[int] = []

    def note(*_: Any) -> None:
        so_far.append(sum(batch.samples for batch in dropped))

    run = simulate(served(admission, cluster=UNEVEN, budget=BUDGETS[budget]), at_commit=note)

    assert [state.num_samples_discarded for state in run.states] == so_far
    assert [state.num_samples for state in run.states] == list(accumulate(sum(c.samples for c in group) for group in run.applied))
    assert [state.num_samples_in_flight for state in run.states] == [sum(b.samples for b in state.outstanding) for state in run.states]


@pytest.mark.slow
@EVERY_ADMISSION
def test_a_new_start_applies_or_drops_every_position_that_is_left(admission: str, dropped: list[Batch]):
    """From the checkpoint of every version: what was in flight is handed out again, nothing twice, and versions go on."""
    described = served(admission, on="quadratic", cluster=UNEVEN, budget={"epochs": 3.5})
    num_dropped: list[int] = []
    whole = simulate(described, at_commit=lambda *_: num_dropped.append(len(dropped)), saved=True)
    dropped_before = list(dropped)

    assert len(whole.checkpoints) == len(whole.states)
    for stop, checkpoint in enumerate(whole.checkpoints):
        dropped.clear()
        rest = simulate(described, checkpoint=checkpoint, saved=True)

        before = [c.batch for group in whole.applied[: stop + 1] for c in group] + dropped_before[: num_dropped[stop]]
        assert tiles(before + applied(rest) + dropped, 315)
        assert [after.version for after in rest.states] == list(range(stop + 2, stop + 2 + len(rest.states)))


@pytest.mark.slow
@pytest.mark.parametrize("admission", ["ssp", "softsync", "barrier"])  # the others may drop all that a slow worker does
def test_a_finished_run_can_be_continued_with_a_larger_budget(admission: str):
    """Every worker takes part again, though all had left, and a round is of all three where it was."""
    short, long = (served(admission, on="quadratic", cluster=UNEVEN, budget={"epochs": epochs}) for epochs in (1.5, 3.5))
    first = simulate(short, saved=True)

    more = simulate(long, checkpoint=first.checkpoints[-1], saved=True)

    assert {c.rank for group in more.applied[:6] for c in group} == {0, 1, 2}
    if admission in ("softsync", "barrier"):
        assert {len(group) for group in more.applied[:-1]} == {3}


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 5, 30])
def test_softsync_is_n_versions_late_on_average_and_hardly_ever_more_than_2n(n: int):
    """30 equal noisy workers, arXiv 1511.05950: mean staleness (N−1)n/N within a tenth, and P(τ > 2n) < 1e-3."""
    workers = cluster(node(1.0, count=30, noise=NOISE))
    size = 30 // n

    run = simulate(served("softsync", admission={"n": n}, cluster=workers, batch_size=30, budget={"updates": 4000 // size}))

    taus = staleness(run, after=4 * n)
    assert {len(group) for group in run.applied} == {size}
    assert abs(sum(taus) / len(taus) - 29 * n / 30) < 0.1 * 29 * n / 30
    assert sum(tau > 2 * n for tau in taus) / len(taus) < 1e-3


@pytest.mark.parametrize("num_workers", [2, 5, 30])
def test_1_softsync_is_not_synchronous(num_workers: int):
    """Equal noiseless workers go on at once, so all but the one that completes the round are one version late: mean (N−1)/N."""
    workers = cluster(node(1.0, count=num_workers))

    run = simulate(served("softsync", admission={"n": 1}, cluster=workers, batch_size=num_workers, budget={"updates": 20}))

    assert [c.staleness for c in run.applied[0]] == [0] * num_workers
    assert all(sorted(c.staleness for c in group) == [0] + [1] * (num_workers - 1) for group in run.applied[1:])


@pytest.mark.parametrize("num_workers", [1, 2, 7])
def test_equal_asgd_workers_are_n_minus_1_versions_late(num_workers: int):
    """Behind the first N updates, however long the server takes; n-softsync with n = N is the same run."""
    workers = cluster(node(0.5, 0.25, count=num_workers), network=LINK, seconds_per_update=0.125)
    keys: dict[str, Any] = {"cluster": workers, "batch_size": num_workers, "budget": {"updates": 10 * num_workers}}

    asgd = simulate(served("every_gradient", **keys))
    softsync = simulate(served("softsync", admission={"n": num_workers}, **keys))

    assert set(staleness(asgd, after=num_workers)) == {num_workers - 1}
    assert staleness(asgd)[:num_workers] == list(range(num_workers))
    assert (softsync.seconds, softsync.applied) == (asgd.seconds, asgd.applied)


@pytest.mark.parametrize("seconds_per_update", [0.0, 0.125, 0.5, 2.0])
@pytest.mark.parametrize("per_sample", [(1.0, 3.0), (0.25, 0.5, 4.0), (0.125, 0.125, 0.125, 8.0)])
def test_asgd_is_never_faster_than_its_workers_or_its_server(per_sample: tuple[float, ...], seconds_per_update: float):
    """At most Σ 1/cycle and at most 1/seconds_per_update updates a second, to every commit; a server that is free makes all of them."""
    workers = cluster(*(node(seconds) for seconds in per_sample), network=LINK, seconds_per_update=seconds_per_update)
    sizes = {"num_parameters": 8, "num_samples": 60_000}

    run = simulate(served("every_gradient", cluster=workers, batch_size=len(per_sample), workload=sizes, budget={"updates": 200}))

    cycles = [seconds + 2 * MESSAGE + seconds_per_update for seconds in per_sample]
    by_workers = [sum((now - READY) // cycle for cycle in cycles) for now in run.seconds]
    assert all(version <= most for version, most in enumerate(by_workers, 1))
    assert all(version * seconds_per_update <= now for version, now in enumerate(run.seconds, 1))
    if not seconds_per_update:
        last_of_each_moment = dict(zip(run.seconds[:-1], zip(range(1, 200), by_workers, strict=False), strict=True))
        assert all(version == most for version, most in list(last_of_each_moment.values())[:-1])


@pytest.mark.parametrize("bound", [0, 1, 4])
def test_ssp_lets_nobody_run_more_than_its_bound_ahead(bound: int):
    """Who has begun a step is at most `bound` ahead of the slowest, so who has ended it bound + 1; and a fast one gets there."""
    workers = cluster(node(1.0, noise=NOISE), node(0.1, noise=NOISE), node(0.3, noise=NOISE))
    steps: Counter[int] = Counter(dict.fromkeys(range(3), 0))
    ahead: list[int] = []

    run = simulate(served("ssp", admission={"bound": bound}, cluster=workers, batch_size=3, budget={"updates": 100}))
    for group in run.applied:
        steps.update(c.rank for c in group)
        ahead.append(max(steps.values()) - min(steps.values()))

    assert max(ahead) == bound + 1


def test_ssp_without_a_bound_is_asgd():
    """And with bound 0 nobody begins a step before all have ended the last."""
    keys: dict[str, Any] = {"cluster": UNEVEN, "budget": {"updates": 60}}

    unbound, asgd, zero = (
        simulate(served(admission, admission=parameters, **keys))
        for admission, parameters in (("ssp", {"bound": None}), ("every_gradient", {}), ("ssp", {"bound": 0}))
    )

    assert (unbound.seconds, unbound.applied) == (asgd.seconds, asgd.applied)
    ranks = [group[0].rank for group in zero.applied]
    assert all(sorted(ranks[start : start + 3]) == [0, 1, 2] for start in range(0, 60, 3))


def test_spares_make_noisy_nodes_faster_and_are_dropped(dropped: list[Batch]):
    """Eight noisy equal nodes: a version does not wait for the slowest, whose gradient is thrown away."""
    workers = cluster(node(1.0, count=8, noise={"distribution": "lognorm", "s": 0.5}))
    keys: dict[str, Any] = {"cluster": workers, "batch_size": 8, "budget": {"updates": 50}}

    barrier, none_spare = simulate(served("barrier", **keys)), simulate(served("backup", admission={"spares": 0}, **keys))
    assert dropped == []
    backup = simulate(served("backup", admission={"spares": 2}, **keys))

    assert none_spare.seconds == barrier.seconds
    assert backup.seconds[-1] < 0.8 * barrier.seconds[-1]
    assert {len(group) for group in backup.applied} == {6}
    assert set(staleness(backup)) == {0}
    assert dropped


def test_ringmaster_applies_nothing_that_is_r_versions_old(dropped: list[Batch]):
    """A node much slower than two others makes no update at all with R = 2, and all of its gradients are thrown away."""
    workers = cluster(node(1.0), node(1.0), node(10.0))

    run = simulate(served("ringmaster", admission={"max_delay": 2}, cluster=workers, batch_size=3, budget={"updates": 98}))

    assert {c.rank for group in run.applied for c in group} == {0, 1}
    assert set(staleness(run)) == {0, 1}
    assert len(dropped) == run.states[-1].num_samples_discarded == 4


@pytest.mark.parametrize("max_delay", [1, 2, 3])
def test_ringmaster_applies_what_is_r_minus_1_versions_old(max_delay: int, dropped: list[Batch]):
    """Of four equal workers the first R of each second make a version, the others are thrown away and begin anew beside them."""
    keys: dict[str, Any] = {"cluster": cluster(node(1.0, count=4)), "batch_size": 4, "budget": {"updates": 10 * max_delay}}

    run = simulate(served("ringmaster", admission={"max_delay": max_delay}, **keys))

    assert staleness(run)[:max_delay] == list(range(max_delay))
    assert set(staleness(run)) == set(range(max_delay))
    assert len(dropped) > 0
